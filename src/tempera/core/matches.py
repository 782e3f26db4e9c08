"""Equal keys of rows and candidates, found by sorting: memory grows with their number, not its square.

Letters in shapes: b rows, p keys of all rows, c candidates, k matches in a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .ragged import spread

Index = tuple[Tensor, Tensor] | Tensor  # (rows, columns) of a tile, or an addend [tile, c] of 0 and -inf


@dataclass(frozen=True)
class Matches:
    """Every (row, candidate) with an equal key.

    >>> found = match(torch.tensor([7, 8, 7]), torch.tensor([8, 7, 9, 7]))
    >>> rows, columns = found(slice(1, 3))
    >>> rows.tolist(), columns.tolist()
    ([0, 1, 1], [0, 1, 3])
    """

    columns: Tensor  # [c] candidates in the order of their keys
    first: Tensor  # [p] where each row key's run of equal candidates begins,
    count: Tensor  # [p] and how many they are
    offsets: Tensor  # [b + 1] the keys of each row

    def __call__(self, tile: slice) -> tuple[Tensor, Tensor]:
        """Rows (counted from the tile's first) and columns of the tile's matches, [k] and [k]."""
        offsets = self.offsets[tile.start : tile.stop + 1]
        keys = slice(int(offsets[0]), int(offsets[-1]))
        row_of_key = torch.repeat_interleave(offsets.diff())
        first, count = self.first[keys], self.count[keys]
        return torch.repeat_interleave(row_of_key, count), self.columns[spread(first, count)]


def match(keys: Tensor, candidates: Tensor, offsets: Tensor | None = None, columns: Tensor | None = None) -> Matches:
    """Prepare the matches of row keys, [p], among candidate keys, [c].

    Args:
        offsets: [b + 1] the keys of each row; None gives every row one key.
        columns: [c] the column each candidate key stands for; None is its position.
    """
    ordered, order = candidates.sort(stable=True)
    first = torch.searchsorted(ordered, keys)
    count = torch.searchsorted(ordered, keys, right=True) - first
    return Matches(
        columns=order if columns is None else columns[order],
        first=first,
        count=count,
        offsets=torch.arange(len(keys) + 1, device=keys.device) if offsets is None else offsets,
    )
