"""Runs whose numbers or resources give out: one line that says what, from where and what to do, and
nothing lost."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from tempera import cli
from tempera.engine import loop
from tempera.engine.faults import NotFinite
from tempera.errors import OutputError, TemperaError
from tempera.io.atomic import write_mark
from tempera.ranking.compare import bootstrap
from tempera.ranking.spread import Spread, effective_rank, least_rank, spread
from tempera.run import train as training
from tempera.run.alarms import Alarms
from tempera.run.train import train
from tempera.tables.arrays import reserved
from tempera.text.judge.held_out import HeldOutQueries
from tempera.text.retrieval import TextTask

Options = dict[str, Any]
TIMES = {"seconds", "replaying", "peak_memory_bytes"}


@pytest.fixture
def job(pairs_file: Path, tmp_path: Path) -> Options:
    """Eight steps a pass, a checkpoint every fifth, on a file of the test's own."""
    pairs = tmp_path / "data" / "pairs.jsonl"
    pairs.parent.mkdir()
    shutil.copy(pairs_file, pairs)
    return {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {"dimensions": 16, "vocabulary": 300, "init": "normal"},
        "objective": {"temperature": 0.1},
        "train": {"batch_size": 32, "num_train_epochs": 2, "evaluations": 1, "save_steps": 5},
        "evaluation": {"queries": 40, "validation": 0, "bm25": False},
    }


def left(folder: Path) -> dict[str, Any]:
    """Metrics, log and tensors of a run, without what clocks and memory say."""
    metrics = json.loads((folder / "metrics.json").read_text())
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {
        "metrics": {name: value for name, value in metrics.items() if name not in TIMES},
        "log": [
            {n: v for n, v in record.items() if n != "seconds"}
            for record in log
            if record["event"] != "plan"
        ],
        "files": {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")
        },
    }


def at_step(monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None]) -> None:
    """Have something happen before each of the run's steps, told its number from 1."""
    step, counted = loop.add_gradients, iter(range(1, 10**9))

    def happening(*given: Any) -> Any:
        then(next(counted))
        return step(*given)

    monkeypatch.setattr(loop, "add_gradients", happening)


# Numbers
# -------------------------------------------------------------------------------------------------------------


class Poison:
    """A tower that gives nan for the n-th query of chosen steps, as often as the batch is
    embedded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: set[int], row: int = 3) -> None:
        from tempera.engine.cache import Cache

        self.now, embed = 0, Cache.embed

        def embedding(cache: Cache, towers: Any, batch: Any, *rest: Any) -> Any:
            found = embed(cache, towers, batch, *rest)
            if self.now in steps:
                found.batch.query.rows[row] = math.nan
            return found

        monkeypatch.setattr(Cache, "embed", embedding)
        at_step(monkeypatch, self.note)

    def note(self, step: int) -> None:
        self.now += 1


def test_a_fault_names_its_step_its_row_its_cause_and_the_checkpoint(
    job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = left(train(job, tmp_path / "whole").folder)
    with monkeypatch.context() as patch:
        Poison(patch, {8})
        with pytest.raises(NotFinite) as caught:
            train(job, tmp_path / "run")
    assert caught.value.fault.step == 8 and caught.value.fault.rows == ((3,),)
    options = training.build(training.configuration.of(job))
    task = TextTask.read(options, tmp_path / "cache", tmp_path / "vectors")
    (rows,) = task.data.sampler(7, 8)
    pair = json.loads(
        Path(job["data"]["path"]).read_text().splitlines()[task.data.texts.split.train[rows[3]]]
    )
    place = f"pairs.jsonl row {task.data.texts.split.train[rows[3]] + 1} ({pair['query'][:40]!r})"
    message = str(caught.value)
    assert (
        message.startswith("the loss of step 8 is not finite, of ")
        and place in message
        and "\n" not in message
    )
    assert "query embeddings are not finite, although the weights are" in message
    assert (
        "run.checkpoints/step-000000005; resume with train.skip_non_finite=1 to skip such steps"
        in message
    )
    assert not (tmp_path / "run").exists()
    assert left(train(job, tmp_path / "run").folder) == whole  # the checkpoint was as good as ever


def test_steps_that_are_left_out_change_nothing_are_counted_and_resumed(
    job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**job, "objective": {**job["objective"], "pools": ["docs", "memory"], "memory": 48}}
    with monkeypatch.context() as patch:
        Poison(patch, {6, 7, 9})
        whole = left(train(options, tmp_path / "whole", ["train.skip_non_finite=2"]).folder)
    assert whole["metrics"]["steps_left_out"] == 3
    out = [record for record in whole["log"] if record["event"] == "step left out"]
    assert [record["step"] for record in out] == [6, 7, 9] and all(
        "pairs.jsonl row " in record["rows"] for record in out
    )
    steps = [record["step"] for record in whole["log"] if record["event"] == "step"]
    assert steps == [n for n in range(1, 19) if n not in (6, 7, 9)]
    with monkeypatch.context() as patch:
        poison = Poison(patch, {6, 7, 9})
        with pytest.raises(
            NotFinite, match=r"step 7 .*; last good checkpoint: .*/step-000000005; resume"
        ):
            train(options, tmp_path / "run", ["train.skip_non_finite=1"])
        poison.now = 5
        assert left(train(options, tmp_path / "run", ["train.skip_non_finite=2"]).folder) == whole


def test_how_many_in_a_row_is_part_of_a_checkpoint(
    job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison(monkeypatch, {5, 6, 7})
    for _ in range(2):
        with pytest.raises(NotFinite, match="the loss of step 7 "):
            train(job, tmp_path / "run", ["train.skip_non_finite=2"])
        poison.now = 5
    assert (
        json.loads((tmp_path / "run.checkpoints/step-000000005/state.json").read_text())["left_out"]
        == 1
    )


DOT = {"objective.similarity": "dot"}
CAUSES = [
    pytest.param(
        {"train.learning_rate": "6e37"}, r"has grown to \S+: lower train.learning_rate", id="rate"
    ),
    pytest.param(
        {"train.learning_rate": "1e39"},
        r"weights of .* are not finite, from an earlier step",
        id="weights",
    ),
    pytest.param(
        {"objective.temperature": 1e-25},
        r"1e-25 is below the precision .* 1e-07: raise objective.temp",
        id="temperature",
    ),
    pytest.param(
        {**DOT, "train.learning_rate": "1e22"},
        r"products of embeddings .* overflow: lower",
        id="dot",
    ),
]


@pytest.mark.parametrize(("given", "cause"), CAUSES)
def test_the_likely_cause(given: Options, cause: str, job: Options, tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match=cause):
        train(job, tmp_path / "run", [f"{name}={value}" for name, value in given.items()])


def test_a_state_that_is_not_finite_is_not_kept(job: Options, tmp_path: Path) -> None:
    given = ["train.learning_rate=1e39", "train.save_steps=1"]
    with pytest.raises(
        TemperaError,
        match=r"embedding.weight is not finite after step 1, so no checkpoint is saved: lower ",
    ):
        train(job, tmp_path / "run", given)
    assert not (tmp_path / "run.checkpoints").exists()


# Collapse
# ------------------------------------------------------------------------------------------------------------


def test_effective_rank_is_its_definition() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    sigma = np.sqrt(np.maximum(np.linalg.eigvalsh(rows.T.astype(np.float64) @ rows), 0))
    total, entropy = sum(sigma), 0.0
    for value in sigma:
        entropy -= value / total * math.log(value / total)
    assert effective_rank(rows) == pytest.approx(math.exp(entropy), rel=1e-6)
    turned = rows @ np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0].astype(np.float32)
    assert effective_rank(7 * turned) == pytest.approx(effective_rank(rows), rel=1e-5)


@pytest.mark.parametrize("shape", [(20, 6), (6, 20), (40, 40), (1, 5)])
def test_the_bound_is_not_above_the_effective_rank(shape: tuple[int, int]) -> None:
    draw = np.random.default_rng(sum(shape))
    for spectrum in (
        0.0,
        0.5,
        2.0,
        8.0,
    ):  # from equal singular values to one that is far above the others
        rows = (draw.normal(size=shape) * np.arange(1, shape[1] + 1) ** -spectrum).astype(
            np.float32
        )
        assert 1 - 1e-9 <= least_rank(rows) <= effective_rank(rows) * (1 + 1e-9)
    flat = np.diag([1.0] + [0.05] * 29).astype(np.float32)
    assert least_rank(flat) < 1 + 0.02 * 29 < effective_rank(flat)
    assert Spread(flat[0], flat[0], (flat,)).collapsed is None


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_collapse_is_told_from_health() -> None:
    draw = np.random.default_rng(0)
    healthy = unit(draw.normal(size=(200, 32)))
    point = unit(np.eye(32)[[0] * 200] + 0.01 * draw.normal(size=(200, 32)))
    line = unit(
        np.eye(32)[[0] * 200] * draw.choice([-1, 1], (200, 1)) + 1e-3 * draw.normal(size=(200, 32))
    )
    assert spread(healthy, healthy).collapsed is None
    assert "95 % of the random pairs have a cosine above 0.99" in str(
        spread(point, point).collapsed
    )
    assert "effective rank is 1." in str(spread(healthy, line).collapsed)  # one of two towers
    zero = np.zeros((200, 32), np.float32)
    assert spread(zero, zero).collapsed == "their effective rank is 0.00 of 32: all are zero"
    assert spread(healthy[:1], healthy[:1]).collapsed is None


def test_alarms_of_collapse_and_regression_are_in_log_metrics_and_report(
    job: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(job, tmp_path / "run", ["train.learning_rate=1e30"])
    metrics = json.loads((run.folder / "metrics.json").read_text())
    on_the_way, at_the_end, worse = metrics["alarms"]
    assert on_the_way.startswith(
        "after step 9 the embeddings have collapsed: their effective rank is 0.00 of 16"
    )
    assert at_the_end.startswith("after step 18 ")
    assert worse.startswith("the trained model is worse than the untrained one: nDCG@10 -0.")
    said, page = caplog.text, (run.folder / "report.html").read_text()
    events = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["event"] == "alarm"] == metrics["alarms"]
    assert all(f"alarm: {alarm}" in said and alarm in page for alarm in metrics["alarms"])
    assert metrics["spread"]["trained"]["effective_rank"] == 0


def test_a_run_in_good_health_has_no_alarm(job: Options, tmp_path: Path) -> None:
    metrics = json.loads((train(job, tmp_path / "run").folder / "metrics.json").read_text())
    assert metrics["alarms"] == [] and metrics["steps_left_out"] == 0
    assert metrics["spread"]["trained"]["effective_rank"] > 3


@pytest.mark.parametrize(
    ("change", "queries", "rings", "warns"),
    [
        (-0.1, 50, True, False), (-0.01, 50, False, True), (0.02, 50, False, False), (0.1, 50, False, False),
        (-0.1, 9, False, True), (-0.1, 1, False, True), (-0.1, 10, True, False),
    ],
)  # fmt: skip
def test_regression_rings_only_when_it_is_no_chance(
    change: float, queries: int, rings: bool, warns: bool
) -> None:
    told: list[str] = []
    cautions: list[str] = []

    class Listening(Alarms):
        def ring(self, step: int, text: str | None) -> None:
            told.extend([text] if text else [])

        def caution(self, step: int, text: str) -> None:
            cautions.append(text)

    before = np.random.default_rng(0).uniform(size=queries)
    noise = np.random.default_rng(1).normal(scale=0.05, size=queries)
    after = before + noise - noise.mean() + change
    Listening(None).regression(1, "ndcg@10", bootstrap(after, before), queries)  # type: ignore[arg-type]
    assert (bool(told), bool(cautions)) == (rings, warns)
    few = f"{queries:,} quer{'y' if queries == 1 else 'ies'}), too few to tell; train"
    assert all((few if queries < 10 else "which chance may explain") in text for text in cautions)


# Resources
# -----------------------------------------------------------------------------------------------------------


def in_a_process(work: Callable[[], None], messages: Path) -> tuple[int, str]:
    """The exit status of the command line in a process of its own, and its last line on standard
    error."""
    process = os.fork()
    if not process:
        sys.stderr = messages.open("w")
        code: Any = 1
        torch.set_num_threads(1)  # the threads of the process that forked are not there
        try:
            work()
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            print(f"Traceback: {error!r}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code or 0)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    text = messages.read_text()
    assert "Traceback" not in text, text
    return status, text.splitlines()[-1]


def command(job: Options, output: Path, *more: str) -> Callable[[], None]:
    """`tempera train` with these options."""

    def run() -> None:
        given = [
            f"{section}.{name}={value}"
            for section, own in job.items()
            for name, value in own.items()
        ]
        sys.argv = ["tempera", "train", *given, *more, "--output", str(output)]
        cli.main()

    return run


def limited(what: int, size: int, work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        resource.setrlimit(what, (size, size))
        work()

    return run


@pytest.mark.parametrize("kilobytes", [2, 20])
def test_a_file_that_cannot_grow(kilobytes: int, job: Options, tmp_path: Path) -> None:
    work = limited(resource.RLIMIT_FSIZE, kilobytes << 10, command(job, tmp_path / "out" / "run"))
    code, line = in_a_process(work, tmp_path / "messages")
    assert (
        code == 2
        and line.startswith(f"tempera: cannot write {tmp_path}/out/run: ")
        and "File too large" in line
    )
    assert list((tmp_path / "out").iterdir()) == []


class Full(OSError):
    def __init__(self) -> None:
        super().__init__(28, "No space left on device")


@pytest.mark.parametrize("what", ["log", "cache", "index", "report", "model"])
def test_a_disk_that_is_full_while(
    what: str,
    job: Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = left(train(job, tmp_path / "whole").folder)

    def full(*given: Any, **named: Any) -> None:
        raise Full

    with monkeypatch.context() as patch:
        if what == "log":
            at_step(
                patch, lambda step: full() if step == 12 else None
            )  # stands for the line of the step before
        elif what == "cache":
            patch.setattr("tempera.text.retrieval.stored", full)
        elif what == "model":
            patch.setattr("tempera.run.publish.as_bytes", full)
        else:
            patch.setattr(
                *{
                    "index": ("tempera.corpus.index.write_index", full),
                    "report": ("tempera.run.publish.render", full),
                }[what]
            )
        with pytest.raises(OutputError, match=r"cannot write .*/run: No space left on device"):
            train(job, tmp_path / "run")
    names = {path.name for path in tmp_path.iterdir()} - {"whole", "data", "vectors"}
    assert names == (set() if what == "cache" else {"run.checkpoints"})
    assert left(train(job, tmp_path / "run").folder) == whole


@pytest.mark.skipif(sys.platform != "linux", reason="room is taken on Linux only")
def test_a_mapped_file_takes_its_room_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved(tmp_path / "a.npy", np.int64, (100_000,))[:] = 1
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= 800_000

    def full(*given: int) -> None:
        raise Full

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        reserved(tmp_path / "b.npy", np.int64, (100,))


def test_a_folder_that_takes_no_files(job: Options) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("/proc is a folder that takes no files, for the superuser either")
    with pytest.raises(OutputError, match=r"cannot write /proc/.*/fd/run: "):
        train(job, "/proc/self/fd/run")


def test_memory_that_ends(job: Options, tmp_path: Path) -> None:
    if not Path("/proc/self/statm").is_file():
        pytest.skip("memory is counted where Linux shows it")
    train(job, tmp_path / "warm")  # what is loaded late is loaded
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    large = command(job, tmp_path / "out" / "run", "tower.dimensions=500000")
    code, line = in_a_process(
        limited(resource.RLIMIT_AS, used + (1 << 28), large), tmp_path / "messages"
    )
    assert code == 2 and line.startswith("tempera: out of memory: lower train.cache_memory"), line
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "then", [Path.unlink, lambda path: path.write_text("{}"), lambda path: os.truncate(path, 9)]
)
def test_data_are_read_once(
    then: Callable[[Path], Any], job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens to a file afterwards, does not happen to the run."""
    whole, data = left(train(job, tmp_path / "whole").folder), Path(job["data"]["path"])
    at_step(monkeypatch, lambda step: then(data) if step == 3 else None)
    assert left(train(job, tmp_path / "run").folder) == whole


def test_interactions_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "events.parquet"
    draw = np.random.default_rng(0)
    events = {
        "user": np.repeat(np.arange(30), 8),
        "item": draw.integers(0, 20, 240),
        "time": np.arange(240),
    }
    parquet.write_table(pa.table(events), data)
    options = {
        "data": {"source": "interactions", "path": str(data), "split": "leave_last_out"},
        "tower": {"kind": "features", "dimensions": 8, "doc": ["id"], "history": {}},
        "train": {"batch_size": 32, "num_train_epochs": 2, "evaluations": 1},
        "evaluation": {"validation": 20},
    }
    whole = left(train(options, tmp_path / "whole").folder)
    at_step(monkeypatch, lambda step: os.truncate(data, 9) if step == 3 else None)
    assert left(train(options, tmp_path / "run").folder) == whole


def test_a_run_folder_that_disappears_while_training(
    job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = left(train(job, tmp_path / "whole").folder)
    with monkeypatch.context() as patch:
        at_step(patch, lambda step: shutil.rmtree(tmp_path / "run.partial") if step == 8 else None)
        with pytest.raises(OutputError, match=r"run.partial was removed while it was written"):
            train(job, tmp_path / "run")
    assert left(train(job, tmp_path / "run").folder) == whole


def test_a_clock_that_jumps_changes_nothing(
    job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durations are of a clock that only goes forward."""
    whole = left(train(job, tmp_path / "whole").folder)
    jumps = iter(np.random.default_rng(0).uniform(-1e9, 1e9, 10**5).tolist())
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps)))
    found = train(job, tmp_path / "run").folder
    assert left(found) == whole
    seconds = json.loads((found / "metrics.json").read_text())["seconds"]
    assert all(0 <= spent < 600 for phase in seconds.values() for spent in phase.values())


@pytest.mark.parametrize("moment", ["on the way", "at the end", "saving"])
def test_sigterm_while_judging_or_saving(
    moment: str, job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = left(train(job, tmp_path / "whole").folder)
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    judge, write, judged = HeldOutQueries.judge, write_mark, iter(range(9))
    asked = {"on the way": 2, "at the end": 4}.get(moment)

    def judging(held_out: HeldOutQueries, *given: Any, **named: Any) -> Any:
        if next(judged) == asked:
            signal.raise_signal(signal.SIGTERM)
        return judge(held_out, *given, **named)

    def writing(*given: Any) -> None:
        if moment == "saving":
            signal.raise_signal(signal.SIGTERM)
        write(*given)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(HeldOutQueries, "judge", judging)
            patch.setattr("tempera.run.publish.write_mark", writing)
            with pytest.raises(SystemExit) as stop:
                train(job, tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.value.code == 143 and not (tmp_path / "run").exists()
    step = 9 if moment == "on the way" else 18
    assert [path.name for path in (tmp_path / "run.checkpoints").glob("step-*")] == [
        f"step-{step:09d}"
    ]
    assert left(train(job, tmp_path / "run").folder) == whole


def test_other_errors_are_not_taken_for_memory(
    job: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(step: int) -> None:
        raise RuntimeError("a bug")

    at_step(monkeypatch, broken)
    with pytest.raises(RuntimeError, match="a bug") as caught:
        train(job, tmp_path / "run")
    assert not isinstance(caught.value, TemperaError)
