"""How often items stand in batches: counted over the events, or estimated while they stream by.

Letters in shapes: e events, i items, n items that are asked about, h hashes, s slots.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ConfigError
from ..io.ids import mixed

_EVENTS = 1 << 22  # counted at once


def counted(item: NDArray[np.int32], train: NDArray[np.bool_], items: int) -> NDArray[np.int64]:
    """Events of each item among those to train on, [i]. Their share is what `expected_logq` asks for.

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


class StreamingFrequency(nn.Module):
    """Chance that a batch holds an item, from the batches that were seen, in memory that does not grow with the items.

    For every slot that an item of batch t is hashed to:

        B <- (1 - a) B + a (t - A),    A <- t

    so that B is the mean number of batches from one that holds the slot to the next, and 1 / B the chance that a batch
    does (Yi et al. 2019, algorithm 2). Collisions make a slot more frequent than its items, so that of several hashes the
    largest B counts (their algorithm 3). What changes is followed in about 1 / a occurrences.

    Args:
        slots: of each hash, [s]; memory is 24 bytes a slot and hash.
        hashes: arrays with hash functions of their own, [h].
        rate: a.
        initial: B before the first occurrence, which the mean is drawn towards for 1 / a occurrences. None takes
            max(a, 1 / k) for a at the k-th occurrence, the plain mean of the first ones.

    >>> frequency = StreamingFrequency()
    >>> for step in range(100):
    ...     frequency.update(torch.tensor([7, 7, 8] if step % 4 == 0 else [8]))
    >>> frequency.inclusion(torch.tensor([7, 8])).round(decimals=2).tolist()
    [0.26, 1.0]
    """

    last: Tensor  # [h, s] A: the latest batch that held the slot, from 1; 0 is none
    gap: Tensor  # [h, s] B
    seen: Tensor  # [h, s] batches that held it
    step: Tensor  # t

    def __init__(self, slots: int = 1 << 20, hashes: int = 2, rate: float = 0.01, initial: float | None = None) -> None:
        super().__init__()
        if slots < 1 or hashes < 1 or not 0 < rate <= 1:
            raise ConfigError(
                f"slots {slots}, hashes {hashes}, rate {rate:g}: give at least 1, 1, and a rate in (0, 1]"
            )
        self.slots, self.hashes, self.rate, self.initial = slots, hashes, rate, initial
        self.register_buffer("last", torch.zeros(hashes, slots, dtype=torch.int64))
        self.register_buffer("gap", torch.full((hashes, slots), initial or 0.0, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(hashes, slots, dtype=torch.int64))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def update(self, items: Tensor) -> None:
        """See one batch; an item counts once, however often the batch holds it."""
        self.step += 1
        slots = self._slots(items)  # of equal ones, each writes the same
        last, gap, seen = self.last.view(-1), self.gap.view(-1), self.seen.view(-1)
        seen[slots] += 1
        passed = (self.step - last[slots]).double()
        gap[slots] += self._rate(seen[slots]) * (passed - gap[slots])
        last[slots] = self.step

    def inclusion(self, items: Tensor) -> Tensor:
        """Chance that a batch holds each item at least once, [n] float64; 1 / (t + 1) for what was never seen."""
        slots = self._slots(items)
        gap = torch.where(self.seen.view(-1)[slots] > 0, self.gap.view(-1)[slots], self.step + 1.0)
        return 1 / gap.amax(0).clamp(min=1)

    def expected(self, items: Tensor, rows: int) -> Tensor:
        """How often a batch of so many independent rows holds each item, [n] float64.

            rows * (1 - (1 - inclusion) ** (1 / rows))

        Items of nearly every batch cannot be told apart by it: there, count.
        """
        return -rows * torch.expm1(torch.log1p(-self.inclusion(items)) / rows)

    def _rate(self, seen: Tensor) -> Tensor:
        rate = torch.full(seen.shape, self.rate, dtype=torch.float64)
        return rate if self.initial is not None else torch.maximum(rate, 1 / seen.double())

    def _slots(self, items: Tensor) -> Tensor:
        """The slot of each item by each hash, among those of all hashes, [h, n]."""
        ids, salts = items.numpy().astype(np.int64), np.arange(self.hashes)[:, None]
        own = (mixed(ids, salts).view(np.uint64) % np.uint64(self.slots)).astype(np.int64)
        return torch.from_numpy(own + salts * self.slots)
