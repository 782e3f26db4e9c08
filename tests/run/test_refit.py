"""What was held out is trained on again: validation before the test is evaluated, the test after
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tempera.artifacts.run_folder import Run
from tempera.engine.training_options import RefitOn
from tempera.errors import ConfigError
from tempera.run.train import train


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """60 users go round 12 items; "v" is only in validation, and "t" only in the test."""
    rows = []
    for user in range(60):
        items = [f"i{(user + step) % 12}" for step in range(9)]
        items[-2:] = ["v" if user < 20 else items[-2], "t" if user < 20 else items[-1]]
        rows += [
            {"user": user, "item": item, "position": place} for place, item in enumerate(items)
        ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "data": {"source": "interactions", "path": str(path), "split": "leave_last_out"},
        "tower": {
            "kind": "features",
            "dimensions": 8,
            "query_layers": [],
            "history": {"pools": [{"ages": {"last": 3}}]},
        },
        "train": {"batch_size": 64, "num_train_epochs": 6, "learning_rate": 0.05, "evaluations": 5},
        "evaluation": {"metrics": ["hit@10", "ndcg@10"]},
    }


def trained(
    options: dict[str, Any], refit: RefitOn, folder: Path
) -> tuple[Run, dict[str, Any], list[dict[str, Any]]]:
    run = train({**options, "train": {**options["train"], "refit": refit}}, folder / refit)
    log = [json.loads(line) for line in (folder / refit / "log.jsonl").read_text().splitlines()]
    return run, run.results, [record for record in log if record["event"] == "refit"]


def known(run: Run, item: str) -> int:
    """Training events of an item, by what the run saved."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(run.folder / "model" / "items.parquet").to_pydict()
    return int(table["count"][[str(each) for each in table["id"]].index(item)])


def test_validation_is_learned_before_the_test_and_the_test_after_it(
    options: dict[str, Any], tmp_path: Path
) -> None:
    (plain, before, none), (more, judged, one), (whole, same, two) = (
        trained(options, refit, tmp_path) for refit in ("none", "validation", "all")
    )
    assert [known(run, "v") for run in (plain, more, whole)] == [0, 20, 20]
    assert [known(run, "t") for run in (plain, more, whole)] == [0, 0, 20]
    assert judged["metrics"]["untrained"] == before["metrics"]["untrained"]
    assert judged["metrics"]["trained"] != before["metrics"]["trained"]
    assert same["metrics"] == judged["metrics"] and same["difference"] == judged["difference"]
    assert same["best"] == judged["best"] == before["best"]
    assert {each["data"]["validation"] for each in (before, judged, same)} == {60}
    assert "also on all that was held out, 540 in all" in (whole.folder / "report.html").read_text()
    best = before["best"]["step"]
    assert not none and one == two[:1] and best
    assert [(each["part"], each["pairs"], each["steps"]) for each in two] == [
        ("validation", 480, round(best * 480 / 420)),
        ("test", 540, round(best * 540 / 420)),
    ]


def test_what_is_saved_is_a_run_on_these_events(options: dict[str, Any], tmp_path: Path) -> None:
    """As many steps on a file that ends before the test, with nothing held out of it but what it
    has beyond."""
    whole, _, records = trained(options, "all", tmp_path)
    rows = [json.loads(line) for line in Path(options["data"]["path"]).read_text().splitlines()]
    longer = rows + [
        {"user": u, "item": item, "position": 9 + i}
        for u in range(60)
        for i, item in enumerate(("i0", "i1"))
    ]
    path = tmp_path / "longer.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in longer))
    by_hand = train(
        {**options, "data": {**options["data"], "path": str(path)}},
        tmp_path / "by_hand",
        [
            f"train.max_steps={records[1]['steps']}",
            "train.keep_best=false",
            "evaluation.validation=0",
        ],
    )
    ours, theirs = (
        load_file(run.folder / "model" / "model.safetensors") for run in (whole, by_hand)
    )
    assert ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def test_auto_trains_again_where_much_is_held_out(options: dict[str, Any], tmp_path: Path) -> None:
    assert [each["part"] for each in trained(options, "auto", tmp_path)[2]] == [
        "validation",
        "test",
    ]
    options["evaluation"]["validation"] = 0  # nothing has chosen a length
    assert not trained(options, "auto", tmp_path / "few")[2]


def test_nothing_is_trained_again_where_nothing_more_is_held_out(
    options: dict[str, Any], tmp_path: Path
) -> None:
    options["data"]["split"] = "none"
    assert not trained(options, "all", tmp_path / "undivided")[2]


def test_withheld_items_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"what evaluation.cold_items withholds: give refit=all"):
        trained({**options, "evaluation": {"cold_items": 0.2}}, "validation", tmp_path)
