"""Runs that are interrupted, anywhere: the same call goes on, and ends with the bits of a run that
was not."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import yaml

from tempera.arithmetic.abilities import seeded
from tempera.artifacts.run_folder import Run
from tempera.engine.cache import Cache
from tempera.errors import DataError, OutputError
from tempera.run import resume as checkpoints
from tempera.run.fit import _Course
from tempera.run.train import train
from tempera.text.shards.shard_sampler import ShardSampler
from tempera.towers.static import Static

TIMES = {"seconds", "replaying", "peak_memory_bytes"}  # of metrics.json
PLAN = {"expected_bytes", "text", "replayed"}


def left(folder: Path) -> dict[str, Any]:
    """All that a run has left but what clocks and memory say."""
    metrics = json.loads((folder / "metrics.json").read_text())
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".safetensors", ".npy", ".arrow", ".parquet", ".yaml")
    }
    return {
        "metrics": {name: value for name, value in metrics.items() if name not in TIMES},
        "log": [{n: v for n, v in record.items() if n not in {"seconds", *PLAN}} for record in log],
        "files": files,
    }


def text_options(pairs: Path, **train_options: Any) -> dict[str, Any]:
    return {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {"dimensions": 16, "vocabulary": 300},
        "objective": {"temperature": {"value": 0.1, "learnable": True}},
        "train": {
            **{
                "batch_size": 32,
                "num_train_epochs": 3,
                "evaluations": 2,
                "save_steps": 5,
                "seed": 3,
            },
            **train_options,
        },
        "evaluation": {"queries": 40, "validation": 0, "bm25": False},
    }


def in_shards(pairs: Path, folder: Path) -> dict[str, Any]:
    """Pairs in shards of 64, in row groups of 16, whose rows are shuffled in many windows a pass."""
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    (folder / "shards").mkdir()
    for start in range(0, len(rows), 64):
        table = pa.Table.from_pylist(rows[start : start + 64])
        parquet.write_table(table, folder / "shards" / f"{start:04d}.parquet", row_group_size=16)
    options = text_options(folder / "shards", made_rows=1)
    options["data"]["in_shards"] = True
    return options


def kinds(pairs: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """A run of every kind of tower, and of everything that a state can hold."""
    generator = np.random.default_rng(0)
    events = {
        "user": [f"u{i}" for i in range(30) for _ in range(8)],
        "item": generator.integers(0, 20, 240).tolist(),
        "time": list(range(240)),
    }
    path = folder / "events.parquet"
    parquet.write_table(pa.table(events), path)
    texts, teacher = text_options(pairs), folder / "teacher"
    with seeded(0, torch.device("cpu")):
        Static(dimensions=12, vocabulary=200).build(pairs.read_text().split()).save(teacher)
    transformer = {
        "kind": "transformer",
        "layers": 1,
        "width": 16,
        "heads": 2,
        "vocabulary": 300,
        "max_length": 16,
    }
    return {
        "static": texts,
        "transformer": {
            **text_options(pairs, num_train_epochs=2),
            "tower": {**transformer, "dropout": 0.2},
        },
        "memory": {
            **texts,
            "objective": {"pools": ["docs", "memory"], "memory": 48, "temperature": 0.1},
        },
        "guided": {
            **text_options(pairs, guide=str(teacher)),
            "objective": {
                "masks": ["same_id", {"guided": {"by": "guide", "margin": 0.05}}],
                "temperature": 0.1,
            },
        },
        "taught": {
            **text_options(pairs, teacher=str(teacher)),
            "objective": {
                "teacher": {"weight": 0.8, "final": 0.2},
                "temperature": 0.1,
            },
        },
        "shards": in_shards(pairs, folder),
        "curated": text_options(pairs, guide=str(teacher), select=0.6, select_by="learnability"),
        "features": {
            "data": {"source": "interactions", "path": str(path), "split": "leave_last_out"},
            "tower": {
                "kind": "features",
                "dimensions": 8,
                "dropout": 0.2,
                "doc": ["id"],
                "history": {},
            },
            "objective": {
                "temperature": {"value": 0.1, "learnable": True},
                "masks": ["same_id", "known_positives"],
            },
            "train": {"batch_size": 32, "num_train_epochs": 4, "evaluations": 1, "save_steps": 4},
            "evaluation": {"validation": 20},
        },
    }


KINDS = (
    "static",
    "transformer",
    "memory",
    "guided",
    "taught",
    "curated",
    "shards",
    "features",
)


@pytest.fixture(scope="module")
def options_of(
    pairs_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    return kinds(pairs_file, tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def whole_of(
    options_of: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """Return what a run of a kind leaves that is never stopped."""

    @cache
    def whole(kind: str) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ShardSampler, "window_rows", 70)
            return left(train(options_of[kind], tmp_path_factory.mktemp("whole") / "run").folder)

    return whole


class Stopped(BaseException):
    """What a kill is to the code: nothing of it runs on."""


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Break a run off in the middle of its next step."""
    from tempera.engine import loop

    step, counted = loop.add_gradients, iter(range(10**9))

    def counting(*arguments: Any) -> Any:
        if next(counted) == steps:
            raise Stopped
        return step(*arguments)

    monkeypatch.setattr(loop, "add_gradients", counting)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(
    kind: str,
    options_of: dict[str, dict[str, Any]],
    whole_of: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = options_of[kind]
    monkeypatch.setattr(ShardSampler, "window_rows", 70)
    for steps in (7, 9):  # the second start goes on from a checkpoint and is broken off too
        with monkeypatch.context() as patch:
            stop_after(patch, steps)
            with pytest.raises(Stopped):
                train(options, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    assert checkpoints.Checkpoints(tmp_path / "run.checkpoints", {}).latest is not None
    assert left(train(options, tmp_path / "run").folder) == whole_of(kind)
    assert [path.name for path in tmp_path.iterdir() if path.name != "vectors"] == ["run"]


def test_data_that_have_changed_and_other_options_are_refused(
    options_of: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Path(options_of["static"]["data"]["path"]).read_text().splitlines(keepends=True)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(rows))
    options = text_options(pairs)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run")
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "run.checkpoints").rglob("*")
        if path.is_file()
    }
    with pytest.raises(
        OutputError,
        match=r"another configuration \(train.seed was 3, now 4\); give another --output",
    ):
        train(text_options(pairs, seed=4), tmp_path / "run")
    pairs.write_text("".join([*rows[1:], rows[0]]))
    with pytest.raises(DataError, match="a run on other data, although the options are the same"):
        train(options, tmp_path / "run")
    assert before == {path: path.read_bytes() for path in before}
    (before_run,) = (path for path in before if path.name == "run.json")
    before_run.write_text("{")
    with pytest.raises(
        DataError, match=r"damaged checkpoint: .*; remove it, or start again with --overwrite"
    ):
        train(options, tmp_path / "run")
    train(options, tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run.checkpoints").exists()


@pytest.mark.parametrize("what", ["weight", "time", "context", "user", "kind", "disliked"])
def test_a_recommender_goes_on_with_the_same_interactions_alone(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a row says beside its item counts, and features do."""
    generator = np.random.default_rng(0)
    events = {
        "user": [f"u{i}" for i in range(30) for _ in range(8)],
        "item": generator.integers(0, 20, 240).tolist(),
        "time": list(range(240)),
        "weight": [1.0] * 240,
        "context": ["a", "b"] * 120,
        "rating": [5] * 240,
    }
    items = {"item": [*range(20)], "kind": ["x", "y"] * 10}
    changed = {"user": "u0", "time": 0, "weight": 2.0, "context": "b", "kind": "y"}
    paths = {name: str(tmp_path / f"{name}.parquet") for name in ("path", "items")}

    def write() -> None:
        for path, table in zip(paths.values(), (events, items)):
            parquet.write_table(pa.table(table), path)

    options = {
        "data": {
            "source": "interactions",
            **paths,
            "split": "leave_last_out",
            "context": ["context"],
            "dislikes": 1,
        },
        "tower": {
            "kind": "features",
            "dimensions": 8,
            "doc": ["id", {"category": {"column": "kind"}}],
        },
        "objective": {"temperature": 0.1, "masks": ["same_id", "known_positives"]},
        "train": {"batch_size": 32, "num_train_epochs": 4, "evaluations": 0, "save_steps": 4},
        "evaluation": {"validation": 20},
    }
    if what == "disliked":
        events["rating"][3:5] = [1, 1]
    write()
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run")
    if what == "disliked":
        events["item"][3:5] = events["item"][4:2:-1]
    else:
        values = {**events, **items}[what]
        values[8] = changed[what]
    write()
    with pytest.raises(DataError, match="a run on other data, although the options are the same"):
        train(options, tmp_path / "run")


def test_a_run_goes_on_with_less_memory(
    options_of: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut and replayed as the memory wants it from there on: equal up to rounding, without dropout,
    which is drawn by cut."""
    options, still = options_of["transformer"], ["tower.dropout=0"]
    whole = left(train(options, tmp_path / "whole", still).folder)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run", still)
    less = ["train.cache=always", "train.micro_batch_tokens=40", "train.cache_memory=1000000"]
    sizes, plan = set[Any](), Cache.plan
    monkeypatch.setattr(
        Cache, "plan", lambda self, *args: sizes.add((self.tokens, self.bytes)) or plan(self, *args)
    )
    found = left(train(options, tmp_path / "run", [*still, *less]).folder)
    losses = [
        [record["loss"] for record in each["log"] if record["event"] == "step"]
        for each in (found, whole)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][:5] == losses[1][:5]
    assert sizes == {(40, 1e6)}


def test_a_run_that_ran_out_of_memory_goes_on_as_it_was_cut_and_kept() -> None:
    before, same, other = Cache("never"), Cache("never"), Cache("never", tokens=7)
    before.halve()
    for each in (same, other):
        each.resume(json.loads(json.dumps(before.sizes())))
    assert (
        same.sizes() == before.sizes()
        and same.mode == "auto"
        and (other.mode, other.tokens) == ("never", 7)
    )


def test_only_the_latest_checkpoints_stay(
    options_of: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 18)
    with pytest.raises(Stopped):
        train(options_of["static"], tmp_path / "run", ["train.save_total_limit=2"])
    assert [path.name for path in sorted((tmp_path / "run.checkpoints").iterdir())] == [
        "step-000000010",
        "step-000000015",
    ]
    files = {path.suffix for path in (tmp_path / "run.checkpoints").rglob("*") if path.is_file()}
    assert files == {".safetensors", ".json", ".jsonl"}


def test_a_full_disk_leaves_the_last_good_checkpoint(
    options_of: dict[str, dict[str, Any]],
    whole_of: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        write = Path.write_bytes

        def failing(path: Path, content: bytes) -> int:
            if path.parent.name != "step-000000015.partial":
                return write(path, content)
            write(path, content[:99])
            raise OSError(28, "No space left on device", str(path))

        patch.setattr(Path, "write_bytes", failing)
        message = r"cannot write .*step-000000015: No space left on device .*; .* to resume from .*step-000000010"
        with pytest.raises(OutputError, match=message):
            train(options_of["static"], tmp_path / "run")
    assert [path.name for path in (tmp_path / "run.checkpoints").iterdir()] == ["step-000000010"]
    assert left(train(options_of["static"], tmp_path / "run").folder) == whole_of("static")


def attempt(options: dict[str, Any], output: Path, after: float, number: int) -> int:
    """Train in a process of its own, which gets a signal after some seconds; its exit status as
    `os.wait` has it."""
    asking = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(
        signal.SIG_BLOCK, asking
    )  # until the child hears them in its own way, and not in pytest's
    process = os.fork()
    if not process:
        quiet = os.open(output.with_name("messages"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 2)
        torch.set_num_threads(1)  # the threads of the process that forked are not there
        code, heard = 1, []

        def stop(number: int, _: object) -> None:  # as the command line does
            heard.append(128 + number)
            sys.exit(heard[0])

        try:
            for each in asking:
                signal.signal(each, stop)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, asking)
            train(options, output)
            code = 0
        except BaseException:
            code = heard[0] if heard else 1
            if not heard:
                traceback.print_exc(file=os.fdopen(2, "w"))
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, asking)
    deadline = time.monotonic() + after
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    os.kill(process, number)
    return os.waitpid(process, 0)[1]


def campaign(
    options: dict[str, Any], folder: Path, kills: int, seed: int, number: int = signal.SIGKILL
) -> int:
    """Kill a run at random moments until it has been killed so often; go on each time; how often it
    was."""
    start = time.monotonic()
    assert attempt(options, folder / "whole", 1e9, number) == 0, (folder / "messages").read_text()
    lasts, generator, done = time.monotonic() - start, random.Random(seed), 0
    whole = left(folder / "whole")
    while done < kills:
        status = attempt(options, folder / "run", generator.uniform(0, lasts), number)
        told = (folder / "messages").read_text()
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) in (0, 128 + number), (
            told
        )
        done += status != 0
        if (folder / "run").exists():  # it has ended, or was killed behind its last act
            assert left(folder / "run") == whole
            assert status or not (folder / "run.checkpoints").exists()
            shutil.rmtree(folder / "run")
            shutil.rmtree(folder / "run.checkpoints", ignore_errors=True)
    status = attempt(options, folder / "run", 1e9, number)
    assert status == 0, (folder / "messages").read_text()
    assert left(folder / "run") == whole
    return done


@pytest.mark.parametrize(
    ("kind", "number"),
    [("static", signal.SIGKILL), pytest.param("features", signal.SIGTERM, marks=pytest.mark.long)],
)
def test_killed_anywhere(
    kind: str, number: int, options_of: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert campaign(options_of[kind], tmp_path, 3, 0, number) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_anywhere_many_times(
    kind: str, number: int, options_of: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert campaign(options_of[kind], tmp_path, 25, 1, number) == 25


@pytest.mark.parametrize(("kind", "steps"), [("static", 8), ("guided", 24)])  # 24 are all
def test_a_signal_saves_and_ends_with_the_handler_that_was_there(
    kind: str,
    steps: int,
    options_of: dict[str, dict[str, Any]],
    whole_of: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from tempera.engine import loop

    caplog.set_level("INFO", "tempera")
    step, counted = loop.add_gradients, iter(range(10**9))

    def asking(*arguments: Any) -> Any:
        if next(counted) == steps - 1:
            signal.raise_signal(signal.SIGINT)
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "add_gradients", asking)
        with pytest.raises(KeyboardInterrupt):  # as Python has it without a command line
            train(options_of[kind], tmp_path / "run", ["train.save_steps=100"])
    assert [path.name for path in (tmp_path / "run.checkpoints").glob("step-*")] == [
        f"step-{steps:09}"
    ]
    assert "run the same command again to resume" in caplog.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    found, whole = left(train(options_of[kind], tmp_path / "run").folder), dict(whole_of(kind))
    whole["files"] = {**whole["files"], "config.yaml": found["files"]["config.yaml"]}
    assert found == whole


def test_a_second_signal_ends_at_once() -> None:
    def twice() -> None:
        with checkpoints.interruptible() as asked:
            signal.raise_signal(signal.SIGINT)
            assert asked.number == signal.SIGINT
            signal.raise_signal(signal.SIGINT)
            pytest.fail("went on")

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_folder_that_somebody_writes_is_not_taken_from_him(
    options_of: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    from tempera.io.atomic import staged

    with staged(tmp_path / "run") as folder:
        (folder / "here").write_text("")
        with pytest.raises(OutputError, match="another process is writing"):
            train(options_of["static"], tmp_path / "run")
        assert (folder / "here").exists()


def test_files_that_are_no_checkpoints_stay(tmp_path: Path) -> None:
    own, other = (
        tmp_path / "run.checkpoints" / "step-000000005",
        tmp_path / "run.checkpoints" / "weights.bin",
    )
    own.mkdir(parents=True)
    other.write_bytes(b"of somebody else")
    Path(tmp_path / "run.checkpoints" / "step-000000010.partial").mkdir()
    checkpoints.Checkpoints(tmp_path / "run.checkpoints", {}).begin(overwrite=True)
    assert list(other.parent.iterdir()) == [other]
    other.unlink()
    checkpoints.Checkpoints(tmp_path / "run.checkpoints", {}).forget()
    assert not other.parent.exists()


def test_data_and_models_in_a_run_are_not_replaced_by_another(
    tiny_run: Path, pairs_file: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    shutil.copy(pairs_file, run / "mined.jsonl")
    for options in (
        text_options(run / "mined.jsonl"),
        {**text_options(pairs_file), "tower": {"kind": "pretrained", "model": str(run / "model")}},
        text_options(pairs_file, guide=str(run)),
        {
            **text_options(pairs_file),
            "evaluation": {"queries": 40, "bm25": False, "also": [str(run / "mined.jsonl")]},
        },
        {
            **text_options(pairs_file),
            "data": {
                "source": "mixture",
                "sources": [
                    {"pairs": {"path": str(path)}} for path in (pairs_file, run / "mined.jsonl")
                ],
            },
        },
        {
            **text_options(pairs_file),
            "tower": {
                "kind": "two",
                "query": {"kind": "head", "model": str(run / "model")},
                "doc": {"index": str(run)},
            },
        },
    ):
        with pytest.raises(
            OutputError, match=r"is, or holds, .*, which this command reads; give another folder"
        ):
            train(options, run, overwrite=True)
    assert (run / "mined.jsonl").exists() and (run / "model").is_dir()


def test_a_signal_that_comes_while_processes_agree_is_not_lost() -> None:
    """The step that they agree on goes on, and the next one stops all of them."""

    def agree(number: int) -> int:
        if not number:
            signal.raise_signal(signal.SIGTERM)
        return number

    course: Any = SimpleNamespace(
        checkpoints=SimpleNamespace(due=lambda step: False), turn=lambda step: False,
        group=SimpleNamespace(all_reduce_max=agree),
    )  # fmt: skip
    ended = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    try:
        with checkpoints.interruptible() as interruption:
            assert not _Course.due(course, 1, interruption) and not interruption.agreed
            assert _Course.due(course, 2, interruption) and interruption.agreed == signal.SIGTERM
        assert ended == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_longer_wait_and_another_card_are_no_other_run() -> None:
    one = {"train": {"ddp_timeout": 1800.0, "seed": 1}, "card": {"language": "en"}}
    other = {"train": {"ddp_timeout": 7200.0, "seed": 1}, "card": {}}
    assert checkpoints._lasting(one) == checkpoints._lasting(other) == {"train": {"seed": 1}}


def test_a_run_that_replaces_another_goes_on_too(
    options_of: dict[str, dict[str, Any]],
    whole_of: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options, run = options_of["static"], tmp_path / "run"
    train(options, run, ["train.max_steps=1"])
    before = left(run)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Stopped):
            train(options, run, overwrite=True)
    assert left(run) == before
    with pytest.raises(
        OutputError,
        match=r"an interrupted run that was to replace it: the same command with --overwrite resumes",
    ):
        train(options, run)
    caplog.set_level("INFO", "tempera")
    assert left(train(options, run, overwrite=True).folder) == whole_of("static")
    assert f"resuming after step 5 of 27, from {run}.checkpoints" in caplog.text
    assert f"remove {run}.checkpoints to begin anew" in caplog.text
    assert not (tmp_path / "run.checkpoints").exists()


def test_an_interrupted_run_of_another_configuration_is_forgotten_with_a_word(
    options_of: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = options_of["static"]
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run")
    caplog.set_level("INFO", "tempera")
    train(options, tmp_path / "run", ["train.max_steps=2"], overwrite=True)
    assert "(train.max_steps was null, now 2)" in caplog.text and "it is forgotten" in caplog.text
    assert "resuming" not in caplog.text


def test_every_file_of_a_checkpoint_is_compared(
    options_of: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of["static"]
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run")
    (latest,) = (tmp_path / "run.checkpoints").glob("step-*")
    for path in latest.iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        with pytest.raises(DataError, match=r"(is a damaged checkpoint|manifest\.json is damaged)"):
            train(options, tmp_path / "run")
        path.write_bytes(content)
    assert len(list(latest.iterdir())) >= 4


def test_notes_are_of_one_configuration_and_damaged_ones_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tempera")
    folder = tmp_path / "run.checkpoints"
    kept = checkpoints.Checkpoints(folder, {"a": 1})
    kept.begin()
    kept.note("race", {"x": 0.1})
    assert kept.unfinished == folder
    again = checkpoints.Checkpoints(folder, {"a": 1})
    again.begin()
    assert again.notes == {"race": {"x": 0.1}} and "going on with what" in caplog.text
    other = checkpoints.Checkpoints(folder, {"a": 2})
    assert other.unfinished is None
    content = (folder / "notes.json").read_bytes()
    (folder / "notes.json").write_bytes(content.replace(b"0.1", b"0.2"))
    again.begin()
    assert not again.notes and "is damaged and not used" in caplog.text
    kept.begin()
    kept.note("race", 1)
    other.begin()
    assert "has notes of another configuration, which are forgotten" in caplog.text
    assert not folder.exists()


@pytest.mark.parametrize("place", ["model/x", "x", "index/a/b", "export"])
def test_nothing_is_made_in_a_finished_run(
    tiny_run: Path, pairs_file: Path, tempera: Any, place: str
) -> None:
    before = set(tiny_run.rglob("*"))
    output = tiny_run / place
    file = output.with_suffix(".parquet")
    for command in (
        ("train", pairs_file, "-o", output),
        ("distill", tiny_run, pairs_file, "-o", output),
        ("sweep", pairs_file, "--over", "objective.temperature=0.1,0.2", "-o", output),
        ("learn", pairs_file, "-o", output),
        ("merge", tiny_run, tiny_run, "--weights", "0.5", "-o", output),
        ("export", tiny_run, "--to", "faiss", "-o", output),
        ("mine", tiny_run, pairs_file, "-o", file),
    ):
        answer = tempera(*map(str, command))
        assert answer.code == 2 and answer.err.splitlines()[-1].startswith("tempera: "), answer
        assert f"{output}" in answer.err or f"{file}" in answer.err
        assert set(tiny_run.rglob("*")) == before, command


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_line_that_a_stopped_command_leaves_resumes_it(
    pairs_file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """By real processes, over an earlier run: the last line after SIGTERM, and the refusal of the
    next start after SIGKILL."""
    options = yaml.safe_dump(text_options(pairs_file, num_train_epochs=200, save_steps=20))
    (tmp_path / "job.yaml").write_text(options)
    command = ["train", "job.yaml", "--output", "run"]
    started = [sys.executable, "-m", "tempera"]
    subprocess.run([*started, *command, "train.num_train_epochs=1"], cwd=tmp_path, check=True)
    process = subprocess.Popen(
        [*started, *command, "--overwrite"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not list((tmp_path / "run.checkpoints").glob("step-?????????")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, messages = process.communicate()
    if number == signal.SIGKILL:
        refused = subprocess.run([*started, *command], cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 2
        assert "the same command with --overwrite resumes that run" in refused.stderr
        resumed = ["tempera", *command, "--overwrite"]
    else:
        assert process.returncode == 143
        _, _, line = messages.splitlines()[-1].partition("the same command resumes: ")
        resumed = shlex.split(line)
    assert resumed[0] == "tempera"
    done = subprocess.run([*started, *resumed[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stderr and Run(tmp_path / "run").results["steps"] > 1000
