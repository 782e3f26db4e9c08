"""Searches of a large corpus that rank candidates only: the documents that are nearest by bits, and
by words.

Letters in shapes: q queries, c documents, D width, m candidates, k documents per query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..ranking.fusion import standardised_at, union
from ..ranking.nearest import scores_at, top_of
from .bits import Bits, Doubles, Positions, Vectors, candidates

if TYPE_CHECKING:  # recommenders search an index, too, and import nothing of texts
    from ..text.judge.lexical import BM25

# Standard deviations of the inner products of a query below which the rounding of the covariance
# would show: the vectors are almost all equal, and are all compared.
_FLAT = 1e-4
_FEWER = 4  # times as many candidates by bits as by words, whose scores are exact


def top_by_bits(queries: Vectors, docs: Vectors, bits: Bits, k: int) -> tuple[Vectors, Positions]:
    """Return scores and positions of the k candidates with the highest inner product, best first,
    [q, k] each.

    Args:
        queries: [q, D], finite.
        docs: unit vectors, [c, D].
        bits: of the documents.
        k: number of documents for each query.
    """
    near = bits.near(queries, candidates(k))
    scores, order = top_of(scores_at(queries, docs, near), k)
    return scores, np.take_along_axis(near, order, 1)


def top_by_both(
    queries: Vectors,
    texts: Sequence[str],
    docs: Vectors,
    bits: Bits,
    words: BM25,
    weight: float,
    k: int,
) -> tuple[Doubles, Positions] | None:
    """Return fused scores and positions of the k best candidates by words and vectors, [q, k] each,
    as `ranking.fusion.fused` has them for all documents; None where almost all vectors are equal.

    Args:
        queries: [q, D], finite.
        texts: of the queries, [q].
        docs: unit vectors, [c, D].
        bits: of the documents.
        words: of the documents.
        weight: of the vectors.
        k: number of documents for each query.
    """
    mean, deviation = bits.moments(queries)
    if deviation.min(initial=1) < _FLAT:
        return None
    near = bits.near(queries, candidates(k))
    scores = np.empty((len(texts), k))
    positions = np.empty((len(texts), k), np.int64)
    for i, text in enumerate(texts):
        by_words = words.scores([text])[0]  # [c]
        both = union(near[i], _best(by_words, candidates(k) // _FEWER))  # [m]
        by_vectors = scores_at(queries[i : i + 1], docs, both[None])[0].astype(np.float64)
        fused = weight * (by_vectors - mean[i]) / deviation[i]
        fused += (1 - weight) * standardised_at(by_words, both)
        best, order = top_of(fused[None], k)
        scores[i] = best[0]
        positions[i] = both[order[0]]
    return scores, positions


def _best(scores: Vectors, count: int) -> Positions:
    """Return the positions of up to `count` documents with the highest scores above 0, [c]."""
    above = np.flatnonzero(scores > 0)
    if len(above) <= count:
        return above
    _, order = top_of(scores[above][None], count)
    best: Positions = above[order[0]]
    return best
