"""A tuning is its trials: each as if it stood alone, finished ones kept, failed ones reported, the
best one trains again."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import yaml

from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError, DataError, OutputError, TemperaError
from tempera.experiments import claim
from tempera.experiments.claim import claimed
from tempera.experiments.record import Record
from tempera.experiments.runner import Runner
from tempera.experiments.sweep import sweep
from tempera.io.lock import alone
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.run.train import train
from tempera.tuning.study import Tpe
from tempera.tuning.trials import Tuning, ranked
from tempera.tuning.tune import tune

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("inline")
SHORT = ["train.max_steps=12"]
QUICK = ["train.max_steps=1", "train.evaluations=0"]
SPACE = {"objective.temperature": "0.02:2:log", "train.learning_rate": "1e-4:0.1:log"}


@pytest.fixture(scope="module")
def finished(
    small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, inline: None
) -> Tuning:
    """12 trials in a space with a condition; look, do not touch."""
    space = {
        **SPACE,
        "objective.preset": {"mnr": None, "symmetric": {"train.weight_decay": [0, 0.1]}},
    }
    return tune(small, space, 12, tmp_path_factory.mktemp("tunings") / "whole", SHORT)


def made(result: Tuning) -> list[tuple[Any, ...]]:
    """Without numbers and times, which a kill changes."""
    return [(dict(t.params), t.state, t.value, list(t.on_the_way)) for t in result.trials]


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- the trials


def test_a_trial_is_the_run_alone(
    finished: Tuning, small: dict[str, Any], tmp_path: Path, validated: Any
) -> None:
    trial = next(trial for trial in finished.trials if trial.done and trial is not finished.best)
    chosen = [f"{name}={value}" for name, value in trial.params.items()]
    alone = train(small, tmp_path / "run", [*SHORT, *chosen])
    assert (
        trial.metrics == validated(alone, saved=True) != alone.metrics["trained"]
        and trial.value == trial.metrics["ndcg@10"]
    )
    log = [json.loads(line) for line in (alone.folder / "log.jsonl").read_text().splitlines()]
    on_the_way = [
        record["metrics"]["ndcg@10"] for record in log if record["event"] == "evaluation"
    ][1:-1]
    assert list(trial.on_the_way) == on_the_way


def test_the_best_configuration_gives_the_same_again(
    finished: Tuning, tmp_path: Path, validated: Any
) -> None:
    again = train(finished.folder / "best.yaml", tmp_path / "run")
    assert validated(again, saved=True) == finished.best.metrics
    assert max(trial.value or 0 for trial in finished.trials if trial.done) == finished.best.value
    assert yaml.safe_load((finished.folder / "best.yaml").read_text()) == finished.config


def test_the_best_run_stays_and_no_other(finished: Tuning, tmp_path: Path, validated: Any) -> None:
    (folder,) = (finished.folder / "trials").iterdir()
    assert int(folder.name) == finished.best.number
    run = Run(folder)
    assert validated(run, saved=True) == finished.best.metrics and run.search("kaban lodor", 3)
    assert (
        yaml.safe_load((folder / "config.yaml").read_text())["objective"]
        == finished.config["objective"]
    )


@pytest.mark.usefixtures("undrawn")
def test_what_an_earlier_call_has_not_kept_is_said(
    small: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tune(small, SPACE, 2, tmp_path / "out", QUICK, keep=1)
    assert "has not kept" not in caplog.text
    tune(small, SPACE, 2, tmp_path / "out", QUICK, keep=2)
    assert re.search(
        r"has not kept the runs of trials 000[01], which are among the best 2", caplog.text
    )


@pytest.mark.usefixtures("undrawn")
def test_a_worker_says_where_the_best_run_of_another_is(
    small: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = partial(Tpe, f"sqlite:///{tmp_path}/shared.db")
    monkeypatch.setattr("tempera.tuning.tune.Tpe", lambda storage, *rest: shared(*rest))
    given = small, SPACE, 1
    tune(*given, tmp_path / "a", QUICK, storage="postgresql://me:secret@host/db")
    with caplog.at_level("INFO", logger="tempera"):
        tune(*given, tmp_path / "b", QUICK, storage="postgresql://me:secret@host/db")
    where = re.escape(f":{tmp_path / 'a'}")
    assert re.search(
        f"the run of trial 0000, one of the best 1, is with its worker: .*{where}$",
        caplog.text,
        re.M,
    )
    assert (
        "has not kept" not in caplog.text
        and "secret" not in (tmp_path / "a" / "tune.yaml").read_text()
    )
    for other in (
        {"study": "else"},
        {"storage": "postgresql://me@elsewhere/db"},
        {"storage": None},
    ):
        with pytest.raises(OutputError, match="holds a tuning of another configuration"):
            tune(*given, tmp_path / "a", QUICK, **{"storage": "postgresql://me@host/db", **other})


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("keep", [0, 2])
def test_as_many_runs_stay_as_are_asked_for(
    keep: int, small: dict[str, Any], tmp_path: Path
) -> None:
    result = tune(
        small, SPACE, 3, tmp_path / "out", [*QUICK, "train.refit=auto", "mining.again=3"], keep=keep
    )
    order = sorted(result.trials, key=lambda trial: (-(trial.value or 0), trial.number))
    folders = {int(folder.name) for folder in (tmp_path / "out" / "trials").glob("*/")}
    assert folders == {trial.number for trial in order[:keep]}
    for number in folders:
        run = Run(tmp_path / "out" / "trials" / f"{number:04}")
        assert run.results["metrics"]
        resolved = yaml.safe_load((run.folder / "config.yaml").read_text())
        assert resolved["train"]["refit"] == "none"  # no trial is trained again
    assert result.config["train"]["refit"] == "auto"


def test_conditions_hold(finished: Tuning) -> None:
    for trial in finished.trials:
        assert ("train.weight_decay" in trial.params) == (
            trial.params["objective.preset"] == "symmetric"
        )
    assert {trial.params["objective.preset"] for trial in finished.trials} == {"mnr", "symmetric"}


def test_bad_trials_are_given_up(finished: Tuning, small: dict[str, Any], tmp_path: Path) -> None:
    """The definition in loops: at an evaluation from the second on, worse than the median of the
    finished ones before."""
    seen = set()
    for i, trial in enumerate(finished.trials):
        before = [other.on_the_way for other in finished.trials[:i] if other.done]
        reached: list[float] = []
        given_up = False
        for evaluation, value in enumerate(trial.on_the_way):
            reached.append(value)
            others = sorted(steps[evaluation] for steps in before)
            n = len(others)
            if evaluation >= 1 and n >= 5:
                given_up = given_up or max(reached) < (others[(n - 1) // 2] + others[n // 2]) / 2
        assert (trial.state == "pruned") == given_up
        seen.add(trial.state)
    assert seen == {"finished", "pruned"}
    pruned = next(trial for trial in finished.trials if trial.state == "pruned")
    assert len(pruned.on_the_way) < 4 and pruned.value == pruned.on_the_way[-1]


@pytest.mark.usefixtures("undrawn")
def test_recommenders_are_judged_by_their_validation(
    recommender: dict[str, Any], tmp_path: Path
) -> None:
    rates = [0.001, 0.05]
    points = sweep(recommender, {"train.learning_rate": rates}, 1, tmp_path / "sweep").points
    want = {point.over["train.learning_rate"]: point.records[0].metrics for point in points}
    result = tune(recommender, {"train.learning_rate": rates}, 4, tmp_path / "out", prune=False)
    assert all(
        trial.metrics == want[trial.params["train.learning_rate"]] for trial in result.trials
    )
    again = train(tmp_path / "out" / "best.yaml", tmp_path / "again").metrics
    assert again == Run(tmp_path / "out" / "trials" / f"{result.best.number:04}").metrics
    assert again["trained"] != result.best.metrics  # the test is another question


@pytest.mark.usefixtures("undrawn")
def test_several_at_once(small: dict[str, Any], tmp_path: Path) -> None:
    result = tune(small, SPACE, 4, tmp_path / "out", QUICK, jobs=2)
    assert (
        len(result.trials) == 4
        and len({json.dumps(dict(trial.params)) for trial in result.trials}) == 4
    )


# ---- its result


def test_optuna_opens_the_study(finished: Tuning) -> None:
    study = optuna.load_study(study_name="tempera", storage=f"sqlite:///{finished.folder}/study.db")
    assert study.best_value == finished.best.value and study.best_params == finished.best.params
    assert len(study.trials) == 12 and study.direction.name == "MAXIMIZE"


def test_the_table_is_in_the_file(finished: Tuning) -> None:
    with (finished.folder / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for row, want in zip(rows, finished.table, strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in want.items()}


def test_it_prints_itself(finished: Tuning) -> None:
    text = str(finished)
    rows = [line for line in text.splitlines() if not line.startswith("caution in ")]
    assert len(rows) == 1 + min(10, finished.count("finished")) + 1 and len(rows) < len(
        text.splitlines()
    )
    assert text.splitlines()[1].split()[0] == str(finished.best.number)
    assert f"the best is trial {finished.best.number} with nDCG@10" in text
    document = json.loads(json.dumps(finished.json(), allow_nan=False))
    assert (
        document["best"]["params"] == finished.best.params and document["trials"] == finished.table
    )


def test_the_picture_shows_the_trials(finished: Tuning) -> None:
    svg = (finished.folder / "tune.svg").read_text()
    ET.fromstring(svg)
    for text in (
        "nDCG@10",
        "best so far",
        "pruned",
        "temperature",
        "symmetric",
        "has no such option",
    ):
        assert text in svg, text
    assert (finished.folder / "tune.png").read_bytes().startswith(b"\x89PNG")


def test_importance_is_shared_among_what_was_chosen(small: dict[str, Any], tmp_path: Path) -> None:
    space = {
        "train.learning_rate": "1e-5:0.1:log",
        "card.language": ["a", "b"],
    }  # which changes nothing
    result = tune(
        small,
        space,
        10,
        tmp_path / "out",
        ["train.max_steps=4", "train.evaluations=0"],
        prune=False,
        keep=0,
    )
    assert sum(result.importance.values()) == pytest.approx(1)
    assert result.importance["train.learning_rate"] > result.importance["card.language"]
    assert "share in what makes a trial" in (tmp_path / "out" / "tune.svg").read_text()


# ---- kills and failures


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_a_killed_tuning_goes_on(small: dict[str, Any], tmp_path: Path) -> None:
    whole = tune(small, SPACE, 4, tmp_path / "whole", SHORT)
    config, space, out = tmp_path / "config.yaml", tmp_path / "space.yaml", tmp_path / "out"
    config.write_text(configuration.dump(small))
    space.write_text(configuration.dump(SPACE))
    command = [
        sys.executable,
        "-m",
        "tempera",
        "tune",
        str(config),
        *SHORT,
        "--space",
        str(space),
        "--trials",
        "4",
    ]
    process = subprocess.Popen([*command, "--output", str(out)], stderr=subprocess.DEVNULL)
    until(lambda: (out / "trials" / "0001" / "log.jsonl").is_file())
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert below and not alive  # the trial and who started it are gone, too
    again = tune(config, space, 4, out, SHORT)
    assert made(again) == made(whole)
    stamp = (out / "trials").stat().st_mtime_ns
    assert made(tune(config, space, 4, out, SHORT)) == made(whole)
    assert (out / "trials").stat().st_mtime_ns == stamp  # nothing was made again
    assert made(tune(config, space, 5, out, SHORT))[:4] == made(whole)


@pytest.mark.usefixtures("undrawn")
def test_fewer_than_fifty_queries_choose_nothing(
    tempera: Any, small: dict[str, Any], tmp_path: Path
) -> None:
    given = {**small, "evaluation": {**small["evaluation"], "validation": 49}}
    config, space, out = tmp_path / "config.yaml", tmp_path / "space.yaml", tmp_path / "out"
    config.write_text(configuration.dump(given))
    space.write_text(configuration.dump(SPACE))
    shown = tempera("tune", config, *QUICK, "--space", space, "--trials", 2, "--output", out)
    assert shown.code == 0 and "which choose nothing: the default stands" in shown.out
    assert "train with the best" not in shown.out
    assert not (out / "best.yaml").exists() and not (out / "trials").exists()
    result = tune(config, space, 2, out, QUICK)
    assert result.best is None and len(result.trials) == 2 and result.json()["best"] is None
    assert (
        result.config
        == build(configuration.of(config, [*QUICK, "train.refit=auto", "mining.again=3"])).resolved
    )


def test_queries_of_a_kept_index_are_not_compared_untrained(
    small: dict[str, Any], tiny_run: Path, tmp_path: Path
) -> None:
    tower = {"query": {"kind": "head", "model": str(tiny_run)}, "doc": {"index": str(tiny_run)}}
    given = {**small, "tower": tower, "evaluation": {**small["evaluation"], "validation": 0}}
    with pytest.raises(
        TemperaError,
        match=r"untrained, since nothing shows .*: raise it above 0, or set train.keep_best=false",
    ):
        tune(given, {"train.learning_rate": [0.001, 0.02]}, 2, tmp_path / "none", QUICK)
    result = tune(
        given,
        {"train.learning_rate": [0.001, 0.02]},
        2,
        tmp_path / "out",
        ["train.max_steps=8", "train.keep_best=false"],
    )
    assert len({trial.loss for trial in result.trials}) == 2  # nothing has none


@pytest.mark.usefixtures("undrawn")
def test_failures_are_told_and_counted(
    small: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = {"train.learning_rate": [0.03, 1e38]}
    result = tune(small, space, 4, tmp_path / "out", ["train.max_steps=3"])
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert failed and len(result.trials) == 4
    assert all("lower train.learning_rate" in (trial.error or "") for trial in failed)
    assert caplog.text.count(" failed: the ") == len(failed)
    assert f"{len(failed)} failed: the " in str(result)
    with pytest.raises(
        TemperaError, match=r"none of 2 trials has succeeded; the first error is: the \w+"
    ):
        tune(
            small,
            {"train.learning_rate": [1e38, 2e38]},
            2,
            tmp_path / "none",
            ["train.max_steps=3"],
        )


@pytest.mark.usefixtures("undrawn")
def test_settings_that_only_together_are_refused_fail(
    small: dict[str, Any], tmp_path: Path
) -> None:
    given = {
        **small,
        "objective": {
            "temperature": {"value": 0.1, "learnable": True, "floor": 0.05, "ceiling": 1.0}
        },
    }
    space = {"objective.temperature.value": [0.1, 0.9], "objective.temperature.ceiling": [1.0, 0.5]}
    result = tune(given, space, 5, tmp_path / "out", QUICK)
    for trial in result.trials:
        refused = (
            trial.params["objective.temperature.value"],
            trial.params["objective.temperature.ceiling"],
        ) == (
            0.9,
            0.5,
        )
        assert (trial.state == "failed") == refused
    assert result.count("failed") and "starts within [floor, ceiling]" in str(result)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("field", ["tower.dimensions", "train.max_pairs"])
def test_data_that_change_are_refused_whatever_of_them_runs_read(
    field: str, small: dict[str, Any], pairs_file: Path, tmp_path: Path
) -> None:
    """Of the same number of queries, which no difference in numbers would show."""
    lines, pairs = pairs_file.read_text().splitlines(keepends=True), tmp_path / "pairs.jsonl"
    pairs.write_text("".join(lines))
    mine = {**small, "data": {"source": "pairs", "path": str(pairs)}}
    sweep(mine, {field: [32, 48]}, 1, tmp_path / "out", QUICK)
    pairs.write_text("".join(lines[1:]))
    with pytest.raises(OutputError, match="2 runs were made on other data"):
        sweep(mine, {field: [32, 48, 64]}, 1, tmp_path / "out", QUICK)


@pytest.mark.usefixtures("undrawn")
def test_trials_on_other_data_are_refused(
    small: dict[str, Any], pairs_file: Path, tmp_path: Path
) -> None:
    lines = pairs_file.read_text().splitlines(keepends=True)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(lines))
    mine = {**small, "data": {"source": "pairs", "path": str(pairs)}}
    tune(mine, SPACE, 2, tmp_path / "out", QUICK)
    pairs.write_text("".join(lines[:-1]))
    with pytest.raises(OutputError, match="2 runs were made on other data"):
        tune(mine, SPACE, 3, tmp_path / "out", QUICK)
    pairs.write_text("".join(lines))
    assert len(tune(mine, SPACE, 3, tmp_path / "out", QUICK).trials) == 3


@pytest.mark.usefixtures("undrawn")
def test_workers_that_begin_together_on_other_data_are_refused(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them has a record when the other begins."""
    url, make, askers = f"sqlite:///{tmp_path}/shared.db", Runner.make, list[Tpe]()
    (tmp_path / "other").mkdir()

    def shared(_: None, *rest: Any) -> Tpe:
        askers.append(Tpe(url, *rest))
        return askers[-1]

    def meanwhile(self: Runner, *args: Any, **options: Any) -> Record:
        record, asker = make(self, *args, **options), askers[0]
        other = Tpe(url, asker.name, asker.about, tmp_path / "other", asker.space, 9, 1, 60.0, True)
        other._try(
            lambda it, values, report: replace(it, reading=record.reading, data="other", value=0.5),
            0,
        )
        return record

    monkeypatch.setattr("tempera.tuning.tune.Tpe", shared)
    monkeypatch.setattr(Runner, "make", meanwhile)
    with pytest.raises(
        OutputError, match=r"1 run was made on other data than there are now.*; give another folder"
    ):
        tune(small, SPACE, 5, tmp_path / "out", QUICK)
    assert (
        len(askers[0].records) == 1
    )  # that of the other worker: this one's is not compared with it


# ---- refusals


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"space": {"objective.temprature": "0.1:1:log"}}, "Did you mean temperature?"),
        ({"space": {"objective.temperature": "-1:1:linear"}}, "must be above 0"),
        (
            {"space": {"objective.preset": {"mnr": None, "gist": {"train.batch": [8, 9]}}}},
            "train.batch: no such option",
        ),
        (
            {"space": {"evaluation.metrics": [["ndcg@10"], ["mrr@10"]]}},
            "ndcg@10 is missing, by which runs are compared",
        ),
        ({"metric": "ndcg@3"}, "--metric ndcg@3 is not measured; evaluation.metrics has ndcg@10"),
        ({"trials": 0}, "--trials is 0; give at least 1"),
        ({"jobs": 0}, "--jobs is 0"),
        ({"keep": -1}, "--keep is -1; give at least 0"),
    ],
)
def test_wrong_options_are_told_before_anything_runs(
    given: dict[str, Any], says: str, small: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        tune(small, **{"space": SPACE, "output": tmp_path / "out", **given})
    assert says in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_a_space_is_told_with_its_place(small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "objective.temperature: 0.1:1:log\nobjective.pooling: [a, b]\n"
    )
    with pytest.raises(
        ConfigError,
        match=r"objective.pooling: no such option. Did you mean pools\?.*\(.*space.yaml:2\)",
    ):
        tune(small, tmp_path / "space.yaml", output=tmp_path / "out")


def test_several_processes_are_refused(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start them without a launcher"):
        tune(small, SPACE, output=tmp_path / "out")


@pytest.mark.usefixtures("undrawn")
def test_an_output_of_something_else_is_left_alone(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in ("sqlite", "sqlite+pysqlite"):
        with pytest.raises(
            ConfigError, match="--storage sqlite: is a file for one tempera tune alone"
        ):
            tune(small, SPACE, 1, tmp_path / "shared", storage=f"{driver}:///{tmp_path}/study.db")
    for nothing in ("", " "):
        with pytest.raises(
            ConfigError, match="--storage is empty: give a postgresql:// URL, or leave it out"
        ):
            tune(small, SPACE, 1, tmp_path / "shared", storage=nothing)
    with pytest.raises(
        ConfigError,
        match="--overwrite forgets what is in --output, and the trials are in --storage",
    ):
        tune(small, SPACE, 1, tmp_path / "shared", storage="postgresql://nowhere/x", overwrite=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="holds files that are not a tuning"):
            tune(small, SPACE, 1, tmp_path / "full", overwrite=overwrite)
    out = tmp_path / "out"
    tune(small, SPACE, 1, out, QUICK)
    with pytest.raises(OutputError, match="another configuration"):
        tune(small, SPACE, 1, out, ["train.max_steps=2"])
    with pytest.raises(OutputError, match="another configuration"):
        tune(small, {"objective.temperature": [0.1, 0.2]}, 1, out, QUICK)
    monkeypatch.setattr(claim, "_PATIENCE", 0.0)
    before = sorted(out.rglob("*"))
    with alone(out / "lock", "busy"):
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="is in use by another process; every tuning"):
                tune(small, SPACE, 1, out, QUICK, overwrite=overwrite)
    assert sorted(out.rglob("*")) == before
    assert len(tune(small, SPACE, 2, out, ["train.max_steps=2"], overwrite=True).trials) == 2


@pytest.mark.usefixtures("undrawn")
def test_the_command_answers(tempera: Any, small: dict[str, Any], tmp_path: Path) -> None:
    config, space = tmp_path / "config.yaml", tmp_path / "space.yaml"
    config.write_text(configuration.dump(small))
    space.write_text("objective.temperature: 0.1:0.4:log\n")
    same = ("tune", config, "train.max_steps=1", "--trials", 2, "--output", tmp_path / "out")
    shown = tempera(*same, "--space", space, "--json")
    assert shown.code == 0 and len(shown.document["trials"]) == 2
    again = tempera(*same, "--space", space)
    assert (
        again.code == 0
        and f"train with the best options: tempera train {tmp_path}/out/best.yaml" in again.out
    )
    for wrong, says in (
        (same, "--space is required"),
        ((*same, "--space", "no.yaml"), "no such file"),
    ):
        answer = tempera(*wrong)
        assert answer.code == 2 and says in answer.err and "Traceback" not in answer.err


def test_trials_are_ranked_by_what_they_reached() -> None:
    trials = [Record({}, number=0, value=0.1), Record({}, number=1, value=0.9, pruned=True)]
    trials += [
        Record({}, number=2, value=0.3),
        Record({}, number=3, error="x"),
        Record({}, number=4, value=0.3),
    ]
    assert [trial.number for trial in ranked(trials)] == [2, 4, 0]


def test_an_output_in_which_nothing_was_made_belongs_to_nobody(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError),
        claimed(tmp_path / "out", "tune.yaml", "one", "tuning", overwrite=False),
    ):
        raise ConfigError("no such storage")
    with claimed(tmp_path / "out", "tune.yaml", "another", "tuning", overwrite=False):
        (tmp_path / "out" / "trials.csv").write_text("")
    other = claimed(tmp_path / "out", "tune.yaml", "one", "tuning", overwrite=False)
    with pytest.raises(OutputError, match="holds a tuning of another configuration"), other:
        raise AssertionError


def test_what_is_read_is_never_forgotten(
    small: dict[str, Any], pairs_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "tune.yaml").write_text("of another configuration")
    (out / "pairs.jsonl").write_text(pairs_file.read_text())
    mine = {**small, "data": {"source": "pairs", "path": str(out / "pairs.jsonl")}}
    with pytest.raises(OutputError, match=r"is, or holds, .*pairs.jsonl, which this command reads"):
        tune(mine, SPACE, 1, out, overwrite=True)
    assert (out / "pairs.jsonl").exists()
    (out / "space.yaml").write_text("objective.temperature: [0.1, 0.2]")
    with pytest.raises(OutputError, match=r"is, or holds, .*space.yaml, which this command reads"):
        tune(small, out / "space.yaml", 1, out, overwrite=True)
    with pytest.raises(DataError, match="no column 'nosuch'"):
        tune(small, SPACE, 1, out, ["data.query=nosuch"], overwrite=True)
    assert (out / "tune.yaml").read_text() == "of another configuration"


def test_a_folder_that_is_cleared_in_part_can_be_cleared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    for name in ("a", "trials", "z"):
        (folder / name).mkdir(parents=True)
    (folder / "tune.yaml").write_text("one")
    with monkeypatch.context() as patch:
        patch.setattr(
            "tempera.experiments.claim.shutil.rmtree", Mock(side_effect=KeyboardInterrupt)
        )
        with (
            pytest.raises(KeyboardInterrupt),
            claimed(folder, "tune.yaml", "two", "tuning", overwrite=True),
        ):
            pass
    assert (folder / "tune.yaml").is_file()
    (folder / "tune.yaml.partial").write_text("t")
    with claimed(folder, "tune.yaml", "two", "tuning", overwrite=True):
        assert {path.name for path in folder.iterdir()} == {"lock", "tune.yaml", "unfinished"}
    (folder / "tune.yaml.partial").write_text("t")  # killed in its first write
    with claimed(folder, "tune.yaml", "three", "tuning", overwrite=True):
        assert (folder / "tune.yaml").read_text() == "three"


def test_a_name_that_is_written_halfway_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "tune.yaml.partial").write_text("t")
    with claimed(tmp_path, "tune.yaml", "one", "tuning", overwrite=False):
        assert (tmp_path / "tune.yaml").read_text() == "one"
