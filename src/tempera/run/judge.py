"""The third of a run's four functions: the evaluation of the tower, as it is now, on the test set."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..ranking.verdict import Verdict
from .prepare import Prepared


@dataclass(frozen=True)
class Assessment:
    """Hold what the tower of a run reached on the test, and the seconds that it took."""

    verdict: Verdict
    seconds: float


def judge(prepared: Prepared) -> Assessment:
    """Evaluate the tower of a run on the whole test set: called once untrained, and once with the weights that are saved."""
    began = time.perf_counter()
    verdict = prepared.task.held_out.judge("test")
    return Assessment(verdict, time.perf_counter() - began)
