"""Rows with the smallest keys of a stream: the same for any order of the rows, in bounded memory.

Letters in shapes: n rows at once, k distinct keys that are kept.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...io.ids import Ids

_LARGEST = np.iinfo(np.int64).max


class SmallestKeys:
    """The rows of a stream with the `most` smallest distinct keys.

    Keys are hashes, so that the rows are a sample in which each distinct key is as likely as any
    other (Cohen and Kaplan 2007, bottom-k sketches).

    Args:
        most: number of distinct keys.
        once: keep the first row of each key alone.

    >>> rows = SmallestKeys(2)
    >>> rows.add(np.array([5, 1, 9, 1]), pa.table({"text": ["a", "b", "c", "d"]}))
    >>> rows.add(np.array([0]), pa.table({"text": ["e"]}))
    >>> rows.rows()[1]["text"].to_pylist()
    ['e', 'b', 'd']
    """

    def __init__(self, most: int, once: bool = False) -> None:
        self.most = most
        self.once = once
        self.bound = _LARGEST  # the largest key that may still be kept
        self.keys: list[Ids] = []
        self.tables: list[pa.Table] = []
        self.pruned = 0  # rows after the latest pruning: keys may have many rows

    def add(self, keys: Ids, table: pa.Table) -> None:
        """Add rows, [n]."""
        if not self.most:
            return
        kept = np.flatnonzero(keys <= self.bound)
        if not len(kept):
            return
        self.keys.append(keys[kept])
        self.tables.append(table.take(pa.array(kept)))
        if sum(map(len, self.keys)) > 2 * max(self.most, self.pruned):
            self._prune()

    def rows(self) -> tuple[Ids, pa.Table | None]:
        """Return the keys and the rows by rising key; rows of one key stay in their order. None for
        no rows."""
        if not self.tables:
            return np.empty(0, np.int64), None
        self._prune()
        return self.keys[0], self.tables[0]

    def _prune(self) -> None:
        keys = np.concatenate(self.keys)
        order = np.argsort(keys, kind="stable")
        distinct, first = np.unique(keys[order], return_index=True)
        if len(distinct) >= self.most:
            self.bound = int(distinct[self.most - 1])
        if self.once:
            order = order[first]
        order = order[keys[order] <= self.bound]
        table = pa.concat_tables(self.tables, promote_options="default")
        self.keys = [keys[order]]
        self.tables = [table.take(pa.array(order)).combine_chunks()]
        self.pruned = len(order)


def distinct_count(keys: Ids, most: int) -> int:
    """Return the number of distinct keys of a stream, estimated from its smallest distinct keys.

    (k - 1) / u, with u the share of the range of the keys below the k-th smallest (Bar-Yossef et
    al. 2002); exact below `most` keys.

    Args:
        keys: the smallest distinct keys, rising, at most `most`.
        most: number of keys that were kept.

    >>> distinct_count(np.array([3, 7]), 5)
    2
    """
    if len(keys) < most:
        return len(keys)
    share = (float(keys[-1]) + 2.0**63) / 2.0**64
    return round((len(keys) - 1) / share)


def merged_keys(parts: list[Ids], most: int) -> Ids:
    """Return the smallest distinct keys of several parts, rising, [k]."""
    together: NDArray[np.int64] = np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
    return together[:most]
