"""The data sets of the benchmarks on static towers: pairs of texts, from the folder that
TEMPERA_DATA names."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tempera.ranking.compare import Floats, bootstrap

DATA = Path(os.environ.get("TEMPERA_DATA", "data"))
# Pairs of each set: a table with its columns and the most rows, or titles and texts of a corpus.
SETS: dict[str, tuple[str, str, str, int]] = {
    "nl2bash": ("code/nl2bash/pairs.parquet", "anchor", "positive", 12_000),
    "medquad": ("medquad/pairs.parquet", "anchor", "positive", 10_000),
    "captions": ("captions/pairs_train.parquet", "anchor", "positive", 8_000),
    "parasci": ("parasci/train.parquet", "anchor", "positive", 8_000),
    "nli": ("nli/pairs.parquet", "premise", "hypothesis", 8_000),
    "duplicates": ("duplicates/qqp_pairs.parquet", "anchor", "positive", 5_000),
    "scifact titles": ("ir/scifact/corpus.jsonl.gz", "title", "text", 6_000),
    "cacm titles": ("ir/cacm/corpus.jsonl.gz", "title", "text", 2_000),
}


def source(name: str) -> tuple[str, str, str, int]:
    """Return path, columns and most rows of one of `SETS`, or of a Parquet file with the columns
    query and document."""
    return SETS.get(name) or (str(Path(name).resolve()), "query", "document", 12_000)


def pairs_of(name: str, most: int | None = None) -> pa.Table:
    """Return pairs of a query and a document of a set, both with text, a sample of many."""
    path, query, doc, usual = source(name)
    if path.endswith(".gz"):
        with gzip.open(DATA / path, "rt", encoding="utf-8") as file:
            rows = pa.Table.from_pylist([json.loads(line) for line in file])
    else:
        rows = parquet.read_table(DATA / path)
    named = pa.table(
        {
            "query": rows[query].cast(pa.large_string()),
            "document": rows[doc].cast(pa.large_string()),
        }
    )
    kept = named.filter(
        pc.fill_null(
            pc.and_(
                pc.not_equal(named["query"], named["document"]),
                pc.not_equal(pc.utf8_trim_whitespace(named["document"]), ""),
            ),
            fill_value=False,
        )
    )
    return kept.take(pa.array(np.random.default_rng(0).permutation(len(kept))[: most or usual]))


def parser_of_sets(doc: str | None, sets: Iterable[str], seeds: int) -> argparse.ArgumentParser:
    """Return a parser of sets by name, a number of seeds and a folder."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sets", nargs="?", default=",".join(sets), help="names, separated by commas"
    )
    parser.add_argument("seeds", nargs="?", type=int, default=seeds)
    parser.add_argument("--cache", type=Path, required=True, help="folder of vectors and runs")
    return parser


def record_of(bench: str, sets: Iterable[str]) -> str:
    """Return the name of a benchmark's record, another one for files."""
    return bench if all(name in SETS for name in sets) else f"{bench}_fresh"


def measured_sets(
    names: Iterable[str], measured: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Return what is measured on each of `SETS`, or each file, by its name without ending, if it is
    there."""
    paths = {name: source(name)[0] for name in names}
    return {Path(name).stem: figures for name, figures in _measured(paths, measured).items()}


def measured_cases(
    cases: Mapping[str, tuple[str, list[str]]],
    most: int,
    measured: Callable[[Path, list[str]], dict[str, Any]],
) -> dict[str, Any]:
    """Return what is measured on the first cases, a file with options each, of which the files are
    there."""
    paths = {name: path for name, (path, _) in list(cases.items())[:most]}
    return _measured(paths, lambda name: measured(DATA / cases[name][0], cases[name][1]))


def _measured(
    paths: Mapping[str, str], measured: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    figures = {}
    for name, path in paths.items():
        if not (DATA / path).is_file():
            print(f"{name}: {DATA / path} is missing; set TEMPERA_DATA")
            continue
        figures[name] = measured(name)
        print(name, json.dumps(figures[name]), file=sys.stderr, flush=True)
    return figures


def shown(a: Floats, b: Floats) -> dict[str, float]:
    """Return the mean difference with its interval, paired by query."""
    difference = bootstrap(a, b)
    return {"mean": difference.mean, "low": difference.low, "high": difference.high}
