"""A retrieval task: queries, a corpus, and which documents answer which query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..errors import ConfigError
from .compare import Comparison, Difference, bootstrap, compare
from .metrics import DEFAULT_METRICS, Relevant, evaluate
from .nearest import top

DEPTH = 100
LEAST_TO_CHOOSE = 50  # validation queries; by fewer nothing is chosen
Part = Literal["validation", "test"]  # what is held out: to choose by, and to report on


def depth_of(metrics: Sequence[str]) -> int:
    """How deep to rank for some metrics; 100 at least."""
    return max([DEPTH, *(int(name.partition("@")[2]) for name in metrics)])


@dataclass(frozen=True)
class Evaluation:
    """What is held out and how it is judged.

    Args:
        queries: distinct queries to hold out, at most half of those there are.
        metrics: any of ndcg, mrr, recall, precision, hit and map, each with a depth.
        bm25: whether BM25 is tuned and ranked beside the trained model.
        baselines: whether popularity, item-kNN, EASE and transition counts are ranked beside a recommender.
        cold_items: share of the items that a recommender is not trained on, and asked for as new ones.
        budget: most of the time that evaluation on the way may take, as a share; one that would take more is left out, and
            counted. 1 is no limit.
        corpus: documents that are ranked on the way: all that are relevant, those that the untrained model confuses with them, and
            others at random. None ranks all, as the first and the last evaluation do. On fewer, scores are too high; by how
            much is measured on the untrained model.
    """

    queries: Annotated[int, Field(gt=0)] = 1500
    metrics: tuple[str, ...] = DEFAULT_METRICS
    bm25: bool = True
    baselines: bool = False
    cold_items: Annotated[float, Field(ge=0, lt=1)] = 0.0
    budget: Annotated[float, Field(ge=0, le=1)] = 1.0
    corpus: Annotated[int, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError("metrics is empty; give at least one, such as ndcg@10")
        evaluate(np.zeros((1, 1), np.int64), Relevant.of([[0]]), self.metrics)  # a wrong name is told before a long run


@dataclass(frozen=True)
class Ranking:
    """What one system found, judged."""

    ranked: NDArray[np.int64]  # [q, K] corpus positions, best first
    per_query: dict[str, NDArray[np.float64]]  # each [q]

    @classmethod
    def of(cls, ranked: NDArray[np.int64], relevant: Relevant, metrics: Sequence[str]) -> Ranking:
        """Judge a ranking."""
        return cls(ranked, evaluate(ranked, relevant, metrics))

    @classmethod
    def by_vectors(
        cls, queries: NDArray[np.float32], docs: NDArray[np.float32], relevant: Relevant, metrics: Sequence[str]
    ) -> Ranking:
        """Judge the nearest documents of query vectors, by inner product; [q, D] and [c, D]."""
        return cls.of(top(queries, docs, depth_of(metrics))[1], relevant, metrics)

    @property
    def metrics(self) -> dict[str, float]:
        """Means over queries."""
        return {name: float(values.mean()) for name, values in self.per_query.items()}

    def intervals(self) -> dict[str, Difference]:
        """Means with the intervals that hold them."""
        return {name: bootstrap(values) for name, values in self.per_query.items()}

    def against(self, other: Ranking) -> dict[str, Comparison]:
        """This system's scores less those of another one for the same queries."""
        return compare(self.per_query, other.per_query)

    def first_right(self, relevant: Relevant) -> NDArray[np.int64]:
        """Rank of each query's first relevant document, from 1, [q]; 0 where none was found."""
        hit = relevant.gains(self.ranked) > 0
        return np.where(hit.any(1), hit.argmax(1) + 1, 0)
