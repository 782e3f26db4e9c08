"""Rankings of all documents by several processes, each of which holds a part of the documents, and
in which a single process holds all of them.

Letters in shapes: q queries, c documents of all processes, m documents of this process, D width, k
documents a query, K documents a query before the last tie is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...corpora.many_shards import merged
from ...mining.embedder import Vectors
from ...parallel.distributed import Group
from ...ranking.nearest import SPARE, break_ties, top

Ints = NDArray[np.int64]

# Parts begin at multiples of so many rows, where blocks of a product begin: a score has the same
# bits whichever process computes it.
ALIGNED = 64
_QUERIES = 4096  # whose rankings by all processes are in memory at once


def nearest_of_all(queries: Vectors, docs: Vectors, count: int, k: int, group: Group) -> Ints:
    """Return the k nearest documents of each query among those of all processes, best first, [q,
    min(k, c)], as `ranking.nearest.nearest` does.

    Each process compares every query with its own documents, and the best of all parts are merged.

    Args:
        queries: the same in every process, [q, D].
        docs: this process's part of the documents, [m, D].
        count: c.
        group: the processes; a part is `group.part(count, ALIGNED)`.
    """
    part = group.part(count, ALIGNED)
    wide = min(k + SPARE, count)  # K
    near, rows = top(queries, docs, wide)
    missing = ((0, 0), (0, wide - near.shape[1]))  # a part may hold fewer documents
    scores = np.pad(near, missing, constant_values=-np.inf)  # [q, K]
    positions = np.pad(rows + part.start, missing, constant_values=count)
    ranked = np.empty((len(queries), min(k, count)), np.int64)
    for start in range(0, len(queries), _QUERIES):
        block = slice(start, start + _QUERIES)
        size = len(scores[block])
        every_score = group.all_gather_array(scores[block]).reshape(group.size, size, wide)
        every_position = group.all_gather_array(positions[block]).reshape(group.size, size, wide)
        best = every_score[0], every_position[0]
        for other in zip(every_score[1:], every_position[1:], strict=True):
            best = merged(best, other, wide)
        ranked[block] = break_ties(*best)[:, :k]
    return ranked


def rows_of_all(
    count: int, compute: Callable[[slice], tuple[NDArray[Any], ...]], group: Group
) -> tuple[NDArray[Any], ...]:
    """Return arrays of `count` rows, of which each process computes a part.

    Args:
        count: number of rows.
        compute: returns arrays of some rows, at least one.
        group: the processes.
    """
    part = group.part(count, ALIGNED)
    size = part.stop - part.start
    # A process without rows computes one, for the shapes of the arrays.
    own = compute(part if size else slice(0, 1))
    return tuple(group.all_gather_array(rows[:size]) for rows in own)
