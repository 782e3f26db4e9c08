"""`tempera train EVENTS data.ordered=false` without other options, beside implicit-feedback ALS,
item-kNN and EASE.

`python bench/unordered.py [CASES]` takes the first cases whose interactions lie in the folder that
TEMPERA_DATA names, with their order thrown away. Interactions are divided at random (80 % to train
on); every user of the test is asked once, all items of the test are to be found among all items
that the user has not taken. ALS has 64 dimensions, and its other settings are chosen on validation;
like the run, and the baselines of the run, it then learns from validation before the test is asked.
Differences have 95 % intervals, paired by user.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import itertools
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tempera
from _harness import Aim, arguments, finish, table
from _ials import Ials
from _reached import judged
from _sets import measured_cases
from tempera.ranking.compare import bootstrap
from tempera.recommend.judge.full_catalogue import Scores
from tempera.recommend.judge.judgement import Recommended
from tempera.recommend.judge.later_events import LaterEvents, judge_events
from tempera.recommend.read.timeline import Events
from tempera.task.verdict import COUNTED

CASES: dict[str, tuple[str, list[str]]] = {
    "movielens-100k": ("movielens-100k/interactions.parquet", ["data.metadata=[rating]"]),
    "toys": ("toys/interactions.parquet", []),
    "movielens-1m": ("movielens-1m/interactions_canonical.parquet", []),
}
METRICS = ("recall@20", "ndcg@20")
SYSTEMS = ("item-kNN", "EASE", "ALS", "trained", COUNTED)
GRID = [
    Ials(unobserved=w, regularisation=r, epochs=8)
    for w, r in itertools.product((0.03, 0.1, 0.3, 1.0), (0.0003, 0.001, 0.003, 0.01))
]


def measured(path: Path, own: list[str]) -> dict[str, Any]:
    """Return what one command and ALS reach on a case, and what they cost."""
    with tempfile.TemporaryDirectory() as folder, judged() as runs:
        start = time.process_time()
        options = ["data.ordered=false", f"evaluation.metrics=[{','.join(METRICS)}]", *own]
        run = tempera.train(str(path), Path(folder) / "run", options)
        seconds = time.process_time() - start
        document = run.results
        (held_out,) = runs
        als, reached, of_als = peer(held_out)
    systems: dict[str, Recommended] = {
        name: each["users"] for name, each in held_out.reached.items()
    } | {"ALS": reached}
    ours = systems["trained"].per_query
    return {
        "metrics": {name: {key: each.metrics[key] for key in METRICS} for name, each in systems.items()},
        "trained less": {
            name: {key: asdict(bootstrap(ours[key], each.per_query[key])) for key in METRICS}
            for name, each in systems.items() if name in SYSTEMS and name != "trained"
        },
        "chosen": document.get("recipe", {}).get("chosen"), "served": document.get("counting"), "als": als,
        "seconds": {"tempera": seconds, **of_als}, "phases": {k: v["cpu"] for k, v in document["seconds"].items()},
    }  # fmt: skip


def peer(held_out: LaterEvents) -> tuple[dict[str, Any], Recommended, dict[str, float]]:
    """Return the settings of ALS that validation chooses, what it reaches on the test, and CPU
    seconds to choose and to fit."""
    start = time.process_time()
    validation = held_out.validation["users"]

    def score(each: Ials) -> float:
        return ranked(held_out, scores_of(each, held_out, 0, validation), validation).metrics[
            "ndcg@20"
        ]

    best = max(GRID, key=score)
    chosen = time.process_time()
    best = replace(best, epochs=Ials.epochs)
    test = held_out.events.division.test["users"]
    reached = ranked(held_out, scores_of(best, held_out, 1, test), test)
    return (
        asdict(best),
        reached,
        {"ALS, chosen": chosen - start, "ALS": time.process_time() - chosen},
    )


def scores_of(als: Ials, held_out: LaterEvents, part: int, events: Events) -> Scores:
    """Return the scores of ALS for the users of events, fitted to the parts up to this one."""
    timeline = held_out.events.timeline
    assert timeline.part is not None
    train = np.flatnonzero(timeline.part <= part)
    item = timeline.item[train].astype(np.int64)
    w, h = als.fit(timeline.user_of(train), item, len(timeline.user_ids), len(timeline.item_ids))
    taste, items = w[timeline.user_of(events)].astype(np.float32), h.astype(np.float32).T
    return lambda rows: taste[rows] @ items


def ranked(held_out: LaterEvents, scores: Scores, events: Events) -> Recommended:
    """Return the evaluation of scores by the evaluator of the run."""
    return judge_events(
        scores, events, held_out.events.timeline, held_out.data.visits.counts, METRICS
    )


def main() -> None:
    """Measure the cases."""
    options = arguments(__doc__ or "", cases=len(CASES))
    torch.set_num_threads(1)
    report(measured_cases(CASES, int(options.cases), measured))


def report(figures: Mapping[str, Any]) -> None:
    """Print the table and keep the figures."""
    rows, gaps = [], []
    for name, each in figures.items():
        cells = {
            s: " / ".join(f"{v:.3f}" for v in each["metrics"][s].values())
            for s in SYSTEMS
            if s in each["metrics"]
        }
        rows.append(
            [
                name,
                *(cells.get(s, "") for s in SYSTEMS),
                *(f"{v:.0f}" for v in each["seconds"].values()),
            ]
        )
        gaps += [each["trained less"][s]["ndcg@20"] for s in ("item-kNN", "ALS")]
    table(["data", *SYSTEMS, "CPU s", "ALS chosen", "ALS"], rows)
    aims = [
        Aim(
            "cases and peers (item-kNN, ALS) shown above",
            sum(gap["low"] > 0 for gap in gaps),
            len(gaps),
            True,
        ),
        Aim(
            "CPU seconds, at most",
            max(each["seconds"]["tempera"] for each in figures.values()),
            900,
        ),
    ]
    finish("unordered", figures, aims, ["torch", "scipy", "numpy"])


if __name__ == "__main__":
    main()
