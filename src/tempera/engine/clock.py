"""Seconds spent in a context, on a device that may work behind the program's back."""

from __future__ import annotations

import time
from types import TracebackType

import torch


class Clock:
    """Adds up the seconds of every time it is entered.

    >>> clock = Clock(torch.device("cpu"))
    >>> with clock:
    ...     pass
    >>> clock.seconds() >= 0
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.passed = 0.0
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # entered and left, not read yet

    def __enter__(self) -> None:
        if self.on_gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self.events.append((start, end))
            self.events[-1][0].record()
        self.start = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.on_gpu:
            self.events[-1][1].record()
        else:
            self.passed += time.perf_counter() - self.start

    def seconds(self) -> float:
        """Seconds so far; waits for the device."""
        if self.events:
            torch.cuda.synchronize()
            self.passed += sum(start.elapsed_time(end) for start, end in self.events) / 1000
            self.events.clear()
        return self.passed
