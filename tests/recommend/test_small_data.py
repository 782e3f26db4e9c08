"""Small and odd interactions end in a sensible result or in one line that helps."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tempera.engine.devices import Devices
from tempera.errors import TemperaError
from tempera.io.documents import JsonLines
from tempera.options.build import build
from tempera.options.yaml_options import of
from tempera.run.fit import fit
from tempera.run.judge import judge
from tempera.run.prepare import prepare

Rows = list[dict[str, Any]]


def rows(events: int, users: int, items: int, times: int = 10**6) -> Rows:
    draw = random.Random(0)
    return [
        {
            "user": draw.randrange(users),
            "item": draw.randrange(items),
            "time": draw.randrange(times),
        }
        for _ in range(events)
    ]


CASES: dict[
    str, tuple[Rows, str, str]
] = {  # rows, and what two splits say of them; nothing is a run
    "100 events": (rows(100, 12, 20), "", ""),
    "10,000 events": (rows(10_000, 700, 900), "", ""),
    "one user": (rows(60, 1, 30), "", ""),
    "two items": (rows(60, 10, 2), "", ""),
    "one item": (
        rows(60, 10, 1),
        "all 60 interactions are with the item 0",
        "all 60 interactions are with the item 0",
    ),
    "one time": (
        rows(200, 10, 30, 1),
        "events cannot be cut by time: too many of them happen at 0",
        "",
    ),
    "one event": (rows(1, 1, 9), "are with the item", "are with the item"),
    "an event of each user": (
        [{"user": user, "item": user % 7, "time": user} for user in range(50)],
        "no user has an event in the test part and others before it",
        "needs users with at least 3 events, but there are none",
    ),
    "two events to train on": (
        [{"user": 1, "item": item, "time": item} for item in range(3)],
        "validation_share 0.1 of 3 events leaves none: give a larger share, or 0",
        "batch_size is 2 and the data has 1 pair to train on: in-batch negatives need at least 2",
    ),
}


@pytest.mark.parametrize("split", ["global_time", "leave_last_out"])
@pytest.mark.parametrize("name", CASES)
def test_small_data(name: str, split: str, tmp_path: Path) -> None:
    table, *says = CASES[name]
    message = says[split == "leave_last_out"]
    section = {"source": "interactions", "split": split}
    tower = {"kind": "features", "dimensions": 8, "query_layers": []}
    config = build(of({"data": section, "tower": tower, "train": {"max_steps": 3}}))
    config = replace(config, data=config.data.hand(pa.Table.from_pylist(table)))
    with (
        JsonLines(tmp_path / "log.jsonl") as log,
        pytest.raises(TemperaError, match=message) if message else nullcontext(),
    ):
        run = prepare(config, Devices(), tmp_path, log)
        fit(run)
        verdict = judge(run)
        assert verdict is not None and 0 <= verdict.ranking.metrics["recall@10"] <= 1


@pytest.mark.parametrize(
    ("evaluation", "train", "note"),
    [
        (
            {"queries": 0, "validation": 0},
            80,
            "evaluation.queries and evaluation.validation are 0: all interactions are trained",
        ),
        (
            {"queries": 0},
            40,
            "evaluation.queries is 0: 20 interactions of the test part are not used",
        ),
        ({}, 40, ""),
    ],
)
def test_without_an_evaluation_all_interactions_are_trained_on(
    tmp_path: Path, evaluation: dict[str, int], train: int, note: str
) -> None:
    table = [
        {"user": user, "item": (user + step) % 9, "time": step}
        for user in range(20)
        for step in range(4)
    ]
    sections = {
        "data": {"source": "interactions", "split": "leave_last_out"},
        "tower": {"kind": "features"},
    }
    config = build(of({**sections, "evaluation": evaluation, "train": {"max_steps": 2}}))
    config = replace(config, data=config.data.hand(pa.Table.from_pylist(table)))
    with JsonLines(tmp_path / "log.jsonl") as log:
        run = prepare(config, Devices(), tmp_path, log)
        fit(run)
        facts = run.task.showcase.facts()
    notes = [line for line in facts.notes if " 0: " in line]
    assert (
        facts.counts["train"] == train
        and len(notes) == bool(note)
        and all(note in line for line in notes)
    )
    assert any("test queries: none" in line for line in facts.lines) == bool(note)


def test_items_that_training_has_not_seen_are_no_collapse_and_are_counted(tmp_path: Path) -> None:
    table = [
        {"user": user, "item": f"{user}-{step}", "time": step}
        for user in range(20)
        for step in range(4)
    ]
    config = build(
        of(
            {
                "data": {"source": "interactions", "split": "leave_last_out"},
                "tower": {"kind": "features"},
            }
        )
    )
    config = replace(config, data=config.data.hand(pa.Table.from_pylist(table)))
    with JsonLines(tmp_path / "log.jsonl") as log:
        run = prepare(config, Devices(), tmp_path, log)
        verdict = judge(run)
    assert verdict is not None and verdict.spread.collapsed is None
    assert (
        "20 of 20 test queries look for an item without a training event"
        in run.task.showcase.facts().notes[-1]
    )
