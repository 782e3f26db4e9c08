"""Exact nearest neighbours among some of the documents, such as those that pass a filter.

Letters in shapes: q queries, c documents, p documents to choose from, D width, k documents per
query.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .nearest import Floats, Ints, Scores, top, top_of

# With few queries and more than a quarter of the documents, scores of all documents cost less than
# a copy of the vectors that pass. With more queries, the copy costs less than the scores.
_FEW = 4


class _Chosen:
    """Rows of an array, which are copied block by block, as they are read."""

    def __init__(self, docs: NDArray[np.floating], places: Ints) -> None:
        self.docs = docs
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: slice) -> NDArray[np.floating]:
        chosen: NDArray[np.floating] = self.docs[self.places[rows]]
        return chosen


def top_among(
    queries: Floats, docs: NDArray[np.floating], k: int, among: Ints
) -> tuple[Floats, Ints]:
    """Return scores and positions of the k documents with the highest inner product among some
    documents, best first, [q, min(k, p)] each.

    Equal scores come in the order of the documents.

    Args:
        queries: [q, D], finite.
        docs: [c, D], finite, in float32.
        k: number of documents for each query.
        among: positions of the documents to choose from, ascending, [p].

    >>> docs = np.eye(3, dtype=np.float32)
    >>> scores, positions = top_among(docs[:1], docs, 2, np.array([1, 2]))
    >>> scores.tolist(), positions.tolist()
    ([[0.0, 0.0]], [[1, 2]])
    """
    if not len(among):
        return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    if len(queries) <= _FEW and 4 * len(among) > len(docs):
        return best_among(queries @ np.asarray(docs).T, k, among)
    chosen: NDArray[np.floating] = _Chosen(docs, among)  # type: ignore[assignment]  # as `top` reads it
    scores, places = top(queries, chosen, k)
    return scores, among[places]


def best_among(scores: Scores, k: int, among: Ints) -> tuple[Scores, Ints]:
    """Return the k highest of each row of scores among some columns, and the numbers of the
    columns, best first, [q, c] -> [q, min(k, p)] each; equal scores in the order of columns.

    >>> best_among(np.array([[0.9, 0.1, 0.5]]), 2, np.array([1, 2]))[1].tolist()
    [[2, 1]]
    """
    if not len(among):
        return scores[:, :0], np.zeros((len(scores), 0), np.int64)
    highest, places = top_of(scores[:, among], k)
    return highest, among[places]
