"""Events set aside: items that users dislike or have rated low, beside the timeline of the items
that they have taken.

Letters in shapes: u users, d events set aside, e events of the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Events = NDArray[np.int64]

ASIDE = "aside"  # the column of events that says whether they are set aside
TAKEN, LOW, DISLIKED = 0, 1, 2  # values of the column


@dataclass(frozen=True)
class Aside:
    """Hold events that are neither asked nor part of histories: the events of user j are
    `offsets[j]` to `offsets[j + 1]`, in the order of the timeline.

    Items set aside count as seen, and disliked items are hard negatives of their user, too.
    """

    item: NDArray[np.int32]  # [d] codes
    offsets: Events  # [u + 1]
    place: Events  # [d] number of events of the timeline before the event
    disliked: NDArray[np.bool_]  # [d] False for events that are rated low
    time: NDArray[np.int64] | NDArray[np.float64] | None = None  # [d]
    part: NDArray[np.uint8] | None = None  # [d] part of the file, if there are several files

    def kept(self, events: NDArray[np.bool_], users: NDArray[np.bool_]) -> Aside:
        """Return the events set aside for the timeline of some events, [e], and some users, [u]."""
        lengths = np.diff(self.offsets)
        rows = np.repeat(users, lengths)
        return Aside(
            self.item[rows],
            np.concatenate([[0], np.cumsum(lengths[users])]),
            np.concatenate([[0], np.cumsum(events)])[self.place[rows]],
            self.disliked[rows],
            None if self.time is None else self.time[rows],
            None if self.part is None else self.part[rows],
        )
