"""A run is made by a process of its own: its end is reported, however it comes, and nothing of it
outlives the program."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tempera.errors import OutputError
from tempera.experiments.record import Record
from tempera.experiments.runner import Runner, Stopped, Worker
from tempera.experiments.template import PlannedRun
from tempera.options.build import build
from tempera.options.yaml_options import Options

# What a run does is the text of its option `what`.
RUNS = """
    import os, signal, sys, time
    from dataclasses import replace
    from pathlib import Path
    from tempera.experiments.record import Record
    from tempera.experiments.worker import serve

    def run(job, report):
        folder = Path(job["folder"])
        (folder / "pid").write_text(f"{os.getpid()} {os.getppid()}")
        print("a word on standard output", flush=True)
        names = {**globals(), "record": Record(**job["record"]), "report": report}
        exec(job["options"]["what"], names)
        return replace(names["record"], value=0.5)

    serve(run)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "runs.py"
    path.write_text(textwrap.dedent(RUNS))
    return path


@pytest.fixture(scope="module")
def worker(script: Path) -> Iterator[Worker]:
    made = Worker()
    made.command = (sys.executable, str(script))
    yield made
    made.close()


def job(folder: Path, what: str = "") -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return {"folder": str(folder), "options": {"what": what}, "record": {"params": {}, "seed": 3}}


def ran(worker: Worker, folder: Path, what: str = "") -> Record:
    return worker.run(job(folder, what), lambda value: False)


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_process_makes_one_run_after_the_other(worker: Worker, tmp_path: Path) -> None:
    records = [ran(worker, tmp_path / name) for name in "ab"]
    assert [(record.seed, record.value, record.state) for record in records] == [
        (3, 0.5, "finished")
    ] * 2
    pids = [(tmp_path / name / "pid").read_text() for name in "ab"]
    assert pids[0] == pids[1] != ""
    assert (tmp_path / "a" / "messages.txt").read_text() == "a word on standard output\n"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            "raise RuntimeError('an error')",
            "ended with exit code 1; its last message: RuntimeError: an error",
        ),
        ("os._exit(7)", "ended with exit code 7; its last message: a word on standard output"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "was ended by SIGKILL, as a system does when it is out of memory",
        ),
    ],
)
def test_a_process_that_ends_is_a_failed_run_and_the_next_one_runs(
    what: str, says: str, worker: Worker, tmp_path: Path
) -> None:
    record = ran(worker, tmp_path / "run", what)
    assert record.state == "failed" and f"its process {says}" in (record.error or "")
    assert (
        ran(worker, tmp_path / "next", "record = replace(record, seed=4 if 'ö' else 0)").seed == 4
    )


def test_evaluations_are_reported_and_answered(worker: Worker, tmp_path: Path) -> None:
    values: list[float | None] = []

    def report(value: float | None) -> bool:
        values.append(value)
        return len(values) == 3

    what = "record = replace(record, seed=[report(v) for v in (0.25, None, 0.5)].index(True))"
    assert worker.run(job(tmp_path / "run", what), report).seed == 2 and values == [0.25, None, 0.5]

    def broken(value: float | None) -> bool:
        raise OSError("the storage is gone")

    with pytest.raises(OSError, match="the storage is gone"):
        worker.run(job(tmp_path / "run", "report(0.25)"), broken)
    assert ran(worker, tmp_path / "next").done


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_nothing_outlives_the_program(number: int, script: Path, tmp_path: Path) -> None:
    def program() -> None:
        Worker.command = (sys.executable, str(script))
        runner, run = (
            Runner(tmp_path, 1, "m"),
            PlannedRun(Record({}), {"what": "time.sleep(600)"}, {}, ""),
        )
        runner.run_workers(lambda worker: runner.make(worker, run, "run"))

    process = multiprocessing.get_context("fork").Process(target=program)
    process.start()
    pids = tmp_path / "trials" / "run" / "pid"
    until(lambda: pids.is_file() and pids.read_text().count(" ") == 1)
    os.kill(process.pid or 0, number)
    process.join()
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not psutil.pid_exists(pid))  # type: ignore[misc]


class Told(Worker):
    """Answers with what the run's options say."""

    def run(self, job: dict[str, Any], report: Any) -> Record:
        if self.closed:
            raise Stopped
        record = {"data": "d", "value": 0.5, **job["record"], **job["options"]}
        if job["data"] not in ("", record["data"]):
            record["value"] = None
        return Record(**record)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    monkeypatch.setattr("tempera.experiments.runner.Worker", Told)
    return Runner(tmp_path, 2, "m")


def planned(reading: str = "", **record: Any) -> PlannedRun:
    return PlannedRun(Record({}, reading=reading), {"reading": reading, **record}, {}, "")


def test_runs_on_other_data_are_refused(runner: Runner) -> None:
    worker = runner.workers[0]
    for reading, data in (("a", "1"), ("b", "2"), ("a", "1")):
        runner.make(worker, planned(reading, data=data), "run")
    with pytest.raises(OutputError, match="2 runs were made on other data than there are now"):
        runner.make(worker, planned("a", data="2"), "run")


def test_an_error_ends_all_loops(runner: Runner) -> None:
    def loop(worker: Worker) -> None:
        if worker is runner.workers[0]:
            raise OutputError("the disk is full")
        while True:
            runner.make(worker, planned(data="d"), "run")

    with pytest.raises(OutputError, match="the disk is full"):
        runner.run_workers(loop)


def test_an_interrupt_says_how_to_go_on(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    def loop(worker: Worker) -> None:
        raise KeyboardInterrupt

    with caplog.at_level("INFO", "tempera"), pytest.raises(KeyboardInterrupt):
        runner.run_workers(loop)
    says = f"finished runs stay in {runner.folder}: the same command goes on"
    assert says in caplog.messages[-1]


def test_the_value_of_a_pruned_run_is_that_of_its_last_evaluation(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Any, job: dict[str, Any], report: Any) -> Record:
        for value in (0.1, 0.3, None):
            report(value)
        return Record({}, pruned=True)

    monkeypatch.setattr(Told, "run", run)
    seen: list[tuple[float, int]] = []

    def report(value: float, evaluation: int) -> bool:
        seen.append((value, evaluation))
        return False

    record = runner.make(runner.workers[0], planned(), "run", report)
    assert (
        record.value == 0.3
        and record.on_the_way == [0.1, 0.3, None]
        and seen == [(0.1, 1), (0.3, 2)]
    )


def test_options_pass_through_json(small: dict[str, Any]) -> None:
    """What a worker is sent builds the same configuration."""
    import json

    options = build(Options(small)).resolved
    assert build(Options(json.loads(json.dumps(options)))).resolved == options


def test_a_process_that_starts_while_its_worker_closes_is_ended(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Worker()
    made.command = (sys.executable, str(script))
    popen, started = subprocess.Popen, []

    def closing(*given: Any, **options: Any) -> Any:
        made.close()
        started.append(popen(*given, **options))
        return started[-1]

    monkeypatch.setattr("tempera.experiments.runner.subprocess.Popen", closing)
    with pytest.raises(Stopped):
        made._started()
    assert started[0].poll() is not None


def test_a_module_of_the_users_folder_is_none_of_a_worker(tmp_path: Path) -> None:
    (tmp_path / "statistics.py").write_text("raise RuntimeError")
    options = Worker.command[1 : Worker.command.index("-m")]
    done = subprocess.run(
        [sys.executable, *options, "-c", "import statistics"], cwd=tmp_path, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
