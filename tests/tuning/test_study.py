"""Workers that share a study make as many trials as were asked for, whoever disappears."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tempera.errors import ConfigError, MissingLibrary, OutputError, TemperaError
from tempera.experiments.record import Record
from tempera.experiments.runner import Stopped
from tempera.tuning import study
from tempera.tuning.space import Space
from tempera.tuning.study import Tpe, left_behind

optuna = pytest.importorskip("optuna")
SPACE = Space.of({"objective.temperature": "0.01:1:log", "train.batch_size": "16:64:int"})


class Killed(BaseException):
    """Ends a worker in the midst of a trial, which Optuna then knows nothing about."""


def tpe(
    folder: Path, budget: int = 4, shared: bool = False, name: str = "s", **options: Any
) -> Tpe:
    """A worker; those that share a storage have folders beside each other."""
    folder.mkdir(exist_ok=True)
    url = f"sqlite:///{folder.parent}/shared.db" if shared else None
    defaults = {"about": "about", "seed": 7, "lost_after": 60.0, "prune": True}
    return Tpe(url, name, folder=folder, space=SPACE, budget=budget, **{**defaults, **options})


def reached(values: Any) -> float:
    return -((math.log(values["objective.temperature"] / 0.1)) ** 2)


def worked(asker: Tpe, kill: int = -1) -> list[dict[str, Any]]:
    """The values that were tried; the worker disappears in the trial with the index `kill`."""
    tried: list[dict[str, Any]] = []

    def make(record: Record, values: dict[str, Any], report: Any) -> Record:
        tried.append(values)
        if len(tried) == kill + 1:
            raise Killed
        return replace(record, value=reached(values))

    try:
        asker.work(make)
    except Killed:
        tried.pop()
    return tried


def test_as_many_trials_as_were_asked_for(tmp_path: Path) -> None:
    first = tpe(tmp_path / "a")
    assert len(worked(first)) == 4 == len(first.records)
    assert len(worked(tpe(tmp_path / "a", budget=6))) == 2
    assert worked(tpe(tmp_path / "a", budget=3)) == []


@pytest.fixture
def learns_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler learns from two trials, instead of ten."""
    monkeypatch.setattr(study, "STARTUP", 2)


@pytest.mark.usefixtures("learns_early")
def test_the_seed_decides_what_is_tried(tmp_path: Path) -> None:
    tried = [
        worked(tpe(tmp_path / str(i), budget=5, seed=seed)) for i, seed in enumerate((1, 1, 2))
    ]
    assert tried[0] == tried[1] != tried[2]
    assert len({values["objective.temperature"] for values in tried[0]}) == 5


@pytest.mark.usefixtures("learns_early")
@pytest.mark.parametrize("at", [1, 4])
def test_a_study_resumes_as_if_it_had_never_stopped(at: int, tmp_path: Path) -> None:
    whole = worked(tpe(tmp_path / "whole", budget=6))
    first = worked(tpe(tmp_path / "killed", budget=6), kill=at)
    again = tpe(tmp_path / "killed", budget=6)
    assert first + worked(again) == whole
    assert len(again.records) == 6 and len(again.study.trials) == 7


def test_a_trial_that_was_never_begun_is_asked_for_again(tmp_path: Path) -> None:
    first = tpe(tmp_path / "a")
    first.study.ask()  # and killed before anything was chosen
    again = tpe(tmp_path / "a")
    assert worked(again) == worked(tpe(tmp_path / "b"))
    assert [trial.state.name for trial in again.study.trials] == ["FAIL"] + ["COMPLETE"] * 4


def test_a_failed_trial_counts_and_is_not_made_again(tmp_path: Path) -> None:
    asker = tpe(tmp_path / "a")
    asker.work(
        lambda record, values, report: replace(
            record, error="x" if record.number == 1 else None, value=0.5
        )
    )
    assert [record.state for record in asker.records] == [
        "finished",
        "failed",
        "finished",
        "finished",
    ]
    assert not any(map(left_behind, asker.study.trials)) and worked(tpe(tmp_path / "a")) == []


def test_a_silent_worker_is_taken_for_lost_and_its_trial_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_PATIENCE", 0.1)
    gone, other = (tpe(tmp_path / name, shared=True, lost_after=1.0) for name in "ab")
    assert len(worked(gone, kill=2)) == 2  # no heartbeat from here on
    (lost,) = [trial for trial in gone.study.trials if trial.state.name == "RUNNING"]
    tried = worked(other)
    assert lost.params in [
        trial.params for trial in other.study.trials if trial.number > lost.number
    ]
    assert len(tried) == 2 and len(other.records) == 4


def test_a_worker_that_was_taken_for_lost_gives_its_trial_up(tmp_path: Path) -> None:
    late, other = (tpe(tmp_path / name, budget=1, shared=True) for name in "ab")

    def make(record: Record, values: dict[str, Any], report: Any) -> Record:
        if (
            len(other.study.trials) == 1
        ):  # the first one: another worker thinks that it is lost, and makes it
            (trial,) = other.study.trials
            other._fail(trial)
            other._again(other.study, trial)
            assert worked(other) == [values]
        return replace(record, value=9.0)

    late.work(make)
    assert [record.value for record in late.records] == [reached(late.records[0].params)]


def test_a_worker_that_comes_back_does_not_wait_for_itself(tmp_path: Path) -> None:
    worked(tpe(tmp_path / "a", shared=True), kill=0)
    worked(tpe(tmp_path / "b", shared=True), kill=0)
    again = tpe(tmp_path / "a", shared=True)
    assert [trial.state.name for trial in again.study.trials] == [
        "FAIL",
        "RUNNING",
        "WAITING",
    ]  # its own, not b's


def test_a_trial_that_nobody_began_is_dropped_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_PATIENCE", 0.1)
    asker = tpe(tmp_path / "a", shared=True, lost_after=1.0)
    asker.study._storage.create_new_trial(
        asker.study._study_id
    )  # its worker was killed before its first heartbeat
    assert len(worked(asker)) == 4


def test_workers_that_ask_at_one_moment_make_no_trial_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_PATIENCE", 0.1)
    askers = [tpe(tmp_path / name, budget=5, shared=True) for name in "abc"]
    tried: list[Any] = []
    threads = [
        threading.Thread(target=lambda asker=asker: tried.extend(worked(asker))) for asker in askers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tried) == 5 == len(askers[0].records)
    assert len({values["objective.temperature"] for values in tried}) == 5


def test_a_stopped_trial_is_put_up_for_others(tmp_path: Path) -> None:
    asker = tpe(tmp_path / "a", shared=True)

    def stopped(record: Record, values: dict[str, Any], report: Any) -> Record:
        raise Stopped

    with pytest.raises(Stopped):
        asker.work(stopped)
    assert [trial.state.name for trial in asker.study.trials] == ["FAIL", "WAITING"]
    assert len(worked(tpe(tmp_path / "b", shared=True))) == 4


def test_a_worker_that_is_closed_asks_for_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_PATIENCE", 0.1)
    other, asker = (tpe(tmp_path / name, budget=2, shared=True) for name in "ab")
    worked(other, kill=1)  # so that there is a trial to wait for
    looks = iter([False, False, True])
    asker.work(
        lambda record, values, report: replace(record, value=0.5), closed=lambda: next(looks)
    )
    assert len(asker.records) == 1


def test_pruned_is_what_is_below_the_median(tmp_path: Path) -> None:
    ways = [
        [value * step for step in (1, 2, 3)] for value in (0.1, 0.2, 0.3, 0.4, 0.5)
    ]  # the median at 2 is 0.6
    ways += [[0.0, 0.59, 9.0], [0.0, 0.61, 9.0]]
    stopped: list[int | None] = []

    def make(record: Record, values: dict[str, Any], report: Any) -> Record:
        way = ways[record.number]
        stop = next(
            (i for i, value in enumerate(way, 1) if report(value, i) is True), None
        )  # it is sent as JSON
        stopped.append(stop)
        return replace(record, pruned=stop is not None, value=way[-1 if stop is None else stop - 1])

    asker = tpe(tmp_path / "a", budget=7)
    asker.work(make)
    assert stopped == [None] * 5 + [2, None]
    assert [(record.state, record.value) for record in asker.records][5:] == [
        ("pruned", 0.59),
        ("finished", 9.0),
    ]
    stopped.clear()
    tpe(tmp_path / "b", budget=7, prune=False).work(make)
    assert stopped == [None] * 7


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_no_setting_comes_twice_when_another_worker_leaves(tmp_path: Path) -> None:
    """Its trial ends without a result, so that no more of them have one than when this worker last
    asked."""
    asker, other = (tpe(tmp_path / name, budget=6, shared=True) for name in "ab")
    beside = other.study.ask()
    tried = []

    def make(record: Record, values: dict[str, Any], report: Any) -> Record:
        if not tried:
            other._fail(other.study.trials[beside.number])
        tried.append(values)
        return replace(record, value=reached(values))

    asker.work(make)
    assert len(tried) == 6 == len({values["objective.temperature"] for values in tried})


def lose(*_: Any, **__: Any) -> Any:
    raise optuna.exceptions.StorageInternalError("with SQL") from RuntimeError("the disk\nis full")


@pytest.mark.parametrize(
    "lost",
    [["set_trial_state_values"], ["set_trial_state_values", "get_trial"], ["get_all_trials"]],
)
def test_a_storage_that_is_lost_in_a_trial_is_one_line(tmp_path: Path, lost: list[str]) -> None:
    """Optuna cannot write how the trial ended, and raises something else."""
    asker = tpe(tmp_path / "a", shared=True)

    def make(record: Record, values: dict[str, Any], report: Any) -> Record:
        for name in lost:
            setattr(asker.study._storage, name, lose)
        return replace(record, value=0.5)

    with pytest.raises(
        TemperaError,
        match=r"^the storage is lost: the disk is full; rerun the same command to resume",
    ):
        asker.work(make)


def test_an_error_of_ones_own_is_no_loss_of_the_storage(tmp_path: Path) -> None:
    def make(record: Record, values: dict[str, Any], report: Any) -> Record:
        raise AssertionError("mine")

    with pytest.raises(AssertionError, match="mine"):
        tpe(tmp_path / "a").work(make)


def test_a_heart_beats_on_where_the_storage_is_lost_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optuna.storages.RDBStorage, "record_heartbeat", lose)
    assert len(worked(tpe(tmp_path / "a", shared=True))) == 4
    assert "Traceback" not in capfd.readouterr().err


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    tpe(tmp_path / "a")
    with pytest.raises(
        OutputError, match="is of another configuration, space or metric; give another --study"
    ):
        tpe(tmp_path / "a", about="else")


def test_a_storage_that_cannot_be_opened_is_told_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempera.tuning.study.time.sleep", lambda _: None)
    for url in (
        "postgresql://me:secret@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=me&password=secret",
        "postgresql://me:se@cret?secret@127.0.0.1:1/db",
        "postgresql:me:secret@127.0.0.1:1/db",
        "nonsense",
        "nothing://me:secret@there/db",
    ):
        with pytest.raises(ConfigError, match="--storage ") as caught:
            Tpe(url, "s", "about", tmp_path, SPACE, 4, 7, 60, True)
        assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_without_optuna_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingLibrary, match=r"tuning needs optuna: pip install 'tempera\[tune\]'"):
        tpe(tmp_path / "a")
