"""Seconds spent in a context, on a device that works asynchronously, and in each phase of a run."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import psutil
import torch
from pydantic import BeforeValidator, Field

from ..arithmetic.abilities import event

if sys.platform != "win32":
    import resource

_STATUS = Path("/proc/self/status")  # on Linux
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}  # in seconds


def seconds_of(value: Any) -> Any:
    """Return seconds from a number, or from a text with a unit.

    >>> seconds_of("60s"), seconds_of("1.5 min"), seconds_of("1h"), seconds_of(90)
    (60.0, 90.0, 3600.0, 90)
    """
    if not isinstance(value, str):
        return value
    number = value.strip().lower().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = value.strip().lower().removeprefix(number)
    try:
        return float(number) * _UNITS[unit or "s"]
    except (ValueError, KeyError):
        raise ValueError("seconds, or a text such as 60s, 5min or 1h") from None


Seconds = Annotated[float, BeforeValidator(seconds_of), Field(gt=0)]


class Clock:
    """Adds up the seconds of all its `with` blocks.

    >>> clock = Clock(torch.device("cpu"))
    >>> with clock:
    ...     pass
    >>> clock.seconds() >= 0
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_device = device.type != "cpu" and event(device) is not None
        self.passed = 0.0
        self.events: list[tuple[torch.Event, torch.Event]] = []  # entered and left, not read yet

    def __enter__(self) -> None:
        if self.on_device:
            start = torch.Event(self.device, enable_timing=True)
            end = torch.Event(self.device, enable_timing=True)
            self.events.append((start, end))
            start.record()
        self.start = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.on_device:
            self.events[-1][1].record()
        else:
            self.passed += time.perf_counter() - self.start

    def seconds(self) -> float:
        """Wait for the device; return the seconds so far."""
        if self.events:
            torch.accelerator.synchronize(self.device)
            self.passed += sum(start.elapsed_time(end) for start, end in self.events) / 1000
            self.events.clear()
        return self.passed


class Phases:
    """Adds up the wall and CPU seconds of the phases of a run; an inner phase interrupts the outer
    phase.

    CPU seconds count all threads, and worker processes that have ended.

    >>> phases = Phases()
    >>> with phases("train"), phases("evaluate"):
    ...     pass
    >>> list(phases.seconds()), list(phases.seconds()["train"])
    (['train', 'evaluate'], ['wall', 'cpu'])
    """

    def __init__(self) -> None:
        self.spent: dict[str, tuple[float, float]] = {}
        self.running: list[str] = []
        self.mark = _now()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the block as a part of a phase."""
        self._charge()
        self.running.append(name)
        try:
            yield
        finally:
            self._charge()
            self.running.pop()

    def seconds(self) -> dict[str, dict[str, float]]:
        """Return the seconds of each phase so far, in the order in which the phases ended first."""
        self._charge()
        return {
            name: {"wall": round(wall, 3), "cpu": round(cpu, 3)}
            for name, (wall, cpu) in self.spent.items()
        }

    def add(self, seconds: Mapping[str, Mapping[str, float]]) -> None:
        """Add seconds that an earlier process of the same run has spent."""
        for name, each in seconds.items():
            wall, cpu = self.spent.get(name, (0.0, 0.0))
            self.spent[name] = wall + each["wall"], cpu + each["cpu"]

    def _charge(self) -> None:
        """Count the time since the last change as time of the innermost phase."""
        now = _now()
        if self.running:
            name = self.running[-1]
            wall, cpu = self.spent.get(name, (0.0, 0.0))
            self.spent[name] = wall + now[0] - self.mark[0], cpu + now[1] - self.mark[1]
        self.mark = now


def _now() -> tuple[float, float]:
    """Return the wall and CPU seconds of this process and its ended children."""
    ended = os.times()
    return time.perf_counter(), time.process_time() + ended.children_user + ended.children_system


def age() -> float:
    """Return the seconds since this process began, imports included."""
    began: float = psutil.Process().create_time()
    return time.time() - began


def peak_memory_bytes() -> int:
    """Return the peak memory of this process, plus, except on Windows, the peak of the largest
    worker."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if _STATUS.exists():
        # On Linux ru_maxrss is at least the peak of the program that has started this one.
        own = int(_PEAK.findall(_STATUS.read_text())[0])
    largest_worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return unit * (own + largest_worker)


def fastest(
    run: Callable[[], Any],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    rounds: int = 5,
) -> float:
    """Return the seconds of the fastest of a few runs on a device, after a run that warms up."""
    return min(several(run, device, clock, rounds))


def several(
    run: Callable[[], Any],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    rounds: int = 5,
    before: Callable[[], Any] = lambda: None,
) -> list[float]:
    """Return the seconds of each of a few runs on a device, after a run that warms up; `before`
    runs before each and does not count."""

    def once() -> float:
        before()
        start = clock()
        run()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return clock() - start

    once()
    return [once() for _ in range(rounds)]
