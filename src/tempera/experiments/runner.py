"""The runner of sweeps and tunings: worker processes, run folders, and the check that all runs
share the data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError, OutputError, quantity
from ..io.atomic import is_run, write_manifest
from ..io.console import logger
from ..io.documents import parsed
from ..task.evaluation import Part
from .one_run import Report
from .record import Record
from .template import PlannedRun
from .worker import MESSAGES

_CACHE = "cache"
_RUNS = "trials"


class Stopped(Exception):
    """The runner has been closed, and all runs under way have ended."""


class Worker:
    """A process for training, seen from the program that started the process.

    The process starts with the first run, and starts again after a run that ended the process.
    """

    # -P: the user's current folder is not searched for modules, since a file of the user may have
    # the name of a module.
    command = (sys.executable, "-P", "-m", "tempera.experiments.worker")

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.closed = False

    def run(self, job: dict[str, Any], report: Report) -> Record:
        """Make a run, wait for the end, and return the record of the run.

        A process that dies leaves a record with the exit code and the last message as the error.

        Raises:
            Stopped: the worker was closed meanwhile.
        """
        try:
            return self._converse(self._started(), job, report)
        except (EOFError, BrokenPipeError):
            code = self._wait_or_kill()
        except BaseException:
            self._wait_or_kill(patience=0.0)
            raise
        if self.closed:
            raise Stopped
        messages = Path(job["folder"]) / MESSAGES
        return replace(Record(**job["record"]), error=_error_of_exit(code, messages))

    def close(self) -> None:
        """End the process, and the run under way."""
        self.closed = True
        process = self.process  # another thread may set self.process to None
        if process is not None:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[str]:
        """Return the process, started if there is none."""
        if self.closed:
            raise Stopped
        if self.process is None:
            # A session of its own: Ctrl-C is for the program that waits for the process.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,
            )
            if self.closed:  # close() was called while there was no process to end
                self.close()
                raise Stopped
        return self.process

    def _converse(
        self, process: subprocess.Popen[str], job: dict[str, Any], report: Report
    ) -> Record:
        """Send a job, reply to each evaluation with the report's verdict, and return the record.

        Raises:
            EOFError: the process has ended without a record.
        """
        assert process.stdin is not None and process.stdout is not None
        order: Any = job
        while True:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise EOFError
            answer = parsed(line)
            if "evaluation" not in answer:
                return Record(**answer)
            order = report(answer["evaluation"])

    def _wait_or_kill(self, patience: float = 10.0) -> int:
        """Wait up to `patience` seconds for the end of the process, then kill it.

        Returns:
            The exit code; minus the number of the final signal.
        """
        process = self.process
        self.process = None
        assert process is not None
        try:
            process.communicate(timeout=patience)  # closes the pipes, too
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode


class Runner:
    """Makes the runs of a sweep or a tuning, several at once.

    Args:
        folder: the folder of the sweep or tuning; the subfolder `trials` has a folder for each run
            under way, and for each run to be kept.
        jobs: runs at once, each by a worker process; each worker reads the data once.
        metric: the metric to compare runs by.
        part: the part of the held-out queries to compare runs on.

    Raises:
        ConfigError: `jobs` is below 1.
    """

    def __init__(self, folder: Path, jobs: int, metric: str, part: Part = "validation") -> None:
        if jobs < 1:
            raise ConfigError(f"--jobs is {jobs}; give at least 1")
        self.folder = folder
        self.metric = metric
        self.part = part
        self.remedy = "give another folder, or --overwrite"  # for data that have changed
        self.threads = None if jobs == 1 else max(1, cores() // jobs)
        self.workers = [Worker() for _ in range(jobs)]
        # By the hash of reading options: data hashes of known runs. By the hash of the options of
        # the data's origin: source hashes of known runs.
        self.data: dict[str, list[str]] = defaultdict(list)

    def run_workers(self, loop: Callable[[Worker], None]) -> None:
        """Call `loop` once for each worker, in threads, until all calls return.

        An error in one call ends the runs of all workers.
        """
        cache = self.folder / _CACHE
        shutil.rmtree(cache, ignore_errors=True)  # a process that was killed may have left it
        with ThreadPoolExecutor(len(self.workers)) as pool:
            try:
                calls = [pool.submit(loop, worker) for worker in self.workers]
                for call in as_completed(calls):
                    call.result()
            except (KeyboardInterrupt, SystemExit):
                logger.info(
                    f"finished runs stay in {self.folder}: the same command goes on with the others"
                )
                raise
            finally:
                for worker in self.workers:
                    worker.close()
        shutil.rmtree(cache, ignore_errors=True)
        with suppress(OSError):  # the folder holds runs that stay
            self.run_folder("").rmdir()

    def run_folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.folder / _RUNS / name

    def make(
        self,
        worker: Worker,
        run: PlannedRun,
        name: str,
        report: Callable[[float, int], bool] | None = None,
        publish: bool = False,
        bar: float | None = None,
    ) -> Record:
        """Make one run, and return the record of the run.

        Args:
            worker: the process to train in.
            run: options and setting of the run.
            name: name of the run's folder.
            report: called at each evaluation on the way with the metric and the number of the
                evaluation, from 1 on; True ends the run. None: no evaluations on the way.
            publish: leave a run folder, if the run's value is above `bar`.
            bar: None is no limit.

        Raises:
            OutputError: the data have changed since earlier runs.
            Stopped: the runner ended meanwhile.
        """
        folder = self.run_folder(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        values: list[float | None] = []

        def watch(value: float | None) -> bool:
            values.append(value)
            if report is None or value is None:
                return False
            return report(value, len(values))

        job = self._job(worker, run, folder)
        job.update(watched=report is not None, publish=publish, bar=bar)
        record = worker.run(job, watch)
        self.refuse_other_data(record)
        self.note_data(record)
        if record.pruned:
            record = replace(record, value=_last_number(values))
        with suppress(FileNotFoundError):  # the run has printed nothing
            messages = folder.with_suffix(".txt")
            (folder / MESSAGES).replace(messages)
            if record.error is None:
                messages.unlink()
        if not publish:
            shutil.rmtree(folder)
        elif is_run(folder):
            write_manifest(folder)
        return replace(record, on_the_way=values)

    def _job(self, worker: Worker, run: PlannedRun, folder: Path) -> dict[str, Any]:
        """Return the order for a worker process, see `Trainings.__call__`."""
        data_hashes = self.data[run.record.reading]
        source_hashes = self.data[run.record.origin]
        job = asdict(run)
        job.update(
            folder=str(folder),
            cache=str(self.folder / _CACHE / f"data-{self.workers.index(worker)}"),
            vectors=str(self.folder / "vectors"),
            metric=self.metric,
            part=self.part,
            data=data_hashes[0] if data_hashes else "",
            source=source_hashes[0] if source_hashes else "",
            threads=self.threads,
        )
        return job

    def refuse_other_data(self, record: Record) -> None:
        """Refuse a run with data that differ from the data of a known run with equal options.

        Raises:
            OutputError: a known run has other data.
        """
        for options, content in ((record.reading, record.data), (record.origin, record.source)):
            others = sum(known != content for known in self.data[options])
            if content and others:
                raise OutputError(
                    f"{self.folder}: {quantity(others, 'runs')} {'was' if others == 1 else 'were'} made on other data than there "
                    f"are now, although the options are the same; {self.remedy}"
                )

    def note_data(self, record: Record) -> None:
        """Take note of the data of a run: later runs need to have the same."""
        for options, content in ((record.reading, record.data), (record.origin, record.source)):
            if content:
                self.data[options].append(content)


def cores() -> int:
    """Return the number of cores available to the process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _last_number(values: Sequence[float | None]) -> float | None:
    """Return the last value other than None; None without any."""
    for value in reversed(values):
        if value is not None:
            return value
    return None


def _error_of_exit(code: int, messages: Path) -> str:
    """Return the error of a run with a process that ended without an answer.

    Args:
        code: exit code of the process; minus the number of the final signal.
        messages: the file of the run's printed messages.
    """
    if code == -9:
        return "its process was ended by SIGKILL, as a system does when it is out of memory"
    error = f"its process ended with exit code {code}"
    if code < 0:
        error = f"its process was ended by {signal.Signals(-code).name}"
    if not messages.is_file():
        return error
    printed = messages.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if not lines:
        return error
    return f"{error}; its last message: {lines[-1][-200:]}"
