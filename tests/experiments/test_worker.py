"""A run has a process of its own: what happens to it is told, and nothing of it outlives who asked for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tempera.experiments.process import Worker, outcome_of

RUNS = """
    import os, signal, sys, time
    from pathlib import Path
    from tempera.experiments.outcome import write_whole
    from tempera.experiments.worker import OUTCOME, serve

    def run(job):
        folder = Path(job["folder"])
        (folder / "pid").write_text(f"{os.getpid()} {os.getppid()}")
        print("a word on standard output", flush=True)
        exec(job["what"])
        write_whole(folder / OUTCOME, b'{"value": 0.5}')

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
    made.command = [sys.executable, str(script)]
    yield made
    made.close()


def begun(worker: Worker, folder: Path, what: str = "") -> None:
    folder.mkdir(exist_ok=True)
    worker.start({"folder": str(folder), "what": what})


def waited(worker: Worker) -> int:
    code = worker.ended(60.0)
    assert code is not None
    return code


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_each_run_has_a_process_of_its_own(worker: Worker, tmp_path: Path) -> None:
    places = []
    for name in "ab":
        begun(worker, tmp_path / name)
        assert waited(worker) == 0
        assert outcome_of(tmp_path / name, 0) == {"value": 0.5}
        places.append((tmp_path / name / "pid").read_text().split())
    (first, server), (second, same) = places
    assert first != second and server == same and int(server) != os.getpid()


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("raise RuntimeError('so it is')", 1, "ended with exit code 1; it said last: RuntimeError: so it is"),
        ("sys.exit(3)", 1, "ended with exit code 1; it said last: SystemExit: 3"),
        ("os._exit(7)", 7, "ended with exit code 7; it said last: a word on standard output"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "was ended by SIGKILL, as a system does that is out of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11, "was ended by SIGSEGV"),
    ],
)
def test_an_end_that_was_not_meant_is_told(what: str, code: int, says: str, worker: Worker, tmp_path: Path) -> None:
    begun(worker, tmp_path / "run", what)
    assert waited(worker) == code
    assert says in outcome_of(tmp_path / "run", code)["error"]
    begun(worker, tmp_path / "next")  # and the next one runs
    assert waited(worker) == 0


def test_a_run_is_killed_when_that_is_asked_for(worker: Worker, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begun(worker, folder, "time.sleep(600)")
    until(lambda: (folder / "pid").is_file() and (folder / "pid").read_text().count(" ") == 1)
    process = int((folder / "pid").read_text().split()[0])
    assert worker.ended() is None
    worker.stop()
    assert not psutil.pid_exists(process)
    begun(worker, tmp_path / "next")
    assert waited(worker) == 0


def test_stopping_what_has_just_ended_does_no_harm(worker: Worker, tmp_path: Path) -> None:
    begun(worker, tmp_path / "run")
    until(lambda: (tmp_path / "run" / "outcome.json").is_file())
    time.sleep(0.2)
    for _ in range(2):
        worker.stop()
    for name in "ab":
        begun(worker, tmp_path / name)
        assert waited(worker) == 0 and outcome_of(tmp_path / name, 0) == {"value": 0.5}


def test_a_server_that_dies_is_one_failed_run(script: Path, tmp_path: Path) -> None:
    worker = Worker()
    worker.command = [sys.executable, str(script)]
    begun(worker, tmp_path / "run", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)")
    assert waited(worker) == -signal.SIGKILL
    process = int((tmp_path / "run" / "pid").read_text().split()[0])
    until(lambda: not psutil.pid_exists(process))
    begun(worker, tmp_path / "next")
    assert waited(worker) == 0
    worker.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_who_asked_for_it(number: int, script: Path, tmp_path: Path) -> None:
    asking = f"""
        import sys, time
        from tempera.experiments.process import Worker
        worker = Worker()
        worker.command = [sys.executable, {str(script)!r}]
        worker.start({{"folder": {str(tmp_path)!r}, "what": "time.sleep(600)"}})
        time.sleep(600)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(asking)], stderr=subprocess.DEVNULL)
    pids = tmp_path / "pid"
    until(lambda: pids.is_file() and pids.read_text().count(" ") == 1)
    process.send_signal(number)
    process.wait()
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not psutil.pid_exists(pid))  # type: ignore[misc]


def test_orders_may_hold_anything(worker: Worker, tmp_path: Path) -> None:
    begun(worker, tmp_path / "run", "assert job['what'].endswith('ö')\n# line two ö")
    assert waited(worker) == 0
    assert json.loads((tmp_path / "run" / "outcome.json").read_text()) == {"value": 0.5}
