"""Vectorised metrics of rankings, with trec_eval's definitions.

Letters in shapes: q queries, K depth of the ranking, r relevant documents of all queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..io.flat import places

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEFAULT_METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100")


@dataclass(frozen=True)
class Relevant:
    """The judged documents of q queries: entry i says that `doc[i]` answers `query[i]` with
    `gain[i]`."""

    queries: int
    query: Ints  # [r] from 0 to q - 1
    doc: Ints  # [r] positions in the corpus
    gain: Floats  # [r] above 0

    @classmethod
    def of(cls, docs: Sequence[Sequence[int]]) -> Relevant:
        """Return equally relevant documents of each query."""
        query = np.repeat(np.arange(len(docs)), [len(d) for d in docs])
        doc = np.array([d for row in docs for d in row], np.int64)
        return cls(len(docs), query, doc, np.ones(len(doc)))

    @classmethod
    def of_pairs(cls, queries: int, query: Ints, doc: Ints, gain: Floats | None = None) -> Relevant:
        """Return relevant documents by pairs; a pair that occurs twice, as with two negatives,
        counts once, by its highest gain.

        Args:
            gain: of each pair; None makes all pairs equally relevant.

        >>> Relevant.of_pairs(1, np.array([0, 0, 0]), np.array([7, 5, 7])).doc.tolist()
        [5, 7]
        """
        (query, doc), which = np.unique(np.stack([query, doc]), axis=1, return_inverse=True)
        if gain is None:
            return cls(queries, query, doc, np.ones(len(doc)))
        gains = np.zeros(len(doc))
        np.maximum.at(gains, which.reshape(-1), gain)
        return cls(queries, query, doc, gains)

    def gains(self, ranked: Ints) -> Floats:
        """Return the gains of ranked documents, [q, K] -> [q, K]; 0 for other documents and for
        -1."""
        if not len(self.doc):
            return np.zeros(ranked.shape)
        size = int(max(self.doc.max(initial=0), ranked.max(initial=0))) + 1
        keys = self.query * size + self.doc
        order = np.argsort(keys)
        pairs = np.arange(len(ranked))[:, None] * size + ranked
        at = np.searchsorted(keys, pairs, sorter=order).clip(max=len(keys) - 1)
        relevant = (keys[order[at]] == pairs) & (ranked >= 0)
        gains: Floats = np.where(relevant, self.gain[order[at]], 0.0)
        return gains

    def of_queries(self, rows: Ints) -> Relevant:
        """Return the judgements of some queries, renumbered in the order of `rows`."""
        place = np.full(self.queries, -1)
        place[rows] = np.arange(len(rows))
        kept = place[self.query] >= 0
        return Relevant(len(rows), place[self.query[kept]], self.doc[kept], self.gain[kept])

    def counts(self) -> Ints:
        """Return the number of relevant documents of each query, [q]."""
        return np.bincount(self.query, minlength=self.queries)


def evaluate(
    ranked: Ints, relevant: Relevant, metrics: Sequence[str] = DEFAULT_METRICS
) -> dict[str, Floats]:
    """Return each metric for each query.

    ndcg@k is DCG_k = sum gain / log2(rank + 1), over the DCG of the best ranking (Jarvelin and
    Kekalainen 2002); mrr@k is 1 / rank of the first relevant document, 0 below k; recall@k is the
    share of the relevant documents within k, precision@k the share of the first k that is relevant;
    hit@k is 1 if the first k hold a relevant document; map@k is the sum of the precisions at the
    relevant ranks up to k, over the number of relevant documents. A query without relevant
    documents counts 0. trec_eval orders equal scores by descending document id,
    `tempera.ranking.nearest.top` by corpus position: sort the corpus by descending id and the two
    agree.

    Args:
        ranked: corpus positions, best first, [q, K]; -1 where a ranking is shorter.

    >>> scores = evaluate(np.array([[2, 0, 1]]), Relevant.of([[0]]), ["mrr@10", "recall@1"])
    >>> {name: value.tolist() for name, value in scores.items()}
    {'mrr@10': [0.5], 'recall@1': [0.0]}
    """
    gains = relevant.gains(ranked)
    counts = relevant.counts()
    return {name: _metric(name, gains, counts, relevant) for name in metrics}


def listed(metrics: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of metrics; a text is one name."""
    return (metrics,) if isinstance(metrics, str) else tuple(metrics)


def parsed(name: str) -> tuple[str, int]:
    """Return the kind and the depth of a metric.

    Raises:
        ConfigError: an unknown name.
    """
    kind, _, depth = str(name).partition("@")
    if kind not in _METRICS or not depth.isdecimal() or int(depth) < 1:
        raise ConfigError(
            f"no metric {name!r}; give one of {', '.join(_METRICS)} with a depth, such as ndcg@10"
        )
    return kind, int(depth)


def _metric(name: str, gains: Floats, counts: Ints, relevant: Relevant) -> Floats:
    """Return a metric of each query, [q]."""
    kind, k = parsed(name)
    return _METRICS[kind](gains[:, :k], counts, k, relevant)


def _ndcg(gains: Floats, counts: Ints, k: int, relevant: Relevant) -> Floats:
    order = np.lexsort((-relevant.gain, relevant.query))
    rank = places(counts)
    best = np.where(rank < k, relevant.gain[order] / np.log2(rank + 2), 0.0)
    ideal = np.bincount(relevant.query[order], best, minlength=relevant.queries)
    discount = np.log2(np.arange(gains.shape[1]) + 2)
    return _ratio((gains / discount).sum(1), ideal)


def _mrr(gains: Floats, counts: Ints, k: int, relevant: Relevant) -> Floats:
    hit = gains > 0
    if not hit.shape[1]:
        return np.zeros(len(hit))
    first: Floats = np.where(hit.any(1), 1 / (hit.argmax(1) + 1), 0.0)
    return first


def _recall(gains: Floats, counts: Ints, k: int, relevant: Relevant) -> Floats:
    return _ratio(np.asarray((gains > 0).sum(1)), counts)


def _precision(gains: Floats, counts: Ints, k: int, relevant: Relevant) -> Floats:
    return np.asarray((gains > 0).sum(1) / k, np.float64)


def _hit(gains: Floats, counts: Ints, k: int, relevant: Relevant) -> Floats:
    return np.asarray(np.any(gains > 0, axis=1), np.float64)


def _map(gains: Floats, counts: Ints, k: int, relevant: Relevant) -> Floats:
    hit = gains > 0
    precision = hit.cumsum(1) / (np.arange(hit.shape[1]) + 1)
    total: Floats = (precision * hit).sum(axis=1)
    return _ratio(total, counts)


def _ratio(a: Floats | Ints, b: Floats | Ints) -> Floats:
    """Return a / b, [q]; 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(len(a)), where=b > 0)


_METRICS = {
    "ndcg": _ndcg,
    "mrr": _mrr,
    "recall": _recall,
    "precision": _precision,
    "hit": _hit,
    "map": _map,
}
KINDS = tuple(_METRICS)
