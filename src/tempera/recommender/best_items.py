"""The best items of users: by vectors, by counts and vectors together, or by popularity, among the
chosen items and without the seen items.

Letters in shapes: n users, i items, k items of a list, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..corpus.index import Index
from ..errors import DataError
from ..ranking.nearest import top_of
from ..recommend.judge.counts import Counting
from ..recommend.judge.past_events import PastEvents
from .chosen_items import ChosenItems
from .diversity import candidates_of, diverse
from .stored_histories import Codes

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BestItems:
    """Rank the items for users.

    Args:
        index: the items, with vectors.
        model: fingerprint of the model of the users' vectors.
        popularity: events of each item, which rank for a user of whom the model knows nothing, [i].
        k: number of items for each user.
        exclude_seen: leave out the items that a user has taken, rated low or disliked.
        counting: the counts to rank with; None for the vectors alone.
        chosen: the items that may be recommended; None for all.
        diversity: from 0, the best items, to 1, the items least alike; see `diversity.diverse`.

    Raises:
        DataError: an approximate index, which does not keep the vectors one by one.
    """

    index: Index
    model: str
    popularity: NDArray[np.int64]
    k: int = 10
    exclude_seen: bool = True
    counting: Counting | None = None
    chosen: ChosenItems | None = None
    diversity: float = 0.0

    def __post_init__(self) -> None:
        if self.index.is_approximate:
            raise DataError(
                f"{self.index.folder} is approximate; give the exact index that it was built from for counts, "
                "candidates, exclude, where and diversity"
            )

    def __call__(
        self, vectors: Floats, past: PastEvents
    ) -> tuple[Floats, Codes, NDArray[np.bool_]]:
        """Return the scores and the codes of the k best items of each user, [n, k] each, and True
        for each user of whom the model knows nothing, [n].

        Where fewer items are left, scores are -inf. A user of whom the model knows nothing gets the
        items with the most events.

        Args:
            vectors: of the users, [n, D].
            past: of the users, n rows.
        """
        depth = candidates_of(self.k) if self.diversity else self.k
        seen = past.left_out if self.exclude_seen else None
        if self.counting is None and self.chosen is None:
            scores, codes = self.index.nearest(vectors, depth, self.model, seen)
        else:
            every = self.index.scores(vectors, self.model)
            if self.counting is not None:
                every = self.counting.fused(every, past.items)
            scores, codes = self._best(every, depth, seen)
        is_blank = (past.items.lengths == 0) & ~vectors.any(1)
        if is_blank.any():
            counts = np.repeat(self.popularity[None].astype(np.float32), len(is_blank), 0)
            most, popular = self._best(counts, depth, seen)
            scores[is_blank] = most[is_blank]
            codes[is_blank] = popular[is_blank]
        if self.diversity:
            scores, codes = diverse(scores, codes, self.index.vectors, self.k, self.diversity)
        return scores, codes, is_blank

    def _best(
        self, scores: Floats, depth: int, seen: tuple[Codes, Codes] | None
    ) -> tuple[Floats, Codes]:
        """Return the best scores of each user and the codes, [n, depth] each; -inf is written into
        `scores`, [n, i], for the items left out."""
        if self.chosen is not None:
            scores[:, ~self.chosen.allowed] = -np.inf
        if seen is not None:
            scores[seen] = -np.inf
        return top_of(scores, depth)
