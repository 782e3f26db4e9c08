"""Past events of users, as a run keeps them for those who ask.

Letters in shapes: n users, e pairs of a user and an item.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .full_catalogue import Histories

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class PastEvents:
    """Hold what n users have done, a row for each user, the latest last.

    >>> rows = lambda codes: Histories.of(np.array(codes), np.array([0, len(codes)]))
    >>> past = PastEvents(rows([4, 2, 9]), targets=rows([1, 0, 2]), dislikes=rows([7]))
    >>> past.left_out[1].tolist()  # 2 was only looked at
    [4, 9, 7]
    """

    items: Histories
    targets: Histories | None = (
        None  # 0 stands in histories only, as in a timeline; None: all events are targets
    )
    contexts: Histories | None = None  # what each event happened in; None is not known
    dislikes: Histories | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice) -> PastEvents:
        return self._each(lambda lists: lists[rows])

    def at(self, rows: Codes) -> PastEvents:
        """Return chosen rows; -1 is an empty one."""
        known = rows >= 0
        return self._each(
            lambda lists: Histories(
                lists.items, lists.starts[rows] * known, lists.stops[rows] * known
            )
        )

    def _each(self, change: Callable[[Histories], Histories]) -> PastEvents:
        return PastEvents(
            **{name: change(lists) for name, lists in vars(self).items() if lists is not None}
        )

    @property
    def left_out(self) -> tuple[Codes, Codes]:
        """Users, in rising order, and items that they have taken or do not like, [e] each."""
        user, item = self.items.pairs()
        if self.targets is not None:
            taken = self.targets.pairs()[1] > 0
            user, item = user[taken], item[taken]
        if self.dislikes is not None:
            whose, disliked = self.dislikes.pairs()
            user, item = np.concatenate([user, whose]), np.concatenate([item, disliked])
        order = np.argsort(user, kind="stable")
        return user[order], item[order]


def nothing() -> PastEvents:
    """Return one row of a user who has done nothing."""
    return PastEvents(Histories.of(np.empty(0, np.int64), np.zeros(2, np.int64)))
