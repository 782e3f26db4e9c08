"""Several workers on one machine, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from ..errors import TemperaError
from ..io.console import logger
from ..io.documents import parsed
from .claims import STALE
from .corpus_worker import EncodedPart, Tell, WorkerShare, clear, work
from .encoding_job import EncodingJob

_SOURCE = Path(__file__).parents[2]  # holds the package, for the processes


@dataclass(frozen=True)
class WorkerOutcome:
    """The end of one worker.

    Args:
        error: in one line; None if the worker has done its work.
        code: of the process, negative for a signal.
    """

    error: str | None
    code: int


def work_together(
    job: EncodingJob, workers: int, tell: Tell, stale: float = STALE
) -> dict[str, Any] | None:
    """Encode the shards by several processes; return the manifest, or None if another program still
    has a shard in work.

    The shards of a worker that is killed are taken over by the others.

    Args:
        job: the encoding, begun.
        workers: number of processes.
        tell: is called with each part of the work of any worker.
        stale: seconds after which the claim of another worker is taken over.

    Raises:
        TemperaError: a shard that cannot be encoded or written, or all workers were killed.
    """
    lock = Lock()

    def tell_one(part: EncodedPart) -> None:
        with lock:
            tell(part)

    processes = [_start(workers) for _ in range(workers)]
    try:
        with ThreadPoolExecutor(workers) as threads:
            results = []
            for number, process in enumerate(processes):
                order = {"job": job.json(), "share": [number, workers], "stale": stale}
                results.append(threads.submit(_follow, process, order, tell_one))
            outcomes = [result.result() for result in results]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    document = job.finish()
    if document is None and all(outcome.error is None for outcome in outcomes):
        # The workers of an earlier program held claims, and have ended since.
        document = work(job, WorkerShare(), tell, stale)
    for number, outcome in enumerate(outcomes):
        if outcome.error is None:
            continue
        line = f"worker {number} of {workers}: {outcome.error}"
        if document is None:
            raise TemperaError(line)
        logger.warning(f"{line}; the others have done its work")
    if document is not None:
        clear(job)
    return document


def _start(workers: int) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    paths = [str(_SOURCE), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    environment["TQDM_DISABLE"] = "1"
    return subprocess.Popen(
        [sys.executable, "-m", "tempera.corpora.worker_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
    )


def _follow(process: subprocess.Popen[str], order: dict[str, Any], tell: Tell) -> WorkerOutcome:
    """Give a worker its order, pass on its reports, and return its outcome."""
    assert process.stdin is not None and process.stdout is not None
    error = None
    is_done = False
    try:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass
    for line in process.stdout:
        document = parsed(line)
        if "part" in document:
            tell(EncodedPart(**document["part"]))
        error = document.get("error", error)
        is_done = is_done or "done" in document
    process.communicate()  # closes the pipes, also behind an order that nobody has read
    code = process.returncode
    if not is_done and error is None:
        error = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return WorkerOutcome(error, code)
