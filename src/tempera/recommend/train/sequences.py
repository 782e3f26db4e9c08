"""Histories shared by rows: histories from the same start are one sequence, read once.

Letters in shapes: n rows, s sequences, L events of the longest, E places to look back from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...arithmetic.abilities import sent
from ...core.frame import Events

# events between two rows of a sequence: sequences are padded to the places of the deepest, so that
# a larger gap costs more than a second reading
_APART = 16


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

    def rows(self, values: Tensor) -> Tensor:
        """Return the values of each row, [n, ...], from the values of every place to look back
        from, [s, E, ...]."""
        return values.flatten(0, 1).index_select(0, self.of * values.shape[1] + self.back)

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
