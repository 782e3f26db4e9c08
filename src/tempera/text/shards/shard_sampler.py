"""Rows of pairs in shards in an order for training: parts are dealt out to processes, and rows are
shuffled in windows.

Letters in shapes: p parts, r parts of a process, w windows of a pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...engine.batches import DealtSampler, refuse_size
from ...errors import ConfigError
from .training_shards import Counts, TrainingShards

WINDOW_ROWS = 1 << 18  # rows that are shuffled together in a process
WINDOW_BYTES = 1 << 27  # of their texts: longer texts make smaller windows
_BATCHES = 8  # at least so many batches are shuffled together, whatever their bytes
_LEAST = 0.25  # of an equal share of the rows, for a process
_DEAL, _SHUFFLE = 1 << 22, 1 << 23  # parts of seeds


@dataclass(frozen=True)
class RowWindow:
    """Consecutive rows of a process in a pass.

    Args:
        epoch: number of the pass, from 0.
        first: number of the first row among the rows of the process.
        last: number behind the last row.
        step: number of its first batch in the run.
    """

    epoch: int
    first: int
    last: int
    step: int

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class DealtParts:
    """The parts of one process in one pass, in the order of reading.

    Args:
        parts: their numbers, [r].
        ends: number of training rows before each part, and of all, [r + 1].
    """

    parts: Counts
    ends: Counts

    @property
    def rows(self) -> int:
        """Number of training rows of the process."""
        return int(self.ends[-1])


@dataclass(frozen=True)
class ShardSampler(DealtSampler):
    """Every training row once a pass, by one of the processes.

    The parts of the shards are dealt out anew in each pass, in a random order, each to the process
    with the fewest rows so far. All processes take the same number of batches: each divides its own
    rows evenly over them, so that no row is left out. A process reads its parts in order, and
    shuffles the rows of a window.

    A row's number is the number of the pass times all training rows, plus its place among the rows
    of the process.

    Args:
        shards: the training rows.
        batch_size: largest number of rows of a batch, over all processes.
        seed: of the order of parts and rows.
        rank: of this process.
        processes: number of processes.
        most: rows of a window; 0 follows the bytes of the texts.

    Raises:
        ConfigError: `batch_size` is larger than the data, or below 2.
    """

    shards: TrainingShards
    batch_size: int
    seed: int
    rank: int = 0
    processes: int = 1
    most: int = 0
    plans: dict[int, DealtParts] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        refuse_size(self.shards.count, self.batch_size)

    def of_process(self, rank: int, processes: int) -> ShardSampler:
        """Return the sampler of one of several processes."""
        if (rank, processes) == (self.rank, self.processes):
            return self
        return replace(self, rank=rank, processes=processes)

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""
        return -(-self.shards.count // self.batch_size)

    @property
    def window_rows(self) -> int:
        """The most rows that a process shuffles together."""
        if self.most:
            return self.most
        fitting = int(WINDOW_BYTES / max(1.0, self.shards.pair_bytes))
        least = -(-_BATCHES * self.batch_size // self.processes)
        return max(least, min(WINDOW_ROWS, fitting))

    def dealt(self, epoch: int) -> DealtParts:
        """Return the parts of this process in a pass.

        Raises:
            ConfigError: the parts cannot be dealt out about evenly.
        """
        if epoch not in self.plans:
            for earlier in [each for each in self.plans if each < epoch - 1]:
                del self.plans[earlier]
            self.plans[epoch] = self._dealt(epoch)
        return self.plans[epoch]

    def _dealt(self, epoch: int) -> DealtParts:
        counts = self.shards.trained
        draw = np.random.default_rng((self.seed, epoch, _DEAL))
        order = draw.permutation(np.flatnonzero(counts))
        owner = np.zeros(len(counts), np.int64)
        loads = [(0, rank) for rank in range(self.processes)]
        for part in order[np.argsort(-counts[order], kind="stable")].tolist():
            load, rank = loads[0]
            owner[part] = rank
            heapq.heapreplace(loads, (load + int(counts[part]), rank))
        least = min(loads)[0]
        share = self.shards.count / self.processes
        if least < max(_LEAST * share, self.batches_per_epoch):
            raise ConfigError(
                f"{len(order)} parts of shards with {int(counts.max()):,} rows in the largest cannot be dealt out to "
                f"{self.processes} processes: a part is a row group of a local Parquet file, or another whole file; write more "
                "and smaller ones, or start fewer processes"
            )
        mine = order[owner[order] == self.rank]
        return DealtParts(mine, np.concatenate([[0], counts[mine].cumsum()]))

    def windows(self, epoch: int) -> list[RowWindow]:
        """Return the windows of this process in a pass; a batch lies in one window."""
        rows, batches = self.dealt(epoch).rows, self.batches_per_epoch
        together = max(1, (self.window_rows - 1) * batches // rows)  # batches of a window
        count = -(-batches // together)
        steps = np.arange(count + 1) * batches // count
        windows = []
        for begin, end in zip(steps[:-1].tolist(), steps[1:].tolist(), strict=True):
            first, last = begin * rows // batches, end * rows // batches
            windows.append(RowWindow(epoch, first, last, epoch * batches + begin))
        return windows

    def window_of(self, row: int) -> RowWindow:
        """Return the window that holds a row of this process."""
        epoch, place = divmod(row, self.shards.count)
        windows = self.windows(epoch)
        starts = [window.first for window in windows]
        return windows[int(np.searchsorted(starts, place, side="right")) - 1]

    def after(self, window: RowWindow) -> RowWindow:
        """Return the window that follows a window."""
        for other in self.windows(window.epoch):
            if other.first == window.last:
                return other
        return self.windows(window.epoch + 1)[0]

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield the rows of this process in the batches first, first + 1, ... last - 1 of the whole
        run, without drawing earlier batches."""
        batches = self.batches_per_epoch
        window: RowWindow | None = None
        order = np.empty(0, np.int64)
        for step in range(first, last):
            epoch, number = divmod(step, batches)
            rows = self.dealt(epoch).rows
            begin = number * rows // batches
            end = (number + 1) * rows // batches
            if window is None or epoch != window.epoch or begin >= window.last:
                window = self.window_of(epoch * self.shards.count + begin)
                order = self._order(window)
            chosen = order[begin - window.first : end - window.first]
            yield torch.from_numpy(epoch * self.shards.count + chosen)

    def _order(self, window: RowWindow) -> NDArray[np.int64]:
        """Return the rows of a window in random order."""
        draw = np.random.default_rng((self.seed, window.epoch, self.rank, window.first, _SHUFFLE))
        return window.first + draw.permutation(len(window))
