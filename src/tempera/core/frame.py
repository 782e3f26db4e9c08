"""Rows of named features, before the towers: of users, their past events, and items.

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
    """Row i has seen `items[start[i]:stop[i]]`, the latest last. Rows that share a start share their
    events.

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
        """The same rows on the host, where the program reads without waiting, if they were there."""
        return self.origin or self

    @classmethod
    def of(cls, items: Tensor, start: Tensor, stop: Tensor) -> Events:
        """Return stretches of a longer timeline, with the events alone that rows have seen."""
        starts, stretch = torch.unique(start, return_inverse=True)  # of each row
        ends = starts.scatter_reduce(0, stretch, stop, "amax")
        lengths = ends - starts
        moved = start - (lengths.cumsum(0) - lengths)[stretch]
        return cls(items[spread(starts, lengths)].long(), start - moved, stop - moved)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: Any) -> Events:
        """Return the chosen rows, with the events alone that they have seen."""
        if self.origin is not None:
            return self.origin[rows].to(self.start.device)
        return Events.of(self.items, self.start[rows], self.stop[rows])

    @cached_property
    def lengths(self) -> Tensor:
        """Return the cost of each row, [n]: shared events are divided among the rows, and rounded
        up."""
        _, stretch, counts = torch.unique(self.start, return_inverse=True, return_counts=True)
        seen = self.stop - self.start
        longest = torch.zeros_like(counts).scatter_reduce(0, stretch, seen, "amax")
        cost: Tensor = longest.add(counts).sub(1) // counts
        return cost[stretch]

    def to(self, device: torch.device) -> Events:
        """Return the same rows on another device."""
        items = sent(self.items, device)
        start = sent(self.start, device)
        stop = sent(self.stop, device)
        return Events(items, start, stop, self.on_host)

    @classmethod
    def cat(cls, parts: Sequence[Events]) -> Events:
        """Return the rows of several parts, in order."""
        start = []
        stop = []
        shift = 0  # events of the parts before
        for part in parts:
            start.append(part.start + shift)
            stop.append(part.stop + shift)
            shift += len(part.items)
        items = torch.cat([part.items for part in parts])
        return cls(items, torch.cat(start), torch.cat(stop))


Column = Tensor | Ragged | Events


@dataclass(frozen=True)
class Frame:
    """Columns of n rows each, by name: codes or numbers, [n], lists, or events."""

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: Any) -> Frame:
        """Return the chosen rows."""
        return Frame({name: column[rows] for name, column in self.columns.items()})

    @cached_property
    def lengths(self) -> Tensor:
        """Return the cost of each row, [n]: 1, and the sizes of lists and events."""
        total = torch.ones(len(self), dtype=torch.int64)
        for column in self.columns.values():
            if not isinstance(column, Tensor):
                total = total.to(column.lengths.device) + column.lengths
        return total

    @property
    def spare(self) -> Frame:
        """A row with the same columns: of code 0, after an event of code 0."""
        return Frame({name: _spare(column) for name, column in self.columns.items()})

    def to(self, device: torch.device) -> Frame:
        """Return the same rows on another device."""
        return Frame({name: sent(column, device) for name, column in self.columns.items()})

    @classmethod
    def cat(cls, parts: Sequence[Frame]) -> Frame:
        """Return the rows of several parts with the same columns, in order."""
        columns = {}
        for name in parts[0].columns:
            columns[name] = _joined([part.columns[name] for part in parts])
        return cls(columns)


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
