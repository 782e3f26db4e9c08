"""Batches without two rows of the same text, and batches from several sources.

Both samplers are called as `Shuffled` is: (first, last) gives the rows of the batches first to last
- 1 of a run, a function of the seed and the step alone.

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
_AHEAD = 64  # fresh rows that a batch looks at beyond its missing rows


@dataclass(frozen=True)
class NoDuplicates:
    """Draw every row once an epoch, in batches without two rows with a common query, document or
    negative.

    The sizes of an epoch's batches differ by at most one row, as with `Shuffled`. Rows with a
    frequent text are spread evenly over the epoch. A row that shares a text with its batch waits
    for the next batch; a row that shares a text with the last batch changes places with a row of an
    earlier batch. Where texts are in too many rows for the last batches to be filled in this way,
    the last batches draw some rows for a second time, and other rows are left out of the epoch.

    Args:
        keys: the ids of all texts of each row, n rows.

    Raises:
        ConfigError: a batch larger than the data, or than any set of rows without a common text.
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
        # Hashing takes a third of the time of sorting.
        codes = pa.array(self.keys.values.numpy()).dictionary_encode().indices
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
        """Number of rows of each batch of an epoch.

        All rows fit into n / b batches, rounded up, if no text is in more rows than that. Otherwise
        batches are full, and B batches can hold at most B rows of each text: B is the largest
        number with sum over texts min(count, B) >= B b.
        """
        key, frequency = self.crowd
        fewest = -(-len(self.keys) // self.batch_size)
        if frequency.max() <= fewest:
            return np.diff(np.arange(fewest + 1) * len(self.keys) // fewest)
        counts = np.bincount(key)
        low, high = 1, len(self.keys) // self.batch_size
        while low < high:
            middle = (low + high + 1) // 2
            if np.minimum(counts, middle).sum() >= middle * self.batch_size:
                low = middle
            else:
                high = middle - 1
        return np.full(low, self.batch_size)

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield rows of the batches first, first + 1, ... last - 1 of the whole run, from the seed
        and the epoch alone."""
        for step in range(first, last):
            epoch, position = divmod(step, self.batches_per_epoch)
            yield torch.from_numpy(self.plan(epoch)[position])

    @cached_property
    def plan(self) -> Callable[[int], list[Rows]]:
        """A function from an epoch to the rows of all its batches; the latest epoch is cached."""
        return lru_cache(maxsize=1)(self._plan)

    def _plan(self, epoch: int) -> list[Rows]:
        generator = np.random.default_rng((self.seed, epoch))
        batches: list[Rows] = []
        failed = 0
        while len(batches) < self.batches_per_epoch:
            missing = self.batches_per_epoch - len(batches)
            drawn = batches if failed < _PASSES // 2 else []
            fresh = self.fill(generator, self.sizes[-missing:], drawn)
            batches += fresh
            failed = 0 if fresh else failed + 1
            if failed == _PASSES:
                if epoch:
                    return self._plan(0)  # exists, since it was made first
                raise ConfigError(
                    f"train.batch_size is {self.batch_size}, but too many of the {len(self.keys):,} rows share a text: "
                    "give a smaller batch_size, or train.batch_sampler=shuffled, which masks shared texts"
                )
        return batches

    def fill(self, generator: np.random.Generator, sizes: Rows, drawn: list[Rows]) -> list[Rows]:
        """Return batches of these sizes from one pass over the rows, or as many batches as can be
        filled; rows of `drawn` come last in the pass."""
        none = np.empty(0, np.int64)
        order = self.spread(generator)
        is_drawn = np.isin(order, np.concatenate([none, *drawn]))
        order = np.concatenate([order[~is_drawn], order[is_drawn]])
        taken = np.full(int(self.codes[0].max()) + 1, -1, np.int64)
        first = np.empty(len(taken), np.int64)
        batches = list[Rows]()
        waiting = none
        position = 0
        for number, room in enumerate(sizes.tolist()):
            batch = [none]
            left = list[Rows]()
            # Rows that have waited longest come first. While fresh rows last, a batch looks at only
            # some of the waiting rows.
            queue, rest = waiting, none
            if position < len(order):
                queue, rest = np.split(waiting, [self.batch_size])
            while room:
                if not len(queue):
                    end = position + room + _AHEAD
                    queue = order[position:end]
                    position = end
                    if not len(queue):
                        break
                part, queue = np.split(queue, [self.batch_size])
                free = self.apart(part, taken, first, number, room)
                batch.append(part[free])
                left.append(part[~free])
                room -= int(free.sum())
            batches.append(np.concatenate(batch))
            waiting = np.concatenate([*left, queue, rest])
            missing, waiting = np.split(waiting, [room])
            if room and (len(missing) < room or not self.exchanged(batches, missing)):
                batches.pop()
                break
        return [generator.permutation(batch) for batch in batches]

    def exchanged(self, batches: list[Rows], waiting: Rows) -> bool:
        """Put rows into earlier batches, in place, and rows of these batches into the last batch
        instead; return False if that fails."""
        others, last = batches[:-1], batches[-1]
        batch_of = np.full(len(self.keys), -1)
        for number, batch in enumerate(others):
            batch_of[batch] = number
        free = batch_of >= 0  # rows that the last batch can take
        free[self.sharing(last)] = False
        for row in waiting:
            closed = np.zeros(len(batches), bool)  # batches that share a text with the row
            closed[batch_of[self.sharing(np.array([row]))]] = True  # -1 stands for the last batch
            fits = free & ~closed[batch_of]
            if not fits.any():
                return False
            moved = int(fits.argmax())
            number = batch_of[moved]
            others[number] = np.append(others[number][others[number] != moved], row)
            batch_of[row] = number
            last = np.append(last, moved)
            batch_of[moved] = -1
            free[self.sharing(np.array([moved]))] = False
        batches[:] = [*others, last]
        return True

    def sharing(self, rows: Rows) -> Rows:
        """Return all rows that share a key with any of the given rows, and the given rows."""
        codes, offsets = self.codes
        own = np.zeros(int(codes.max()) + 1, bool)
        own[np.concatenate([codes[offsets[row] : offsets[row + 1]] for row in rows])] = True
        return self.rows[own[codes]]

    def apart(
        self, rows: Rows, taken: Rows, first: Rows, number: int, room: int
    ) -> NDArray[np.bool_]:
        """Return True for the first `room` rows that share no key with batch `number` or with each
        other, and record their keys."""
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
        """Return all rows in random order, with rows of the same most frequent key at equal
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
    """Return the ids of the query, the document and the negatives of each row.

    >>> keys_of(torch.tensor([1, 2]), torch.tensor([3, 4]), Ragged.of([[0], []]), torch.tensor([9])).values.tolist()
    [1, 3, 9, 2, 4]
    """
    if negatives is None or ids is None:
        own = torch.stack([query_ids, doc_ids], dim=1)  # [n, 2]
        return Ragged(own.ravel(), torch.arange(len(own) + 1) * 2)
    offsets = from_lengths(negatives.lengths + 2)
    values = torch.empty(int(offsets[-1]), dtype=torch.int64)
    at_query = offsets[:-1]
    at_doc = at_query + 1
    values[at_query] = query_ids
    values[at_doc] = doc_ids
    is_negative = torch.ones(len(values), dtype=torch.bool)
    is_negative[at_query] = False
    is_negative[at_doc] = False
    values[is_negative] = ids[negatives.values]
    return Ragged(values, offsets)


@dataclass(frozen=True)
class Mixed:
    """Draw rows of several sources by weight: each batch from all sources, or from one source.

    The rows of a source come in a fresh random order in each pass. Over a run each source has its
    share of the rows, or of the batches, to within one or two.

    Args:
        source: [n] the source of each row.
        weights: share of each source, [s], in any unit; None is by rows.
        batches: "mixed" or "single".
        temperatures: temperature of each source's batches, [s], for "single" batches; None is the
            temperature of the objective.

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
        if self.batches == "single":
            counts = np.bincount(self.source, minlength=len(self.weights or ()))
            least = counts[self.shares > 0].min()
            if least < self.batch_size:
                raise ConfigError(
                    f"train.batch_size is {self.batch_size}, but a source has only {least} training pairs: "
                    "give a smaller batch_size, or data.batches=mixed"
                )

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """Share of each source, [s]."""
        counts = np.bincount(self.source, minlength=len(self.weights or ())).astype(float)
        shares = counts if self.weights is None else np.asarray(self.weights, float)
        is_empty = (shares > 0) & (counts == 0)
        if is_empty.any():
            raise ConfigError(f"source {int(is_empty.argmax()) + 1} has no training rows")
        normalised: NDArray[np.float64] = shares / shares.sum()
        return normalised

    @property
    def chance(self) -> Tensor:
        """The probability of each row in one draw, [n]."""
        counts = np.bincount(self.source, minlength=len(self.shares))
        return torch.from_numpy((self.shares / np.maximum(counts, 1))[self.source])

    def temperature(self, rows: Tensor) -> float | None:
        """Return the temperature of a batch of these rows, all of one source; None means the
        temperature of the objective."""
        if self.temperatures is None:
            return None
        source = int(self.source[int(rows[0])])
        return self.temperatures[source]

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
        before = np.zeros(len(self.shares), np.int64)  # rows that each source has given
        for start in range(0, first, _STEPS):
            before += self.counts(start, min(start + _STEPS, first)).sum(0)
        for step in range(first, last):
            counts = self.counts(step, step + 1)[0]
            parts = list[Rows]()
            for s, count in enumerate(counts.tolist()):
                if count:
                    parts.append(orders[s].take(int(before[s]), count))
            before += counts
            generator = np.random.default_rng((self.seed, step, 1))
            yield torch.from_numpy(generator.permutation(np.concatenate(parts)))

    def counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the number of rows of each source in the batches first ... last - 1, by systematic
        sampling, [last - first, s]."""
        draws, rows = self.batch_size, 1  # draws of a batch, and rows of a draw
        if self.batches == "single":
            draws, rows = 1, self.batch_size
        shift = (np.arange(first, last) * _GOLDEN + np.random.default_rng(self.seed).random()) % 1
        ends = np.concatenate([[0.0], self.shares.cumsum()[:-1], [1.0]]) * draws
        counts: NDArray[np.int64] = np.diff(np.floor(ends + shift[:, None]).astype(np.int64)) * rows
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
            part = self.shuffled(turn)[at : at + count]
            parts.append(part)
            start += len(part)
            count -= len(part)
        return np.concatenate(parts)

    def _shuffled(self, turn: int) -> Rows:
        return np.random.default_rng((*self.seed, turn)).permutation(self.rows)
