"""Rows of different lengths in a flat array, row after row.

Letters in shapes: n rows, v values of all rows together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def spread(starts: Ints, lengths: Ints) -> Ints:
    """Return the integers start, start + 1, ... of every row, [n] and [n] -> [v].

    >>> spread(np.array([3, 10]), np.array([2, 3])).tolist()
    [3, 4, 10, 11, 12]
    """
    shift = np.repeat(starts - lengths.cumsum() + lengths, lengths)
    return shift + np.arange(len(shift))


def places(lengths: Ints) -> Ints:
    """Return the place of every value in its row, from 0 on, [n] -> [v].

    >>> places(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return spread(np.zeros_like(lengths), lengths)
