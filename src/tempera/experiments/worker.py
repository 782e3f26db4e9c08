"""The process that trains: `python -m tempera.experiments.worker` takes one job after the other
from its standard input.

Orders and answers are lines of JSON. An order is a job (`Trainings`); each answer is either the
metric at an evaluation on the way, to which `true` (stop) or `false` (go on) is the reply, or the
record of the run. The process ends when its input does, so that no run outlives the program that
started it, however that ended.
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
    """Make runs until the input ends."""
    orders: SimpleQueue[Any] = SimpleQueue()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # standard output is for what runs print
    logging.basicConfig(
        level="INFO", format="%(message)s"
    )  # on standard error, which each run has for itself
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
    for line in sys.stdin:
        orders.put(parsed(line))
    os._exit(1)


if __name__ == "__main__":
    from .one_run import Trainings

    serve(Trainings())
