"""Batches in which no two rows share a text, and batches from several sources.

Both are what `Shuffled` is: called with (first, last) they give the rows of these batches of the run, and know of nothing but
the seed and the step.

Letters in shapes: n rows, k keys of all rows together, s sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.ragged import Ragged, from_lengths
from ..engine.batches import refuse_size
from ..errors import ConfigError

Rows = NDArray[np.int64]
_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly (Weyl 1916)
_STEPS = 1 << 16
_PASSES = 20  # without a full batch, before it counts as impossible
_AHEAD = 64  # fresh rows that are looked at beyond those that are missing


@dataclass(frozen=True)
class NoDuplicates:
    """Draw every row at most once an epoch, in batches of which no two rows share a query, a document or a negative.

    Rows with a frequent text are spread evenly over the epoch; a row that shares a text with its batch waits for the next.
    Where an epoch's last batches cannot be filled so, they draw from all rows again, so that every epoch has equally many.

    Args:
        keys: n rows, the ids of all texts of each.

    Raises:
        ConfigError: a batch that is larger than the data, or than the most rows that share nothing.
    """

    keys: Ragged
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        refuse_size(len(self.keys), self.batch_size)
        self.plan(0)

    @cached_property
    def codes(self) -> tuple[NDArray[np.int32], Rows]:
        """Keys as small numbers, [k], and the offsets of the rows, [n + 1]."""
        codes = pa.array(self.keys.values.numpy()).dictionary_encode().indices  # by hashing: a third of sorting's time
        return codes.to_numpy(), self.keys.offsets.numpy()

    @cached_property
    def crowd(self) -> tuple[NDArray[np.int32], Rows]:
        """The most frequent key of each row, and its frequency, each [n]."""
        codes, offsets = self.codes
        counts = np.bincount(codes)
        most = np.maximum.reduceat(counts[codes], offsets[:-1])
        row = np.repeat(np.arange(len(most)), np.diff(offsets))
        first = np.flatnonzero(counts[codes] == most[row])
        key = np.empty(len(most), np.int32)
        key[row[first[::-1]]] = codes[first[::-1]]
        return key, most

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of full batches in one pass over the data; the most frequent texts limit it.

        With B batches, at most B rows of each text can be placed: the largest B with sum over texts min(count, B) >= B b.
        """
        counts = np.bincount(self.crowd[0])
        low, high = 1, len(self.keys) // self.batch_size
        while low < high:
            middle = (low + high + 1) // 2
            enough = np.minimum(counts, middle).sum() >= middle * self.batch_size
            low, high = (middle, high) if enough else (low, middle - 1)
        return low

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield rows of the batches first, first + 1, ... last - 1 of the whole run, from the seed and the epoch alone."""
        for step in range(first, last):
            epoch, position = divmod(step, self.batches_per_epoch)
            yield torch.from_numpy(self.plan(epoch)[position])

    @cached_property
    def plan(self) -> Callable[[int], NDArray[np.int64]]:
        """Return rows of every batch of an epoch, [batches_per_epoch, batch_size]; the latest epoch is cached."""
        return lru_cache(maxsize=1)(self._plan)

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        generator = np.random.default_rng((self.seed, epoch))
        batches: list[Rows] = []
        failed = 0
        while (missing := self.batches_per_epoch - len(batches)) > 0:
            batches += (fresh := list(islice(self.fill(generator), missing)))
            failed = 0 if fresh else failed + 1
            if failed == _PASSES and epoch:
                return self._plan(0)  # which has been found
            if failed == _PASSES:
                raise ConfigError(
                    f"train.batch_size is {self.batch_size}, but too many of the {len(self.keys):,} rows share a text: "
                    "give a smaller batch_size, or train.batch_sampler=shuffled, which masks shared texts"
                )
        return np.stack(batches)

    def fill(self, generator: np.random.Generator) -> Iterator[Rows]:
        """Return full batches from one pass over the rows."""
        order, waiting = self.spread(generator), np.empty(0, np.int64)
        taken = np.full(int(self.codes[0].max()) + 1, -1, np.int64)
        first = np.empty(len(taken), np.int64)
        position, number = 0, 0
        while True:
            batch: list[Rows] = []
            left: list[Rows] = []
            room = self.batch_size
            # Those that have waited longest come first; while fresh rows last, a batch looks at some of them only.
            queue, rest = (waiting, waiting[:0]) if position >= len(order) else np.split(waiting, [self.batch_size])
            while room:
                if not len(queue):
                    queue, position = order[position : position + room + _AHEAD], position + room + _AHEAD
                    if not len(queue):
                        break
                part, queue = queue[: self.batch_size], queue[self.batch_size :]
                free = self.apart(part, taken, first, number, room)
                batch.append(part[free])
                left.append(part[~free])
                room -= int(free.sum())
            if room:
                return
            yield generator.permutation(np.concatenate(batch))
            waiting, number = np.concatenate([*left, queue, rest]), number + 1

    def apart(self, rows: Rows, taken: Rows, first: Rows, number: int, room: int) -> NDArray[np.bool_]:
        """Return the first `room` rows that share no key with batch `number` or with each other, and record their keys."""
        codes, offsets = self.codes
        starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
        ends = lengths.cumsum()
        keys = codes[np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1])]
        row = np.repeat(np.arange(len(rows)), lengths)
        first[keys[::-1]] = row[::-1]  # of equal keys the last one written stays: the first row
        free = np.logical_and.reduceat((taken[keys] != number) & (first[keys] == row), ends - lengths)
        free &= free.cumsum() <= room
        taken[keys[free[row]]] = number
        return free

    def spread(self, generator: np.random.Generator) -> Rows:
        """Return all rows in random order, those with the same most frequent key at equal distances."""
        key = self.crowd[0]
        shuffled = generator.permutation(len(key))
        group = shuffled[np.argsort(key[shuffled], kind="stable")]
        starts = np.flatnonzero(np.diff(key[group], prepend=-1))
        rank = np.arange(len(group)) - np.repeat(starts, np.diff(starts, append=len(group)))
        members = np.repeat(np.diff(starts, append=len(group)), np.diff(starts, append=len(group)))
        shift = np.repeat(generator.random(len(starts)), np.diff(starts, append=len(group)))
        return group[np.argsort((rank + shift) / members, kind="stable")]


def keys_of(query_ids: Tensor, doc_ids: Tensor, negatives: Ragged | None = None, ids: Tensor | None = None) -> Ragged:
    """Return the ids of every text of each row: its query, its document, its negatives.

    >>> keys_of(torch.tensor([1, 2]), torch.tensor([3, 4]), Ragged.of([[0], []]), torch.tensor([9])).values.tolist()
    [1, 3, 9, 2, 4]
    """
    own = torch.stack([query_ids, doc_ids], dim=1)  # [n, 2]
    if negatives is None or ids is None:
        return Ragged(own.ravel(), torch.arange(len(own) + 1) * 2)
    offsets = from_lengths(negatives.lengths + 2)
    values = torch.empty(int(offsets[-1]), dtype=torch.int64)
    values[offsets[:-1]], values[offsets[:-1] + 1] = own[:, 0], own[:, 1]
    rest = torch.ones(len(values), dtype=torch.bool)
    rest[offsets[:-1]] = rest[offsets[:-1] + 1] = False
    values[rest] = ids[negatives.values]
    return Ragged(values, offsets)


@dataclass(frozen=True)
class Mixed:
    """Draw rows of several sources by weight: each batch from all of them, or from one.

    A source's rows come in a fresh random order every time they have all come. Over a run each source has its share of the
    rows, or of the batches, to within one or two.

    Args:
        source: [n] the source of each row.
        weights: share of each source, [s], in any unit; None is by rows.
        batches: "mixed" or "single".
        temperatures: of each source's batches, [s], for those that are single; None is the objective's.

    Raises:
        ConfigError: weights that do not fit the sources, or a batch that is larger than the data.
    """

    source: NDArray[np.int64]
    batch_size: int
    seed: int
    weights: tuple[float, ...] | None = None
    batches: Literal["mixed", "single"] = "mixed"
    temperatures: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        refuse_size(len(self.source), self.batch_size)
        counts = np.bincount(self.source, minlength=len(self.weights or ()))
        if self.batches == "single" and counts[self.shares > 0].min() < self.batch_size:
            raise ConfigError(
                f"train.batch_size is {self.batch_size}, but a source has only {counts[self.shares > 0].min()} training pairs: "
                "give a smaller batch_size, or data.batches=mixed"
            )

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """Share of each source, [s]."""
        counts = np.bincount(self.source, minlength=len(self.weights or ())).astype(float)
        shares = counts if self.weights is None else np.asarray(self.weights, float)
        if (counts[shares > 0] == 0).any():
            raise ConfigError(f"source {int(((shares > 0) & (counts == 0)).argmax()) + 1} has no training rows")
        normalised: NDArray[np.float64] = shares / shares.sum()
        return normalised

    @property
    def chance(self) -> Tensor:
        """Return the probability of each row in one draw, [n]."""
        counts = np.bincount(self.source, minlength=len(self.shares))
        return torch.from_numpy((self.shares / np.maximum(counts, 1))[self.source])

    def temperature(self, rows: Tensor) -> float | None:
        """Return the temperature of a batch of these rows, all of one source; None means the temperature of the objective."""
        return None if self.temperatures is None else self.temperatures[int(self.source[int(rows[0])])]

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches that hold as many rows as the data."""
        return len(self.source) // self.batch_size

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield rows of the batches first, first + 1, ... last - 1 of the whole run, without drawing earlier ones."""
        orders = [_Order(np.flatnonzero(self.source == s), (self.seed, s)) for s in range(len(self.shares))]
        before = np.zeros(len(self.shares), np.int64)
        for start in range(0, first, _STEPS):
            before += self.counts(start, min(start + _STEPS, first)).sum(0)
        for step in range(first, last):
            counts = self.counts(step, step + 1)[0]
            rows = [order.take(int(at), int(c)) for order, at, c in zip(orders, before, counts, strict=True) if c]
            before += counts
            yield torch.from_numpy(np.random.default_rng((self.seed, step, 1)).permutation(np.concatenate(rows)))

    def counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the number of rows of each source in the batches first ... last - 1: systematic sampling, [last - first, s]."""
        whole, unit = (1, self.batch_size) if self.batches == "single" else (self.batch_size, 1)
        shift = (np.arange(first, last) * _GOLDEN + np.random.default_rng(self.seed).random()) % 1
        ends = np.concatenate([[0.0], self.shares.cumsum()[:-1], [1.0]]) * whole
        counts: NDArray[np.int64] = np.diff(np.floor(ends + shift[:, None]).astype(np.int64)) * unit
        return counts


class _Order:
    """The endless sequence of one source's rows: a fresh permutation in each pass."""

    def __init__(self, rows: Rows, seed: tuple[int, int]) -> None:
        self.rows, self.seed = rows, seed
        self.shuffled = lru_cache(maxsize=2)(self._shuffled)

    def take(self, start: int, count: int) -> Rows:
        """Return `count` rows of the sequence from `start` on."""
        parts = []
        while count:
            turn, at = divmod(start, len(self.rows))
            parts.append(self.shuffled(turn)[at : at + count])
            start, count = start + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts)

    def _shuffled(self, turn: int) -> Rows:
        return np.random.default_rng((*self.seed, turn)).permutation(self.rows)
