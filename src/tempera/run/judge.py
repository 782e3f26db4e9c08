"""The third of a run's four functions: the test, asked of the tower as it is at that moment."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..ranking.verdict import Verdict
from .prepare import Prepared


@dataclass(frozen=True)
class Assessment:
    """Hold what the tower of a run reached on the test, and the seconds that it took to ask it."""

    verdict: Verdict
    seconds: float


def judge(prepared: Prepared) -> Assessment:
    """Ask the tower of a run the whole test: once untrained, and once with the weights that are saved."""
    began = time.perf_counter()
    verdict = prepared.task.held_out.judge("test")
    return Assessment(verdict, time.perf_counter() - began)
