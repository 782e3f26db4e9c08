"""Past events of users, as a run keeps them for those who ask.

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
    """Hold what n users have done, a row for each user, the latest last.

    >>> rows = lambda codes: Histories.of(np.array(codes), np.array([0, len(codes)]))
    >>> past = PastEvents(rows([4, 2, 9]), targets=rows([1, 0, 2]), aside=rows([7]))
    >>> past.left_out[1].tolist()  # 2 was only looked at
    [4, 9, 7]
    """

    items: Histories
    targets: Histories | None = (
        None  # 0 stands in histories only, as in a timeline; None: all events are targets
    )
    contexts: Histories | None = None  # what each event happened in; None is not known
    times: Histories | None = None  # of each event, in the data's unit; None is not known
    # items that count as seen and are no part of the history: disliked, rated low, taken besides
    aside: Histories | None = None
    aside_times: Histories | None = None

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

    def until(self, moment: Moment) -> PastEvents:
        """Return what was known at a moment: the events up to it, or before it.

        >>> rows = lambda values: Histories.of(np.array(values), np.array([0, len(values)]))
        >>> past = PastEvents(rows([4, 2, 9]), times=rows([10, 20, 30]))
        >>> past.until(Moment(20)).items.items.tolist()
        [4, 2]
        >>> past.until(Moment(20, before=20)).items.items.tolist()
        [4]
        """
        if not moment.named:
            return self
        kept = {name: lists for name, lists in vars(self).items() if lists is not None}
        for times, names in (
            (self.times, ("items", "targets", "contexts", "times")),
            (self.aside_times, ("aside", "aside_times")),
        ):
            if times is not None:
                known = moment.knows(times.values)
                kept |= {name: kept[name].only(known) for name in names if name in kept}
        return PastEvents(**kept)

    def pauses(self, now: float | None) -> NDArray[np.float32]:
        """Return the time from the latest event of each user to a moment, [n]: nan where there is
        none, 0 where events have no times, as the latest one then is at the moment.

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
        """Users, in rising order, and items that they have taken, or have met and not taken, [e]
        each."""
        user, item = self.items.pairs()
        if self.targets is not None:
            taken = self.targets.pairs()[1] > 0
            user, item = user[taken], item[taken]
        if self.aside is not None:
            whose, beside = self.aside.pairs()
            user, item = np.concatenate([user, whose]), np.concatenate([item, beside])
        order = np.argsort(user, kind="stable")
        return user[order], item[order]


@dataclass(frozen=True)
class Moment:
    """Hold the moment of a question, in the unit of the data's times.

    Args:
        now: the time that it is, to which pauses are counted.
        before: events at this time or later are not known; None: those later than `now` are not.
        named: one that was named; without, it is the latest time of all, when all is known.
    """

    now: float
    before: float | None = None
    named: bool = True

    def knows(self, times: NDArray[Any]) -> NDArray[np.bool_]:
        """Return True for each time of an event that is known."""
        known: NDArray[np.bool_] = times <= self.now if self.before is None else times < self.before
        return known


def nothing() -> PastEvents:
    """Return one row of a user who has done nothing."""
    return PastEvents(Histories.of(np.empty(0, np.int64), np.zeros(2, np.int64)))
