"""Rows of different lengths in one flat tensor: token ids, item histories, known positives.

Letters in shapes: n rows, v values of all rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..io import flat
from .abilities import sent

# Sorting codes takes less time than marking them where the largest is this many times their number.
_SPARSE = 16


@dataclass(frozen=True)
class Ragged:
    """Row i holds `values[offsets[i]:offsets[i + 1]]`, as Arrow stores lists.

    Values may be int32 and lie in a mapped file; chosen rows are int64 and in memory.

    Args:
        values: [v] the values of all rows, one row after the other.
        offsets: [n + 1] int64, from 0 to v.
        origin: the same rows on the host, where a device is not waited for.

    >>> tokens = Ragged.of([[5, 6], [], [7]])
    >>> len(tokens), tokens.lengths.tolist()
    (3, [2, 0, 1])
    >>> tokens[torch.tensor([2, 0])].values.tolist()
    [7, 5, 6]
    """

    values: Tensor  # [v]
    offsets: Tensor  # [n + 1] int64, from 0 to v
    origin: Ragged | None = None  # of what is on a device: the same on the host

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Return the rows of a list of lists of integers."""
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        values = torch.tensor([value for row in rows for value in row], dtype=torch.int64)
        return cls(values, from_lengths(lengths))

    @classmethod
    def cat(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of several parts, in order."""
        values = torch.cat([part.values for part in parts])
        return cls(values, from_lengths(torch.cat([part.lengths for part in parts])))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Values of each row, [n]."""
        return self.offsets.diff()

    @property
    def longest(self) -> int:
        """Return the number of values of the longest row, 0 without rows; no device is waited
        for."""
        lengths = (self.origin or self).lengths
        return int(lengths.max()) if len(lengths) else 0

    def __getitem__(self, rows: Any) -> Ragged:
        """Return the chosen rows, by slice, boolean mask or indices."""
        if self.origin is not None:
            return self.origin[rows].to(self.values.device)
        starts = self.offsets[:-1][rows]
        lengths = self.offsets[1:][rows] - starts
        return Ragged(self.values[spread(starts, lengths)].long(), from_lengths(lengths))

    def to(self, device: torch.device | str) -> Ragged:
        """The same rows on another device."""
        return Ragged(sent(self.values, device), sent(self.offsets, device), self.origin or self)


@dataclass(frozen=True)
class Shared:
    """Row i holds `lists[of[i]]`: rows with the same list share the list.

    >>> shared = Shared(Ragged.of([[5, 6], [7]]), torch.tensor([1, 0, 1]))
    >>> shared.values.tolist(), shared[1:].lengths.tolist()
    ([7, 5, 6, 7], [2, 1])
    """

    lists: Ragged
    of: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, rows: Any) -> Shared:
        """The chosen rows, of the same lists."""
        return Shared(self.lists, self.of[rows])

    @property
    def lengths(self) -> Tensor:
        """Values of each row, [n]."""
        return self.lists.lengths[self.of]

    @cached_property
    def rows(self) -> Ragged:
        """The rows with a list each, one after the other."""
        return self.lists[self.of]

    @property
    def values(self) -> Tensor:
        """All rows' values, [v]."""
        return self.rows.values

    @property
    def offsets(self) -> Tensor:
        """Return the position in `values` at which each row begins, and the end of the last row,
        [n + 1]."""
        return self.rows.offsets

    def to(self, device: torch.device | str) -> Shared:
        """The same rows on another device."""
        return Shared(self.lists.to(device), sent(self.of, device))


def from_lengths(lengths: Tensor) -> Tensor:
    """Return the offsets of rows of the given lengths, [n] -> [n + 1]."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def spread(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the integers start, start + 1, ... of every row, one row after the other.

    >>> spread(torch.tensor([3, 10]), torch.tensor([2, 3])).tolist()
    [3, 4, 10, 11, 12]
    """
    if lengths.device.type == "cpu":  # numpy does it in two thirds of torch's time
        return torch.from_numpy(flat.spread(starts.numpy(), lengths.numpy()))
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    shift = torch.repeat_interleave(starts - (ends - lengths), lengths, output_size=total)
    return torch.arange(total, device=starts.device) + shift


def distinct(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct codes, rising, [d], and the place of each code among them, [v]; codes are
    on the host, from 0 on.

    `torch.unique` sorts; marking takes a tenth of its time where codes are not far apart.

    >>> [each.tolist() for each in distinct(torch.tensor([7, 2, 7]))]
    [[2, 7], [1, 0, 1]]
    """
    numbers = codes.numpy()
    size = int(numbers.max(initial=-1)) + 1
    if size > _SPARSE * len(numbers):
        return torch.unique(codes, return_inverse=True)  # type: ignore[no-any-return]
    present = np.zeros(size, np.bool_)
    present[numbers] = True
    places = (present.cumsum() - 1)[numbers]
    return torch.from_numpy(np.flatnonzero(present)), torch.from_numpy(places)
