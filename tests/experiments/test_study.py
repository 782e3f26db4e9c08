"""Workers that share a study make as many trials as were asked for, whoever disappears."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tempera.errors import ConfigError, MissingLibrary, OutputError
from tempera.experiments.space import Space
from tempera.experiments.study import Shared, left_behind

optuna = pytest.importorskip("optuna")
SPACE = Space.of({"objective.temperature": "0.01:1:log", "train.batch_size": "16:64:int"})


def shared(url: str, worker: str = "a", budget: int = 4, among: bool = False, **options: Any) -> Shared:
    found = Shared(
        url, "s", "about", worker, **{"budget": budget, "seed": 7, "lost_after": 60, "prune": True, **options}
    )
    found.alone = not among
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


def reached(values: Any) -> float:
    return -((math.log(values["objective.temperature"] / 0.1)) ** 2)


def worked(found: Shared, most: int = 99) -> list[dict[str, Any]]:
    made = []
    while len(made) < most and (asked := found.ask(SPACE)) is not None:
        assert found.finish(asked[0], {"value": reached(asked[1])})
        made.append(asked[1])
    return made


def test_as_many_trials_as_were_asked_for(url: str) -> None:
    first = shared(url)
    assert len(worked(first)) == 4 == len(first.finished)
    assert worked(shared(url, budget=6)) and len(shared(url).finished) == 6
    assert worked(shared(url, budget=3)) == []


def test_the_seed_says_what_is_tried(tmp_path: Path) -> None:
    made = [worked(shared(f"sqlite:///{tmp_path}/{i}.db", budget=15, seed=seed)) for i, seed in enumerate((1, 1, 2))]
    assert made[0] == made[1] != made[2]
    assert len({values["objective.temperature"] for values in made[0]}) == 15


@pytest.mark.parametrize("at", [2, 13])
def test_a_study_goes_on_as_if_it_had_never_stopped(at: int, tmp_path: Path) -> None:
    whole = worked(shared(f"sqlite:///{tmp_path}/whole.db", budget=16))
    url = f"sqlite:///{tmp_path}/killed.db"
    before = shared(url, budget=16)
    made = worked(before, at)
    asked = before.ask(SPACE)  # and killed
    assert asked is not None
    again = shared(url, budget=16)
    assert again.recover(set()) == 1
    made += worked(again)
    assert made == whole and made[at] == asked[1]
    assert len(again.finished) == 16 and len(again.trials) == 17


def test_what_was_asked_but_not_begun_is_asked_again(url: str) -> None:
    first = shared(url)
    first.study.ask()  # killed before anything was chosen
    again = shared(url)
    assert again.recover(set()) == 1
    assert worked(again) == worked(shared(url.replace("study.db", "other.db")))


def test_what_failed_by_itself_is_not_made_again(url: str) -> None:
    first = shared(url)
    asked = first.ask(SPACE)
    assert asked is not None and first.finish(asked[0], {"error": "so it is"})
    assert len(worked(first)) == 3 and [left_behind(trial) for trial in first.trials] == [False] * 4
    other = shared(url, budget=5)
    asked = other.ask(SPACE)
    assert asked is not None
    asked[0].set_user_attr("outcome", {"error": "told"})  # and killed before it was closed
    again = shared(url, budget=5)
    again.recover(set())
    assert worked(again) == [] and len(again.finished) == 5


def test_others_are_taken_for_gone_when_they_are_silent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tempera.experiments.study.time.monotonic", lambda: now[0])
    a, b = shared(url, "a", among=True), shared(url, "b", among=True)
    asked = a.ask(SPACE)
    assert asked is not None
    for beat in range(5):
        a.beat(asked[0], beat)
        now[0] += 50
        assert b.recover(set()) == 0  # it was heard of
    now[0] += 50
    assert b.recover(set()) == 0
    now[0] += 61
    assert b.recover(set()) == 1
    found = b.ask(SPACE)
    assert found is not None and found[1] == asked[1] and found[0].number != asked[0].number
    # It was alive after all: what it says is too late, and not counted.
    assert a.report(asked[0], 0.5, 1) and not a.finish(asked[0], {"value": 0.5})
    assert b.finish(found[0], {"value": 0.25})
    assert [trial.value for trial in b.finished] == [0.25]


def test_a_worker_that_comes_back_does_not_wait_for_itself(url: str) -> None:
    a, b = shared(url, "a", among=True), shared(url, "b", among=True)
    assert a.ask(SPACE) is not None and b.ask(SPACE) is not None
    again = shared(url, "a", among=True)
    assert again.recover(set()) == 1  # its own, not b's
    assert again.recover({trial.number for trial in again.trials if trial.state.name == "RUNNING"}) == 0


def test_two_that_ask_at_the_same_moment_make_no_trial_too_many(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = shared(url, "a", among=True), shared(url, "b", among=True)
    assert len(worked(a, 3)) == 3
    inner, taken = a.study.ask, []

    def slow() -> Any:
        taken.append(b.ask(SPACE))  # b is faster
        return inner()

    monkeypatch.setattr(a.study, "ask", slow)
    assert a.ask(SPACE) is None
    assert taken[0] is not None and b.finish(taken[0][0], {"value": 1.0})
    assert len(a.finished) == 4 and b.ask(SPACE) is None


def test_only_one_recovers(url: str) -> None:
    a, b, c = (shared(url, name, among=True, lost_after=0) for name in "abc")
    assert a.ask(SPACE) is not None
    for other in (b, c, b, c):  # seen for the first time, and again
        other.recover(set())
    assert [trial.state.name for trial in a.trials] == ["FAIL", "WAITING"]
    assert len(worked(b)) + len(worked(c)) == 4


def test_pruned_is_what_is_below_the_median(url: str) -> None:
    found = shared(url, budget=20)
    for value in (0.1, 0.2, 0.3, 0.4, 0.5):
        asked = found.ask(SPACE)
        assert asked is not None
        assert not any(found.report(asked[0], value * step, step) for step in (1, 2, 3))
        found.finish(asked[0], {"value": value * 4})
    asked = found.ask(SPACE)
    assert asked is not None
    assert not found.report(asked[0], 0.0, 1)  # too early
    assert found.report(asked[0], 0.59, 2)  # the median is 2 * 0.3
    assert found.finish(asked[0], {}) and found.trials[-1].state.name == "PRUNED"
    assert found.trials[-1].value == 0.59
    asked = found.ask(SPACE)
    assert asked is not None and not found.report(asked[0], 0.61, 2)
    patient = shared(url, budget=20, prune=False)
    asked = patient.ask(SPACE)
    assert asked is not None and not patient.report(asked[0], 0.0, 2)


def test_a_study_of_something_else_is_refused(url: str) -> None:
    shared(url)
    with pytest.raises(OutputError, match="is of another configuration, space or metric; give another --study"):
        Shared(url, "s", "else", "a", 4, 7, 60, True)


def test_a_storage_that_cannot_be_opened_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempera.experiments.study.time.sleep", lambda _: None)
    for url in ("postgresql://me:secret@127.0.0.1:1/db", "nonsense", "nothing://me:secret@there/db"):
        with pytest.raises(ConfigError, match="--storage ") as caught:
            shared(url)
        assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_without_optuna_it_says_how_to_get_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingLibrary, match=r"tuning needs optuna: pip install 'tempera\[tune\]'"):
        shared(url)
