"""Trackers get what the log gets, once, also from a run that was interrupted; and only where they
are asked for."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tempera.errors import ConfigError, MissingLibrary, OutputError, TemperaError
from tempera.run import trackers
from tempera.run.trackers import tracked
from tempera.run.train import train

STEP = {"event": "step", "steps": 9, "loss": 0.5, "grad_norm": None}


def options(pairs: Path) -> dict[str, Any]:
    return {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {"dimensions": 16, "vocabulary": 300},
        "train": {"batch_size": 32, "num_train_epochs": 2, "evaluations": 2, "save_steps": 5},
        "evaluation": {"queries": 40, "bm25": False},
    }


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every value of TensorBoard's files of one run, by its name: those that a resumed run repeats
    would stand twice."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = {file.parent for file in folder.glob("*/events.*")}
    read = EventAccumulator(
        str(run), purge_orphaned_data=False, size_guidance={"scalars": 0}
    ).Reload()
    return {
        name: [(e.step, e.value) for e in read.Scalars(name)] for name in read.Tags()["scalars"]
    }


def logged(run: Path) -> dict[str, list[tuple[int, float]]]:
    """The same of log.jsonl."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in map(json.loads, (run / "log.jsonl").read_text().splitlines()):
        kind = {"step": "train", "evaluation": "eval"}.get(record["event"])
        if kind is None:
            continue
        for name, value in (record if kind == "train" else record["metrics"]).items():
            if name not in ("event", "step", "steps") and value is not None:
                found.setdefault(f"{kind}/{name.replace('@', '_')}", []).append(
                    (record["step"], value)
                )
    return found


def same(
    found: dict[str, list[tuple[int, float]]], want: dict[str, list[tuple[int, float]]]
) -> None:
    assert found.keys() == want.keys() and {"train/loss", "eval/ndcg_10"} <= want.keys()
    for name, values in want.items():
        if name != "train/seconds":  # of a step that was taken twice, the first time is told
            assert [step for step, _ in found[name]] == [step for step, _ in values], name
            assert [value for _, value in found[name]] == pytest.approx(
                [value for _, value in values], rel=1e-6
            )


def test_tensorboard_has_what_the_log_has(pairs_file: Path, tmp_path: Path) -> None:
    train(options(pairs_file), tmp_path / "run", ["train.report_to=[tensorboard]"])
    same(scalars(tmp_path / "run.trackers"), logged(tmp_path / "run"))


def test_a_run_that_goes_on_tells_nothing_twice(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.engine import loop

    step, taken = loop.add_gradients, iter(range(10**9))

    class Killed(BaseException):
        pass

    def until(*arguments: Any) -> Any:
        if next(taken) == 8:  # three after the checkpoint
            raise Killed
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "add_gradients", until)
        with pytest.raises(Killed):
            train(options(pairs_file), tmp_path / "run", ["train.report_to=[tensorboard]"])
    assert len(scalars(tmp_path / "run.trackers")["train/loss"]) == 8
    train(options(pairs_file), tmp_path / "run", ["train.report_to=[tensorboard]"])
    same(scalars(tmp_path / "run.trackers"), logged(tmp_path / "run"))


def test_nobody_is_told_unless_asked(pairs_file: Path, tmp_path: Path) -> None:
    train(options(pairs_file), tmp_path / "run", ["train.max_steps=2"])
    assert not (tmp_path / "run.trackers").exists()
    with tracked((), tmp_path / "other", {}, goes_on=False) as tell:
        tell({**STEP, "step": 1})
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != pairs_file.name) == [
        "run"
    ]


class Fake:
    """Someone's own tracker."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, *call: Any) -> None:
        if call[0] == self.fails:
            raise RuntimeError("no\nnetwork")
        self.calls.append(call)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._note("options", values)

    def log(self, values: dict[str, float], step: int) -> None:
        self._note("log", step, values)

    def finish(self) -> None:
        self._note("finish")


def take(monkeypatch: pytest.MonkeyPatch, **fakes: Fake) -> None:
    for name in fakes:
        monkeypatch.setitem(sys.modules, name, module(name))
    monkeypatch.setattr(trackers, "started", lambda name, folder, sent: fakes[name])


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(content)
    return made


def test_each_gets_the_options_and_then_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Fake(), Fake()
    take(monkeypatch, wandb=first, mlflow=second)
    config = {"train": {"seed": 0, "max_steps": None, "report_to": ["wandb", "mlflow"]}}
    with tracked(("wandb", "mlflow"), tmp_path / "run", config, goes_on=False) as tell:
        tell({"event": "data", "pairs": 5})
        tell({"event": "evaluation", "step": 0, "metrics": {"ndcg@10": 0.5}})
        tell({**STEP, "step": 1})
        tell({**STEP, "step": 1})
    flat = {"train.seed": 0, "train.max_steps": "None", "train.report_to": "['wandb', 'mlflow']"}
    want = [
        ("options", flat),
        ("log", 0, {"eval/ndcg_10": 0.5}),
        ("log", 1, {"train/loss": 0.5}),
        ("finish",),
    ]
    assert first.calls == second.calls == want


def test_runs_that_begin_in_one_second_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of an array of jobs, in folders of one name."""
    monkeypatch.setitem(sys.modules, "wandb", module("wandb"))
    names = []
    monkeypatch.setattr(
        trackers, "started", lambda name, folder, sent: names.append(sent["run"]) or Fake()
    )
    for seed in range(20):
        with tracked(("wandb",), tmp_path / f"{seed}" / "run", {}, goes_on=False):
            pass
    assert len(set(names)) == 20 and all(name.startswith("run-") for name in names)


def test_options_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    take(monkeypatch, wandb=fake)
    for goes_on, step in ((False, 1), (True, 2), (False, 1)):
        with tracked(("wandb",), tmp_path / "run", {}, goes_on) as tell:
            tell({**STEP, "step": 1})
            tell({**STEP, "step": step})
    assert [call[:2] for call in fake.calls] == [
        *(("options", {}), ("log", 1), ("finish",)),
        *(("log", 2), ("finish",)),
        *(("options", {}), ("log", 1), ("finish",)),
    ]


def test_one_that_fails_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost, there = Fake(fails="log"), Fake(fails="finish")
    take(monkeypatch, wandb=lost, mlflow=there)
    with tracked(("wandb", "mlflow"), tmp_path / "run", {}, goes_on=False) as tell:
        tell({**STEP, "step": 1})
        tell({**STEP, "step": 2})
    assert [call[1] for call in there.calls if call[0] == "log"] == [1, 2]
    assert caplog.messages == [
        "train.report_to: wandb failed and is stopped: no network; log.jsonl goes on",
        "train.report_to: mlflow did not finish properly: no network",
    ]


def test_one_that_failed_or_is_added_gets_the_rest_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady, lost, added = Fake(), Fake(fails="log"), Fake()
    take(monkeypatch, wandb=steady, mlflow=lost, trackio=added)
    with tracked(("wandb", "mlflow"), tmp_path / "run", {}, goes_on=False) as tell:
        tell({**STEP, "step": 1})
    lost.fails = ""
    with tracked(
        ("wandb", "mlflow", "trackio", "wandb"), tmp_path / "run", {}, goes_on=True
    ) as tell:
        for step in (1, 2):
            tell({**STEP, "step": step})
    told = [
        [call[:2] for call in fake.calls if call[0] != "finish"] for fake in (steady, lost, added)
    ]
    assert told == 3 * [[("options", {}), ("log", 1), ("log", 2)]]


@pytest.mark.parametrize(
    ("stop", "status"), [(RuntimeError("boom"), "FAILED"), (SystemExit(143), "KILLED")]
)
def test_a_run_that_fails_is_told_as_one(
    stop: BaseException, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Any] = []
    theirs, other = Fake(), Fake()
    vars(theirs)["tracker"] = SimpleNamespace(finish=lambda exit_code: ended.append(exit_code))
    take(monkeypatch, wandb=theirs, mlflow=Fake(), tensorboard=other)
    monkeypatch.setitem(sys.modules, "mlflow", module("mlflow", end_run=ended.append))

    def run() -> None:
        with tracked(
            ("wandb", "mlflow", "tensorboard"), tmp_path / "run", {}, goes_on=False
        ) as tell:
            tell({**STEP, "step": 1})
            raise stop

    with pytest.raises(type(stop)):
        run()
    assert ended == [1, status] and theirs.calls[-1][0] == "log" and other.calls[-1] == ("finish",)


def test_one_that_is_absent_or_does_not_start_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, wandb=Fake(fails="options"))
    monkeypatch.setitem(sys.modules, "trackio", None)
    for name, kind, text in (
        ("trackio", MissingLibrary, "train.report_to=trackio needs trackio: pip install trackio"),
        ("wandb", TemperaError, "train.report_to: wandb cannot start: no network"),
    ):
        with pytest.raises(kind) as found, tracked((name,), tmp_path / "run", {}, goes_on=False):
            pass
        assert str(found.value) == text
    (tmp_path / "file.trackers").write_text("")
    with (
        pytest.raises(OutputError, match=r"cannot write .*sent\.json"),
        tracked(("wandb",), tmp_path / "file", {}, False),
    ):
        pass


def test_an_unknown_name_is_refused(pairs_file: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"train.report_to\[0\]: .*'tensorboard', 'wandb', 'mlflow', 'trackio'"
    ):
        train(options(pairs_file), tmp_path / "run", ["train.report_to=[tensorbord]"])


def test_a_run_has_one_name_everywhere_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Accelerate's trackers ask of each library, taken up again included."""
    began: list[tuple[str, dict[str, Any]]] = []

    def init(library: str) -> Any:
        def begin(**given: Any) -> SimpleNamespace:
            began.append((library, given))
            return SimpleNamespace(
                info=SimpleNamespace(run_id="7"),
                log=lambda *a, **k: None,
                finish=lambda: None,
                config=config,
            )

        return begin

    config = SimpleNamespace(update=lambda *a, **k: None)
    rest = {"log": lambda *a, **k: None, "config": config}
    validation = SimpleNamespace(MAX_PARAM_VAL_LENGTH=500, MAX_PARAMS_TAGS_PER_BATCH=100)
    mlflow = {
        "search_experiments": lambda filter_string: [],
        "create_experiment": lambda **given: "1",
        "start_run": init("mlflow"),
        **dict.fromkeys(("log_params", "log_metrics", "end_run"), lambda *a, **k: None),
        "utils": SimpleNamespace(validation=validation),
    }
    for name, content in (
        ("wandb", {"init": init("wandb"), **rest}),
        ("trackio", {"init": init("trackio"), **rest}),
    ):
        monkeypatch.setitem(sys.modules, name, module(name, **content))
    monkeypatch.setitem(sys.modules, "mlflow", module("mlflow", **mlflow))
    for variable in ("WANDB_PROJECT", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    for goes_on in (False, True):
        with tracked(
            ("wandb", "mlflow", "trackio"), tmp_path / "run", {"seed": 1}, goes_on
        ) as tell:
            tell({**STEP, "step": 1})
    (_, wandb), (_, first), (_, trackio), (_, again), (_, resumed), (_, trackio_again) = began
    name = wandb["id"]
    assert name.startswith("run-") and wandb == again and trackio == trackio_again
    assert wandb == {
        "project": "tempera",
        "id": name,
        "name": name,
        "resume": "allow",
        "dir": str(tmp_path / "run.trackers"),
        "settings": {"console": "off"},
    }
    assert trackio == {"project": "tempera", "name": name, "resume": "allow"}
    assert (first["run_id"], first["run_name"]) == (None, name) and resumed["run_id"] == "7"
