"""Histories shared by rows: histories from the same start are one sequence, read once.

Letters in shapes: n rows, s sequences, L events of the longest, E places to look back from, D
    width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...arithmetic.abilities import sent
from ...core.frame import Events

# events between two rows of a sequence: sequences are padded to the places of the deepest, so that
# a larger gap costs more than a second reading
_APART = 16
_SHORT = 4  # places: shorter sequences are padded to these


@dataclass(frozen=True)
class Sequences:
    """Arrange events as a row for each sequence, counted from the end: place 0 is the latest event
    seen by any row.

    Rows with the same start share a sequence, unless many events lie between the places to look
    back from.
    """

    events: Events

    @cached_property
    def _shared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Start and end of each sequence, [s], and the sequence of each row, [n]; computed on the
        host, to wait for no device."""
        events = self.events.on_host
        order = (events.start * (events.stop.max() + 1) + events.stop).argsort()
        start, stop = events.start[order], events.stop[order]
        fresh = torch.ones_like(start, dtype=torch.bool)
        fresh[1:] = (start.diff() > 0) | (stop.diff() > _APART)
        first = fresh.nonzero()[:, 0]
        last = torch.cat([first[1:], first.new_tensor([len(start)])]) - 1
        of = torch.empty_like(order).index_copy_(0, order, fresh.cumsum(0) - 1)
        return start[first], stop[last], of

    @cached_property
    def lengths(self) -> Tensor:
        """Events of each sequence, [s], on the host."""
        starts, ends, _ = self._shared
        return ends - starts

    @cached_property
    def _longest(self) -> int:
        return max(1, int(self.lengths.max()))

    @cached_property
    def _back(self) -> Tensor:
        """`back` on the host."""
        _, ends, of = self._shared
        return (ends[of] - self.events.on_host.stop).clamp_max(self._longest - 1)

    @cached_property
    def of(self) -> Tensor:
        """The sequence of each row, [n]."""
        return sent(self._shared[2], self.events.start.device)

    @cached_property
    def back(self) -> Tensor:
        """Place of each row in the sequence of the row, [n]: the number of events after its
        history.

        An empty history has no place, and looks back from the last place.
        """
        return sent(self._back, self.events.start.device)

    @cached_property
    def seen(self) -> Tensor:
        """Events of each row's history, [n]."""
        return self.events.stop - self.events.start

    @cached_property
    def places(self) -> Tensor:
        """Event at each place of each sequence, [s, L], L at least 1; -1 before the sequence
        begins."""
        starts, ends, _ = self._shared
        at = ends[:, None] - 1 - torch.arange(self._longest)
        return sent(torch.where(at >= starts[:, None], at, -1), self.events.start.device)

    def padded(self, x: Tensor) -> Tensor:
        """Return the vectors at the places of all sequences, [s, L, D], from the vectors of the
        events, [e + 1, D], of which the last is of no event."""
        return vectors_at(self.places, x)

    def rows(self, values: Tensor) -> Tensor:
        """Return the values of each row, [n, ...], from the values of every place to look back
        from, [s, E, ...]."""
        return values.flatten(0, 1).index_select(0, self.of * values.shape[1] + self.back)

    @cached_property
    def groups(self) -> list[AlikeLengths]:
        """Sequences of similar length, so that few places are empty."""
        sizes = 2 ** self.lengths.clamp_min(_SHORT).log2().ceil().long()
        device = self.events.start.device
        starts, ends, of = self._shared
        within = torch.empty_like(sizes)  # the place of each sequence in its group
        groups = []
        for size in torch.unique(sizes).tolist():
            chosen = (sizes == size).nonzero()[:, 0]
            within[chosen] = torch.arange(len(chosen))
            rows = (sizes[of] == size).nonzero()[:, 0]
            length = min(size, self._longest)
            at = ends[chosen][:, None] - 1 - torch.arange(length)
            places = torch.where(at >= starts[chosen][:, None], at, -1)
            back = self._back[rows].clamp_max(length - 1)
            groups.append(
                AlikeLengths(
                    rows=sent(rows, device),
                    of=sent(within[of[rows]], device),
                    back=sent(back, device),
                    places=sent(places, device),
                    depth=int(back.max()) + 1,
                )
            )
        return groups

    def of_groups(self, values: Sequence[Tensor]) -> Tensor:
        """Return the values of all rows, [n, ...], from the values of each group's rows."""
        if len(values) == 1:
            return values[0]
        order = torch.cat([group.rows for group in self.groups]).argsort()
        return torch.cat(list(values)).index_select(0, order)

    @cached_property
    def allowed(self) -> Tensor:
        """True for the places, L, seen from each place to look back from, E, [s, E, L]."""
        place = torch.arange(self.places.shape[1], device=self.places.device)
        earlier = place[None] >= place[: self.depth, None]  # [E, L]
        return earlier & (self.places >= 0)[:, None]

    @cached_property
    def depth(self) -> int:
        """Number E of places to look back from."""
        return int(self._back.max()) + 1


@dataclass(frozen=True)
class AlikeLengths:
    """Sequences of similar length, with the rows that read them.

    Letters in shapes: n rows of the group, s its sequences, L places of the longest.

    Args:
        rows: [n] among all rows.
        of: [n] the sequence of each row, among the group's.
        back: [n] the place that each row looks back from.
        places: [s, L] the event at each place, counted from the end; -1 before the sequence begins.
        depth: number E of places to look back from.
    """

    rows: Tensor
    of: Tensor
    back: Tensor
    places: Tensor
    depth: int


def vectors_at(places: Tensor, x: Tensor) -> Tensor:
    """Return the vectors of the events at some places, [..., D], from the vectors of the events,
    [e + 1, D], of which the last is of no event, at the place -1."""
    at = places.remainder(len(x))
    return x.index_select(0, at.flatten()).view(*places.shape, -1)
