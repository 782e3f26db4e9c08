"""The judgement of the present tower of a run on the test set."""

from __future__ import annotations

from ..task.verdict import Verdict
from .prepare import Prepared


def judge(prepared: Prepared) -> Verdict | None:
    """Judge the tower of a run on the whole test set, and on `evaluation.also`.

    A run judges twice: the untrained tower, and the tower with the saved weights.

    Returns:
        None where `evaluation.queries` or `data.split` leaves no test set.
    """
    if prepared.config.evaluation.queries == 0 or not prepared.task.facts.counts["queries"]:
        return None
    with prepared.phases("evaluate"):
        return prepared.task.held_out.judge("test")
