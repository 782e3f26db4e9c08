"""The evaluation of any system: the scores of each query, and the spread of the vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..ranking.compare import Comparison, Difference
from ..ranking.spread import Spread

MAIN = "ndcg@10"
FUSED = "trained + BM25"
COUNTED = "trained + counting"
# Fusions of the trained system and a baseline, with the commands that use them.
TOGETHER = {FUSED: "search", COUNTED: "recommend"}
TEACHER = "teacher"  # the model whose similarities the run has learned
OURS = ("untrained", "trained", *TOGETHER, TEACHER)  # systems; the others are baselines


def main_metric(metrics: Collection[str]) -> str:
    """Return the metric for comparing and choosing systems: ndcg@10 if measured, else the first.

    >>> main_metric(["hit@1", "ndcg@10"]), main_metric(["hit@1", "hit@10"])
    ('ndcg@10', 'hit@1')
    """
    return MAIN if MAIN in metrics else next(iter(metrics))


class SystemScores(Protocol):
    """The scores of a system."""

    @property
    def per_query(self) -> Mapping[str, NDArray[np.float64]]:
        """Each metric of each query, [q]."""

    @property
    def metrics(self) -> dict[str, float]:
        """The means over queries."""

    def intervals(self) -> dict[str, Difference]:
        """Return the means with intervals."""


class TaskScores(SystemScores, Protocol):
    """The scores of a system on a task."""

    def against(self, other: Any) -> dict[str, Comparison]:
        """Compare with another system on the same task."""


@dataclass(frozen=True)
class Verdict:
    """The evaluation of a tower on held-out queries, and on further data by path.

    Args:
        nearest: the documents nearest to each query, best first, [q, k]: more than are ranked, for a
            fusion with words; None if nothing needs them.
    """

    ranking: SystemScores
    spread: Spread
    others: Mapping[str, TaskScores] = field(default_factory=dict)
    nearest: NDArray[np.int64] | None = None


def best_baseline(systems: Mapping[str, SystemScores]) -> str | None:
    """Return the best baseline by the main metric; None without baselines."""
    main = {}
    for name, scores in systems.items():
        if name not in OURS:
            metrics = scores.metrics
            main[name] = metrics[main_metric(metrics)]
    return max(main, key=lambda name: main[name], default=None)
