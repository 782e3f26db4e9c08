"""Batches of events with a shared history for the targets of each user.

Letters in shapes: e events of the timeline, u users, s segments, b events of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ...engine.batches import refuse_size
from ..read.timeline import Events, Timeline

_AHEAD = 1 << 16  # events that are looked up at once


@dataclass(frozen=True)
class Segments:
    """Draw every training event once an epoch, in runs of up to `targets` consecutive events of a
    user, in a random order.

    Each epoch cuts every user's events at new places, so no event always stands first. An epoch has
    as few batches of at most `batch_size` events as possible, with sizes that differ by at most one
    event: a last batch of the remaining events would have few negatives. A run across the end of a
    batch is continued in the next batch.

    Args:
        offsets: [u + 1] where each user's events begin.
        counts: [u] number of each user's events to train on, the user's first events.
        targets: largest number of events of a run.
        positions: [e] events of the timeline, where `offsets` counts only the events that train;
            None: `offsets` counts events of the timeline.

    Raises:
        ConfigError: a batch larger than the data, or too small to hold a negative.

    >>> segments = Segments(np.array([0, 5, 9]), np.array([4, 3]), batch_size=7, seed=0, targets=2)
    >>> (batch,) = segments(0, 1)
    >>> sorted(batch.tolist())
    [0, 1, 2, 3, 5, 6, 7]
    """

    offsets: Events
    counts: Events
    batch_size: int
    seed: int
    targets: Annotated[int, Field(ge=1)] = 16
    positions: Events | None = None

    def __post_init__(self) -> None:
        refuse_size(self.events, self.batch_size)

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        train: NDArray[np.bool_],
        batch_size: int,
        seed: int,
        targets: int = 16,
    ) -> Segments:
        """Return segments of the events to train on, [e]; all training events stand before the
        user's remaining targets."""
        counts = np.add.reduceat(train, timeline.offsets[:-1], dtype=np.int64)
        if timeline.target is None:
            return cls(timeline.offsets, counts, batch_size, seed, targets)
        offsets = np.concatenate([[0], counts.cumsum()])
        return cls(offsets, counts, batch_size, seed, targets, np.flatnonzero(train))

    @cached_property
    def events(self) -> int:
        """Events to train on."""
        return int(self.counts.sum())

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""
        return -(-self.events // self.batch_size)

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield events of the batches first, first + 1, ... last - 1 of the whole run, [b], without
        drawing earlier batches."""
        many = max(1, _AHEAD // self.batch_size)
        while first < last:
            epoch, position = divmod(first, self.batches_per_epoch)
            steps = min(many, last - first, self.batches_per_epoch - position)
            cuts = self.cuts(np.arange(position, position + steps + 1))
            events = torch.from_numpy(self.rows(epoch, cuts[0], cuts[-1]))
            yield from torch.split(events, np.diff(cuts).tolist())
            first += steps

    def cuts(self, positions: Events) -> Events:
        """Return the place in an epoch at which each batch begins."""
        cuts: Events = positions * self.events // self.batches_per_epoch
        return cuts

    def rows(self, epoch: int, low: int, high: int) -> Events:
        """Return the events at the places of an epoch from `low` to `high`, exclusive."""
        shift, ends = self.plan(epoch)
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        runs = slice(first, last + 1)
        lengths = np.diff(np.minimum(ends[runs], high), prepend=low)
        events: Events = np.arange(low, high) + np.repeat(shift[runs], lengths)
        if self.positions is None:
            return events
        return self.positions[events]

    @cached_property
    def plan(self) -> Callable[[int], tuple[Events, Events]]:
        """From an epoch to the runs of the epoch in order, [s]: the shift from a place in the epoch
        to an event, and the end of each run in the epoch; the last epoch is remembered.
        """
        return lru_cache(maxsize=1)(self._plan)

    def _plan(self, epoch: int) -> tuple[Events, Events]:
        generator = np.random.default_rng((self.seed, epoch))
        # events by which each user's first run is shorter
        missing = generator.integers(0, self.targets, len(self.counts))
        runs = np.where(self.counts > 0, -(-(self.counts + missing) // self.targets), 0)
        after = runs.cumsum()
        order = generator.permutation(int(after[-1]))
        user = np.searchsorted(after, order, side="right")
        start = (order - (after - runs)[user]) * self.targets - missing[user]
        stop = np.minimum(start + self.targets, self.counts[user])
        start = np.maximum(start, 0)
        ends = (stop - start).cumsum()
        return self.offsets[user] + stop - ends, ends


@dataclass(frozen=True)
class Contexts:
    """Find the part of the timeline to predict each event of a batch from.

    Up to `targets` consecutive events of a user share the start of the part, so the histories are
    one run of the timeline, read once. The first event has a history of `last` events, and each
    later event also the events between; a user may have fewer events.

    Args:
        last: events before the first target of a run.
        targets: targets with a shared start; 1 gives every event a separate start.

    >>> timeline = Timeline.of([1] * 6, list("abcdef"))
    >>> start, stop = Contexts(timeline, last=2, targets=3)(torch.tensor([3, 4, 5, 1]))
    >>> start.tolist(), stop.tolist()
    ([1, 1, 1, 0], [3, 4, 5, 1])
    """

    timeline: Timeline
    last: Annotated[int, Field(ge=1)] = 50
    targets: Annotated[int, Field(ge=1)] = 16

    def __call__(self, events: Tensor) -> tuple[Tensor, Tensor]:
        """Return the start of the context of each event, and the end of its history (exclusive),
        each [b]."""
        own = events.numpy()
        begin, stop = self.timeline.histories(own)
        place = np.arange(len(own))
        fresh = (np.diff(own, prepend=-1) != 1) | (own == begin)
        first = np.maximum.accumulate(np.where(fresh, place, 0))
        first = place - (place - first) % self.targets
        start = np.maximum(begin, stop[first] - self.last)
        return torch.from_numpy(start), torch.from_numpy(stop)
