"""Who finds the nearest documents: all inner products, or an index of FAISS.

Letters in shapes: q queries, c documents, e pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..io.require import require
from ..ranking.nearest import top

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Pairs = tuple[Ints, Ints]  # queries and documents by position, [e] each
# Queries, how many, and pairs that are no answer, to scores and positions; -1 where there are no more.
Search = Callable[[NDArray[np.float32], int, Pairs], tuple[NDArray[np.float32], Ints]]


def exact(docs: Floats) -> Search:
    """Search by all inner products."""
    return lambda queries, k, without: top(queries, docs, k, without=without)


def by_faiss(docs: NDArray[np.float32], factory: str) -> Search:
    """Search in an index that `faiss.index_factory` describes: Flat, HNSW32, IVF1024,Flat or another.

    Approximate ones may miss documents, and the rank is then among those that were found.

    Raises:
        MissingLibrary: FAISS is not installed.
        ConfigError: FAISS knows no such index.
    """
    require("faiss", "approximate search")
    import faiss

    try:
        index = faiss.index_factory(docs.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        index.train(np.ascontiguousarray(docs, np.float32))
        for start in range(0, len(docs), 1 << 16):
            index.add(np.ascontiguousarray(docs[start : start + (1 << 16)], np.float32))
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"FAISS makes no index {factory!r}: {' '.join(str(error).split())}") from None

    def find(queries: NDArray[np.float32], k: int, without: Pairs) -> tuple[NDArray[np.float32], Ints]:
        most = int(np.bincount(without[0], minlength=1).max()) if len(without[0]) else 0
        scores, positions = index.search(queries, min(k + most, len(docs)))
        wrong = np.isin(np.arange(len(queries))[:, None] * len(docs) + positions, without[0] * len(docs) + without[1])
        wrong |= positions < 0
        kept = np.argsort(wrong, axis=1, kind="stable")[:, :k]
        scores, positions = np.where(wrong, -np.inf, scores).astype(np.float32), np.where(wrong, -1, positions)
        return np.take_along_axis(scores, kept, 1), np.take_along_axis(positions, kept, 1)

    return find
