"""Generated queries (`data.generated=true`): training on all, on those that find their document
again, and on pairs without faults.

`python bench/generated.py [SETS] [SEEDS] --cache FOLDER` takes pairs from the sets in the folder
that TEMPERA_DATA names: at most 4,800 to train on, 500 for validation and 700 for the test. In
place of a language model's faults, each fifth training pair has the query of another one. Each arm
trains `tempera train` without options; validation and test are real queries, and all arms rank the
same documents. nDCG@10 of the test, means over seeds; differences have 95 % intervals, paired by
query.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

import tempera
from _harness import Aim, finish, table
from _sets import measured_sets, pairs_of, parser_of_sets, shown
from tempera.ranking.compare import Floats
from tempera.ranking.metrics import Relevant
from tempera.ranking.ranking import Ranking

METRIC = "ndcg@10"
TESTED, PARTS, WRONG = ("medquad", "nl2bash", "captions"), (4_800, 500, 700), 5
# File, and what its queries find their documents by.
ARMS = {
    "all": ("generated", ""),
    "found again": ("generated", "bm25"),
    "without faults": ("clean", ""),
}


def measured(
    name: str, folder: Path, seeds: range, arms: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Return the scores of each arm, and its differences from training on all pairs."""
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    rows = pairs_of(name, sum(PARTS))
    ends = np.cumsum(PARTS)
    parts = dict(
        zip(("clean", "validation", "test"), np.split(np.arange(len(rows)), ends[:2]), strict=True)
    )
    tables = {part: rows.take(pa.array(of)) for part, of in parts.items()}
    number = np.arange(len(tables["clean"]))
    number[::WRONG] = np.random.default_rng(0).integers(0, len(number), len(number[::WRONG]))
    tables["generated"] = tables["clean"].set_column(
        0, "query", tables["clean"]["query"].take(pa.array(number))
    )
    for part, of in tables.items():
        parquet.write_table(of, folder / f"{part}.parquet")
    asked, answers = (tables["test"][side].to_pylist() for side in ("query", "document"))
    queries, docs = list(dict.fromkeys(asked)), list(dict.fromkeys(rows["document"].to_pylist()))
    place = {text: i for i, text in enumerate(docs)}
    of_query: dict[str, set[int]] = {query: set() for query in queries}
    for query, answer in zip(asked, answers, strict=True):
        of_query[query].add(place[answer])
    relevant = Relevant.of([sorted(each) for each in of_query.values()])
    scores: dict[str, list[Floats]] = {arm: [] for arm in arms}
    counts = {}
    for arm, (part, by) in arms.items():
        for seed in seeds:
            run = tempera.train(
                {
                    "data": {
                        "path": str(folder / f"{part}.parquet"), "generated": bool(by), "found_by": by or "bm25",
                        "validation": str(folder / "validation.parquet"), "test": str(folder / "test.parquet"),
                    },
                    "train": {"seed": seed},
                },
                folder / f"{arm}-{seed}",
                overwrite=True,
            )  # fmt: skip
            counts[arm] = run.document["data"]["train"]
            ranking = Ranking.by_vectors(run.encode(queries), run.encode(docs), relevant, [METRIC])
            scores[arm].append(ranking.per_query[METRIC])
    means = {arm: np.mean(each, 0) for arm, each in scores.items()}
    return {
        "pairs": counts, "queries": len(queries), "documents": len(docs),
        "scores": {arm: float(each.mean()) for arm, each in means.items()},
        **{f"{arm} - all": shown(means[arm], means["all"]) for arm in list(arms)[1:]},
    }  # fmt: skip


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    parser = parser_of_sets(__doc__, TESTED, 3)
    parser.add_argument("--model", help="folder of a model that finds documents in place of BM25")
    options = parser.parse_args()
    arms = ARMS | ({"found again": ("generated", options.model)} if options.model else {})
    torch.set_num_threads(1)
    figures = measured_sets(
        options.sets.split(","),
        lambda name: measured(name, options.cache / "generated", range(options.seeds), arms),
    )
    gaps = [each["found again - all"] for each in figures.values()]
    table(
        ["set", *ARMS, "found again - all", "interval"],
        [
            [
                name, *(f"{each['scores'][arm]:.3f}" for arm in ARMS), f"{gap['mean']:+.3f}",
                "[{low:+.3f}, {high:+.3f}]".format(**gap),
            ]
            for (name, each), gap in zip(figures.items(), gaps, strict=True)
        ],
    )  # fmt: skip
    aims = [
        Aim("sets shown worse than training on all", sum(gap["high"] < 0 for gap in gaps), 0),
        Aim("sets shown better", sum(gap["low"] > 0 for gap in gaps), 2, at_least=True),
    ]
    finish(
        "generated_by_model" if options.model else "generated", figures, aims, ["torch", "tempera"]
    )


if __name__ == "__main__":
    main()
