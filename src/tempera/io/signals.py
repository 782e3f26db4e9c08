"""The signals that ask a program to stop."""

from __future__ import annotations

import signal

_STOPS = ("SIGINT", "SIGTERM", "SIGHUP")


def heard_signals() -> list[signal.Signals]:
    """Return those that this system has, as Windows has no SIGHUP, and that are not ignored, as SIGHUP is under nohup.

    One that a library in C hears, as MPI's may, is left to it: Python could not give it back.

    >>> signal.SIGTERM in heard_signals()
    True
    """
    known = [getattr(signal, name) for name in _STOPS if hasattr(signal, name)]
    return [number for number in known if signal.getsignal(number) not in (signal.SIG_IGN, None)]
