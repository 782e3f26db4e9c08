"""Interactions in the order in which they happened, user after user.

Letters in shapes: e events, u users, i items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...tables.arrays import reserved
from .aside import ASIDE, DISLIKED, TAKEN, Aside

USERS, ITEMS, HISTORIES = (
    "model/users.parquet",
    "model/items.parquet",
    "histories.parquet",
)  # of a run's folder
CONTEXTS = "model/contexts.parquet"
REPEATED = "repeated interactions"  # a reason for which some are left out
Events = NDArray[np.int64]  # positions of events in a timeline
_ROWS = 1 << 20  # events that are sorted at once, and more only where one user has them


@dataclass(frozen=True)
class Timeline:
    """Hold events user after user: event k is of item `item[k]`; user j's are `offsets[j]` to
    `offsets[j + 1]`, the earliest first.

    Events of a user are in the order of their times, those of one time in the order of their
    positions, and what is left equal as it was read. Users and items are numbered in the rising
    order of their ids, so that numbers do not depend on the order of rows. Arrays may lie in mapped
    files.

    >>> timeline = Timeline.of(["b", "a", "b"], ["x", "x", "y"], time=[9, 5, 3])
    >>> timeline.user_ids.to_pylist(), timeline.offsets.tolist(), timeline.item.tolist(), timeline.time.tolist()
    (['a', 'b'], [0, 1, 3], [0, 1, 0], [5, 3, 9])
    """

    user_ids: pa.Array  # [u] as they were given
    item_ids: pa.Array  # [i]
    offsets: Events  # [u + 1]
    item: NDArray[np.int32]  # [e]
    time: NDArray[np.int64] | NDArray[np.float64] | None = (
        None  # [e] as given, or microseconds since 1970; None: order only
    )
    weight: NDArray[np.float32] | None = None  # [e]
    users: pa.Table | None = None  # features, [u]; nulls where there was no row
    items: pa.Table | None = None  # [i]
    dropped: Mapping[str, int] = field(
        default_factory=dict
    )  # what was left out on the way, by reason
    source: Any = None  # where it is from, with the roles of its columns decided
    about: str = ""  # a table of the columns that were read, and further lines
    strict_time: bool = False  # whether what carries an event's own time is no history of it
    part: NDArray[np.uint8] | None = (
        None  # [e] rising for each user: 0 trains, 1 validates, 2 tests; None: no parts
    )
    place: Events | None = (
        # [e] rank of each event before parts were put one after the other; None: as they stand
        None
    )
    ordered: bool = (
        True  # whether the order of a user's events means anything; without, there are parts
    )
    context: NDArray[np.int32] | None = None  # [e] row of `contexts` that each event happened in
    contexts: pa.Table | None = (
        None  # the distinct circumstances of events, such as device and price
    )
    target: NDArray[np.uint8] | None = (
        None  # [e] 0 stands in histories only, 1 trains, 2 is evaluated, too; None: all are 2
    )
    anonymous: bool = False  # whether users are rows of the data, and nobody whom other data know
    aside: Aside | None = None  # dislikes and items rated low, beside the events
    dated: bool = False  # whether times were dates, and are microseconds since 1970 (UTC)

    @classmethod
    def of(
        cls,
        user: Sequence[Any],
        item: Sequence[Any],
        time: Sequence[Any] | None = None,
        weight: Sequence[float] | None = None,
    ) -> Timeline:
        """Return a timeline from events in any order."""
        columns: dict[str, Any] = {"user": user, "item": item, "time": time, "weight": weight}
        return timeline_of(
            pa.table({name: value for name, value in columns.items() if value is not None})
        )

    def __len__(self) -> int:
        return len(self.item)

    @property
    def lengths(self) -> Events:
        """Events of each user, [u]."""
        return np.diff(self.offsets)

    def user_of(self, events: Events) -> Events:
        """Return the user of each of these events."""
        user: Events = np.searchsorted(self.offsets, events, side="right") - 1
        return user

    def kept(self, left: NDArray[np.bool_]) -> Timeline:
        """Return the timeline of some of the events, [e], and of the users who have one of them."""
        offsets = np.concatenate([[0], np.cumsum(left)])[self.offsets]
        stay = np.diff(offsets) > 0
        columns: dict[str, Any] = {name: values[left] for name, values in self.columns.items()}
        return replace(
            self,
            user_ids=self.user_ids.filter(pa.array(stay)),
            offsets=np.concatenate([[0], offsets[1:][stay]]),
            **columns,
            users=None if self.users is None else self.users.filter(pa.array(stay)),
            aside=None if self.aside is None else self.aside.kept(left, stay),
        )

    @property
    def columns(self) -> dict[str, Any]:
        """Everything that is known of each event, by name."""
        columns = {
            name: getattr(self, name)
            for name in ("item", "time", "weight", "part", "place", "context", "target")
        }
        return {name: values for name, values in columns.items() if values is not None}

    def without(self, aside: NDArray[np.uint8]) -> Timeline:
        """Return the timeline of the events that users have taken, [e], with the others beside
        it."""
        here = np.flatnonzero(aside != TAKEN)
        if not len(here):
            return self
        beside = Aside(
            self.item[here],
            np.searchsorted(here, self.offsets),
            here,
            aside[here] == DISLIKED,
            None if self.time is None else self.time[here],
            None if self.part is None else self.part[here],
        )
        return replace(self, aside=beside).kept(aside == TAKEN)

    def arranged(self, part: NDArray[np.uint8]) -> Timeline:
        """Return the timeline with these parts of its events, [e], which every user then has one
        after the other."""
        place = np.arange(len(self)) if self.place is None else self.place
        return replace(self, part=part, place=place)._sorted(place, part)

    @property
    def chronological(self) -> Timeline:
        """Return the timeline with the events of each user as they happened, by time if there are
        times, whatever their parts."""
        if self.part is None or not self.ordered:
            return self
        return self._sorted(*(keys for keys in (self.place, self.time) if keys is not None))

    def _sorted(self, *keys: NDArray[Any]) -> Timeline:
        """Return the timeline with the events of each user by the last of these keys, then by those
        before it."""
        order = np.lexsort((*keys, self.user_of(np.arange(len(self)))))
        columns: dict[str, Any] = {name: values[order] for name, values in self.columns.items()}
        return replace(self, **columns)

    @property
    def rises(self) -> bool:
        """Return whether no time of a user falls from one event to the next, which times of parts
        may do."""
        if self.time is None:
            return True
        falls = np.flatnonzero(self.time[1:] < self.time[:-1]) + 1
        return bool(np.isin(falls, self.offsets).all())

    @property
    def judged(self) -> Events:
        """Events that may be evaluated, in rising order."""
        return np.arange(len(self)) if self.target is None else np.flatnonzero(self.target == 2)

    @cached_property
    def ends(self) -> Events:
        """Position at which each part of each user's events ends, [u, 3]."""
        assert self.part is not None
        before = [np.concatenate([[0], np.cumsum(self.part <= part)]) for part in range(3)]
        ends: Events = np.stack(
            [self.offsets[:-1] + np.diff(each[self.offsets]) for each in before], 1
        )
        return ends

    @property
    def repeats(self) -> NDArray[np.bool_]:
        """Return which events have the user and the item of one before, [e]."""
        return _repeats(self.offsets, [self.item])

    def is_copied(self, repeats: NDArray[np.bool_]) -> bool:
        """Return whether every event has another of the same user and item; `repeats` are those
        that have one before.

        Fewer than ten items are too few to tell.
        """
        if len(self) - repeats.sum() < 10:
            return False
        later = _repeats(np.flip(len(self) - self.offsets), [self.item[::-1]])[::-1]
        return bool((repeats | later).all())

    def histories(self, events: Events) -> tuple[Events, Events]:
        """Return the start of the history of each event, and its end (exclusive), which is the
        event itself.

        With `strict_time` it stops at the first event of the same user and time. Where there are
        parts, whose times are to rise from one to the next, it holds events of earlier parts only;
        without an order, that of a training event is all training events of its user, with itself.

        >>> timeline = Timeline.of([1, 1, 1, 2], ["x", "y", "z", "x"], time=[5, 7, 7, 1])
        >>> [ends.tolist() for ends in timeline.histories(np.arange(4))]
        [[0, 0, 0, 3], [0, 1, 2, 3]]
        """
        user = self.user_of(events)
        begin: Events = self.offsets[user]
        stop = events
        if self.part is not None:
            part = self.part[events]
            known = self.ends[user, np.maximum(part, 1) - 1]
            stop = np.where(part == 0, events, known) if self.ordered else known
        if self.strict_time and self.time is not None:
            stop = _first_not_below(self.time, begin, stop, self.time[events])
        return begin, stop

    def has_history(self, events: Events) -> NDArray[np.bool_]:
        """Return True for each event that has a history, [e], without which nothing is asked."""
        begin, stop = self.histories(events)
        return begin < stop

    def taken(self, events: Events) -> tuple[NDArray[np.int32], Events, Events]:
        """Return the items of all targets, and where among them those of the history of each event
        start and end."""
        start, stop = self.histories(events)
        if self.target is None:
            return self.item, start, stop
        chosen = np.flatnonzero(self.target)
        return self.item[chosen], np.searchsorted(chosen, start), np.searchsorted(chosen, stop)

    def aside_of(self, events: Events) -> tuple[NDArray[np.int32], Events, Events] | None:
        """Return the items of all events set aside, and where among them those that each event's
        user had met before it start and end; None if there are none.

        Of files these are the rows of earlier parts. Where the order means something they stand
        before the event, by time if `strict_time` asks for it or the events lie in parts. Without
        an order there is no before, and all of the user's count.
        """
        if (aside := self.aside) is None:
            return None
        user = self.user_of(events)
        start: Events = aside.offsets[user]
        stop: Events = aside.offsets[user + 1]
        if aside.part is not None and self.part is not None:
            stop = _first_not_below(aside.part, start, stop, self.part[events])
        elif self.ordered and (self.strict_time or self.part is not None):
            if self.time is not None and aside.time is not None:
                stop = _first_not_below(aside.time, start, stop, self.time[events])
        elif self.ordered:
            stop = np.clip(np.searchsorted(aside.place, events, side="right"), start, stop)
        return aside.item, start, stop

    def answers(self, events: Events) -> Events:
        """Return the end (exclusive) of what is to be found for each event: itself, and the rest of
        its part."""
        return (
            events + 1 if self.part is None else self.ends[self.user_of(events), self.part[events]]
        )


def timeline_of(
    events: pa.Table,
    folder: Path | None = None,
    drop_repeats: bool = False,
    ordered: bool = True,
    **about: Any,
) -> Timeline:
    """Return a timeline from columns user, item and, where there are any, part, time, position,
    weight, context, target, aside.

    A column within tells apart rows of one time, as position does, but does not order them.

    Rows go to their user by counting, some at a time, then into order user by user: memory beyond
    the result is that of the users' and items' numbers and of some rows.

    Args:
        events: rows in any order, without nulls; it may be memory-mapped.
        folder: where the arrays are written, to be mapped; None keeps them in memory.
        drop_repeats: whether a row of the same user, item and, where there are any, time and
            position as one before is left out.
        ordered: without, a user has an item once: rows of the same user and item as one before are
            left out.
        about: further fields of the timeline.
    """
    user_ids, users = numbered(events["user"])
    item_ids, items = numbered(events["item"])
    counts = np.zeros(len(user_ids), np.int64)
    for part in users:
        counts += np.bincount(part, minlength=len(counts))
    offsets = np.concatenate([[0], counts.cumsum()])
    parts: dict[str, Iterable[NDArray[Any]]] = {"item": items}
    for name in ("part", "time", "position", "within", "weight", "context", "target", ASIDE):
        if name in events.column_names:
            parts[name] = map(_numbers, _chunks(events[name]))
    columns: dict[str, Any] = {
        name: _by_user(users, offsets, values, name, folder) for name, values in parts.items()
    }
    _order(offsets, columns)
    apart = [ASIDE, *(("time", "position", "context") if ordered else ())]
    apart += ["within"] if "time" in columns and ordered else []
    alike = ["item", *(name for name in apart if name in columns)]
    drops = drop_repeats or not ordered
    if drops and (repeats := _repeats(offsets, [columns[name] for name in alike])).any():
        offsets = np.concatenate([[0], np.cumsum(~repeats)])[offsets]
        columns = {name: _compacted(values, ~repeats) for name, values in columns.items()}
    aside, _, _ = (columns.pop(name, None) for name in (ASIDE, "position", "within"))
    timeline = Timeline(user_ids, item_ids, offsets, **columns, ordered=ordered, **about)
    return timeline if aside is None else timeline.without(aside)


def _first_not_below(values: NDArray[Any], low: Events, stop: Events, bound: Any) -> Events:
    """Return the first place from `low` to `stop` (exclusive) whose value reaches a bound, [n];
    `stop` where none does. Values rise from `low` to `stop`."""
    while (low < stop).any():  # halved until none is left, all rows at once
        middle = (low + stop) // 2
        inside = low < stop
        below = values[np.where(inside, middle, 0)] < bound
        low, stop = (
            np.where(below & inside, middle + 1, low),
            np.where(below | ~inside, stop, middle),
        )
    return stop


def numbered(ids: pa.ChunkedArray) -> tuple[pa.Array, list[NDArray[np.int32]]]:
    """Return the distinct ids in rising order, and the position of each id among them, some rows at
    a time.

    >>> distinct, numbers = numbered(pa.chunked_array([["b", "a"], ["c", "b"]]))
    >>> distinct.to_pylist(), [part.tolist() for part in numbers]
    (['a', 'b', 'c'], [[1, 0, 2, 1]])
    """
    encoded = ids.dictionary_encode()
    distinct = encoded.chunk(0).dictionary
    order = pc.array_sort_indices(distinct)
    place = np.empty(len(distinct), np.int32)
    place[order.to_numpy()] = np.arange(len(distinct), dtype=np.int32)
    indices = pa.chunked_array([part.indices for part in encoded.chunks])
    return distinct.take(order), [place[part.to_numpy()] for part in _chunks(indices)]


def _chunks(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return pieces of a column of limited length: the same rows for all columns of a table,
    whatever chunks each has."""
    return [column.slice(start, _ROWS).combine_chunks() for start in range(0, len(column), _ROWS)]


def _numbers(values: pa.Array) -> NDArray[Any]:
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=not pa.types.is_boolean(values.type))
    return numbers


def _by_user(
    users: list[NDArray[np.int32]],
    offsets: Events,
    parts: Iterable[NDArray[Any]],
    name: str,
    folder: Path | None,
) -> NDArray[Any]:
    """Return a column with its rows gathered user by user, in the order in which they were read,
    [e]: a counting sort."""
    out: NDArray[Any] | None = None
    free = offsets[:-1].copy()
    for user, values in zip(users, parts, strict=True):
        if out is None:
            out = _array(name, int(offsets[-1]), values.dtype, folder)
        order = np.argsort(user, kind="stable")
        user = user[order]
        first = np.flatnonzero(np.diff(user, prepend=-1))
        counts = np.diff(first, append=len(user))
        out[np.repeat(free[user[first]] - first, counts) + np.arange(len(user))] = values[order]
        free[user[first]] += counts
    assert out is not None
    return out


def _array(name: str, length: int, dtype: Any, folder: Path | None) -> NDArray[Any]:
    if folder is None:
        return np.empty(length, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    return reserved(folder / f"{name}.npy", dtype, (length,))


def _order(offsets: Events, columns: dict[str, NDArray[Any]]) -> None:
    """Sort the events of each user by part, by time, then by position, in place; equal ones stay as
    they are."""
    keys = [columns[name] for name in ("position", "time", "part") if name in columns]
    for first, last in _runs(offsets) if keys else ():
        span = slice(int(offsets[first]), int(offsets[last]))
        user = np.repeat(np.arange(first, last), np.diff(offsets[first : last + 1]))
        order = np.lexsort((*(key[span] for key in keys), user))
        if not np.array_equal(order, np.arange(len(order))):
            for values in columns.values():
                values[span] = values[span][order]


def _repeats(offsets: Events, columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Return which events have the user and all values of one before, [e]."""
    repeats = np.zeros(int(offsets[-1]), bool)
    for first, last in _runs(offsets):
        span = slice(int(offsets[first]), int(offsets[last]))
        user = np.repeat(np.arange(first, last), np.diff(offsets[first : last + 1]))
        keys = [user, *(values[span] for values in columns)]
        order = np.lexsort(keys)
        same = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
        repeats[span][order[1:][same]] = True
    return repeats


def _compacted(values: NDArray[Any], left: NDArray[np.bool_]) -> NDArray[Any]:
    """Return some values at the beginning of their own array, which may be a mapped file."""
    out = values[: int(left.sum())]
    out[:] = values[left]
    return out


def _runs(offsets: Events) -> Iterable[tuple[int, int]]:
    """Yield groups of consecutive users with a limited number of events, or one user who has
    more."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _ROWS, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
