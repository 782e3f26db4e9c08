"""The runner of all experiments: it owns the worker processes, the run folders, and the check that
runs share their data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
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

_CACHE, _RUNS = "cache", "trials"


class Stopped(Exception):
    """The runner ends, and with it all runs under way."""


class Worker:
    """A process that trains, seen from outside; it is started with the first run, and again after
    one that ended it."""

    # The folder that the user is in is no place for modules: a file of its own may have the name of
    # one.
    command = (sys.executable, "-P", "-m", "tempera.experiments.worker")

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.closed = False

    def run(self, job: dict[str, Any], report: Report) -> Record:
        """Make a run, and wait for its end.

        Raises:
            Stopped: the worker was closed meanwhile.
        """
        try:
            return self._answered(self._started(), job, report)
        except (EOFError, BrokenPipeError):
            code = self._end()
        except BaseException:
            self._end(wait=0.0)
            raise
        if self.closed:
            raise Stopped
        return replace(Record(**job["record"]), error=_death(code, Path(job["folder"]) / MESSAGES))

    def close(self) -> None:
        """End the process, and the run that it makes."""
        self.closed = True
        if (process := self.process) is not None:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[str]:
        if self.closed:
            raise Stopped
        if self.process is None:
            # In a session of its own: Ctrl-C is for the program that waits for it.
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.process = subprocess.Popen(
                self.command, encoding="utf-8", start_new_session=True, **pipes
            )
            if self.closed:  # meanwhile, when there was no process to end
                self.close()
                raise Stopped
        return self.process

    def _answered(
        self, process: subprocess.Popen[str], job: dict[str, Any], report: Report
    ) -> Record:
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

    def _end(self, wait: float = 10.0) -> int:
        """Wait for the end of the process, or end it, and return its exit code; minus a signal's
        number."""
        process, self.process = self.process, None
        assert process is not None
        try:
            return process.wait(wait)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


class Runner:
    """Makes the runs of a sweep or a tuning, several at once.

    Args:
        folder: of the sweep or tuning; `trials` in it has a folder for each run under way, and
            those that stay.
        jobs: runs at once, each by a worker process that reads the data once.
        metric: by which runs are compared.
        part: of what is held out, on which they are.

    Raises:
        ConfigError: `jobs` is below 1.
    """

    def __init__(self, folder: Path, jobs: int, metric: str, part: Part = "validation") -> None:
        if jobs < 1:
            raise ConfigError(f"--jobs is {jobs}; give at least 1")
        self.folder, self.metric, self.part = folder, metric, part
        self.elsewhere = "give another folder, or --overwrite"  # where the data have changed
        self.threads = None if jobs == 1 else max(1, cores() // jobs)
        self.workers = [Worker() for _ in range(jobs)]
        # Hashes of earlier runs' data, by how these were read, and of what there was to read, by
        # where it is from.
        self.data: dict[str, list[str]] = defaultdict(list)

    def all(self, loop: Callable[[Worker], None]) -> None:
        """Run `loop` once for each worker, at once, until all of them return; an error ends the
        others."""
        cache = self.folder / _CACHE
        shutil.rmtree(cache, ignore_errors=True)  # a process that was killed may have left it
        with ThreadPoolExecutor(len(self.workers)) as pool:
            try:
                for ended in as_completed([pool.submit(loop, worker) for worker in self.workers]):
                    ended.result()
            except (KeyboardInterrupt, SystemExit):
                logger.info(
                    f"finished runs stay in {self.folder}: the same command goes on with the others"
                )
                raise
            finally:
                for worker in self.workers:
                    worker.close()
        shutil.rmtree(cache, ignore_errors=True)
        with suppress(OSError):  # it holds runs that stay
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
        """Make one run.

        Args:
            worker: makes it.
            run: what to train.
            name: of its folder.
            report: is called with the metric at each evaluation on the way, and its number from 1
                on; True ends the run. None leaves the evaluations on the way out.
            publish: leave a run folder, if the run's value is above `bar`.
            bar: None is no limit.

        Raises:
            OutputError: the data have changed since earlier runs.
            Stopped: the runner ended meanwhile.
        """
        folder, known, source = (
            self.run_folder(name),
            self.data[run.record.reading],
            self.data[run.record.origin],
        )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        way: list[float | None] = []

        def watch(value: float | None) -> bool:
            way.append(value)
            return report is not None and value is not None and report(value, len(way))

        job = {
            **asdict(run),
            "folder": str(folder),
            "cache": str(self.folder / _CACHE / f"data-{self.workers.index(worker)}"),
            "vectors": str(self.folder / "vectors"),
            "metric": self.metric,
            "part": self.part,
            "data": known[0] if known else "",
            "source": source[0] if source else "",
            "watched": report is not None,
            "publish": publish,
            "bar": bar,
            "threads": self.threads,
        }
        record = worker.run(job, watch)
        self.refuse_other_data(record)
        self.know(record)
        if record.pruned:
            record = replace(
                record, value=next((value for value in reversed(way) if value is not None), None)
            )
        with suppress(FileNotFoundError):  # the run has printed nothing
            (folder / MESSAGES).replace(folder.with_suffix(".txt"))
            if record.error is None:
                folder.with_suffix(".txt").unlink()
        if not publish:
            shutil.rmtree(folder)
        elif is_run(folder):
            write_manifest(folder)
        return replace(record, on_the_way=way)

    def refuse_other_data(self, record: Record) -> None:
        """Refuse a run whose data are not those of every run that is known.

        Raises:
            OutputError: some were made on other data.
        """
        for place, content in ((record.reading, record.data), (record.origin, record.source)):
            others = sum(each != content for each in self.data[place])
            if content and others:
                raise OutputError(
                    f"{self.folder}: {quantity(others, 'runs')} {'was' if others == 1 else 'were'} made on other data than there "
                    f"are now, although the options are the same; {self.elsewhere}"
                )

    def know(self, record: Record) -> None:
        """Take note of a run's data, which later runs need to have."""
        for place, content in ((record.reading, record.data), (record.origin, record.source)):
            if content:
                self.data[place].append(content)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _death(code: int, messages: Path) -> str:
    """Return the error of a run whose process ended without an answer."""
    if code == -9:
        return "its process was ended by SIGKILL, as a system does when it is out of memory"
    ending = (
        f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    )
    lines = (
        messages.read_text(encoding="utf-8", errors="replace").splitlines()
        if messages.is_file()
        else []
    )
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its process {ending}" + (f"; its last message: {last[-200:]}" if last else "")
