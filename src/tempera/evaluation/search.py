"""Exact nearest neighbours, in blocks.

Letters in shapes: q queries, c documents, D width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def top(queries: Floats, docs: Floats, k: int, block: int = 512) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and positions of the k documents with the highest inner product, best first, [q, min(k, c)] each.

    Equal scores come in the order of the documents.

    >>> scores, positions = top(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1)
    >>> positions.tolist()
    [[0], [1]]
    """
    k = min(k, len(docs))
    scores = np.empty((len(queries), k), np.float32)
    positions = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), block):
        rows = slice(start, start + block)
        scores[rows], positions[rows] = top_of(queries[rows] @ docs.T, k)
    return scores, positions


def top_of(scores: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
    """The k highest of each row of scores, best first, [q, c] -> [q, k] each; equal scores in the order of columns."""
    k = min(k, scores.shape[1])
    # The k-th highest score bounds what can be in; ties at the bound are settled by position.
    bound = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k, None]
    positions = np.empty((len(scores), k), np.int64)
    for row, (values, least) in enumerate(zip(scores, bound, strict=True)):
        inside = np.flatnonzero(values >= least)
        positions[row] = inside[np.argsort(-values[inside], kind="stable")[:k]]
    return np.take_along_axis(scores, positions, 1), positions
