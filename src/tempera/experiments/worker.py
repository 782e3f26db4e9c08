"""The process that trains: `python -m tempera.experiments.worker` takes jobs from standard input,
one after the other.

Orders and answers are lines of JSON. An order is a job (`Trainings`). An answer is the record of
the run, or the metric at an evaluation on the way; the reply to a metric is `true` (stop) or
`false` (go on). The process ends at the end of standard input, so no run outlives the program that
started the process, even a killed program.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..io.documents import parsed
from .record import Record

if TYPE_CHECKING:
    from .one_run import Report

MESSAGES = "messages.txt"


def serve(run: Callable[[dict[str, Any], Report], Record]) -> None:
    """Make a run for each order, until the input ends."""
    orders: SimpleQueue[Any] = SimpleQueue()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # standard output is for what runs print
    # On standard error, which goes to a file of each run.
    logging.basicConfig(level="INFO", format="%(message)s")
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()

    def answer(line: str) -> None:
        answers.write(f"{line}\n")
        answers.flush()

    def report(value: float | None) -> bool:
        answer(json.dumps({"evaluation": value}))
        return bool(orders.get())

    while True:
        job = orders.get()
        _print_to(Path(job["folder"]) / MESSAGES)
        record = run(job, report)
        _print_to(os.devnull)
        answer(record.json())


def _print_to(path: Path | str) -> None:
    """Send standard output and standard error to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _listen(orders: SimpleQueue[Any]) -> None:
    """Put each order into the queue, and end the process at the end of the input."""
    for line in sys.stdin:
        orders.put(parsed(line))
    os._exit(1)


if __name__ == "__main__":
    from .one_run import Trainings

    serve(Trainings())
