"""Interactions in the order of occurrence, user after user.

Letters in shapes: e events, u users, i items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

# Files of a run's folder.
REPEATED = "repeated interactions"  # reason for which interactions are left out
Events = NDArray[np.int64]  # positions of events in a timeline
_ROWS = 1 << 20  # most events that are sorted at once, unless one user has more


@dataclass(frozen=True)
class Timeline:
    """Hold events user after user: event k is of item `item[k]`; the events of user j are
    `offsets[j]` to `offsets[j + 1]`, the earliest first.

    Events of a user are in the order of times, events of the same time in the order of positions,
    and events of the same position in the order of the rows. Users and items are numbered in the
    rising order of ids, so the numbers do not depend on the order of rows. Arrays may lie in mapped
    files.

    Args:
        user_ids: ids as in the data, [u].
        item_ids: ids as in the data, [i].
        offsets: positions at which the events of users begin and end, [u + 1].
        item: number of the item of each event, [e].
        time: of each event as in the data, or microseconds since 1970, [e]; None: order only.
        weight: of each event in the loss, [e].
        users: features, [u]; nulls for users without a row.
        items: features, [i]; nulls for items without a row.
        dropped: counts of rows left out, by reason.
        source: the source of the events, with the roles of its columns decided.
        about: a table of the columns read, and further lines.
        strict_time: True if events of an event's own time are not in the event's history.
        part: 0 trains, 1 validates, 2 tests; rising for each user, [e]; None: no parts.
        place: rank of each event before parts were put one after the other, [e]; None: unchanged.
        ordered: False if the order of a user's events means nothing; then there are parts.
        context: row of `contexts` of each event, [e].
        contexts: the distinct circumstances of events, for example device and price.
        target: 0 stands in histories only, 1 trains, 2 is evaluated, too, [e]; None: all are 2.
        anonymous: True if users are rows of the data, unknown to any further data.
        aside: dislikes and items rated low, beside the events.
        dated: True if times were dates, and are microseconds since 1970 (UTC).

    >>> timeline = Timeline.of(["b", "a", "b"], ["x", "x", "y"], time=[9, 5, 3])
    >>> timeline.user_ids.to_pylist(), timeline.offsets.tolist(), timeline.item.tolist(), timeline.time.tolist()
    (['a', 'b'], [0, 1, 3], [0, 1, 0], [5, 3, 9])
    """

    user_ids: pa.Array
    item_ids: pa.Array
    offsets: Events
    item: NDArray[np.int32]
    time: NDArray[np.int64] | NDArray[np.float64] | None = None
    weight: NDArray[np.float32] | None = None
    users: pa.Table | None = None
    items: pa.Table | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    source: Any = None
    about: str = ""
    strict_time: bool = False
    part: NDArray[np.uint8] | None = None
    place: Events | None = None
    ordered: bool = True
    context: NDArray[np.int32] | None = None
    contexts: pa.Table | None = None
    target: NDArray[np.uint8] | None = None
    anonymous: bool = False
    aside: Aside | None = None
    dated: bool = False

    @classmethod
    def of(
        cls,
        user: Sequence[Any],
        item: Sequence[Any],
        time: Sequence[Any] | None = None,
        weight: Sequence[float] | None = None,
    ) -> Timeline:
        """Return the timeline of events in any order."""
        columns: dict[str, Any] = {"user": user, "item": item}
        if time is not None:
            columns["time"] = time
        if weight is not None:
            columns["weight"] = weight
        return timeline_of(pa.table(columns))

    def __len__(self) -> int:
        return len(self.item)

    @property
    def lengths(self) -> Events:
        """Number of events of each user, [u]."""
        return np.diff(self.offsets)

    def user_of(self, events: Events) -> Events:
        """Return the user of each event given."""
        user: Events = np.searchsorted(self.offsets, events, side="right") - 1
        return user

    def kept(self, chosen: NDArray[np.bool_]) -> Timeline:
        """Return the timeline of the chosen events, [e], and of the users with a chosen event."""
        offsets = np.concatenate([[0], np.cumsum(chosen)])[self.offsets]
        stays = np.diff(offsets) > 0  # [u]
        columns = {name: values[chosen] for name, values in self.columns.items()}
        columns["user_ids"] = self.user_ids.filter(pa.array(stays))
        columns["offsets"] = np.concatenate([[0], offsets[1:][stays]])
        if self.users is not None:
            columns["users"] = self.users.filter(pa.array(stays))
        if self.aside is not None:
            columns["aside"] = self.aside.kept(chosen, stays)
        return replace(self, **columns)

    @property
    def columns(self) -> dict[str, Any]:
        """Every array with a value for each event, [e], by name."""
        columns = {}
        for name in ("item", "time", "weight", "part", "place", "context", "target"):
            values = getattr(self, name)
            if values is not None:
                columns[name] = values
        return columns

    def without(self, aside: NDArray[np.uint8]) -> Timeline:
        """Return the timeline of the items taken by users, with the events set aside beside the
        timeline.

        Args:
            aside: TAKEN, LOW or DISLIKED for each event, [e].
        """
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
        """Return the timeline with the given parts of events, [e], each user's parts in turn."""
        place = np.arange(len(self)) if self.place is None else self.place
        return replace(self, part=part, place=place)._sorted([place, part])

    @property
    def chronological(self) -> Timeline:
        """The timeline with the events of each user in the order of occurrence, by time if there
        are times, regardless of parts."""
        if self.part is None or not self.ordered:
            return self
        return self._sorted([keys for keys in (self.place, self.time) if keys is not None])

    def _sorted(self, keys: Sequence[NDArray[Any]]) -> Timeline:
        """Return the timeline with the events of each user sorted by the last key, equal events by
        the key before."""
        order = np.lexsort((*keys, self.user_of(np.arange(len(self)))))
        columns: dict[str, Any] = {name: values[order] for name, values in self.columns.items()}
        return replace(self, **columns)

    @property
    def rises(self) -> bool:
        """True if no time of a user falls from one event to the next; times of parts may fall."""
        if self.time is None:
            return True
        falls = np.flatnonzero(self.time[1:] < self.time[:-1]) + 1
        return bool(np.isin(falls, self.offsets).all())

    @property
    def judged(self) -> Events:
        """Events that may be evaluated, in rising order."""
        if self.target is None:
            return np.arange(len(self))
        return np.flatnonzero(self.target == 2)

    @cached_property
    def ends(self) -> Events:
        """Position of the end of each part of each user's events, [u, 3]."""
        assert self.part is not None
        ends = np.empty((len(self.user_ids), 3), np.int64)
        for part in range(3):
            up_to_part = np.concatenate([[0], np.cumsum(self.part <= part)])
            ends[:, part] = self.offsets[:-1] + np.diff(up_to_part[self.offsets])
        return ends

    @property
    def repeats(self) -> NDArray[np.bool_]:
        """True for each event that has the user and the item of an earlier event, [e]."""
        return _repeats(self.offsets, [self.item])

    def is_copied(self, repeats: NDArray[np.bool_]) -> bool:
        """Return True if every event has another event of the same user and item.

        Fewer than ten items are too few to tell.

        Args:
            repeats: the property `repeats`, [e].
        """
        if len(self) - repeats.sum() < 10:
            return False
        later = _repeats(np.flip(len(self) - self.offsets), [self.item[::-1]])[::-1]
        return bool((repeats | later).all())

    def histories(self, events: Events) -> tuple[Events, Events]:
        """Return the start and the end (exclusive) of the history of each event; the end is the
        event itself.

        With `strict_time` a history stops at the first event of the same user and time. Where there
        are parts, with times that have to rise from part to part, a history holds events of earlier
        parts only. Without an order, the history of a training event is all training events of its
        user, with the event itself.

        >>> timeline = Timeline.of([1, 1, 1, 2], ["x", "y", "z", "x"], time=[5, 7, 7, 1])
        >>> [ends.tolist() for ends in timeline.histories(np.arange(4))]
        [[0, 0, 0, 3], [0, 1, 2, 3]]
        """
        user = self.user_of(events)
        begin: Events = self.offsets[user]
        stop = events
        if self.part is not None:
            part = self.part[events]
            stop = self.ends[user, np.maximum(part, 1) - 1]
            if self.ordered:
                stop = np.where(part == 0, events, stop)
        if self.strict_time and self.time is not None:
            stop = _first_not_below(self.time, begin, stop, self.time[events])
        return begin, stop

    def has_history(self, events: Events) -> NDArray[np.bool_]:
        """Return True for each event that has a history, [e]; events without a history are not
        evaluated."""
        begin, stop = self.histories(events)
        return begin < stop

    def taken(self, events: Events) -> tuple[NDArray[np.int32], Events, Events]:
        """Return the items of all targets, and the start and end (exclusive) of each event's
        history among the items."""
        start, stop = self.histories(events)
        if self.target is None:
            return self.item, start, stop
        chosen = np.flatnonzero(self.target)
        return self.item[chosen], np.searchsorted(chosen, start), np.searchsorted(chosen, stop)

    def aside_of(self, events: Events) -> tuple[NDArray[np.int32], Events, Events] | None:
        """Return the items of all events set aside, and for each event the start and end
        (exclusive) of the items among these that the event's user had met before; None if nothing
        is set aside.

        Where events lie in files, the items met before are the rows of earlier parts. Where the
        order means something, the items met stand before the event, by time with `strict_time` or
        where the events lie in parts. Without an order, all rows of the user count as met before.
        """
        aside = self.aside
        if aside is None:
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
        """Return the end (exclusive) of the events to be found for each event: the event itself,
        and the rest of the event's part."""
        if self.part is None:
            return events + 1
        return self.ends[self.user_of(events), self.part[events]]


def timeline_of(
    events: pa.Table,
    folder: Path | None = None,
    drop_repeats: bool = False,
    ordered: bool = True,
    strict_time: bool = False,
) -> Timeline:
    """Return the timeline of a table with the columns user, item and, where there are any, part,
    time, position, weight, context, target, aside.

    A column within tells apart rows of one time, like position, but without an order.

    Rows go to their user by counting, some at a time, then into order user by user: memory beyond
    the result is for the numbers of users and items, and for some rows.

    Args:
        events: rows in any order, without nulls; the table may be memory-mapped.
        folder: where the arrays are written, to be mapped; None keeps the arrays in memory.
        drop_repeats: True leaves out a row of the same user, item and, where there are any, time
            and position as an earlier row.
        ordered: False if the order means nothing; then a user has an item once, and further rows of
            the same user and item are left out.
        strict_time: True if events of an event's own time are not in the event's history.
    """
    user_ids, users = numbered(events["user"])
    item_ids, items = numbered(events["item"])
    counts = np.zeros(len(user_ids), np.int64)
    for part in users:
        counts += np.bincount(part, minlength=len(counts))
    offsets = np.concatenate([[0], counts.cumsum()])
    columns: dict[str, Any] = {"item": _by_user(users, offsets, items, "item", folder)}
    for name in ("part", "time", "position", "within", "weight", "context", "target", ASIDE):
        if name in events.column_names:
            values = map(_numbers, _chunks(events[name]))
            columns[name] = _by_user(users, offsets, values, name, folder)
    _order(offsets, columns)
    if drop_repeats or not ordered:
        repeats = _repeats(offsets, _columns_that_tell_apart(columns, ordered))
        if repeats.any():
            offsets = np.concatenate([[0], np.cumsum(~repeats)])[offsets]
            columns = {name: _compacted(values, ~repeats) for name, values in columns.items()}
    aside = columns.pop(ASIDE, None)
    columns.pop("position", None)
    columns.pop("within", None)
    timeline = Timeline(
        user_ids, item_ids, offsets, **columns, ordered=ordered, strict_time=strict_time
    )
    if aside is None:
        return timeline
    return timeline.without(aside)


def _columns_that_tell_apart(columns: Mapping[str, Any], ordered: bool) -> list[NDArray[Any]]:
    """Return the columns by which rows of one user differ, except for repeated rows."""
    names = ["item", ASIDE]
    if ordered:
        names += ["time", "position", "context"]
        if "time" in columns:
            names.append("within")
    return [columns[name] for name in names if name in columns]


def _first_not_below(values: NDArray[Any], low: Events, stop: Events, bound: Any) -> Events:
    """Return the first place from `low` to `stop` (exclusive) with a value that reaches a bound,
    [n]; `stop` if no value does. Values rise from `low` to `stop`."""
    # A binary search of all rows at once.
    while (low < stop).any():
        middle = (low + stop) // 2
        inside = low < stop
        below = values[np.where(inside, middle, 0)] < bound
        low = np.where(below & inside, middle + 1, low)
        stop = np.where(below | ~inside, stop, middle)
    return stop


def numbered(ids: pa.ChunkedArray) -> tuple[pa.Array, list[NDArray[np.int32]]]:
    """Return the distinct ids in rising order, and the position of each id among the distinct ids,
    some rows at a time.

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
    """Return pieces of a column of limited length: the same rows for all columns of a table, also
    if the columns' chunks differ."""
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
    """Return a column with the rows gathered user by user, in the order of the rows, [e].

    The rows are sorted by counting, piece by piece.

    Args:
        users: the user of each row, in pieces.
        parts: the values of the same rows, in the same pieces.
        name: of the column and the file.
    """
    out: NDArray[Any] | None = None
    free = offsets[:-1].copy()  # [u] next place of each user
    for user, values in zip(users, parts, strict=True):
        if out is None:
            out = _array(name, int(offsets[-1]), values.dtype, folder)
        order = np.argsort(user, kind="stable")
        user = user[order]
        first = np.flatnonzero(np.diff(user, prepend=-1))
        counts = np.diff(first, append=len(user))
        shift = np.repeat(free[user[first]] - first, counts)
        out[shift + np.arange(len(user))] = values[order]
        free[user[first]] += counts
    assert out is not None
    return out


def _array(name: str, length: int, dtype: Any, folder: Path | None) -> NDArray[Any]:
    if folder is None:
        return np.empty(length, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    return reserved(folder / f"{name}.npy", dtype, (length,))


def _order(offsets: Events, columns: dict[str, NDArray[Any]]) -> None:
    """Sort the events of each user by part, by time, then by position, in place; equal events keep
    the order of the rows."""
    names = [name for name in ("position", "time", "part") if name in columns]
    if not names:
        return
    for span, user in _runs(offsets):
        keys = [columns[name][span] for name in names]
        order = np.lexsort((*keys, user))
        if not np.array_equal(order, np.arange(len(order))):
            for values in columns.values():
                values[span] = values[span][order]


def _repeats(offsets: Events, columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Return True for each event that has the user and all values of an earlier event, [e]."""
    repeats = np.zeros(int(offsets[-1]), bool)
    for span, user in _runs(offsets):
        keys = [user, *(values[span] for values in columns)]
        order = np.lexsort(keys)
        same = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
        repeats[span][order[1:][same]] = True
    return repeats


def _compacted(values: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the chosen values, moved to the beginning of the same array, possibly a mapped
    file."""
    out = values[: int(chosen.sum())]
    out[:] = values[chosen]
    return out


def _runs(offsets: Events) -> Iterator[tuple[slice, Events]]:
    """Yield the events of consecutive users, a limited number at once unless a single user has
    more: the positions, and the user of each event."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _ROWS, side="right")) - 1
        last = max(last, first + 1)
        user = np.repeat(np.arange(first, last), np.diff(offsets[first : last + 1]))
        yield slice(int(offsets[first]), int(offsets[last])), user
        first = last
