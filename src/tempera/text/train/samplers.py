"""Batches in which no two rows share a text, and batches from several sources.

Both are what `Shuffled` is: called with (first, last) they give the rows of these batches of the
run, and know of nothing but the seed and the step.

Letters in shapes: n rows, k keys of all rows together, s sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...arithmetic.ragged import Ragged, from_lengths
from ...engine.batches import refuse_size
from ...errors import ConfigError
from ...io.flat import places, spread

Rows = NDArray[np.int64]
_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly (Weyl 1916)
_STEPS = 1 << 16
_PASSES = 20  # without a full batch, before it counts as impossible
_AHEAD = 64  # fresh rows that are looked at beyond those that are missing


@dataclass(frozen=True)
class NoDuplicates:
    """Draw every row once an epoch, in batches of which no two rows share a query, a document or a
    negative.

    Batches of one epoch differ by at most one row, as those of `Shuffled`. Rows with a frequent
    text are spread evenly over the epoch; a row that shares a text with its batch waits for the
    next, and one that shares a text with the last takes the place of a row of another batch. Where
    texts are in so many rows that the last batches cannot be filled so, they draw some rows for a
    second time, and others are left out of that epoch.

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
        codes = (
            pa.array(self.keys.values.numpy()).dictionary_encode().indices
        )  # by hashing: a third of sorting's time
        return codes.to_numpy(), self.keys.offsets.numpy()

    @cached_property
    def rows(self) -> Rows:
        """The row of each key, [k]."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.codes[1]))

    @cached_property
    def crowd(self) -> tuple[NDArray[np.int32], Rows]:
        """The most frequent key of each row, and its frequency, each [n]."""
        codes, offsets = self.codes
        kinds = int(codes.max()) + 1
        held = np.sort(self.rows * kinds + codes)
        twice = held[1:][held[1:] == held[:-1]] % kinds  # a row may hold a text more than once
        counts = np.bincount(codes) - np.bincount(twice, minlength=kinds)
        most = np.maximum.reduceat(counts[codes], offsets[:-1])
        first = np.flatnonzero(counts[codes] == most[self.rows])
        key = np.empty(len(most), np.int32)
        key[self.rows[first[::-1]]] = codes[first[::-1]]
        return key, most

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""
        return len(self.sizes)

    @cached_property
    def sizes(self) -> Rows:
        """Rows of each batch of an epoch: of as few batches as hold all rows, if no text is in more
        rows than there are batches.

        Otherwise batches are full. With B of them, at most B rows of each text can be placed: the
        largest B with sum over texts min(count, B) >= B b.
        """
        count = -(-len(self.keys) // self.batch_size)
        if self.crowd[1].max() <= count:
            return np.diff(np.arange(count + 1) * len(self.keys) // count)
        counts = np.bincount(self.crowd[0])
        low, high = 1, len(self.keys) // self.batch_size
        while low < high:
            middle = (low + high + 1) // 2
            enough = np.minimum(counts, middle).sum() >= middle * self.batch_size
            low, high = (middle, high) if enough else (low, middle - 1)
        return np.full(low, self.batch_size)

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield rows of the batches first, first + 1, ... last - 1 of the whole run, from the seed
        and the epoch alone."""
        for step in range(first, last):
            epoch, position = divmod(step, self.batches_per_epoch)
            yield torch.from_numpy(self.plan(epoch)[position])

    @cached_property
    def plan(self) -> Callable[[int], list[Rows]]:
        """Return rows of every batch of an epoch; the latest epoch is cached."""
        return lru_cache(maxsize=1)(self._plan)

    def _plan(self, epoch: int) -> list[Rows]:
        generator = np.random.default_rng((self.seed, epoch))
        batches: list[Rows] = []
        failed = 0
        while (missing := self.batches_per_epoch - len(batches)) > 0:
            drawn = batches if failed < _PASSES // 2 else []
            batches += (fresh := self.fill(generator, self.sizes[-missing:], drawn))
            failed = 0 if fresh else failed + 1
            if failed == _PASSES and epoch:
                return self._plan(0)  # which has been found
            if failed == _PASSES:
                raise ConfigError(
                    f"train.batch_size is {self.batch_size}, but too many of the {len(self.keys):,} rows share a text: "
                    "give a smaller batch_size, or train.batch_sampler=shuffled, which masks shared texts"
                )
        return batches

    def fill(self, generator: np.random.Generator, sizes: Rows, drawn: list[Rows]) -> list[Rows]:
        """Return batches of these sizes from one pass over the rows, drawn ones last, or as many of
        them as can be filled."""
        order, waiting = self.spread(generator), np.empty(0, np.int64)
        old = np.isin(order, np.concatenate([waiting, *drawn]))
        order = np.concatenate([order[~old], order[old]])
        taken = np.full(int(self.codes[0].max()) + 1, -1, np.int64)
        first = np.empty(len(taken), np.int64)
        position, batches = 0, list[Rows]()
        for number, room in enumerate(sizes.tolist()):
            batch: list[Rows] = []
            left: list[Rows] = []
            # Those that have waited longest come first; while fresh rows last, a batch looks at
            # some of them only.
            queue, rest = (
                (waiting, waiting[:0])
                if position >= len(order)
                else np.split(waiting, [self.batch_size])
            )
            while room:
                if not len(queue):
                    queue, position = (
                        order[position : position + room + _AHEAD],
                        position + room + _AHEAD,
                    )
                    if not len(queue):
                        break
                part, queue = queue[: self.batch_size], queue[self.batch_size :]
                free = self.apart(part, taken, first, number, room)
                batch.append(part[free])
                left.append(part[~free])
                room -= int(free.sum())
            waiting = np.concatenate([*left, queue, rest])
            batches.append(np.concatenate([*batch, waiting[:0]]))
            missing, waiting = np.split(waiting, [room])
            if room and (len(missing) < room or not self.exchanged(batches, missing)):
                batches.pop()
                break
        return [generator.permutation(batch) for batch in batches]

    def exchanged(self, batches: list[Rows], waiting: Rows) -> bool:
        """Put rows into earlier batches, in place, and rows of these into the last one instead;
        False if that fails."""
        *others, last = batches
        batch_of = np.full(len(self.keys), -1)
        for number, batch in enumerate(others):
            batch_of[batch] = number
        free = batch_of >= 0  # rows that the last batch can take
        free[self.sharing(last)] = False
        for row in waiting:
            closed = np.zeros(
                len(batches), bool
            )  # batches that cannot take the row; -1 stands for the last
            closed[batch_of[self.sharing(np.array([row]))]] = True
            if not (fits := free & ~closed[batch_of]).any():
                return False
            moved = int(fits.argmax())
            number, batch_of[moved] = batch_of[moved], -1
            others[number] = np.append(others[number][others[number] != moved], row)
            batch_of[row], last = number, np.append(last, moved)
            free[self.sharing(np.array([moved]))] = False
        batches[:] = [*others, last]
        return True

    def sharing(self, rows: Rows) -> Rows:
        """Return all rows that share a key with any of these, themselves included."""
        codes, offsets = self.codes
        own = np.zeros(int(codes.max()) + 1, bool)
        own[np.concatenate([codes[offsets[row] : offsets[row + 1]] for row in rows])] = True
        return self.rows[own[codes]]

    def apart(
        self, rows: Rows, taken: Rows, first: Rows, number: int, room: int
    ) -> NDArray[np.bool_]:
        """Return the first `room` rows that share no key with batch `number` or with each other,
        and record their keys."""
        codes, offsets = self.codes
        starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
        ends = lengths.cumsum()
        keys = codes[spread(starts, lengths)]
        row = np.repeat(np.arange(len(rows)), lengths)
        first[keys[::-1]] = row[::-1]  # of equal keys the last one written stays: the first row
        free = np.logical_and.reduceat(
            (taken[keys] != number) & (first[keys] == row), ends - lengths
        )
        free &= free.cumsum() <= room
        taken[keys[free[row]]] = number
        return free

    def spread(self, generator: np.random.Generator) -> Rows:
        """Return all rows in random order, those with the same most frequent key at equal
        distances."""
        key = self.crowd[0]
        shuffled = generator.permutation(len(key))
        group = shuffled[np.argsort(key[shuffled], kind="stable")]
        starts = np.flatnonzero(np.diff(key[group], prepend=-1))
        sizes = np.diff(starts, append=len(group))
        shift = np.repeat(generator.random(len(starts)), sizes)
        return group[np.argsort((places(sizes) + shift) / np.repeat(sizes, sizes), kind="stable")]


def keys_of(
    query_ids: Tensor, doc_ids: Tensor, negatives: Ragged | None = None, ids: Tensor | None = None
) -> Ragged:
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

    A source's rows come in a fresh random order every time they have all come. Over a run each
    source has its share of the rows, or of the batches, to within one or two.

    Args:
        source: [n] the source of each row.
        weights: share of each source, [s], in any unit; None is by rows.
        batches: "mixed" or "single".
        temperatures: of each source's batches, [s], for those that are single; None is the
            objective's.

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
            raise ConfigError(
                f"source {int(((shares > 0) & (counts == 0)).argmax()) + 1} has no training rows"
            )
        normalised: NDArray[np.float64] = shares / shares.sum()
        return normalised

    @property
    def chance(self) -> Tensor:
        """Return the probability of each row in one draw, [n]."""
        counts = np.bincount(self.source, minlength=len(self.shares))
        return torch.from_numpy((self.shares / np.maximum(counts, 1))[self.source])

    def temperature(self, rows: Tensor) -> float | None:
        """Return the temperature of a batch of these rows, all of one source; None means the
        temperature of the objective."""
        return (
            None if self.temperatures is None else self.temperatures[int(self.source[int(rows[0])])]
        )

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches that hold as many rows as the data."""
        return len(self.source) // self.batch_size

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield rows of the batches first, first + 1, ... last - 1 of the whole run, without
        drawing earlier ones."""
        orders = [
            Order(np.flatnonzero(self.source == s), (self.seed, s)) for s in range(len(self.shares))
        ]
        before = np.zeros(len(self.shares), np.int64)
        for start in range(0, first, _STEPS):
            before += self.counts(start, min(start + _STEPS, first)).sum(0)
        for step in range(first, last):
            counts = self.counts(step, step + 1)[0]
            rows = [
                order.take(int(at), int(c))
                for order, at, c in zip(orders, before, counts, strict=True)
                if c
            ]
            before += counts
            yield torch.from_numpy(
                np.random.default_rng((self.seed, step, 1)).permutation(np.concatenate(rows))
            )

    def counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the number of rows of each source in the batches first ... last - 1: systematic
        sampling, [last - first, s]."""
        whole, unit = (1, self.batch_size) if self.batches == "single" else (self.batch_size, 1)
        shift = (np.arange(first, last) * _GOLDEN + np.random.default_rng(self.seed).random()) % 1
        ends = np.concatenate([[0.0], self.shares.cumsum()[:-1], [1.0]]) * whole
        counts: NDArray[np.int64] = np.diff(np.floor(ends + shift[:, None]).astype(np.int64)) * unit
        return counts


class Order:
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
