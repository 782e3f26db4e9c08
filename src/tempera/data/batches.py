"""From rows of features and ids to the batches of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch, Side
from ..core.ragged import Ragged
from ..errors import ConfigError


@dataclass(frozen=True)
class Examples:
    """Pairs as features: row i is the distinct query `query[i]` and the distinct document `doc[i]`."""

    queries: Ragged  # features of every distinct query
    docs: Ragged
    query: Tensor  # [n]
    doc: Tensor  # [n]
    query_ids: Tensor  # [n]
    doc_ids: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.query)

    def batch(self, rows: Tensor) -> Batch[Ragged]:
        """The chosen rows with their ids."""
        return Batch(
            query=Side(self.queries[self.query[rows]], ids=self.query_ids[rows]),
            doc=Side(self.docs[self.doc[rows]], ids=self.doc_ids[rows]),
        )


@dataclass(frozen=True)
class Shuffled:
    """Every row once an epoch in a fresh random order; the rows that do not fill a last batch wait for another epoch.

    Raises:
        ConfigError: a batch that is larger than the data, or too small to hold a negative.
    """

    rows: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch_size > self.rows:
            raise ConfigError(
                f"train.batch_size is {self.batch_size} and the data has {self.rows} pairs to train on: "
                f"give a batch_size of at most {self.rows}, or more data"
            )
        if self.batch_size < 2:
            raise ConfigError(
                f"train.batch_size is {self.batch_size}; the negatives of a row are the others, so at least 2"
            )

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one pass over the data."""
        return self.rows // self.batch_size

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Rows of the batches first, first + 1, ... last - 1 of the whole run, without drawing those before."""
        for step in range(first, last):
            epoch, position = divmod(step, self.batches_per_epoch)
            if position == 0 or step == first:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.rows)
            yield torch.from_numpy(order[position * self.batch_size : (position + 1) * self.batch_size])
