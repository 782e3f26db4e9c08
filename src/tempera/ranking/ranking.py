"""The ranked documents of one system, and their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .compare import Comparison, Difference, bootstrap_metrics, compare
from .metrics import Relevant, evaluate
from .nearest import nearest

DEPTH = 100
LEAST_TO_CHOOSE = 50  # validation queries; by fewer nothing is chosen
FEW_QUERIES = 10  # of the test; fewer show nothing, and the interval of one has no width


def depth_of(metrics: Sequence[str]) -> int:
    """Return the depth to rank to for some metrics, at least 100."""
    return max([DEPTH, *(int(name.partition("@")[2]) for name in metrics)])


@dataclass(frozen=True)
class Ranking:
    """A system's ranked documents, and its metrics for each query."""

    ranked: NDArray[np.int64]  # [q, K] corpus positions, best first
    per_query: dict[str, NDArray[np.float64]]  # each [q]

    @classmethod
    def of(cls, ranked: NDArray[np.int64], relevant: Relevant, metrics: Sequence[str]) -> Ranking:
        """Evaluate a ranking."""
        return cls(ranked, evaluate(ranked, relevant, metrics))

    @classmethod
    def by_vectors(
        cls,
        queries: NDArray[np.float32],
        docs: NDArray[np.float32],
        relevant: Relevant,
        metrics: Sequence[str],
    ) -> Ranking:
        """Evaluate the nearest documents of query vectors by inner product; [q, D] and [c, D]."""
        return cls.of(nearest(queries, docs, depth_of(metrics)), relevant, metrics)

    @property
    def metrics(self) -> dict[str, float]:
        """Return the means over queries."""
        return {name: float(values.mean()) for name, values in self.per_query.items()}

    def intervals(self) -> dict[str, Difference]:
        """Return the means with their intervals."""
        return bootstrap_metrics(self.per_query)

    def against(self, other: Ranking) -> dict[str, Comparison]:
        """Compare this system with another one on the same queries."""
        return compare(self.per_query, other.per_query)

    def first_right(self, relevant: Relevant) -> NDArray[np.int64]:
        """Return the rank of each query's first relevant document, from 1, [q]; 0 where none was
        ranked."""
        hit = relevant.gains(self.ranked) > 0
        return np.where(hit.any(1), hit.argmax(1) + 1, 0)
