"""Measures of a recommender's lists: popularity of the items, novelty, coverage and inequality of
exposure.

Letters in shapes: q queries, c items of the catalogue, K depth of a list, -1 in it where there is
    no item.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TIERS = ("head", "middle", "tail")
SHARES = (0.1, 0.4)  # of the items: head, middle; the rest is the tail


@dataclass(frozen=True)
class Popularity:
    """Hold the number of training events of each item, with tiers and information derived from it.

    >>> popularity = Popularity(np.array([1, 8, 0, 2, 0, 3, 0, 1, 1, 0]))
    >>> [popularity.tiers.tolist().count(tier) for tier in range(3)], int(popularity.tiers[1])
    ([1, 4, 5], 0)
    """

    counts: Ints  # [c]

    @cached_property
    def tiers(self) -> Ints:
        """The tier of each item, 0 to 2 as in `TIERS`, [c].

        Head: the tenth of the items with the most training events; middle: the four tenths after
        them; tail: the other half, with the items that training has never seen. Numbers are rounded
        up, and of equal items the smaller code goes first.
        """
        edges = np.ceil(np.cumsum(SHARES) * len(self.counts) - 1e-9)  # 0.1 of 70 items are 7
        items = len(self.counts)
        by_count = np.argsort(-self.counts, kind="stable")
        tiers = np.empty(items, np.int64)
        tiers[by_count] = np.searchsorted(edges, np.arange(items), side="right")
        return tiers

    @cached_property
    def information(self) -> Floats:
        """-log2 of each item's share of the training events, in bits, [c]; an item without events
        counts as an item with one."""
        information: Floats = -np.log2(np.maximum(self.counts, 1) / max(1, int(self.counts.sum())))
        return information

    def places(self, top: Ints) -> Ints:
        """Count the places of each list that hold an item of each tier, [q, K] -> [q, 3]."""
        tiers = np.where(top < 0, -1, self.tiers[top])
        return np.stack([(tiers == tier).sum(1) for tier in range(len(TIERS))], 1)

    def novelty(self, top: Ints) -> Floats:
        """Return the self-information of each list's items, mean over its places, in bits, [q]; 0
        for an empty list.

        The less often an item was seen, the more novel is a list with the item (Zhou et al. 2010,
        with log2 of users over an item's users; Vargas and Castells 2011, with shares of events as
        here).
        """
        filled = top >= 0
        total = np.where(filled, self.information[top], 0.0).sum(1)
        novelty: Floats = total / np.maximum(filled.sum(1), 1)
        return novelty


def exposure(top: Ints, items: int) -> Ints:
    """Count the lists that hold each item, [q, K] -> [c]."""
    return np.bincount(top[top >= 0], minlength=items)


def coverage(shown: Ints) -> float:
    """Return the share of the catalogue that stands in at least one list (Ge et al. 2010, catalogue
    coverage).

    >>> coverage(exposure(np.array([[0, 1], [1, -1]]), 4))
    0.5
    """
    return float((shown > 0).mean())


def gini(shown: Ints) -> float:
    """Return the inequality of the items' exposure: 0 where all stand in equally many lists, near 1
    where a single item stands in all lists.

    G = sum_i (2 i - c - 1) x_i / (c sum_i x_i) over exposures x in rising order, i from 1 to c,
    items in no list included (Fleder and Hosanagar 2009); 0 where there are no lists.

    >>> gini(np.array([2, 2, 2])), gini(np.array([0, 0, 0, 8]))
    (0.0, 0.75)
    """
    rising = np.sort(shown)
    weights = 2 * np.arange(1, len(shown) + 1) - len(shown) - 1
    return float((weights * rising).sum() / (len(shown) * max(1, int(shown.sum()))))
