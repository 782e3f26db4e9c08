"""Evaluation on items left out of training, ranked among themselves by a model, by popularity and
by chance.

Letters in shapes: q queries, i items of the catalogue, c withheld items, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ranking.compare import Difference
from .full_catalogue import Histories, Scores, inner, metrics_of
from .judgement import Recommended
from .popularity import Popularity

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Means = dict[str, Difference]


@dataclass(frozen=True)
class ColdItems:
    """Hold queries whose answers are withheld items; items that a user has already taken are left
    out of the ranking."""

    items: Ints  # [c] codes, rising
    counts: Ints  # [c] training events that were withheld
    target: Ints  # [q] codes
    seen: Histories  # [q]
    metrics: Sequence[str]
    users: Ints  # [q] whose queries are drawn together

    def model(self, users: Floats, items: Floats) -> Means:
        """Rank by vectors, [q, D] and [i, D]."""
        return self._means(inner(users, items[self.items]))

    def popularity(self) -> Means:
        """Rank by the number of withheld training events, as if it were known: an upper reference
        for popularity."""
        counts = self.counts.astype(np.float32)
        return self._means(lambda rows: np.tile(counts, (len(self.target[rows]), 1)))

    def chance(self) -> Means:
        """Return the exact expectation of a random order."""
        items = len(self.items)
        rows, taken = self._among().pairs()
        mine = np.searchsorted(self.items, self.target)
        pairs = np.unique(rows * items + taken)
        others = pairs[pairs % items != mine[pairs // items]]
        candidates = items - np.bincount(others // items, minlength=len(mine))  # [q]
        ranks = np.arange(1, items + 1)
        expected: Means = {}
        for name, values in metrics_of(ranks, self.metrics).items():
            means = values.cumsum() / ranks  # over the ranks up to each
            mean = float(means[candidates - 1].mean())
            expected[name] = Difference(mean, mean, mean, 0.95)
        return expected

    def _among(self) -> Histories:
        """Return the withheld items of each history, by their positions in `items`."""
        rows, codes = self.seen.pairs()
        inside = np.isin(codes, self.items)
        lengths = np.bincount(rows[inside], minlength=len(self.seen))
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
        return Histories.of(np.searchsorted(self.items, codes[inside]), offsets)

    def _means(self, scores: Scores) -> Means:
        target = np.searchsorted(self.items, self.target)
        recommended = Recommended.of(
            scores, target, self._among(), Popularity(self.counts), self.metrics, self.users
        )
        intervals = recommended.intervals()
        return {name: intervals[name] for name in self.metrics}
