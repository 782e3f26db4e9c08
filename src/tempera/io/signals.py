"""The signals that ask a program to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPS = ("SIGINT", "SIGTERM", "SIGHUP")


def heard_signals() -> list[signal.Signals]:
    """Return those that this system has, as Windows has no SIGHUP, and that are not ignored, as
    SIGHUP is under nohup.

    One that a library in C hears, as MPI's may, is left to it: Python could not give it back. Other
    threads hear none.

    >>> signal.SIGTERM in heard_signals()
    True
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    known = [getattr(signal, name) for name in _STOPS if hasattr(signal, name)]
    return [number for number in known if signal.getsignal(number) not in (signal.SIG_IGN, None)]


@contextmanager
def hearing(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers,
) -> Iterator[dict[int, Any]]:
    """Let another handler hear these signals in the block; yield those of before, by number, which
    hear them again afterwards."""
    before = {int(number): signal.signal(number, handler) for number in heard_signals()}
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
