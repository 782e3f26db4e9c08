"""First vectors of items: items that are taken beside the same items begin near each other.

Letters in shapes: e events, u users, c items, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ..judge.baselines import Observed, Transitions
from ..read.timeline import Timeline

# places between two items that count as a pair; 3 and 10 have the same nDCG on Toys to 0.001
_WINDOW = 5
_ITERATIONS = 4  # of the power method in a randomised singular value decomposition
_EXTRA = 8  # dimensions that the decomposition computes in addition


@dataclass(frozen=True)
class Cooccurrence:
    """Count items that stand near each other in the training events of a user, and embed items by
    the counts.

    C_ij is the sum over pairs of events g = 1 to 5 places apart of 1/g, in both directions, and
    PPMI_ij = max(0, log(C_ij C / (C_i C_j))) with C_i the sum of row i and C the sum of all rows.
    The vectors are U S^(1/2) of PPMI's truncated singular value decomposition, scaled to a mean
    squared length of 1 (Levy and Goldberg 2014).

    Args:
        train: [e] events to count.
    """

    timeline: Timeline
    train: NDArray[np.bool_]
    # vectors that were computed, by width
    known: dict[int, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, width: int) -> torch.Tensor:
        """Return a vector of each item, [c, width]; 0 for items without a pair, and in the columns
        that exceed the number of items.

        The vectors follow from the events alone, whatever the seed of the run, and are computed
        once for all runs on these events.
        """
        if width not in self.known:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self.known[width] = self._vectors(width)
        return self.known[width]

    def _vectors(self, width: int) -> torch.Tensor:
        items = len(self.timeline.item_ids)
        events = Observed(self.timeline.item, self.timeline.offsets, items, self.train)
        after = Transitions(window=_WINDOW, slope=1.0, successors=items).counts(events)
        pairs = (after + after.T).tocoo()
        apart = pairs.row != pairs.col  # an item is no neighbour of its own
        first = pairs.row[apart]
        second = pairs.col[apart]
        count = pairs.data[apart]
        near = np.bincount(first, count, items)
        information = np.maximum(np.log(count * count.sum() / (near[first] * near[second])), 0)
        table = torch.sparse_coo_tensor(
            torch.from_numpy(np.stack([first, second])),
            torch.from_numpy(information).float(),
            (items, items),
            check_invariants=False,
        ).coalesce()
        rank = min(width, items)
        left, singular, _ = torch.svd_lowrank(table, min(rank + _EXTRA, items), _ITERATIONS)
        vectors = torch.zeros(items, width)
        vectors[:, :rank] = left[:, :rank] * singular[:rank].sqrt()
        return vectors / vectors.square().sum(1).mean().sqrt().clamp_min(1e-12)
