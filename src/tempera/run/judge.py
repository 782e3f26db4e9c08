"""The third of a run's four functions: the test, asked of the tower as it is at that moment."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..ranking.verdict import Verdict
from .alarms import Alarms
from .prepare import Prepared


@dataclass(frozen=True)
class Assessment:
    """Hold what the tower of a run reached on the test after some steps, and the seconds that it took to ask it."""

    step: int
    verdict: Verdict
    seconds: float


def judge(prepared: Prepared, step: int = 0) -> Assessment:
    """Ask the tower the whole test, after `step` steps; the log and its alarms hold what it reached."""
    began = time.perf_counter()
    verdict = prepared.task.held_out.judge()
    prepared.log.write(event="evaluation", step=step, metrics=verdict.ranking.metrics)
    if step:
        Alarms(prepared.log).collapse(step, verdict.spread)
    return Assessment(step, verdict, time.perf_counter() - began)
