"""Merging: weights between a pretrained model and the same one fine-tuned, in its domain and on
general data.

`python bench/merging.py` fine-tunes the model that TEMPERA_MODEL names on each domain of the folder
that TEMPERA_DATA names (480 pairs, three epochs, a learning rate of 3e-4, at which it forgets),
draws the curve over the weight by its validation and the general sets, and evaluates the base, the
fine-tuned model and the best of the curve on test pairs of the domain. Texts are cut to 200
letters, so that CPUs suffice.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from _harness import Aim, finish, table
from _sets import DATA, pairs_of, shown
from hybrid import judged
from tempera.finished.merge import KEPT, LOST, merge
from tempera.run.train import train
from tempera.text.judge.evaluate import evaluate

MODEL = os.environ.get("TEMPERA_MODEL", "sentence-transformers/all-MiniLM-L6-v2")
RATE = 3e-4  # six times the default, at which 1,000 pairs of nl2bash made neither general set worse
DOMAINS = ("nl2bash", "medquad")
PAIRS, TEST, GENERAL, LETTERS = 700, 300, 300, 200


def general(folder: Path) -> list[str]:
    """Write the general sets, claims with their abstracts and graded similarity, and return their
    paths."""
    parquet.write_table(
        cut(judged("scifact", "test").rename_columns(["query", "document"])),
        folder / "scifact.parquet",
    )
    (graded,) = (path for path in sorted((DATA / "stsb").glob("*test*.parquet")))
    parquet.write_table(parquet.read_table(graded).slice(0, GENERAL), folder / "stsb.parquet")
    return [str(folder / "stsb.parquet"), str(folder / "scifact.parquet")]


def cut(pairs: pa.Table) -> pa.Table:
    return pa.table(
        {name: pc.utf8_slice_codeunits(pairs[name], 0, LETTERS) for name in ("query", "document")}
    )


def measured(name: str) -> dict[str, Any]:
    """Return the curve of a domain, and test scores of the base, the fine-tuned model and the
    merged one."""
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place), time.process_time()
        pairs, others = cut(pairs_of(name)), general(folder)
        first, rest = pairs.slice(0, PAIRS), pairs.slice(PAIRS)
        for column in ("query", "document"):
            rest = rest.filter(
                pc.invert(pc.is_in(rest[column], value_set=first[column].combine_chunks()))
            )
        parquet.write_table(first, folder / "pairs.parquet")
        parquet.write_table(rest.slice(0, TEST), folder / "test.parquet")
        run = train(
            {
                "data": {"path": str(folder / "pairs.parquet"), "identical": "drop"},
                "tower": {"kind": "pretrained", "model": MODEL, "max_length": 64},
                "train": {
                    "batch_size": 32,
                    "num_train_epochs": 3,
                    "evaluations": 0,
                    "learning_rate": RATE,
                },
                "evaluation": {"queries": 60, "validation": 150, "bm25": False, "also": others},
            },
            folder / "run",
        )
        document = merge(run.folder, MODEL, output=folder / "merged")
        seconds = time.process_time() - began
        scores = {
            label: next(
                iter(
                    evaluate(path, folder / "test.parquet", metrics=["ndcg@10"])[0].systems.values()
                )
            )
            for label, path in (
                ("base", MODEL),
                ("trained", run.folder),
                ("merged", folder / "merged"),
            )
        }
        per_query = {label: each.per_query["ndcg@10"] for label, each in scores.items()}
        points = [
            {"weight": p["weight"], "scores": {Path(k).stem: v for k, v in p["scores"].items()}}
            for p in document["points"]
        ]
        return {
            **{key: document[key] for key in ("weight", "kept", "lost", "sentence")},
            "points": points,
            "also": {Path(path).stem: each for path, each in run.results["also"].items()},
            "test": {label: float(each.mean()) for label, each in per_query.items()},
            "merged - trained": shown(per_query["merged"], per_query["trained"]),
            "trained - base": shown(per_query["trained"], per_query["base"]),
            "CPU seconds": seconds,
        }


def main() -> None:
    figures = {}
    for name in sys.argv[1:] or DOMAINS:
        figures[name] = measured(name)
        print(name, json.dumps(figures[name]), file=sys.stderr, flush=True)
    for name, each in figures.items():
        print(
            f"\n{name}: {each['sentence']}; test {each['test']}; merged - trained {each['merged - trained']}"
        )
        sets = list(each["points"][0]["scores"])
        table(
            ["weight", *sets],
            [[p["weight"], *(f"{p['scores'][s]:.4f}" for s in sets)] for p in each["points"]],
        )
    kept = [each["kept"] or 0.0 for each in figures.values()]
    lost = [each["lost"] or 0.0 for each in figures.values()]
    aims = [
        Aim("least share of the gain that the best weight keeps", min(kept), KEPT, at_least=True),
        Aim("largest share of the loss that it has", max(lost), LOST),
    ]
    finish("merging", figures, aims, ["torch", "sentence-transformers", "numpy"])


if __name__ == "__main__":
    main()
