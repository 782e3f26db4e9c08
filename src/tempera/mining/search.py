"""Search for the nearest documents: exact, or through an index of FAISS.

Letters in shapes: q queries, c documents, D width, k documents a query, n vectors, e pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arithmetic.products import WORTH, mm
from ..engine.devices import bf16_gain
from ..errors import ConfigError
from ..io.require import require
from ..parallel.distributed import CPU
from ..ranking.nearest import scores_at, top, top_of

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Pairs = tuple[Ints, Ints]  # queries and documents by position, [e] each
# From queries, k, and pairs to leave out, to scores and positions, [q, k]; the position is -1 where
# there are no more.
Search = Callable[[NDArray[np.float32], int, Pairs], tuple[NDArray[np.float32], Ints]]

_WIDE = 256  # least number of dimensions with which candidates in bf16 take less time
_MANY = 250_000  # least size of such a corpus, in numbers for each document that is asked for
_SPARE = 32  # least number of candidates beyond those that are asked for
_ROUNDING = 2.0**-8  # largest relative error of a number in bf16
_AT_ONCE = 1 << 14  # documents whose lengths are computed at once


def exact(docs: Floats) -> Search:
    """Return a search by all inner products; in bf16 first, where bf16 is faster."""
    candidates = Candidates(docs)

    def find(
        queries: NDArray[np.float32], k: int, without: Pairs
    ) -> tuple[NDArray[np.float32], Ints]:
        large = docs.shape[1] >= _WIDE and docs.size >= _MANY * k
        if large and candidates.pays and bf16_gain(CPU) >= WORTH:
            return candidates(queries, k, without)
        return top(queries, docs, k, without=without, product=product_of)

    return find


class Candidates:
    """An exact search through products in bf16, for a processor with fast bf16.

    For a query x, rounded to x', let t be the rounded score of the last candidate, and L the length
    of the longest document. With u = 2^-8, the largest relative error of rounding, the inner
    product of x with a document that is no candidate is at most

        t + u |t| + ((1 + u) |x - x'| + u |x| + 2^-22 D |x|) L,

    the sum of the errors of the rounded score, of the query, of the document and of sums in
    float32. The candidates are scored again in float32. If the k-th best candidate is above the
    bound, the candidates hold the k best of all; else the query is searched without rounding.

    Args:
        docs: [c, D].

    Attributes:
        pays: False after a call in which more than a quarter of the queries were searched again, as
            where documents are all near one another; then a search without rounding takes less
            time.
    """

    def __init__(self, docs: Floats) -> None:
        self.docs = docs
        self.pays = True

    @cached_property
    def longest(self) -> float:
        """The length of the longest document."""
        longest = 0.0
        for start in range(0, len(self.docs), _AT_ONCE):
            part = np.asarray(self.docs[start : start + _AT_ONCE], np.float32)
            longest = max(longest, float(_lengths(part).max()))
        return longest

    def __call__(
        self, queries: NDArray[np.float32], k: int, without: Pairs
    ) -> tuple[NDArray[np.float32], Ints]:
        """Return scores and positions of the k nearest documents, [q, min(k, c)] each."""
        count = k + max(k, _SPARE)
        rough, near = top(queries, self.docs, count, without=without, product=_rounded_product)
        near = np.sort(near, axis=1)  # equal scores come in the order of the documents
        exact_scores = scores_at(queries, self.docs, near)
        scores, order = top_of(np.where(near < 0, np.float32(-np.inf), exact_scores), k)
        positions = np.take_along_axis(near, order, 1)
        proven = np.isneginf(rough[:, -1])  # every allowed document is a candidate
        rest = ~proven
        proven[rest] = self._bound(queries[rest], rough[rest, -1]) < scores[rest, -1]
        rows = np.flatnonzero(~proven)
        if len(self.docs) > near.shape[1] and len(rows):
            self.pays = len(rows) <= len(queries) / 4
            own = ~proven[without[0]]
            pairs = np.searchsorted(rows, without[0][own]), without[1][own]
            again = top(queries[rows], self.docs, k, without=pairs, product=product_of)
            scores[rows], positions[rows] = again
        return scores, positions

    def _bound(
        self, queries: NDArray[np.float32], last: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the bound for each query, [q].

        Args:
            last: rounded score of the last candidate of each query, [q].
        """
        rounded = _tensor(queries).bfloat16().float().numpy()
        off = _lengths(queries - rounded)
        sums = queries.shape[1] * 2.0**-22
        error = (1 + _ROUNDING) * off + (_ROUNDING + sums) * _lengths(queries)
        bound: NDArray[np.float32] = last + _ROUNDING * np.abs(last) + error * self.longest
        return bound


def _lengths(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the Euclidean norm of each vector plus 2^-60, to cover squares too small for float32,
    [n]."""
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    lengths: NDArray[np.float32] = norms + np.float32(2.0**-60)
    return lengths


def product_of(
    queries: NDArray[np.float32], docs: NDArray[np.float32], out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the inner products by torch."""
    return mm(_tensor(queries), _tensor(docs), torch.from_numpy(out)).numpy()


def _rounded_product(
    queries: NDArray[np.float32], docs: NDArray[np.float32], out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the inner products of vectors rounded to bf16, themselves rounded."""
    torch.from_numpy(out).copy_(_tensor(queries).bfloat16() @ _tensor(docs.T).bfloat16().T)
    return out


def _tensor(array: NDArray[np.float32]) -> Tensor:
    """Return an array as a tensor; a read-only array is copied, for torch would warn of it."""
    return torch.from_numpy(np.require(array, requirements="W"))


def index_of(factory: str, width: int) -> Any:
    """Return an empty index of FAISS for vectors of a width.

    Raises:
        MissingLibrary: FAISS is not installed.
        ConfigError: FAISS knows no such index.
    """
    require("faiss", "approximate search")
    import faiss

    try:
        return faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, AssertionError) as error:
        raise _refusal(factory, error) from None


def _refusal(factory: str, error: Exception) -> ConfigError:
    """Return the error for an index that FAISS refuses."""
    reason = str(error).split(": ")[-1].strip()
    return ConfigError(f"FAISS cannot build the index {factory!r}: {reason}")


def by_faiss(docs: NDArray[np.float32], factory: str) -> Search:
    """Return a search in an index by `faiss.index_factory`: Flat, HNSW32, IVF1024,Flat or another.

    An approximate index may miss documents; ranks then count the returned documents. Scores are
    exact.

    Raises:
        MissingLibrary: FAISS is not installed.
        ConfigError: FAISS knows no such index.
    """
    index = index_of(factory, docs.shape[1])
    size = 1 << 16
    try:
        index.train(np.ascontiguousarray(docs, np.float32))
        for start in range(0, len(docs), size):
            index.add(np.ascontiguousarray(docs[start : start + size], np.float32))
    except (RuntimeError, AssertionError) as error:
        raise _refusal(factory, error) from None

    def find(
        queries: NDArray[np.float32], k: int, without: Pairs
    ) -> tuple[NDArray[np.float32], Ints]:
        most_excluded = int(np.bincount(without[0], minlength=1).max())
        positions = index.search(queries, min(k + most_excluded, len(docs)))[1]
        pairs = np.arange(len(queries))[:, None] * len(docs) + positions
        wrong = np.isin(pairs, without[0] * len(docs) + without[1])
        wrong |= positions < 0
        # The scores of the index may be rounded.
        scores = scores_at(queries, docs, np.where(wrong, 0, positions))
        scores = np.where(wrong, np.float32(-np.inf), scores)
        positions = np.where(wrong, -1, positions)
        kept = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, kept, 1), np.take_along_axis(positions, kept, 1)

    return find
