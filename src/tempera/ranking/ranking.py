"""The ranked documents of a system, and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .compare import Comparison, Difference, bootstrap_metrics, compare
from .metrics import Relevant, evaluate, parsed
from .nearest import nearest

DEPTH = 100
LEAST_TO_CHOOSE = 50  # validation queries, below which nothing is chosen by them
FEW_QUERIES = 10  # of the test; fewer queries prove nothing, and one query has no interval


def depth_of(metrics: Sequence[str]) -> int:
    """Return the depth to rank to for some metrics, at least 100."""
    return max([DEPTH, *(parsed(name)[1] for name in metrics)])


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
        """The means over queries."""
        return {name: float(values.mean()) for name, values in self.per_query.items()}

    def bias(self, whole: Ranking) -> dict[str, float]:
        """Return each metric of this ranking of a sample of a corpus, less the metric of the same
        queries on the whole corpus.

        Measured on the untrained model, the bias estimates the excess of the metrics during
        training over the metrics on the whole corpus. The bias shrinks as the model improves, and
        is no correction.
        """
        metrics = whole.metrics
        return {name: value - metrics[name] for name, value in self.metrics.items()}

    def intervals(self) -> dict[str, Difference]:
        """Return the means with their intervals."""
        return bootstrap_metrics(self.per_query)

    def against(self, other: Ranking) -> dict[str, Comparison]:
        """Compare this system with another system on the same queries."""
        return compare(self.per_query, other.per_query)

    def first_right(self, relevant: Relevant) -> NDArray[np.int64]:
        """Return the rank of each query's first relevant document, from 1, [q]; 0 if no relevant
        document is ranked."""
        hit = relevant.gains(self.ranked) > 0
        return np.where(hit.any(1), hit.argmax(1) + 1, 0)
