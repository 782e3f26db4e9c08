"""The recipe for interactions: a table alone is a recommender, whose tower a race chooses on the
user's own events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as csv
import pytest
import yaml

from tempera.options import yaml_options as config
from tempera.options.build import build
from tempera.recommend.train import candidates
from tempera.run import race as racing
from tempera.run.recipe import opened, shown, train
from tempera.task.rounds import LEARNING_RATE

TINY = {
    "last": {
        "tower.doc": ["id"],
        "tower.history": {"pools": [{"mean": {"last": 1}}]},
        "tower.dimensions": 8,
    },
    "ids": {
        "tower.doc": ["id"],
        "tower.query": ["id"],
        "tower.history": None,
        "tower.dimensions": 4,
        LEARNING_RATE: 0.01,
    },
}
SHORT = [
    "train.num_train_epochs=2",
    "train.batch_size=64",
    "train.save_steps=5",
    "evaluation.metrics=[ndcg@10,hit@10]",
]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users who mostly take the item after the one before, and features of the items."""
    folder = tmp_path_factory.mktemp("events")
    rng = np.random.default_rng(0)
    lines = ["user_id,item_id"]
    for user in range(80):
        item = int(rng.integers(30))
        for _ in range(12):
            lines.append(f"u{user},i{item}")
            item = (item + 1) % 30 if rng.random() < 0.8 else int(rng.integers(30))
    (folder / "events.csv").write_text("\n".join(lines))
    (folder / "items.csv").write_text(
        "\n".join(["item_id,kind", *(f"i{item},k{item % 3}" for item in range(30))])
    )
    return folder


@pytest.fixture
def few_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "TOWERS", TINY)


def recipe_of(folder: Path) -> dict[str, Any]:
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    (record,) = [event for event in log if event["event"] == "recipe"]
    return dict(record)


def test_a_table_alone_is_a_recommender(events: Path) -> None:
    options, free = opened(config.load(events / "events.csv"))
    assert {"tower.history", "tower.query", "tower.doc", LEARNING_RATE} <= {*free}
    resolved = build(options).resolved
    assert resolved["data"]["split"] == "auto" and resolved["tower"]["kind"] == "features"
    assert [name for (name,) in resolved["objective"]["corrections"]] == ["log_q"]
    assert resolved["objective"]["masks"] == ["same_id", "known_positives"]
    assert resolved["train"]["patience"] is None and resolved["train"]["refit"] == "auto"
    assert (
        shown(resolved, free)["tower"]["history"]
        == "auto"
        == shown(resolved, free)["train"]["learning_rate"]
    )


@pytest.mark.parametrize(
    ("own", "open_too"),
    [
        ("tower.dimensions=32", {"tower.history", LEARNING_RATE}),
        ("tower={history: {pools: [gru]}}", set()),
        ("train.learning_rate=0.01", {"tower.history"}),
    ],
)
def test_what_the_user_sets_is_left_alone(events: Path, own: str, open_too: set[str]) -> None:
    options, free = opened(config.load(events / "events.csv", [own]))
    name, _, value = own.partition("=")
    assert name not in free and open_too <= {*free} and (free or not open_too)
    section, _, key = name.partition(".")
    assert (options.values[section][key] if key else options.values[section]) == config.parse(value)
    assert options.values["objective"]["corrections"] == ["log_q"]


@pytest.mark.parametrize("own", ["objective.preset=sampled_softmax", "recipe=none"])
def test_a_loss_of_the_user_keeps_its_parts(events: Path, own: str) -> None:
    options, _ = opened(config.load(events / "events.csv", [own]))
    assert "corrections" not in options.values.get("objective", {})


def test_what_a_candidate_sets_is_left_open() -> None:
    towers = [*candidates.TOWERS.values(), *candidates.UNORDERED.values()]
    assert {name for tower in towers for name in tower} <= {
        name for name, each in candidates.OPEN.items() if each.raced
    }


def test_the_first_tower_is_trained_where_nothing_can_be_chosen(
    events: Path, few_towers: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tempera"):
        run = train(
            events / "events.csv",
            tmp_path / "run",
            [*SHORT, "evaluation.validation=0", "evaluation.baselines=false"],
        )
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["tower"]["dimensions"] == 8
    assert "fewer than 50 queries or events, which choose nothing: last\n" in caplog.text
    with caplog.at_level("INFO", "tempera"):
        train(events / "events.csv", tmp_path / "all", [*SHORT, "data.split=none"])
    assert "without validation nothing is chosen: bag\n" in caplog.text


def test_features_that_are_not_used_are_named(
    events: Path, few_towers: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = [
        *SHORT,
        f"data.items={events / 'items.csv'}",
        "evaluation.validation=0",
        "evaluation.baselines=false",
    ]
    with caplog.at_level("INFO", "tempera"):
        train(events / "events.csv", tmp_path / "run", options)
    assert "which choose nothing: last without features\n" in caplog.text


def test_a_scale_is_a_temperature_that_is_set() -> None:
    assert opened(config.load(None, ["objective.scale=20"]))[1] == [
        LEARNING_RATE,
        "tower.dimensions",
        "tower.token_weights",
    ]


def test_towers_race_and_the_winner_is_written_down(
    events: Path, few_towers: None, tmp_path: Path
) -> None:
    own = [*SHORT, f"data.items={events / 'items.csv'}"]
    run = train(events / "events.csv", tmp_path / "run", own)
    record = recipe_of(run.folder)
    names = [
        each["name"] for each in record["tried"]
    ]  # two towers, each with and without features, then the best two
    assert names[:2] == ["last", "ids"] and len(names) == 8
    assert {*names[2:6]} == {"last", "ids", "last, features", "ids, features"}
    best = max(record["tried"][6:], key=lambda each: each["score"])
    assert record["chosen"] == best["values"] and all(
        each["seconds"] > 0 for each in record["tried"]
    )
    written = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert written["tower"]["dimensions"] == record["chosen"]["tower.dimensions"]
    report = (run.folder / "report.html").read_text()
    assert "CPU seconds" in report and best["name"] in report
    by = "both together; the" if run.results["counting"]["served"] else "the vectors alone; both"
    assert "recommended by" in report and by in report
    again = train(run.folder / "config.yaml", tmp_path / "again")
    assert (
        again.results["metrics"] == run.results["metrics"]
        and "race" not in again.results["seconds"]
    )
    assert len(run.recommend(history=["i3"], k=3).hits) == 3


def test_a_table_of_python_races_as_its_file_does(
    events: Path, few_towers: None, tmp_path: Path
) -> None:
    file = train(events / "events.csv", tmp_path / "file", SHORT)
    handed = train({}, tmp_path / "handed", SHORT, data=csv.read_csv(events / "events.csv"))
    assert recipe_of(handed.folder)["chosen"] == recipe_of(file.folder)["chosen"]
    assert handed.results["metrics"] == file.results["metrics"]


def test_an_interrupted_run_keeps_its_tower(
    events: Path, few_towers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(BaseException):
        pass

    whole = train(events / "events.csv", tmp_path / "whole", SHORT)
    from tempera.run import fit as fitting

    take = fitting.loop.take

    def stopping(state: Any, *rest: Any) -> Any:
        if (
            state.step == 6 and rest[1] > 20
        ):  # in the run itself, which is longer than what its candidates take
            raise Stopped
        return take(state, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(fitting.loop, "take", stopping)
        with pytest.raises(Stopped):
            train(events / "events.csv", tmp_path / "run", SHORT)
    monkeypatch.setattr(racing, "run_race", None)  # a second race would fail
    run = train(events / "events.csv", tmp_path / "run", SHORT)
    assert run.results["metrics"] == whole.results["metrics"]


def test_too_few_events_to_choose_by_take_the_first_tower(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "run_race", None)
    few = tmp_path / "few.csv"
    few.write_text("\n".join((events / "events.csv").read_text().splitlines()[:101]))
    written = train(few, tmp_path / "run", ["train.num_train_epochs=1"]).folder / "config.yaml"
    ((pool,),) = yaml.safe_load(written.read_text())["tower"]["history"]["pools"]
    assert pool == "ages"
