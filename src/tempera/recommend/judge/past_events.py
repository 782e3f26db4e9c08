"""Past events of users, as a run keeps them for recommendations.

Letters in shapes: n users, e pairs of a user and an item.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .full_catalogue import Histories

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class PastEvents:
    """Hold the past events of n users, a row for each user, the latest event last.

    >>> rows = lambda codes: Histories.of(np.array(codes), np.array([0, len(codes)]))
    >>> past = PastEvents(rows([4, 2, 9]), targets=rows([1, 0, 2]), aside=rows([7]))
    >>> past.left_out[1].tolist()  # 2 was only looked at
    [4, 9, 7]
    """

    items: Histories
    # of each event: 0 stands in histories only, as in a timeline; None: all events are targets
    targets: Histories | None = None
    contexts: Histories | None = None  # code of each event's context; None: not known
    times: Histories | None = None  # of each event, in the data's unit; None: not known
    # items that count as seen and are not in the history: disliked, rated low, taken besides
    aside: Histories | None = None
    aside_times: Histories | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice) -> PastEvents:
        return self._each(lambda lists: lists[rows])

    def at(self, rows: Codes) -> PastEvents:
        """Return chosen rows; -1 is an empty row."""
        known = rows >= 0
        return self._each(
            lambda lists: Histories(
                lists.items, lists.starts[rows] * known, lists.stops[rows] * known
            )
        )

    @property
    def _lists(self) -> dict[str, Histories]:
        """The fields that are known, by name."""
        return {name: lists for name, lists in vars(self).items() if lists is not None}

    def _each(self, change: Callable[[Histories], Histories]) -> PastEvents:
        return PastEvents(**{name: change(lists) for name, lists in self._lists.items()})

    def until(self, moment: Moment) -> PastEvents:
        """Return the events that were known at a moment: up to the moment, or before it.

        >>> rows = lambda values: Histories.of(np.array(values), np.array([0, len(values)]))
        >>> past = PastEvents(rows([4, 2, 9]), times=rows([10, 20, 30]))
        >>> past.until(Moment(20)).items.items.tolist()
        [4, 2]
        >>> past.until(Moment(20, before=20)).items.items.tolist()
        [4]
        """
        if not moment.named:
            return self
        lists = self._lists
        if self.times is not None:
            known = moment.knows(self.times.values)
            for name in ("items", "targets", "contexts", "times"):
                if name in lists:
                    lists[name] = lists[name].only(known)
        if self.aside_times is not None:
            known = moment.knows(self.aside_times.values)
            for name in ("aside", "aside_times"):
                if name in lists:
                    lists[name] = lists[name].only(known)
        return PastEvents(**lists)

    def pauses(self, now: float | None) -> NDArray[np.float32]:
        """Return the time from the latest event of each user to a moment, [n]: nan for a user
        without events, 0 where events have no times, as the latest event is then taken to be at the
        moment.

        >>> rows = lambda values: Histories.of(np.array(values), np.array([0, len(values)]))
        >>> PastEvents(rows([4, 2]), times=rows([10, 20])).pauses(25).tolist()
        [5.0]
        """
        empty = self.items.lengths == 0
        passed = np.zeros(len(self), np.float32)
        if self.times is not None and now is not None and not empty.all():
            latest = self.times.items[np.where(empty, 0, self.times.stops - 1)]
            passed = (now - latest).astype(np.float32)
        return np.where(empty, np.float32(np.nan), passed)

    @property
    def left_out(self) -> tuple[Codes, Codes]:
        """Users, in rising order, and items that the users have taken, or have met and not taken,
        [e] each."""
        user, item = self.items.pairs()
        if self.targets is not None:
            taken = self.targets.pairs()[1] > 0
            user, item = user[taken], item[taken]
        if self.aside is not None:
            aside_user, aside_item = self.aside.pairs()
            user = np.concatenate([user, aside_user])
            item = np.concatenate([item, aside_item])
        order = np.argsort(user, kind="stable")
        return user[order], item[order]


@dataclass(frozen=True)
class Moment:
    """Hold the moment of a question, in the unit of the data's times.

    Args:
        now: the time to which pauses are counted.
        before: events at this time or later are not known; None: events later than `now` are not
            known.
        named: True if the moment was named; False: the latest time of all, when all is known.
    """

    now: float
    before: float | None = None
    named: bool = True

    def knows(self, times: NDArray[Any]) -> NDArray[np.bool_]:
        """Return True for each time of an event that is known."""
        known: NDArray[np.bool_] = times <= self.now
        if self.before is not None:
            known = times < self.before
        return known


def nothing() -> PastEvents:
    """Return one row of a user who has done nothing."""
    return PastEvents(Histories.of(np.empty(0, np.int64), np.zeros(2, np.int64)))
