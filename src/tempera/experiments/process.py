"""A training in a process of its own, seen from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..io.documents import read_json
from .worker import MESSAGES, OUTCOME, STOP


class Worker:
    """Runs one job at a time, each in a new process. See `worker`.

    Its input ends with this process, however that ends, and so do its runs.
    """

    def __init__(self, module: str = "tempera.experiments.worker") -> None:
        self.command = [sys.executable, "-m", module]
        self.process: subprocess.Popen[bytes] | None = None
        self.busy = False

    def start(self, job: Mapping[str, Any]) -> None:
        """Begin a run: in `job["folder"]`, which is to be there."""
        if self.process is None or self.process.poll() is not None:
            # In a session of its own, so that Ctrl-C ends what gives the orders first.
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        self._order(json.dumps(job).encode())
        self.busy = True

    def ended(self, seconds: float = 0.0) -> int | None:
        """The exit code of the run if it has ended, or does within so many seconds; below 0 it is a signal's."""
        assert self.process is not None and self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        self.busy = False
        line = self.process.stdout.readline()
        return int(line) if line else self.process.wait() or 1

    def stop(self) -> None:
        """Kill the run, if there is one, and wait for its end."""
        if self.busy:
            self._order(STOP)
        while self.busy:
            self.ended(60.0)

    def close(self) -> None:
        """End the process, and with it what it runs."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def _order(self, line: bytes) -> None:
        assert self.process is not None and self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is told by `ended`
            self.process.stdin.write(line + b"\n")


def outcome_of(folder: Path, code: int) -> dict[str, Any]:
    """What a run that has ended came to; if it has not said so itself, `error` tells how it ended."""
    try:
        found: dict[str, Any] = read_json(folder / OUTCOME)
    except FileNotFoundError:
        return {"error": _end(code, folder / MESSAGES)}
    return found


def _end(code: int, messages: Path) -> str:
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        how += ", as a system does that is out of memory"
    lines = messages.read_text(encoding="utf-8", errors="replace").split("\n") if messages.is_file() else []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its process {how}" + (f"; it said last: {said[-200:]}" if said and code != -signal.SIGKILL else "")


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))
