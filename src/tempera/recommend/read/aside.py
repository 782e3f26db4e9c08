"""Events set aside: what users dislike or have rated low, beside the timeline of what they have
taken.

Letters in shapes: u users, d events set aside, e events of the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Events = NDArray[np.int64]

ASIDE = "aside"  # the column of events that says so
TAKEN, LOW, DISLIKED = 0, 1, 2  # its values


@dataclass(frozen=True)
class Aside:
    """Hold events that are neither asked nor part of histories: user j's are `offsets[j]` to
    `offsets[j + 1]`, in the order of the timeline.

    Their items count as seen, and those of dislikes are hard negatives of their user, too.
    """

    item: NDArray[np.int32]  # [d] codes
    offsets: Events  # [u + 1]
    place: Events  # [d] number of events of the timeline that stand before it
    disliked: NDArray[np.bool_]  # [d] the others are rated low
    time: NDArray[np.int64] | NDArray[np.float64] | None = None  # [d]
    part: NDArray[np.uint8] | None = None  # [d] of the file that it is from, if there are several

    def kept(self, left: NDArray[np.bool_], stay: NDArray[np.bool_]) -> Aside:
        """Return the events beside the timeline of some of its events, [e], and of some of its
        users, [u]."""
        lengths = np.diff(self.offsets)
        own = np.repeat(stay, lengths)
        return Aside(
            self.item[own],
            np.concatenate([[0], np.cumsum(lengths[stay])]),
            np.concatenate([[0], np.cumsum(left)])[self.place[own]],
            self.disliked[own],
            None if self.time is None else self.time[own],
            None if self.part is None else self.part[own],
        )
