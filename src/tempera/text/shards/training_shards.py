"""The training rows of pairs in shards: which rows of which part, without their texts.

Letters in shapes: p parts, n pairs of a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...io.ids import Ids
from .pair_shards import PairShards

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class TrainingShards:
    """The rows to train on, a bit for each pair of the shards.

    Args:
        shards: the files.
        pairs: number of pairs of each part, [p].
        bits: packed bits of each part, True for a training row, p arrays of n bits.
        held: ids of the forms of all held-out texts, rising.
        digest: checksum of the texts of all pairs, in the order of the parts.
        pair_bytes: mean bytes of the texts of a pair.
        distinct: number of distinct queries, and of distinct documents, estimated.
        dropped: counts by reason of rows and texts left out.
    """

    shards: PairShards
    pairs: Counts
    bits: Sequence[NDArray[np.uint8]]
    held: Ids
    digest: int
    pair_bytes: float
    distinct: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def trained(self) -> Counts:
        """Number of training rows of each part, [p]."""
        return np.array([int(np.unpackbits(bits).sum()) for bits in self.bits], np.int64)

    @cached_property
    def count(self) -> int:
        """Number of training rows."""
        return int(self.trained.sum())

    def tables(self, part: int) -> Iterator[pa.Table]:
        """Yield the training rows of a part in order, some at a time, with the columns of
        `Pairs`."""
        is_trained = np.unpackbits(self.bits[part], count=int(self.pairs[part])).astype(bool)
        first = 0
        for table in self.shards.tables(self.shards.parts[part], Counter()):
            kept = is_trained[first : first + len(table)]
            first += len(table)
            yield table.filter(pa.array(kept))
