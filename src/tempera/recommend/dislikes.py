"""Items that users do not like, beside the timeline of those that they have taken.

Letters in shapes: u users, d dislikes, e events of the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Events = NDArray[np.int64]


@dataclass(frozen=True)
class Dislikes:
    """Hold what users do not like, beside a timeline: user j's are `offsets[j]` to `offsets[j +
    1]`, the earliest first."""

    item: NDArray[np.int32]  # [d] codes
    offsets: Events  # [u + 1]
    place: Events  # [d] number of events of the timeline that stand before it
    time: NDArray[np.int64] | NDArray[np.float64] | None = None  # [d]

    def kept(self, left: NDArray[np.bool_], stay: NDArray[np.bool_]) -> Dislikes:
        """Return the dislikes beside the timeline of some of its events, [e], and of some of its
        users, [u]."""
        lengths = np.diff(self.offsets)
        own = np.repeat(stay, lengths)
        place = np.concatenate([[0], np.cumsum(left)])[self.place[own]]
        offsets = np.concatenate([[0], np.cumsum(lengths[stay])])
        return Dislikes(
            self.item[own], offsets, place, None if self.time is None else self.time[own]
        )
