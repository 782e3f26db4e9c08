"""Frequencies of items in training.

Letters in shapes: e events, i items.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_EVENTS = 1 << 22  # counted at once


def counted(item: NDArray[np.int32], train: NDArray[np.bool_], items: int) -> NDArray[np.int64]:
    """Count the events of each item among those to train on, [i].

    Args:
        item: [e] the item of each event.
        train: [e] whether it trains.
        items: how many there are.

    >>> counted(np.array([0, 2, 2, 1]), np.array([True, True, True, False]), 4).tolist()
    [1, 0, 2, 0]
    """
    counts = np.zeros(items, np.int64)
    for start in range(0, len(item), _EVENTS):
        part = slice(start, start + _EVENTS)
        counts += np.bincount(item[part][train[part]], minlength=items)
    return counts
