"""Rows of named features, before the towers: who asks, what was taken before, what is offered.

Letters in shapes: n rows, e events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..arithmetic.abilities import sent
from ..arithmetic.ragged import Ragged, spread


@dataclass(frozen=True)
class Events:
    """Row i has seen `items[start[i]:stop[i]]`, the latest last. Rows that share a start share what
    they have seen.

    >>> seen = Events.of(torch.tensor([5, 6, 7, 8]), torch.tensor([1, 1, 3]), torch.tensor([2, 3, 3]))
    >>> seen.items.tolist(), seen.start.tolist(), seen.stop.tolist()
    ([6, 7], [0, 0, 2], [1, 2, 2])
    """

    items: Tensor  # [e] codes
    start: Tensor  # [n]
    stop: Tensor  # [n]
    origin: Events | None = None  # of what is on a device: the same on the host

    @property
    def on_host(self) -> Events:
        """The same rows where the program reads them without waiting, if they were there."""
        return self.origin or self

    @classmethod
    def of(cls, items: Tensor, start: Tensor, stop: Tensor) -> Events:
        """Stretches of a longer timeline; only the events that rows have seen are kept."""
        starts, of = torch.unique(start, return_inverse=True)
        ends = starts.scatter_reduce(0, of, stop, "amax")
        lengths = ends - starts
        moved = start - (lengths.cumsum(0) - lengths)[of]
        return cls(items[spread(starts, lengths)].long(), start - moved, stop - moved)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: Any) -> Events:
        """The chosen rows, with the events that they have seen and no others."""
        if self.origin is not None:
            return self.origin[rows].to(self.start.device)
        return Events.of(self.items, self.start[rows], self.stop[rows])

    @cached_property
    def lengths(self) -> Tensor:
        """Return the cost of each row, [n]: events that rows share are divided among them, and
        rounded up."""
        _, of, counts = torch.unique(self.start, return_inverse=True, return_counts=True)
        longest = torch.zeros_like(counts).scatter_reduce(0, of, self.stop - self.start, "amax")
        cost: Tensor = longest.add(counts).sub(1) // counts
        return cost[of]

    def to(self, device: torch.device) -> Events:
        """The same rows on another device."""
        items, start, stop = (sent(each, device) for each in (self.items, self.start, self.stop))
        return Events(items, start, stop, self.on_host)

    @classmethod
    def cat(cls, parts: Sequence[Events]) -> Events:
        """The rows of several, in order."""
        lengths = torch.tensor([len(part.items) for part in parts])
        shifts = (lengths.cumsum(0) - lengths).tolist()
        start, stop = (
            torch.cat(
                [getattr(part, name) + shift for part, shift in zip(parts, shifts, strict=True)]
            )
            for name in ("start", "stop")
        )
        return cls(torch.cat([part.items for part in parts]), start, stop)


Column = Tensor | Ragged | Events


@dataclass(frozen=True)
class Frame:
    """Columns of n rows each, by name: codes or numbers, [n], lists, or events."""

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: Any) -> Frame:
        """The chosen rows."""
        return Frame({name: column[rows] for name, column in self.columns.items()})

    @cached_property
    def lengths(self) -> Tensor:
        """Return the cost of each row, [n]: one, and the sizes of its lists and events."""
        total = torch.ones(len(self), dtype=torch.int64)
        for column in self.columns.values():
            if not isinstance(column, Tensor):
                total = total.to(column.lengths.device) + column.lengths
        return total

    @property
    def spare(self) -> Frame:
        """One row with the same columns: of code 0, after an event of code 0."""
        return Frame({name: _spare(column) for name, column in self.columns.items()})

    def to(self, device: torch.device) -> Frame:
        """The same rows on another device."""
        return Frame({name: sent(column, device) for name, column in self.columns.items()})

    @classmethod
    def cat(cls, parts: Sequence[Frame]) -> Frame:
        """The rows of several with the same columns, in order."""
        return cls(
            {name: _joined([part.columns[name] for part in parts]) for name in parts[0].columns}
        )


def _spare(column: Column) -> Column:
    if isinstance(column, Tensor):
        return column.new_zeros(1, *column.shape[1:])
    if isinstance(column, Ragged):
        return Ragged.of([[0]])
    zero = column.start.new_zeros(1)
    return Events(column.items.new_zeros(1), zero, zero + 1)


def _joined(parts: Sequence[Any]) -> Column:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    joined: Column = type(parts[0]).cat(parts)
    return joined
