"""The evaluation of any system: its scores of each query, and the spread of its vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.objective import Objective
from ..engine.loop import Training
from .compare import Difference
from .ranking import Evaluation
from .spread import Spread

MAIN = "ndcg@10"
OURS = ("untrained", "trained")  # systems; the others are baselines


def main_metric(metrics: Collection[str]) -> str:
    """Return the metric by which systems are compared and chosen: ndcg@10 if it is measured, else the first.

    >>> main_metric(["hit@1", "ndcg@10"]), main_metric(["hit@1", "hit@10"])
    ('ndcg@10', 'hit@1')
    """
    return MAIN if MAIN in metrics else next(iter(metrics))


class SystemScores(Protocol):
    """The scores of one system."""

    @property
    def per_query(self) -> Mapping[str, NDArray[np.float64]]:
        """Return each metric of each query, [q]."""

    @property
    def metrics(self) -> dict[str, float]:
        """Return the means over queries."""

    def intervals(self) -> dict[str, Difference]:
        """Return the means with their intervals."""


@dataclass(frozen=True)
class Verdict:
    """The evaluation of a tower on held-out queries."""

    ranking: SystemScores
    spread: Spread


class Sections(Protocol):
    """The sections of a configuration that a task reads; `data`, `tower` and `mining` are of its own kinds."""

    @property
    def data(self) -> Any:
        """Return the source of the data."""

    @property
    def tower(self) -> Any:
        """Return the options of the tower."""

    @property
    def train(self) -> Training:
        """Return the options of training."""

    @property
    def evaluation(self) -> Evaluation:
        """Return the options of the evaluation."""

    @property
    def mining(self) -> Any:
        """Return the options of mining during training."""

    @property
    def base(self) -> Objective:
        """Return the objective without its widths."""


def best_baseline(systems: Mapping[str, SystemScores]) -> str | None:
    """Return the baseline that is best in the main metric; None if there is none."""
    others = {name: scores.metrics for name, scores in systems.items() if name not in OURS}
    return max(others, key=lambda name: others[name][main_metric(others[name])], default=None)
