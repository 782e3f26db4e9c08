"""The judgement of a run's tower, as it is now, on the test set."""

from __future__ import annotations

from ..task.verdict import Verdict
from .prepare import Prepared


def judge(prepared: Prepared) -> Verdict | None:
    """Judge the tower of a run on the whole test set, and on `evaluation.also`.

    It is called once untrained, and once with the weights that are saved.

    Returns:
        None where `evaluation.queries` or `data.split` leaves no test set.
    """
    if prepared.config.evaluation.queries == 0 or not prepared.task.facts.counts["queries"]:
        return None
    with prepared.phases("evaluate"):
        return prepared.task.held_out.judge("test")
