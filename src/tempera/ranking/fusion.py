"""Fusion of two systems into one ranking, such as words and vectors, by a weighted mean of their
normalised scores.

    score = weight * f(first) + (1 - weight) * f(second)

`f` is `standardised`, a convex combination of scores, or `reciprocal_ranks`, reciprocal rank fusion
(Cormack et al. 2009). Bruch et al. (2023) compare them. The first was better on seven of eight
sets, and equal to 0.001 on the eighth (bench/hybrid.py).

Letters in shapes: q queries, c documents, k depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .metrics import Ints
from .nearest import ROUNDING, SPARE, break_ties, top_of

Floats = NDArray[np.float64]
Scores = NDArray[np.floating]

WEIGHTS = tuple(i / 10 for i in range(11))  # candidates of the first system's weight
# where nothing can be chosen: even with a poor first system it was not below the second
# (bench/hybrid.py)
USUAL = 0.3
_ROUNDED = 1e-5  # of standardised scores, whose deviation is far below 1 where they are cosines
_RANKS = 60  # of reciprocal rank fusion
_SHOWN = 2  # standard errors by which a weight is better than another weight
_ALIKE = 0.5  # standard errors within which a weight is as good as another weight
_ENOUGH = 1 << 16  # documents whose moments stand for those of a larger corpus
_AT_ONCE = 4096  # vectors that are read at once


def standardised(scores: Scores) -> Floats:
    """Return scores, [q, c], with mean 0 and standard deviation 1 in each row.

    A row of equal scores, up to rounding, becomes 0: its rounding errors would weigh as much as the
    scores of any other row.

    >>> standardised(np.array([[1.0, 3.0], [5.0, 5.0], [0.7, 0.7 + 1e-7]])).tolist()
    [[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    """
    if not scores.shape[1]:
        return scores.astype(np.float64)
    _, deviation, centred = _moments(scores)
    scaled: Floats = np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)
    return scaled


def mean_and_deviation(scores: Scores) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each row of scores, [q, c] -> [q] each, as
    `standardised` takes them; the deviation of equal scores is 0.

    >>> mean, deviation = mean_and_deviation(np.array([[1.0, 3.0], [0.7, 0.7 + 1e-7]]))
    >>> mean.round(3).tolist(), deviation.tolist()
    ([2.0, 0.7], [1.0, 0.0])
    """
    mean, deviation, _ = _moments(scores)
    return mean[:, 0], deviation[:, 0]


def _moments(scores: Scores) -> tuple[Floats, Floats, Floats]:
    """Return the mean and the deviation of each row, [q, 1] each, and the differences from the
    mean, [q, c]; the deviation of scores that are equal up to rounding is 0."""
    most, least = scores.max(1, keepdims=True), scores.min(1, keepdims=True)
    rounding = ROUNDING * np.maximum(1, np.maximum(np.abs(most), np.abs(least)))
    mean: Floats = scores.mean(1, keepdims=True, dtype=np.float64)
    centred = scores.astype(np.float64) - mean
    deviation = np.sqrt((centred**2).mean(1, keepdims=True))
    return mean, np.where(most - least > rounding, deviation, 0.0), centred


def standardised_at(scores: Scores, positions: Ints) -> Floats:
    """Return some of the scores of all documents of a query, [c] -> [m], as `standardised` has
    them.

    >>> standardised_at(np.array([1.0, 3.0, 1.0, 3.0]), np.array([1])).tolist()
    [1.0]
    """
    most = float(scores.max())
    if most - float(scores.min()) <= ROUNDING * max(1, most):
        return np.zeros(len(positions))
    mean = scores.mean(dtype=np.float64)
    centred = scores - scores.dtype.type(mean)  # in the precision of the scores: half of the time
    deviation = np.sqrt(float(centred @ centred) / len(centred))
    chosen: Floats = (scores[positions].astype(np.float64) - mean) / deviation
    return chosen


@dataclass(frozen=True)
class Moments:
    """The mean and the covariance of the vectors of a corpus, from which follow the mean and the
    deviation of all inner products of a query.

    Args:
        mean: [D].
        covariance: [D, D].

    >>> mean, deviation = Moments.of(np.eye(384, dtype=np.float32))(np.eye(1, 384, dtype=np.float32))
    >>> mean.round(4).tolist(), deviation.round(4).tolist()
    ([0.0026], [0.051])
    """

    mean: Floats
    covariance: Floats

    @classmethod
    def of(cls, docs: NDArray[np.float32]) -> Moments:
        """Return the moments of documents, [c, D]; of a larger corpus, those of 65,536 to 131,071
        documents with the same distance from one another.

        The deviation of a query is off by a few thousandths then, which changes the weight of a
        fusion by less than a thousandth.
        """
        some = docs[:: max(1, len(docs) // _ENOUGH)]
        mean = some.mean(0, dtype=np.float64)
        products = np.zeros((docs.shape[1], docs.shape[1]))
        for start in range(0, len(some), _AT_ONCE):
            centred = some[start : start + _AT_ONCE] - mean.astype(np.float32)
            products += centred.T @ centred
        return cls(mean, products / max(1, len(some)))

    def __call__(self, queries: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation of the inner products of each query, [q, D],
        with all documents, [q] each."""
        precise = queries.astype(np.float64)
        variance = np.einsum("qd,qd->q", precise @ self.covariance, precise)
        return precise @ self.mean, np.sqrt(np.maximum(variance, 0))


def reciprocal_ranks(scores: Scores) -> Floats:
    """Return 1 / (60 + rank) for scores, [q, c]; equal scores share the last of their ranks.

    >>> (1 / reciprocal_ranks(np.array([[0.2, 0.9, 0.2]]))).round().tolist()
    [[63.0, 61.0, 63.0]]
    """
    rising = np.sort(scores, axis=1)
    below = np.empty(scores.shape)
    for row, values in enumerate(scores):
        below[row] = np.searchsorted(rising[row], values, side="left")
    ranks = scores.shape[1] - below
    shares: Floats = 1 / (_RANKS + ranks)
    return shares


def fused(first: Scores, second: Scores, weight: float) -> Floats:
    """Return the weighted mean of two systems' standardised scores, [q, c] each."""
    return weight * standardised(first) + (1 - weight) * standardised(second)


def rank_by_weight(
    blocks: Iterable[tuple[Scores, Scores]],
    weights: Sequence[float],
    depth: int,
    normalise: Callable[[Scores], Floats] = standardised,
) -> list[Ints]:
    """Return the ranking of the whole corpus to a depth, [q, k], for each weight; equal scores in
    the order of the corpus.

    Args:
        blocks: scores of both systems, [.., c] each, for some queries at a time.
        weights: of the first system, from 0 to 1.
        depth: documents of each query.
        normalise: makes the scores of two systems comparable.

    >>> first, second = np.array([[0.9, 0.8, 0.1]]), np.array([[0.0, 3.0, 9.0]])
    >>> [ranked.tolist() for ranked in rank_by_weight([(first, second)], [0, 0.5, 1], 2)]
    [[[2, 1]], [[1, 2]], [[0, 1]]]
    """
    within = _ROUNDED if normalise is standardised else 0.0
    parts: list[list[Ints]] = [[] for _ in weights]
    for first, second in blocks:
        a = normalise(first)
        b = normalise(second)
        for ranked, weight in zip(parts, weights, strict=True):
            scores, positions = top_of(weight * a + (1 - weight) * b, depth + SPARE)
            ranked.append(break_ties(scores, positions, within)[:, :depth])
    return [np.concatenate(ranked) for ranked in parts]


def union(first: Ints, second: Ints) -> Ints:
    """Return the positions in either, ascending; `np.union1d` takes ten times as long.

    >>> union(np.array([5, 2]), np.array([2, 3])).tolist()
    [2, 3, 5]
    """
    both = np.sort(np.concatenate([first, second]))
    is_new = np.ones(len(both), np.bool_)
    np.not_equal(both[1:], both[:-1], out=is_new[1:])
    distinct: Ints = both[is_new]
    return distinct


def best_fused(scores: Floats, candidates: Ints, depth: int) -> tuple[Ints, float]:
    """Return the best candidates of a query as `rank_by_weight` ranks them, [depth], and the lowest
    score that their order depends on.

    Args:
        scores: fused standardised scores, [m].
        candidates: positions of the candidates in the corpus, rising, [m].
        depth: documents to return, fewer than m.

    >>> best_fused(np.array([0.5, 2.0, 1.0]), np.array([3, 5, 8]), 2)
    (array([5, 8]), 0.5)
    """
    values, order = top_of(scores[None], depth + SPARE)
    ranked = break_ties(values, candidates[order], _ROUNDED)
    return ranked[0, :depth], float(values[0, -1])


def standard_error(values: Floats) -> Floats:
    """Return the standard error of the means over queries, [..., q] -> [...]."""
    error: Floats = values.std(-1) / np.sqrt(values.shape[-1])
    return error


@dataclass(frozen=True)
class Fusion:
    """The weight of the first of two systems, and the number of queries that chose it; 0 queries
    for the usual weight."""

    weight: float = USUAL
    queries: int = 0

    def __str__(self) -> str:
        weights = f"weights {self.weight:g} and {1 - self.weight:.2g}"
        if not self.queries:
            return f"{weights}, the usual ones"
        return f"{weights}, chosen on {self.queries:,} validation queries"

    @classmethod
    def chosen(cls, metric: Mapping[float, Floats]) -> Fusion:
        """Choose the weight by a metric of each query, [q], for each of some rising, evenly spaced
        weights.

        The mean over queries is smooth in the weight and its noise is not: each weight is judged
        together with its two neighbours, as the middle of a plateau. One of the systems alone, the
        first or the last weight, is chosen only if it is above its neighbour by more than a
        standard error of their difference. If the gain over the second system alone is within two
        standard errors, the least weight within half a standard error of the best weight is chosen:
        the first system is the one that has learned from few data.

        >>> Fusion.chosen({0.0: np.array([0.6]), 0.5: np.array([0.9]), 1.0: np.array([0.7])})
        Fusion(weight=0.5, queries=1)
        """
        values = np.stack(list(metric.values()))
        smooth = values.mean(1)
        smooth[1:-1] = (smooth[:-2] + smooth[1:-1] + smooth[2:]) / 3
        best = int(smooth.argmax())
        inner = min(max(best, 1), len(smooth) - 2)
        gaps = values[best] - values
        if gaps[inner].mean() <= standard_error(gaps[inner]):
            best = inner
            gaps = values[inner] - values
        mean = gaps.mean(1)
        error = standard_error(gaps)
        if best and mean[0] <= _SHOWN * error[0]:
            best = 1 + int((mean[1:] <= _ALIKE * error[1:]).argmax())
        return cls(list(metric)[best], values.shape[1])
