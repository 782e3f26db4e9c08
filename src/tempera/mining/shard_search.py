"""Exact search in documents in memory and in shards of vectors behind them.

Letters in shapes: q queries, c documents, m documents in memory, D width, k documents a query, e
pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..corpora.many_shards import EncodedShards, merged
from ..ranking.nearest import top
from .search import Ints, Pairs, product_of

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class ShardDocuments:
    """Documents by position: m with vectors in memory, and then rows of an encoded corpus.

    Args:
        near: vectors in memory, [m, D].
        shards: the encoded corpus.
        rows: of the corpus, rising, [c - m].
    """

    near: Vectors
    shards: EncodedShards
    rows: Ints

    def __len__(self) -> int:
        return len(self.near) + len(self.rows)

    def __getitem__(self, positions: Ints) -> Vectors:
        """Return vectors of documents in memory, such as answers."""
        return self.near[positions]

    def search(self, queries: Vectors, k: int, without: Pairs) -> tuple[Vectors, Ints]:
        """Return scores and positions of the k nearest documents, best first, [q, min(k, c)] each,
        as `ranking.nearest.top` does.

        Every vector is compared; in memory are the best of each query, and a block of a shard.

        Args:
            without: excluded pairs, as positions of queries, ascending, and of documents, [e] each.
        """
        best = self._top(queries, self.near, 0, k, without)
        for here, vectors in self.shards.taken(self.rows):
            nearest = self._top(queries, vectors, len(self.near) + here.start, k, without)
            best = merged(best, nearest, k)
        scores, positions = best
        return scores, np.where(np.isneginf(scores), -1, positions)

    def _top(
        self, queries: Vectors, vectors: Vectors, first: int, k: int, without: Pairs
    ) -> tuple[Vectors, Ints]:
        """Return the nearest of consecutive documents, of which the first has a position."""
        is_here = (without[1] >= first) & (without[1] < first + len(vectors))
        pairs = without[0][is_here], without[1][is_here] - first
        scores, positions = top(queries, vectors, k, without=pairs, product=product_of)
        return scores, positions + first
