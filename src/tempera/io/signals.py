"""The signals for a program to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPS = ("SIGINT", "SIGTERM", "SIGHUP")


def heard_signals() -> list[signal.Signals]:
    """Return the stop signals to handle in the present process.

    Windows has no SIGHUP, and nohup has a process ignore SIGHUP. A signal handled by a library in
    C, for instance MPI's, is left to the library, since Python could not give the signal back. Only
    the main thread handles signals.

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
    """Let a handler handle the stop signals in the block; yield the earlier handlers, by number,
    and set them again afterwards."""
    before = {int(number): signal.signal(number, handler) for number in heard_signals()}
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
