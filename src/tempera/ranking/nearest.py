"""Exact nearest neighbours, in blocks: apart from the result, memory does not grow with the
documents or the queries.

Letters in shapes: q queries, c documents, D width, k documents per query, e excluded pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..io.flat import places

Floats = NDArray[np.float32]
Scores = TypeVar("Scores", NDArray[np.float32], NDArray[np.float64])
Ints = NDArray[np.int64]
# A product of queries and documents, [q, D] and [D, c], which is written into scores, [q, c].
Product = Callable[[Floats, Floats, Floats], Floats]

_WIDTH = 4096  # most documents at once
_CACHED = 1 << 20  # scores at once that stay within the processor's cache
_CELLS = 1 << 22  # most scores at once
ROUNDING = 1e-6  # of inner products of unit vectors in float32; closer scores are equal
SPARE = 10  # documents below a ranking that may be within a rounding error of its last document

_DIVERGED = "the model has diverged; lower train.learning_rate, or take another model"


def refuse_not_finite(embeddings: NDArray[np.floating], of: str, why: str = _DIVERGED) -> None:
    """Raise DataError if embeddings, [n, D], hold a NaN or an infinity.

    >>> refuse_not_finite(np.array([[0.0], [np.nan]]), "queries")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tempera.errors.DataError: the embeddings of queries are not finite (1 of 2, the first is row 1): the model has ...
    """
    if np.isfinite(embeddings.sum(1)).all():  # in a quarter of the time
        return
    wrong = ~np.isfinite(embeddings).all(1)
    if wrong.any():
        raise DataError(
            f"the embeddings of {of} are not finite ({wrong.sum():,} of {len(wrong):,}, the first is row {wrong.argmax()}): {why}"
        )


def top(
    queries: Floats,
    docs: NDArray[np.floating],
    k: int,
    block: int = 1024,
    without: tuple[Ints, Ints] | None = None,
    product: Product = np.matmul,
) -> tuple[Floats, Ints]:
    """Return scores and positions of the k documents with the highest inner product, best first,
    [q, min(k, c)] each.

    Equal scores come in the order of the documents. Where fewer than k documents are allowed, the
    rest has score -inf and position -1.

    Args:
        queries: [q, D], finite (`refuse_not_finite`).
        docs: [c, D], finite; float16 and memory-mapped files are read block by block.
        k: number of documents for each query.
        block: largest number of queries at once.
        without: excluded pairs, as positions of queries, ascending, and of documents, [e] each.
        product: computes the inner products.

    >>> scores, positions = top(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1)
    >>> positions.tolist()
    [[0], [1]]
    >>> top(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1, without=(np.array([0]), np.array([0])))[1].tolist()
    [[1], [1]]
    """
    k = min(k, len(docs))
    scores = np.empty((len(queries), k), np.float32)
    positions = np.empty((len(queries), k), np.int64)
    width = max(k, min(_WIDTH, _CACHED // max(1, min(block, len(queries)))))
    block = max(1, min(block, _CELLS // max(1, width)))
    for start in range(0, len(queries), block):
        part = slice(start, start + block)
        excluded = None if without is None else _of_queries(without, start, start + block)
        scores[part], positions[part] = _top(
            np.ascontiguousarray(queries[part], np.float32), docs, k, width, excluded, product
        )
    if without is not None:
        positions[np.isneginf(scores)] = -1
    return scores, positions


def nearest(queries: Floats, docs: NDArray[np.floating], k: int) -> Ints:
    """Return the k nearest documents of each query, best first, [q, k], independent of the rounding
    of vectors and products.

    The scores of documents with the same words differ by rounding alone: these documents stand in
    the order of the corpus.

    >>> docs = np.array([[0.6, 0.8], [0.8, 0.6], [0.8, 0.6 + 1e-7]], np.float32)
    >>> nearest(np.array([[0.6, 0.8], [1.0, 0.0]], np.float32), docs, 3).tolist()
    [[0, 1, 2], [1, 2, 0]]
    """
    scores, positions = top(queries, docs, k + SPARE)
    return break_ties(scores, positions)[:, :k]


def break_ties(scores: Scores, positions: Ints, within: float = ROUNDING) -> Ints:
    """Return positions, [q, k], by falling scores; tied positions are in ascending order.

    Scores tie if they are `within` a rounding error of the first score of their group. A score
    further below begins the next group: each group spans at most a rounding error, also where the
    scores of a collapsed model follow each other closely.

    >>> break_ties(np.array([[0.7, 0.5 + 1e-8, 0.5, 0.1]]), np.array([[4, 9, 3, 0]])).tolist()
    [[4, 3, 9, 0]]
    >>> break_ties(np.array([[8e-7, 4e-7, 0.0, -4e-7]]), np.array([[3, 2, 1, 0]])).tolist()
    [[1, 2, 3, 0]]
    """
    group = np.zeros(scores.shape, np.int64)
    first = scores[:, :1].copy()
    for column in range(1, scores.shape[1]):
        score = scores[:, column : column + 1]
        below = first - score > within
        first = np.where(below, score, first)
        group[:, column] = group[:, column - 1] + below[:, 0]
    return np.take_along_axis(positions, np.lexsort((positions, group), axis=1), 1)


def blocks(queries: int, docs: int) -> list[slice]:
    """Return slices of the queries; the scores of a slice with all documents need little memory.

    >>> blocks(5, 1 << 21)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    size = max(1, _CELLS // max(1, docs))
    return [slice(start, start + size) for start in range(0, queries, size)]


def top_of(scores: Scores, k: int) -> tuple[Scores, Ints]:
    """Return the k highest of each row of scores, best first, [q, c] -> [q, k] each; equal scores
    in the order of columns.

    Raises:
        DataError: a row where NaN leaves too few scores.
    """
    k = min(k, scores.shape[1])
    flat = np.flatnonzero(scores >= _lower_bound(scores, k))
    rows, columns = np.divmod(flat, scores.shape[1])
    count = np.bincount(rows, minlength=len(scores))
    if (count < k).any():
        raise DataError(f"row {int((count < k).argmax())} of the scores has NaN")
    place = places(count)
    shape = len(scores), int(count.max(initial=k))
    negated = np.full(shape, np.inf, scores.dtype)  # padded with inf
    negated[rows, place] = -scores.reshape(-1)[flat]
    positions = np.zeros(shape, np.int64)
    positions[rows, place] = columns
    kept = np.argsort(negated, axis=1, kind="stable")[:, :k]
    return -np.take_along_axis(negated, kept, 1), np.take_along_axis(positions, kept, 1)


def top_above_zero(scores: Floats, k: int) -> Ints:
    """Return the positions of the k highest scores above 0 of a single query, best first, [c] -> at
    most k; equal scores in the order of the documents.

    >>> top_above_zero(np.array([0.5, 0.0, 0.7, 0.5], np.float32), 5).tolist()
    [2, 0, 3]
    """
    bound = _lower_bound(scores[None], min(k, len(scores)))[0, 0]
    above = np.flatnonzero(scores >= bound if bound > 0 else scores > 0)
    best: Ints = above[np.argsort(-scores[above], kind="stable")[:k]]
    return best


def scores_at(queries: Floats, docs: NDArray[np.floating], positions: Ints) -> Floats:
    """Return the inner products of each query with the documents at its positions, [q, D] and [q,
    k] -> [q, k]."""
    scores = np.empty(positions.shape, np.float32)
    for row, query in enumerate(queries):  # several at once leave the processor's cache
        scores[row] = np.einsum("kd,d->k", np.asarray(docs[positions[row]], np.float32), query)
    return scores


def _lower_bound(scores: Scores, k: int) -> Scores:
    """Return a lower bound of the k highest scores of each row, [q, 1].

    It is the k-th highest of the maxima of at least k groups of columns.
    """
    groups = min(scores.shape[1], max(4 * k, 1024))
    times = scores.shape[1] // groups
    whole = scores[:, : times * groups].reshape(len(scores), times, groups)
    return np.partition(whole.max(1), groups - k, axis=1)[:, groups - k, None]


def _of_queries(without: tuple[Ints, Ints], start: int, stop: int) -> tuple[Ints, Ints]:
    """Return the pairs of the queries from `start` to `stop`, counted from `start`, by ascending
    document."""
    part = slice(*np.searchsorted(without[0], (start, stop)))
    order = np.argsort(without[1][part], kind="stable")
    return without[0][part][order] - start, without[1][part][order]


def _top(
    queries: Floats,
    docs: NDArray[np.floating],
    k: int,
    width: int,
    without: tuple[Ints, Ints] | None,
    product: Product,
) -> tuple[Floats, Ints]:
    """Search for one block of queries; keep only scores above the k-th best of their row so far."""
    buffer = np.empty((len(queries), width), np.float32)
    best = _Best(len(queries), k)
    for start in range(0, len(docs), width):
        part = np.asarray(docs[start : start + width], np.float32)
        scores = product(queries, part.T, buffer[:, : len(part)])
        if without is not None:
            here = slice(*np.searchsorted(without[1], (start, start + width)))
            scores[without[0][here], without[1][here] - start] = -np.inf
        best.offer(scores, start)
    return best.merge()


class _Best:
    """The k best candidates of every row at the last merge, and the better candidates since then,
    as `_keys`."""

    def __init__(self, rows: int, k: int) -> None:
        self.k = k
        self.keys = np.empty((rows, 0), np.int64)  # best first
        self.waiting: list[tuple[Ints, Ints]] = []  # rows, keys
        self.count = np.zeros(rows, np.int64)  # waiting in each row

    def offer(self, scores: Floats, start: int) -> None:
        """Add the scores of the documents from `start` on, [q, width], which follow all earlier
        documents."""
        if self.keys.shape[1] < self.k:
            self.keys = _keys(*top_of(scores, self.k))
            return
        # A tie with the k-th changes nothing: the earlier document stays.
        flat = np.flatnonzero(scores > _of_keys(self.keys[:, -1:])[0])
        rows, columns = np.divmod(flat, scores.shape[1])
        self.waiting.append((rows, _keys(scores.reshape(-1)[flat], columns + start)))
        self.count += np.bincount(rows, minlength=len(self.count))
        if self.count.sum() > self.keys.size or self.count.max() > max(self.k, _WIDTH):
            self.merge()

    def merge(self) -> tuple[Floats, Ints]:
        """Merge the waiting candidates; return the scores and positions of the k best."""
        if self.count.any():
            rows = np.concatenate([rows for rows, _ in self.waiting])
            touched = np.flatnonzero(self.count)
            number = self.count[touched]
            order = np.argsort(rows, kind="stable")  # they rise within each offer: runs are merged
            line = np.repeat(np.arange(len(touched)), number)
            place = places(number)
            keys = np.full((len(touched), self.k + int(number.max())), np.iinfo(np.int64).max)
            keys[:, : self.k] = self.keys[touched]
            keys[line, self.k + place] = np.concatenate([keys for _, keys in self.waiting])[order]
            self.keys[touched] = np.sort(keys, axis=1)[:, : self.k]
        self.waiting = []
        self.count = np.zeros_like(self.count)
        return _of_keys(self.keys)


def _keys(scores: Floats, positions: Ints) -> Ints:
    """Return numbers that rise as scores fall and, of equal scores, as positions rise: sorting them
    costs a sixth of an argsort.

    The bits of a float32 that is not negative rise with it, and the bits of a negative float32
    fall: flipped, they rise, too.

    >>> keys = _keys(np.array([0.5, -2.0, 0.5, -0.0, 0.0], np.float32), np.array([70_000, 0, 3, 2, 1]))
    >>> [each.tolist() for each in _of_keys(np.sort(keys))]
    [[0.5, 0.5, 0.0, 0.0, -2.0], [3, 70000, 1, 2, 0]]
    """
    bits = (scores + np.float32(0)).view(np.int32)  # -0 becomes 0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys: Ints = (~rising).astype(np.int64) << 32 | positions
    return keys


def _of_keys(keys: Ints) -> tuple[Floats, Ints]:
    """Return the scores and positions of keys."""
    rising = ~(keys >> 32).astype(np.int32)
    return (rising ^ ((rising >> 31) & 0x7FFFFFFF)).view(np.float32), keys & 0xFFFFFFFF
