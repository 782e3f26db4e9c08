"""The third of a run's four functions: the evaluation of the tower, as it is now, on the test set
and on other data."""

from __future__ import annotations

from dataclasses import replace

from ..task.verdict import Verdict
from ..text.judge.other_data import InTraining, judged, read_tasks
from ..text.train.training_pairs import TrainingPairs
from .prepare import Prepared


def judge(prepared: Prepared) -> Verdict | None:
    """Evaluate the tower of a run on the whole test set, and on `evaluation.also`.

    It is called once untrained, and once with the weights that are saved.

    Returns:
        None where `evaluation.queries` or `data.split` leaves no test set.
    """
    if (
        prepared.config.evaluation.queries == 0
        or not prepared.task.showcase.facts().counts["queries"]
    ):
        return None
    also, metrics = prepared.config.evaluation.also, prepared.config.evaluation.metrics
    with prepared.phases("evaluate"):
        verdict, data = prepared.task.held_out.judge("test"), prepared.task.data
        if not (also and isinstance(data, TrainingPairs)):
            return verdict
        return replace(verdict, others=judged(InTraining(data.known), read_tasks(also), metrics))
