"""A limit of time becomes a number of steps once, before the first step; all else is then as with
that number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tempera.engine.devices import start
from tempera.errors import ConfigError
from tempera.io.documents import JsonLines
from tempera.options.build import build
from tempera.options.yaml_options import Options
from tempera.run import time_limit
from tempera.run import train as training
from tempera.run.prepare import prepare
from tempera.run.race import with_setting
from tempera.run.train import train
from tempera.text.judge import held_out

from .test_resume import Stopped, left, stop_after, text_options


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of a second, the first of three: the counts of steps that are measured."""
    counts, inner = list[int](), time_limit.step_seconds

    def seconds(prepared: Any, count: int) -> list[float]:
        assert len(inner(prepared, count)) == count  # they are taken, and leave no trace
        counts.append(count)
        return [3.0, *[1.0] * (count - 1)]

    monkeypatch.setattr(time_limit, "step_seconds", seconds)
    return counts


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_limited_run_is_the_run_of_that_many_steps_and_resumes_exactly(
    pairs_file: Path, tmp_path: Path, slow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = text_options(pairs_file, max_time="18s")
    whole = train(options, tmp_path / "whole")
    assert slow == [4]  # 32 steps of a second are more than 5 % of 18
    assert whole.results["steps"] == 12  # 18 seconds less the 6 of measuring
    (event,) = (record for record in logged(whole.folder) if record["event"] == "time limit")
    assert event == {"event": "time limit", "steps": 12, "seconds": 18.0, "step_seconds": 1.0}
    resolved = yaml.safe_load((whole.folder / "config.yaml").read_text())["train"]
    assert resolved["max_time"] == 18 and resolved["max_steps"] is None
    same = train(text_options(pairs_file, max_steps=12), tmp_path / "same")
    steps = [
        [r["loss"] for r in logged(run.folder) if r["event"] == "step"] for run in (whole, same)
    ]
    assert steps[0] == steps[1] and len(steps[0]) == 12
    rates = [
        [r["learning_rate"] for r in logged(run.folder) if r["event"] == "step"]
        for run in (whole, same)
    ]
    assert rates[0] == rates[1]

    with monkeypatch.context() as patch:
        stop_after(patch, 4 + 7)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run")
    monkeypatch.setattr(time_limit, "step_seconds", lambda *_: pytest.fail("measured again"))
    assert left(train(options, tmp_path / "run").folder) == left(whole.folder)


def test_steps_are_measured_anew_where_open_options_make_another_tower(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first limit is that of the race; the tower that it chooses takes two seconds a step."""
    limits, inner = list[int | None](), time_limit.step_seconds

    def seconds(prepared: Any, count: int) -> list[float]:
        return [2.0 if prepared.config.resolved["tower"]["dimensions"] == 32 else 1.0] * len(
            inner(prepared, count)
        )

    def wider(prepared: Any, free: Any, known: Any = None, checkpoints: Any = None) -> Any:
        limits.append(prepared.config.train.max_steps)
        return with_setting(prepared, {"tower.dimensions": 32, "train.num_train_epochs": 9.0})

    monkeypatch.setattr(training, "choose_by_race", wider)
    monkeypatch.setattr(time_limit, "step_seconds", seconds)
    options = text_options(pairs_file, max_time="18s", num_train_epochs=1, save_steps=2)
    whole = train(options, tmp_path / "whole")
    (event,) = (record for record in logged(whole.folder) if record["event"] == "time limit")
    assert event == {
        "event": "time limit",
        "steps": 5,
        "seconds": 18.0,
        "step_seconds": 2.0,
    }  # 18 less 4 of 2
    assert whole.results["steps"] == 5 and limits == [
        None
    ]  # an epoch is less than the 14 steps of the first limit
    with monkeypatch.context() as patch:
        stop_after(patch, 4 + 4 + 3)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run")
    monkeypatch.setattr(time_limit, "step_seconds", lambda *_: pytest.fail("measured again"))
    assert left(train(options, tmp_path / "run").folder) == left(whole.folder)
    assert limits == [None, None, 5]


def test_looks_cost_little_beside_the_steps_that_the_limit_allows(
    pairs_file: Path, tmp_path: Path, slow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "_FREE", 0)  # what costs nothing beside ranking is little here
    options = text_options(pairs_file, max_time="8s")
    options["tower"] = {
        "kind": "transformer",
        "layers": 1,
        "width": 16,
        "heads": 2,
        "vocabulary": 300,
    }
    options["train"]["num_train_epochs"] = 30
    prepared = prepare(
        build(Options(options)), start("no", "cpu"), tmp_path, JsonLines(tmp_path / "log.jsonl")
    )
    whole = prepared.task.held_out.begin(prepared.config, draws=False)
    limited = time_limit.limited(prepared)
    assert limited.config.train.max_steps == 2
    short = limited.task.held_out.begin(limited.config, draws=False)
    del options["train"]["max_time"]
    options["train"]["max_steps"] = 2
    same = prepare(
        build(Options(options)), start("no", "cpu"), tmp_path, JsonLines(tmp_path / "log.jsonl")
    )
    assert short == same.task.held_out.begin(same.config, draws=False) != whole


@pytest.mark.parametrize("negatives", [0, 2])
def test_training_again_is_within_the_time(
    negatives: int, pairs_file: Path, tmp_path: Path, slow: list[int]
) -> None:
    """With negatives beside them, rows are counted as the texts that they hold."""
    options = {
        **text_options(pairs_file, max_time="30s", refit="all"),
        "mining": {"again": negatives},
    }
    options["evaluation"] |= {"validation": 30, "queries": 30}
    run = train(options, tmp_path / "run")
    again = [record["steps"] for record in logged(run.folder) if record["event"] == "refit"]
    assert (
        len(again) == 2 and 20 <= run.results["steps"] + (1 + negatives / 2) * sum(again) <= 24
    )  # 30 s less the 6 of measuring
    assert "refit" in run.results["seconds"]
    options["evaluation"] |= {"validation": 0, "queries": 0}
    nothing = train(options, tmp_path / "nothing")
    assert nothing.results["steps"] == 24 and "refit" not in nothing.results  # nothing is held out


def test_a_run_that_needs_fewer_steps_takes_fewer(
    pairs_file: Path, tmp_path: Path, slow: list[int]
) -> None:
    run = train(text_options(pairs_file, max_time="1h", num_train_epochs=1), tmp_path / "run")
    assert slow == [4, 32]
    assert 0 < run.results["steps"] < 12


def test_two_limits_and_times_without_a_unit_that_is_known_are_refused() -> None:
    for text, seconds in (("5min", 300), ("90", 90), (0.5, 0.5), ("1 h", 3600)):
        assert build(Options({"train": {"max_time": text}})).train.max_time == seconds
    with pytest.raises(
        ConfigError,
        match="train: max_time and max_steps are both limits of the training; give only one",
    ):
        build(Options({"train": {"max_time": "60s", "max_steps": 5}}))
    for wrong in ("5 parsecs", "soon", "s"):
        with pytest.raises(
            ConfigError,
            match=f"max_time: is '{wrong}'; expected seconds, or a text such as 60s, 5min",
        ):
            build(Options({"train": {"max_time": wrong}}))
    with pytest.raises(ConfigError, match="expected more than 0"):
        build(Options({"train": {"max_time": 0}}))
