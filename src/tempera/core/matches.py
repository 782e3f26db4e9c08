"""Equal keys of rows and candidates, found by sorting, in memory linear in the number of keys.

Keys are compared on the host, where a batch has its ids, so that no device is waited for; a device
gets the matches once a batch.

Letters in shapes: b rows, p keys of all rows, c candidates, k matches in a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..arithmetic.abilities import sent
from ..arithmetic.ragged import from_lengths, spread

# (rows, columns) of a tile, or an addend [tile, c] of 0 and -inf.
Index = tuple[Tensor, Tensor] | Tensor


@dataclass(frozen=True)
class Matches:
    """Every (row, candidate) with an equal key.

    >>> found = match(torch.tensor([7, 8, 7]), torch.tensor([8, 7, 9, 7]))
    >>> rows, columns = found(slice(1, 3))
    >>> rows.tolist(), columns.tolist()
    ([0, 1, 1], [0, 1, 3])
    """

    columns: Tensor  # [c] candidates in the order of their keys
    first: Tensor  # [p] the beginning of each row key's run of equal candidates
    count: Tensor | None  # [p] the length of the run; None: 1 each
    offsets: Tensor  # [b + 1] the keys of each row that have any

    def __call__(self, tile: slice) -> tuple[Tensor, Tensor]:
        """Rows (counted from the tile's first) and columns of the tile's matches, [k] and [k]."""
        offsets = self.offsets[tile.start : tile.stop + 1]
        keys = slice(int(offsets[0]), int(offsets[-1]))
        row_of_key = torch.repeat_interleave(offsets.diff(), output_size=keys.stop - keys.start)
        first = self.first[keys]
        if self.count is None:
            return row_of_key, self.columns[first]
        count = self.count[keys]
        return torch.repeat_interleave(row_of_key, count), self.columns[spread(first, count)]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.offsets) - 1

    @cached_property
    def ids(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return an id of each row, [b], the candidates that some row matches, [k], and their ids,
        [k]: equal where they match.

        None where a row or a candidate would need several ids.
        """
        keys = self.offsets.diff()
        if bool((keys > 1).any()):
            return None
        counts = torch.zeros(len(self.columns), dtype=torch.int64)
        counts[self.first] = 1 if self.count is None else self.count
        runs = counts.nonzero()[:, 0]
        lengths = counts[runs]
        columns = self.columns[spread(runs, lengths)]
        if len(columns) and int(torch.bincount(columns).max()) > 1:
            return None
        rows = torch.full((self.rows,), -1)
        rows[keys > 0] = self.first
        return rows, columns, torch.repeat_interleave(runs, lengths)

    def of(self, rows: Tensor) -> Matches:
        """Return the matches of the chosen rows, [k]."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        keys = spread(starts, lengths)
        count = None if self.count is None else self.count[keys]
        return Matches(self.columns, self.first[keys], count, from_lengths(lengths))


@dataclass(frozen=True)
class Listed:
    """Several matches together, on a device, in row order; one copy brings all to the device when
    the first tile is asked for.

    The number of a tile's matches is known without asking the device.

    >>> tensor = torch.tensor([7, 8, 7])
    >>> rows, columns = Listed((match(tensor, tensor),), torch.device("cpu"))(slice(1, 3))
    >>> rows.tolist(), columns.tolist()
    ([0, 1, 1], [1, 0, 2])
    """

    several: tuple[Matches, ...]
    device: torch.device

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Return rows and columns, [2, k], and the position of each row's first match, [b + 1], on
        the host."""
        whole = [matches(slice(0, matches.rows)) for matches in self.several]
        rows = torch.cat([pair[0] for pair in whole])
        columns = torch.cat([pair[1] for pair in whole])
        order = rows.argsort(stable=True)
        begins = from_lengths(torch.bincount(rows, minlength=self.several[0].rows))
        return sent(torch.stack([rows[order], columns[order]]), self.device), begins

    def __call__(self, tile: slice) -> tuple[Tensor, Tensor]:
        """Rows (counted from the tile's first) and columns of the tile's matches, [k] and [k]."""
        pairs, begins = self._pairs
        rows, columns = pairs[:, int(begins[tile.start]) : int(begins[tile.stop])]
        if tile.start:
            rows = rows - tile.start
        return rows, columns


def on_device(matches: Matches, device: torch.device) -> Matches | Listed:
    """Return matches with rows and columns on a device; on a CPU each tile finds its own."""
    return matches if device.type == "cpu" else Listed((matches,), device)


def match(
    keys: Tensor, candidates: Tensor, offsets: Tensor | None = None, columns: Tensor | None = None
) -> Matches:
    """Prepare the matches of row keys, [p], among candidate keys, [c].

    Args:
        offsets: [b + 1] the keys of each row; None gives every row one key.
        columns: [c] the column of each candidate key; None is the position.
    """
    keys = keys.cpu().long()  # of known answers, which may be int32
    candidates = candidates.cpu().long()
    ordered, order = candidates.sort(stable=True)
    distinct, runs = torch.unique_consecutive(ordered, return_counts=True)
    if offsets is None:
        offsets = torch.arange(len(keys) + 1)
    offsets = offsets.cpu()
    if not len(distinct):
        return Matches(order, keys[:0], None, torch.zeros_like(offsets))
    at, hit = _find(keys, distinct)
    at = at[hit]
    first = at
    count = None
    if len(distinct) < len(ordered):  # some candidates are equal
        first = (runs.cumsum(0) - runs)[at]
        count = runs[at]
    passed = torch.cat([hit.new_zeros(1, dtype=torch.int64), hit.cumsum(0)])
    return Matches(
        columns=order if columns is None else columns.cpu()[order],
        first=first,
        count=count,
        offsets=passed[offsets],
    )


def _find(keys: Tensor, distinct: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each key among distinct, ascending keys, and True for a present key,
    each [p]."""
    low = int(distinct[0])
    width = int(distinct[-1]) - low + 1
    if width > max(len(keys), len(distinct)):  # hashes
        at = torch.searchsorted(distinct, keys).clamp_(max=len(distinct) - 1)
        return at, distinct[at] == keys
    # Codes: a table takes a tenth of the time of a search.
    table = torch.full((width + 1,), -1, device=keys.device)
    table[distinct - low] = torch.arange(len(distinct), device=keys.device)
    # A key outside of the table finds its last place, which is empty.
    at = table[(keys - low).clamp_(-1, width)]
    return at, at >= 0
