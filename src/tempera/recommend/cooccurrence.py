"""First vectors of items: those that users take soon after each other begin near each other.

Letters in shapes: e events, u users, c items, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from .timeline import Timeline

_WINDOW = 5  # places between two items that count as a pair; 3 and 10 have the same nDCG on Toys to 0.001
_ITERATIONS = 4  # of the power method in a randomised singular value decomposition
_EXTRA = 8  # dimensions that it computes beyond those asked for


@dataclass(frozen=True)
class Cooccurrence:
    """Count items that stand near each other in the training events of a user, and embed them by their counts.

    C_ij is the sum over pairs of events g = 1 to 5 places apart of 1/g, in both directions, and
    PPMI_ij = max(0, log(C_ij C / (C_i C_j))) with C_i the sum of row i and C that of all. The vectors are U S^(1/2) of its
    truncated singular value decomposition, scaled to a mean squared length of 1 (Levy and Goldberg 2014).

    Args:
        train: [e] events to count.
    """

    timeline: Timeline
    train: NDArray[np.bool_]

    def __call__(self, width: int) -> torch.Tensor:
        """Return a vector of each item, [c, width]; 0 for items without a pair, and in what exceeds the number of items."""
        counts = self._counts()
        row, total = np.asarray(counts.sum(1)).ravel(), counts.sum()
        pairs = counts.tocoo()
        information = np.log(pairs.data * total / (row[pairs.row] * row[pairs.col]))
        table = torch.sparse_coo_tensor(
            torch.from_numpy(np.stack([pairs.row, pairs.col]).astype(np.int64)),
            torch.from_numpy(np.maximum(information, 0).astype(np.float32)),
            counts.shape,
            check_invariants=False,
        ).coalesce()
        vectors = torch.zeros(len(row), width)
        rank = min(width, len(row))
        left, singular, _ = torch.svd_lowrank(table, min(rank + _EXTRA, len(row)), _ITERATIONS)
        vectors[:, :rank] = left[:, :rank] * singular[:rank].sqrt()
        return vectors / vectors.square().sum(1).mean().sqrt().clamp_min(1e-12)

    def _counts(self) -> sparse.csr_array:
        items, timeline = np.asarray(self.timeline.item, np.int64)[self.train], self.timeline
        user = timeline.user_of(np.flatnonzero(self.train))
        n = len(timeline.item_ids)
        counts = sparse.csr_array((n, n), dtype=np.float32)
        for gap in range(1, _WINDOW + 1):
            same = (user[gap:] == user[:-gap]) & (items[gap:] != items[:-gap])
            first, second = items[:-gap][same], items[gap:][same]
            weight = np.full(len(first), 1 / gap, np.float32)
            counts = counts + sparse.csr_array((weight, (first, second)), shape=(n, n))
        return (counts + counts.T).tocsr()
