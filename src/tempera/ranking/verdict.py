"""What is said of a system that was judged, whatever it is: scores of each query, and how its vectors are spread."""

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
    """Hold what one system reached."""

    @property
    def per_query(self) -> Mapping[str, NDArray[np.float64]]:
        """Each metric of each query, [q]."""

    @property
    def metrics(self) -> dict[str, float]:
        """Means over queries."""

    def intervals(self) -> dict[str, Difference]:
        """Return the means with their intervals."""


@dataclass(frozen=True)
class Verdict:
    """Hold what the held-out queries say of a tower."""

    ranking: SystemScores
    spread: Spread


class Sections(Protocol):
    """Hold the sections of a configuration that a task reads; `data`, `tower` and `mining` are of its own kinds."""

    @property
    def data(self) -> Any:
        """Where the data is read from."""

    @property
    def tower(self) -> Any:
        """Which tower is trained."""

    @property
    def train(self) -> Training:
        """How it is trained."""

    @property
    def evaluation(self) -> Evaluation:
        """How it is judged."""

    @property
    def mining(self) -> Any:
        """Which hard negatives are mined on the way."""

    @property
    def base(self) -> Objective:
        """The objective without its widths."""


def best_baseline(systems: Mapping[str, SystemScores]) -> str | None:
    """Return the name of the system that is best in the main metric, the model in training apart; None if there is none."""
    others = {name: scores.metrics for name, scores in systems.items() if name not in OURS}
    return max(others, key=lambda name: others[name][main_metric(others[name])], default=None)
