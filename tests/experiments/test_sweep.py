"""A sweep is its runs: each as if it stood alone, finished ones kept, failed ones reported and
retried."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempera.core.temperature import Temperature
from tempera.engine.training_options import Training
from tempera.errors import ConfigError, DataError, OutputError, TemperaError
from tempera.experiments import one_run
from tempera.experiments.claim import claimed
from tempera.experiments.figures import figures
from tempera.experiments.grid import axes_of
from tempera.experiments.points import SweepPlan
from tempera.experiments.record import Record, read_records
from tempera.experiments.result import Sweep
from tempera.experiments.runner import Worker
from tempera.experiments.sweep import sweep
from tempera.experiments.template import Template
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.options.yaml_options import Options
from tempera.run.recipe import opened
from tempera.run.train import train

pytestmark = pytest.mark.usefixtures("inline")
OVER = {"objective.temperature": [0.02, 0.1, 0.5, 2.0]}
SHORT = ["train.max_steps=12", "train.learning_rate=0.01"]
QUICK = ["train.max_steps=1"]
TWO = {"objective.temperature": [0.1, 0.5]}
MOVING: dict[str, Any] = {"learned": [0.05, 0.5], "scheduled": [(0.2, 0.02)]}


@pytest.fixture(scope="module")
def finished(
    small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, inline: None
) -> Sweep:
    """4 points, 2 seeds, a learned temperature from two starts, and a schedule; look, do not
    touch."""
    return sweep(small, OVER, 2, tmp_path_factory.mktemp("sweeps") / "whole", SHORT, **MOVING)


def table(result: Sweep) -> list[dict[str, Any]]:
    """Without what differs from run to run."""
    return [
        {name: value for name, value in row.items() if name != "seconds"} for row in result.table
    ]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """Point and seed of each run that is made."""
    runs: list[tuple[Any, int]] = []
    inner = one_run.Trainings.__call__

    def counted(self: Any, job: Any, report: Any) -> Any:
        runs.append((job["record"]["params"], job["record"]["seed"]))
        return inner(self, job, report)

    monkeypatch.setattr(one_run.Trainings, "__call__", counted)
    return runs


# ---- the runs


def test_a_run_is_told_from_others_by_its_setting_its_start_its_end_and_its_seed() -> None:
    given = [{}, {"params": {"a": 2}}, {"start": 0.2}, {"start": 0.2, "final": 0.02}, {"seed": 1}]
    records = [Record(**{"params": {"a": 1}, **each}) for each in given]
    assert (
        len({record.key for record in records}) == 5
        and len({record.point for record in records}) == 4
    )


def test_every_point_has_its_seeds(finished: Sweep) -> None:
    assert [dict(point.over) for point in finished.points] == [
        {"objective.temperature": t} for t in (0.02, 0.1, 0.5, 2)
    ]
    assert all([run.seed for run in point.records] == [5, 6] for point in finished.everything)
    assert len(finished.everything) == 4 + 2 + 1
    assert finished.seeds == (5, 6) and finished.metric == "ndcg@10"


def test_a_point_is_the_run_alone(
    finished: Sweep, small: dict[str, Any], tmp_path: Path, validated: Any
) -> None:
    alone = train(small, tmp_path / "run", [*SHORT, "objective.temperature=0.1"])
    point = finished.points[1]
    assert point.records[0].metrics == validated(alone, saved=True) != alone.metrics["trained"]
    steps = [json.loads(line) for line in (alone.folder / "log.jsonl").read_text().splitlines()]
    last = [record for record in steps if record["event"] == "step"][-1]  # a tenth of 12 steps
    assert (point.records[0].loss, point.records[0].grad_norm) == (last["loss"], last["grad_norm"])
    assert point.records[0].metrics != point.records[1].metrics  # another seed


def test_learned_temperatures_end_elsewhere(finished: Sweep) -> None:
    assert [point.start for point in finished.learned] == [0.05, 0.5]
    for point in finished.learned:
        assert all(
            run.temperature != point.start and 0.01 <= run.temperature <= 1 for run in point.records
        )
        assert point.temperature == pytest.approx(
            np.mean([run.temperature for run in point.records])
        )
    assert all(run.temperature == pytest.approx(0.1) for run in finished.points[1].records)
    assert [row["learned from"] for row in finished.table] == [None] * 4 + [0.05, 0.5, None]


def test_a_scheduled_temperature_is_the_run_alone(
    finished: Sweep, small: dict[str, Any], tmp_path: Path, validated: Any
) -> None:
    alone = train(
        small, tmp_path / "run", [*SHORT, "objective.temperature={value: 0.2, final: 0.02}"]
    )
    (point,) = finished.scheduled
    assert point.name == "scheduled from 0.2 to 0.02"
    assert (
        point.records[0].metrics
        == validated(alone, saved=True)
        != finished.points[0].records[0].metrics
    )
    assert all(run.temperature == pytest.approx(0.02) for run in point.records)
    assert [(row["scheduled from"], row["scheduled to"]) for row in finished.table][-2:] == [
        (None, None),
        (0.2, 0.02),
    ]
    assert point not in finished.region


@pytest.mark.usefixtures("undrawn")
def test_recommenders_are_swept_by_their_validation(
    recommender: dict[str, Any], tmp_path: Path
) -> None:
    found = sweep(recommender, {"objective.temperature": [0.05, 1.0]}, 2, tmp_path / "out")
    for point in found.points:
        assert [len(run.per_query) for run in point.records] == [55, 55]
        assert point.metric("hit@3").mean == pytest.approx(
            np.mean([run.per_query for run in point.records])
        )
        assert point.seen("effective_negatives") > 1 and point.grad_norm > 0


def test_runs_of_which_nothing_is_held_out_are_not_trained(
    recommender: dict[str, Any], tmp_path: Path
) -> None:
    for nothing in (
        {"data": {**recommender["data"], "split": "none"}},
        {"evaluation": {"queries": 0, "validation": 0}},
    ):
        with pytest.raises(TemperaError, match="nothing is held out to compare runs by"):
            sweep(
                {**recommender, **nothing},
                {"objective.temperature": [0.05, 0.1]},
                1,
                tmp_path / "out",
                overwrite=True,
            )


@pytest.mark.usefixtures("undrawn")
def test_the_weights_that_a_run_would_save_are_compared(
    small: dict[str, Any], tmp_path: Path, validated: Any
) -> None:
    """Too high a learning rate makes each step worse, so that the untrained weights are the
    best."""
    worse = ["train.max_steps=4", "train.learning_rate=30"]
    over = {"train.keep_best": [True, False]}
    best, last = (
        point.records[0] for point in sweep(small, over, 1, tmp_path / "out", worse).points
    )
    alone = train(small, tmp_path / "run", worse)
    assert alone.results["best"]["step"] < 4 and best.metrics == validated(alone, saved=True)
    assert last.metrics == validated(alone) != best.metrics


@pytest.mark.usefixtures("undrawn")
def test_fewer_than_fifty_queries_choose_nothing(small: dict[str, Any], tmp_path: Path) -> None:
    given = {**small, "evaluation": {**small["evaluation"], "validation": 49}}
    result = sweep(given, TWO, 1, tmp_path / "out", QUICK)
    assert result.best is None and result.region == () and len(result.table) == 2
    assert str(result).splitlines()[-1] == (
        "validation asks fewer than 50 queries or events, which choose nothing: the default stands"
    )
    given["evaluation"]["validation"] = 0  # the test is asked on purpose
    assert sweep(given, TWO, 1, tmp_path / "test", QUICK).best is not None


@pytest.mark.usefixtures("undrawn")
def test_runs_share_no_object(small: dict[str, Any], tmp_path: Path) -> None:
    dial = Temperature(0.2, learnable=True)
    given = {**small, "objective": {"temperature": dial}}
    found = sweep(
        given, {"train.learning_rate": [0.01, 0.02]}, 2, tmp_path / "out", ["train.max_steps=3"]
    )
    assert dial.value == pytest.approx(0.2)
    alone = sweep(
        given, {"train.learning_rate": [0.02, 0.03]}, 1, tmp_path / "other", ["train.max_steps=3"]
    )
    assert found.points[1].records[0].temperature == alone.points[0].records[0].temperature != 0.2


# ---- its result


def test_means_and_intervals_are_over_seeds(finished: Sweep) -> None:
    for point, row in zip(finished.points, finished.table):
        values = [run.metrics["recall@1"] for run in point.records]
        assert row["recall@1"] == pytest.approx(np.mean(values))
        if values[0] != values[1]:
            want = np.clip(stats.t.interval(0.95, 1, np.mean(values), stats.sem(values)), 0, 1)
            assert (row["recall@1 low"], row["recall@1 high"]) == pytest.approx(want)
        assert row["hardest_share"] == pytest.approx(
            np.mean([run.diagnosis["hardest_share"] for run in point.records])
        )


def test_intervals_of_metrics_end_at_0_and_1(finished: Sweep) -> None:
    records = [
        replace(each, metrics={"hit@1": value})
        for each, value in zip(finished.points[0].records, (0.5, 0.98))
    ]
    columns = figures(records, intervals=True)
    assert [columns[f"hit@1{end}"] for end in ("", " low", " high")] == [pytest.approx(0.74), 0, 1]
    assert math.isnan(figures(records[:1], intervals=True)["hit@1 low"])


def test_a_low_temperature_sees_the_hardest_negative_only(finished: Sweep) -> None:
    shares = [point.seen("hardest_share") for point in finished.points]
    effective = [point.seen("effective_negatives") for point in finished.points]
    assert shares == sorted(shares, reverse=True) and effective == sorted(effective)


def test_the_table_is_in_the_file(finished: Sweep) -> None:
    with (finished.folder / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["objective.temperature"]) for row in rows[:4]] == [0.02, 0.1, 0.5, 2]
    for row, want in zip(rows, finished.table, strict=True):
        assert row.keys() == want.keys()
        assert all(
            text == ("" if want[name] is None else str(want[name])) for name, text in row.items()
        )
    assert [row["in best region"] for row in finished.table[:4]] == [
        p in finished.region for p in finished.points
    ]


def test_it_prints_itself(finished: Sweep) -> None:
    text = str(finished)
    told = [line for line in text.splitlines() if line.startswith("caution in ")]
    assert len(told) == 1 and told[0].startswith(
        "caution in 4 of 14 runs: cosine with temperature 0.5: logits stay"
    )
    assert len(text.splitlines()) == 1 + 7 + 1 + 1
    assert "learned 0.05 -> " in text and "scheduled 0.2 -> 0.02" in text
    assert "objective.temperature" in text and "0.02" in text and "2 seeds and 60 queries" in text
    assert (
        finished.best is not None and f"best objective.temperature: {finished.best.name} " in text
    )


def test_it_is_one_json_document(finished: Sweep) -> None:
    document = json.loads(json.dumps(finished.json(), allow_nan=False))
    assert document["seeds"] == [5, 6] and document["points"] == finished.table
    assert document["region"] == [dict(point.over) for point in finished.region]


def test_the_picture_shows_the_points(finished: Sweep) -> None:
    svg = (finished.folder / "sweep.svg").read_text()
    ET.fromstring(svg)
    for text in (
        "nDCG@10",
        "learned: start to end",
        "scheduled: start to end",
        "hardest negative",
        "effective negatives",
        "uniformity",
        "gradient",
    ):
        assert text in svg, text
    assert (finished.folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_drawn_side_by_side(small: dict[str, Any], tmp_path: Path) -> None:
    over = {"objective.preset": ["mnr", "symmetric"], "train.batch_size": [16, 32]}
    found = sweep(small, over, 1, tmp_path / "out", ["train.max_steps=2"])
    svg = (found.folder / "sweep.svg").read_text()
    assert "objective.preset mnr" in svg and ">train.batch_size<" in svg  # numbers are the axis
    assert "one seed does not show" in found.sentence
    assert found.points[3].over == {"objective.preset": "symmetric", "train.batch_size": 32}


def test_points_that_ask_other_queries_are_not_said_to_be_paired_over_them(
    small: dict[str, Any], tmp_path: Path
) -> None:
    found = sweep(
        small, {"evaluation.validation": [55, 60]}, 2, tmp_path / "out", ["train.max_steps=2"]
    )
    assert "paired over 2 seeds, since queries differ)" in found.sentence


def test_a_preset_and_a_kind_of_tower_bring_what_a_run_of_their_own_has(
    recommender: dict[str, Any],
) -> None:
    events = {**recommender, "tower": {"dimensions": 8}, "evaluation": {"metrics": ["hit@3"]}}
    presets = Template.of(events, [], None, ["objective.preset"])
    for name in ("mnr", "hardness"):
        alone = build(opened(configuration.of(events, [f"objective.preset={name}"]))[0]).resolved
        assert (
            presets.config({"objective.preset": name}).resolved["objective"] == alone["objective"]
        )
    looks = Template.of(events, [], None, ["train.evaluations"]).config({"train.evaluations": 20})
    assert looks.train.patience is None
    texts = {"data": {"source": "pairs", "path": "pairs.jsonl"}, "tower": {"kind": "static"}}
    kinds = Template.of(texts, [], None, ["tower.kind"])
    refits = [kinds.config({"tower.kind": kind}).train.refit for kind in ("static", "transformer")]
    assert (
        refits == [build(opened(configuration.of(texts))[0]).train.refit, Training().refit]
        and len(set(refits)) == 2
    )


# ---- kills and failures


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_a_killed_sweep_goes_on(finished: Sweep, small: dict[str, Any], tmp_path: Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(configuration.dump(small))
    command = [
        sys.executable,
        "-m",
        "tempera",
        "sweep",
        str(config),
        *SHORT,
        "--seeds",
        "2",
        "--learned",
        "0.05,0.5",
    ]
    command += [
        "--scheduled",
        "0.2:0.02",
        "--over",
        "objective.temperature=0.02,0.1,0.5,2.0",
        "--output",
        str(out),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    end = time.monotonic() + 120
    while not (out / "points.jsonl").is_file() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = (out / "points.jsonl").read_text()
    assert 0 < len(read_records(out / "points.jsonl")) < 14
    again = sweep(config, OVER, 2, out, SHORT, **MOVING)
    assert (out / "points.jsonl").read_text().startswith(done)  # finished runs are not made again
    assert table(again) == table(finished)
    assert not (out / "cache").exists()


@pytest.mark.usefixtures("undrawn")
def test_what_an_interrupted_run_has_left_is_cleared(small: dict[str, Any], tmp_path: Path) -> None:
    trials = tmp_path / "out" / "trials"
    sweep(small, TWO, 1, tmp_path / "out", QUICK)
    (trials / "0004").mkdir(parents=True)
    (trials / "0004" / "log.jsonl").touch()
    sweep(small, TWO, 2, tmp_path / "out", QUICK)
    assert not trials.exists()


@pytest.mark.usefixtures("undrawn")
def test_runs_on_other_data_are_refused(
    small: dict[str, Any], pairs_file: Path, tmp_path: Path
) -> None:
    lines = pairs_file.read_text().splitlines(keepends=True)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(lines))
    mine = {**small, "data": {"source": "pairs", "path": str(pairs)}}
    two, three = {"objective.temperature": [0.1, 0.5]}, {"objective.temperature": [0.1, 0.3, 0.5]}
    sweep(mine, two, 1, tmp_path / "out", ["train.max_steps=1"])
    pairs.write_text("".join(lines[:-1]))
    with pytest.raises(OutputError, match="2 runs were made on other data"):
        sweep(mine, three, 1, tmp_path / "out", ["train.max_steps=1"])
    pairs.write_text("".join(lines))
    assert len(sweep(mine, three, 1, tmp_path / "out", ["train.max_steps=1"]).points) == 3


@pytest.mark.usefixtures("undrawn")
def test_a_failed_point_is_told_and_tried_again(
    small: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    over = {"train.learning_rate": [0.03, 1e38]}
    for _ in range(2):
        found = sweep(small, over, 2, tmp_path / "out", SHORT)
        good, bad = found.points
        assert (good.failed, bad.failed) == (0, 2) and "lower train.learning_rate" in (
            bad.records[0].error or ""
        )
        assert caplog.text.count("failed: train.learning_rate=1e+38, seed ") == 2
        caplog.clear()
        assert found.region == (good,)
        assert found.table[1]["ndcg@10"] is None and found.table[1]["failed"] == 2
        assert "2 failed: " in str(found)
    assert len(read_records(tmp_path / "out" / "points.jsonl")) == 4


@pytest.mark.usefixtures("undrawn")
def test_a_batch_of_auto_is_compared_beside_one_that_is_larger_than_the_data(
    small: dict[str, Any], tmp_path: Path
) -> None:
    good, bad = sweep(
        small, {"train.batch_size": ["auto", 100_000]}, 1, tmp_path / "out", QUICK
    ).points
    assert (good.failed, bad.failed) == (0, 1) and good.metric("ndcg@10").mean > 0
    assert "train.batch_size is 100000 and the data has" in (bad.records[0].error or "")


@pytest.mark.long
def test_runs_side_by_side_are_the_runs_one_by_one_and_a_killed_one_has_failed(
    finished: Sweep, small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real processes; one of them kills itself in its first run of temperature 0.5."""
    monkeypatch.setattr("tempera.experiments.runner.Worker", Worker)
    monkeypatch.setenv("TEMPERA_TEST_MARK", str(tmp_path / "killed"))
    monkeypatch.setattr(
        Worker, "command", (sys.executable, str(Path(__file__).with_name("killed_once.py")))
    )
    first = sweep(small, OVER, 2, tmp_path / "out", SHORT, **MOVING, jobs=2)
    assert [point.failed for point in first.everything] == [0, 0, 1, 0, 0, 0, 0]
    assert (
        "1 failed: its process was ended by SIGKILL, as a system does when it is out of memory"
        in str(first)
    )
    assert (
        len(list((tmp_path / "out" / "trials").glob("*.txt"))) == 1
        and not (tmp_path / "out" / "cache").exists()
    )
    monkeypatch.undo()
    again = sweep(small, OVER, 2, tmp_path / "out", SHORT, **MOVING)
    assert table(again) == table(finished)


@pytest.mark.usefixtures("undrawn")
def test_a_finished_sweep_makes_no_run_and_grows(
    finished: Sweep, small: dict[str, Any], tmp_path: Path, made: list[Any]
) -> None:
    three = {"objective.temperature": [0.1, 0.3, 0.5]}
    first = sweep(small, TWO, 1, tmp_path / "out", SHORT)
    made.clear()
    assert table(sweep(small, TWO, 1, tmp_path / "out", SHORT)) == table(first) and made == []
    more = sweep(small, three, 2, tmp_path / "out", SHORT)
    assert [(over["objective.temperature"], seed) for over, seed in made] == [
        (0.3, 5),
        (0.1, 6),
        (0.3, 6),
        (0.5, 6),
    ]
    assert len(more.points) == 3
    assert [run.metrics for run in more.points[0].records] == [
        run.metrics for run in finished.points[1].records
    ]
    fewer = sweep(small, {"objective.temperature": [0.1, 0.3]}, 1, tmp_path / "out", SHORT)
    assert len(fewer.points) == 2 and len(read_records(tmp_path / "out" / "points.jsonl")) == 6


def test_a_crash_is_reported_too(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(one_run, "diagnose", broken)
    with pytest.raises(
        TemperaError,
        match="all 2 runs have failed; the first error is: RuntimeError: out of memory",
    ):
        sweep(small, TWO, 1, tmp_path / "out", QUICK)
    assert len(read_records(tmp_path / "out" / "points.jsonl")) == 2


# ---- its plan


def plan(given: dict[str, Any], over: Any, seeds: int = 1, **options: Any) -> SweepPlan:
    return SweepPlan.of(Template.of(given, [], None), axes_of(over), seeds, **options)


def test_a_schedule_keeps_its_shape(small: dict[str, Any]) -> None:
    cosine = {
        **small,
        "objective": {"temperature": {"value": 0.1, "final": 0.05, "schedule": "cosine"}},
    }
    scheduled = [(0.2, 0.02), (0.2, 0.1), (0.2, 0.02)]
    runs = plan(cosine, {"train.learning_rate": [0.01, 0.02]}, scheduled=scheduled).runs
    assert [(run.record.start, run.record.final) for run in runs] == [(None, None)] * 2 + [
        (0.2, 0.02),
        (0.2, 0.1),
    ]
    dials = [build(Options(dict(run.options))).base.temperature for run in runs]
    assert [(dial.final, dial.schedule) for dial in dials[1:]] == [
        (final, "cosine") for final in (0.05, 0.02, 0.1)
    ]


def test_runs_that_share_data_follow_each_other(small: dict[str, Any]) -> None:
    runs = plan(small, {"objective.temperature": [0.1, 0.5], "tower.max_length": [2, 9]}, 2).runs
    assert [run.record.params["tower.max_length"] for run in runs] == [2] * 4 + [9] * 4
    assert [run.record.seed for run in runs] == [5, 5, 6, 6] * 2
    assert (
        len({run.record.reading for run in runs}) == 2 and len({run.queries for run in runs}) == 1
    )
    assert all(
        run.reference["train"]["seed"] == 5 and run.reference["objective"]["temperature"]
        for run in runs
    )


def test_the_fixed_batch_is_as_small_as_the_smallest(small: dict[str, Any]) -> None:
    runs = plan(small, {"train.batch_size": [64, 16]}).runs
    assert [run.reference["train"]["batch_size"] for run in runs] == [16, 16]


def test_more_than_a_thousand_runs_are_made_only_if_confirmed(small: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(
        ConfigError, match="this sweep has 300,000,000 runs; confirm more than 1,000 with --yes"
    ):
        plan(small, ["objective.temperature=0.1:1:log:100000000"], 3)
    assert time.monotonic() - began < 2
    with pytest.raises(ConfigError, match="has 1,002 runs"):
        plan(small, ["train.weight_decay=0:1:linear:167"], 6)
    assert len(plan(small, ["train.weight_decay=0:1:linear:2"], 501, yes=True).runs) == 1002


# ---- refusals


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"over": {"objective.temprature": [0.1, 0.2]}}, "Did you mean temperature?"),
        ({"over": {"objective.temperature": [0.1, -1]}}, "must be above 0"),
        ({"over": {"train.batch_size": [16, 2.5]}}, "train.batch_size"),
        (
            {"over": {"train.batch_size": [16, "abc"]}},
            "train.batch_size: is 'abc'; expected a whole number or auto",
        ),
        ({"over": {"train.batch_size": [16, None]}}, "train.batch_size"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"jobs": 0}, "--jobs is 0; give at least 1"),
        ({"over": {"objective.temperature": "0.01:0.2:log"}}, "write 0.01:0.2:log:8"),
        ({"metric": "ndcg@3"}, "--metric ndcg@3 is not measured; evaluation.metrics has ndcg@10"),
        ({"learned": [5.0]}, "starts within [floor, ceiling]"),
        ({"scheduled": [(0.1, 0.0)]}, "must be above 0"),
    ],
)
def test_wrong_options_are_told_before_anything_runs(
    given: dict[str, Any], says: str, small: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(small, **{"over": OVER, "output": tmp_path / "out", **given})
    assert says in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_an_output_of_something_else_is_left_alone(small: dict[str, Any], tmp_path: Path) -> None:
    quick = ({"objective.temperature": [0.1, 0.5]}, 1)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        sweep(small, *quick, tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="holds files that are not a sweep"):
            sweep(small, *quick, tmp_path / "full", overwrite=overwrite)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "x"
    out = tmp_path / "out"
    sweep(small, *quick, out, ["train.max_steps=1"])
    with pytest.raises(OutputError, match="another configuration"):
        sweep(small, *quick, out, ["train.max_steps=2"])
    made = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(DataError, match="no column 'nosuch'"):
        sweep(small, *quick, out, ["data.query=nosuch"], overwrite=True)
    (out / "model").mkdir()
    with pytest.raises(OutputError, match=r"is, or holds, .*model, which this command reads"):
        sweep(small, {"tower.teacher": [None, str(out / "model")]}, 1, out, overwrite=True)
    (out / "model").rmdir()
    with pytest.raises(
        DataError, match="no such file: nothing"
    ):  # those of the points, and not of what they have in common
        sweep(small, {"data.path": ["nothing.jsonl", "neither.jsonl"]}, 1, out, overwrite=True)
    (out / "link.jsonl").symlink_to(small["data"]["path"])
    mine = {**small, "data": {**small["data"], "path": str(out / "link.jsonl")}}
    with pytest.raises(OutputError, match=r"is, or holds, .*link.jsonl, which this command reads"):
        sweep(mine, *quick, out, overwrite=True)
    (out / "link.jsonl").unlink()
    assert {
        path: path.read_bytes() for path in out.iterdir()
    } == made  # nothing is forgotten before the data are read
    sweep(small, *quick, out, ["train.max_steps=2"], overwrite=True)
    assert len(read_records(out / "points.jsonl")) == 2
    nowhere = {**small, "data": {**small["data"], "path": "nothing.jsonl"}}
    paths = [small["data"]["path"], shutil.copy(small["data"]["path"], tmp_path / "copy.jsonl")]
    sweep(nowhere, {"data.path": list(map(str, paths))}, 1, tmp_path / "two", ["train.max_steps=1"])
    sweep(
        nowhere,
        {"data.path": list(map(str, paths))},
        1,
        tmp_path / "two",
        ["train.max_steps=2"],
        overwrite=True,
    )
    with (out / "points.jsonl").open("a") as file:
        file.write('{"over": 3}\n')
    with pytest.raises(OutputError, match=r"points\.jsonl was not written by a sweep"):
        sweep(small, *quick, out, ["train.max_steps=2"])


@pytest.mark.usefixtures("undrawn")
def test_the_command_answers(tempera: Any, small: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(configuration.dump(small))
    same = ("sweep", config, "train.max_steps=1", "--seeds", 1, "--output", tmp_path / "out")
    shown = tempera(*same, "--over", "objective.temperature=0.1:0.4:log:2")
    assert (
        shown.code == 0
        and "best objective.temperature: " in shown.out
        and f"picture: {tmp_path}/out/sweep.svg" in shown.out
    )
    for wrong, says in (
        (same, "--over is required"),
        ((*same, "--over", "x"), "write FIELD=VALUES"),
        (
            (*same, "--over", "objective.temperature=0.1:1:log:100000000"),
            "confirm more than 1,000 with --yes",
        ),
        ((*same, "--over", "objective.temperature=1,2", "--learned", "a"), "--learned is 'a'"),
        (
            (*same, "--over", "objective.temperature=1,2", "--scheduled", "0.2"),
            "--scheduled has '0.2'",
        ),
    ):
        answer = tempera(*wrong)
        assert answer.code == 2 and says in answer.err and "Traceback" not in answer.err


def test_an_interrupted_folder_goes_on_with_overwrite_and_a_finished_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same for sweeps, tunings and learning curves."""
    caplog.set_level("INFO", "tempera")
    folder = tmp_path / "out"

    def made(error: BaseException | None = None, about: str = "one") -> bool:
        """Whether what an earlier call has made is there."""
        with claimed(folder, "sweep.yaml", about, "sweep", overwrite=True):
            there = (folder / "points.jsonl").is_file()
            (folder / "points.jsonl").write_text("{}")
            if error is not None:
                raise error
        return there

    for stop in (KeyboardInterrupt(), SystemExit(143)):
        with pytest.raises(type(stop)):
            made(stop)
        assert made() and "going on with the sweep in" in caplog.text
    assert not made()  # it had ended
    with pytest.raises(OutputError):
        made(OutputError("the data have changed"))  # which is no interruption
    assert not made()
    with pytest.raises(KeyboardInterrupt):
        made(KeyboardInterrupt())
    assert not made(about="another")
    assert {path.name for path in folder.iterdir()} == {"sweep.yaml", "points.jsonl"}
