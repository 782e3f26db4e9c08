"""The items nearest to an item.

Letters in shapes: i items, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus.index import Found, Index
from ..errors import DataError
from ..ranking.nearest import top_of
from .chosen_items import ChosenItems
from .diversity import candidates_of, diverse

Floats = NDArray[np.float32]


def refuse_beside_similar(**options: Any) -> None:
    """Raise DataError for an option of a question about a user, beside an item."""
    for name, value in options.items():
        if value is not None:
            raise DataError(
                f"similar and {name} are given, but similar compares the vectors of items, and asks "
                f"nothing about a user: leave out {name}"
            )


def similar_items(
    index: Index, item: int, k: int, chosen: ChosenItems | None = None, diversity: float = 0.0
) -> list[Found]:
    """Return the k items nearest to an item by the cosine of the items' vectors, best first; the
    item itself is left out.

    Args:
        index: the items, with vectors.
        item: position of the item.
        chosen: the items that may be named; None for all.
        diversity: see `diversity.diverse`.
    """
    vectors: Floats = np.asarray(index.vectors)  # [i, D]
    length = np.linalg.norm(vectors, axis=1)
    cosines = vectors @ vectors[item] / np.maximum(length * length[item], 1e-12)  # [i]
    cosines[item] = -np.inf
    if chosen is not None:
        cosines[~chosen.allowed] = -np.inf
    depth = candidates_of(k) if diversity else k
    scores, codes = top_of(cosines[None].astype(np.float32), depth)
    if diversity:
        scores, codes = diverse(scores, codes, vectors, k, diversity)
    left = np.isfinite(scores[0])
    return index.hits(scores[0][left], codes[0][left])
