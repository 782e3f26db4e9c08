"""Vectors of fewer and coarser numbers: int8 and signs, trained by the straight-through estimator
against cut afterwards.

`python bench/precisions.py` trains a static tower of 512 numbers from scratch on each set of the
folder that TEMPERA_DATA names (256 pairs a batch, 5 epochs, symmetric, temperature 0.1), as it is,
at widths, and at widths and precisions, and ranks the test queries by its vectors at each width and
precision. Differences are of nDCG@10, paired by query, with 95 % intervals. int8 is compared with
two other definitions of it on the same vectors.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from _harness import Aim, finish, table
from _sets import pairs_of, shown
from tempera.engine.devices import start
from tempera.io.documents import JsonLines
from tempera.options import yaml_options as config
from tempera.options.build import build
from tempera.ranking.metrics import Relevant
from tempera.ranking.nearest import top
from tempera.ranking.ranking import Ranking
from tempera.ranking.small_vectors import BITS, RESCORED, ranked
from tempera.run.fit import fit
from tempera.run.prepare import prepare

METRIC, WIDTHS = "ndcg@10", (512, 256, 128)
NAMES = ("duplicates", "nl2bash", "captions")
OBJECTIVES: dict[str, dict[str, Any]] = {
    "plain": {},
    "widths": {"matryoshka": list(WIDTHS)},
    "widths, int8, binary": {"matryoshka": list(WIDTHS), "precisions": ["int8", "binary"]},
}
Vectors = np.ndarray


def vectors_of(
    name: str, objective: dict[str, Any], folder: Path
) -> tuple[Vectors, Vectors, Relevant, float]:
    """Return test queries, documents and answers of a trained tower, and the CPU seconds of its
    training."""
    pairs = pairs_of(name)
    share = pc.count_distinct(pairs["query"]).as_py() // 5
    options = {
        "data": {"source": "given", "identical": "drop"},
        "objective": {"preset": "symmetric", "temperature": 0.1, **objective},
        "train": {
            "batch_size": 256,
            "num_train_epochs": 5,
            "evaluations": 0,
            "learning_rate": 0.01,
        },
        "evaluation": {"queries": min(1000, share), "validation": 0, "metrics": [METRIC]},
    }
    given = build(config.of(options, []))
    with JsonLines(folder / "log.jsonl") as log:
        prepared = prepare(
            replace(given, data=given.data.hand(pairs)),
            start(given.train.mixed_precision),
            folder,
            log,
        )
        began = time.process_time()
        fit(prepared, looks=False)
        seconds = time.process_time() - began
    held_out: Any = prepared.task.held_out
    test = held_out.questions["test"]
    return held_out._queries(test), held_out.data.corpus, test.relevant, seconds


def by_other_int8(
    queries: Vectors, docs: Vectors, relevant: Relevant
) -> dict[str, dict[str, float]]:
    """Return int8 less float32 at 128 numbers, by three definitions: steps of a row, of a column,
    or of the clipped whole."""
    q, d = (
        x[:, :128] / np.linalg.norm(x[:, :128], axis=1, keepdims=True).clip(1e-12)
        for x in (queries, docs)
    )
    steps = {
        "row": np.abs(d).max(1, keepdims=True) / 127,
        "column": np.abs(d).max(0, keepdims=True) / 127,
        "4 deviations": np.full((1, 1), 4 / 128**0.5 / 127, np.float32),
    }
    whole = scores(top(q, d, 10)[1], relevant)
    differences = {}
    for name, step in steps.items():
        coarse = np.clip(np.rint(d / np.maximum(step, 1e-30)), -127, 127) * step
        coarse /= np.linalg.norm(coarse, axis=1, keepdims=True).clip(1e-12)
        differences[name] = shown(scores(top(q, coarse.astype(np.float32), 10)[1], relevant), whole)
    return differences


def scores(rows: np.ndarray, relevant: Relevant) -> np.ndarray:
    return Ranking.of(rows, relevant, [METRIC]).per_query[METRIC]


def measured(name: str) -> dict[str, Any]:
    """Return nDCG@10 of each objective at each width and precision of a set, and the differences
    that are claimed."""
    per_query: dict[tuple[str, int, str], np.ndarray] = {}
    seconds, int8 = {}, {}
    for label, objective in OBJECTIVES.items():
        with tempfile.TemporaryDirectory() as folder:
            queries, docs, relevant, seconds[label] = vectors_of(name, objective, Path(folder))
        for width in WIDTHS:
            for precision, found in ranked(queries, docs, width, 10).items():
                per_query[label, width, precision] = scores(found, relevant)
        int8[label] = by_other_int8(queries, docs, relevant)
    best = "widths, int8, binary"
    cuts = [(128, "int8"), (256, "binary"), (256, RESCORED), (128, "binary"), (128, RESCORED)]
    return {
        "queries": len(queries),
        "documents": len(docs),
        "CPU seconds": seconds,
        METRIC: {
            label: {f"{w} {p}": per_query[label, w, p].mean() for w in WIDTHS for p in BITS}
            for label in OBJECTIVES
        },
        "int8 - float32 at 128": {
            label: shown(per_query[label, 128, "int8"], per_query[label, 128, "float32"])
            for label in OBJECTIVES
        },
        "binary rescored - float32 at 256": {
            label: shown(per_query[label, 256, RESCORED], per_query[label, 256, "float32"])
            for label in OBJECTIVES
        },
        "trained - widths alone": {
            f"{w} {p}": shown(per_query[best, w, p], per_query["widths", w, p])
            for w, p in [*cuts, (512, "float32")]
        },
        "trained - plain": {
            f"{w} {p}": shown(per_query[best, w, p], per_query["plain", w, p]) for w, p in cuts
        },
        "definitions of int8 - float32 at 128": int8,
    }


def main() -> None:
    figures = {}
    for name in sys.argv[1:] or NAMES:
        figures[name] = measured(name)
        print(name, json.dumps(figures[name]), file=sys.stderr, flush=True)
    columns = [f"{w} {p}" for w in WIDTHS for p in BITS]
    for name, each in figures.items():
        print(f"\n{name}: {each['queries']:,} queries, {each['documents']:,} documents")
        rows = [
            [label, *(f"{each[METRIC][label][c]:.3f}" for c in columns)] for label in OBJECTIVES
        ]
        table(["objective", *columns], rows)
        for what in ("trained - widths alone", "trained - plain"):
            print(
                what,
                {
                    c: f"{d['mean']:+.3f} [{d['low']:.3f}, {d['high']:.3f}]"
                    for c, d in each[what].items()
                },
            )
    int8 = [
        abs(d["mean"]) for each in figures.values() for d in each["int8 - float32 at 128"].values()
    ]
    signs = [
        -d["mean"]
        for each in figures.values()
        for d in each["binary rescored - float32 at 256"].values()
    ]
    aims = [
        Aim("largest difference of int8 from float32 at 128 numbers", max(int8), 0.005),
        Aim("largest loss of binary, rescored, from float32 at 256 numbers", max(signs), 0.02),
    ]
    finish("precisions", figures, aims, ["torch", "numpy"])


if __name__ == "__main__":
    main()
