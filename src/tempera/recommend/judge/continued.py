"""Interactions of another file, put after the histories that a run has stored, and the events to
ask.

Letters in shapes: u users of the file, e events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError
from ..read.aside import Aside
from ..read.division import TEST, TRAIN, Divide, GlobalTime, NamedFiles
from ..read.timeline import Events, Timeline
from .past_events import PastEvents

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Continued:
    """Hold the users of a file, with their stored events and the remaining events of the file, and
    the events to ask."""

    timeline: Timeline  # codes of its items are those of the run
    test: Mapping[str, Events]  # by protocol
    left_out: Mapping[str, int]  # events of the file that are left out, by reason
    later: int  # events of the file that remain
    again: int  # remaining events with an item that the stored history of their user holds

    @classmethod
    def of(
        cls,
        later: Timeline,
        items: pa.ChunkedArray,
        stored: PastEvents,
        latest: Times | None,
        split: Divide,
    ) -> Continued:
        """Put the events of a file after stored ones.

        Events with an item that the run does not have, and events not later than the user's latest
        stored event, are left out and counted. Data with an order are asked as `GlobalTime` asks
        events after its cut, data without as `NamedFiles` asks.

        Args:
            later: the events of the file, with ids in the form of `items`; contexts are numbered
                like the stored contexts.
            items: ids of the run's items, as texts.
            stored: the past events of each user of the file, u rows.
            latest: the time of each user's latest stored event, [u], nan without stored events;
                None without times.
            split: the division of the run; a division by time gives its settings.

        Raises:
            DataError: no events remain to ask.

        >>> from tempera.recommend.judge.full_catalogue import Histories
        >>> later = Timeline.of(["new", "new", "old"], ["a", "b", "b"])
        >>> stored = PastEvents(Histories(np.array([0, 1]), np.array([0, 0]), np.array([0, 2])))
        >>> both = Continued.of(later, pa.chunked_array([["a", "b", "c"]]), stored, None, GlobalTime(least=2))
        >>> both.timeline.item.tolist(), {name: events.tolist() for name, events in both.test.items()}
        ([0, 1, 0, 1, 1], {'next': [4], 'rolling': [1, 4]})
        """
        user = later.user_of(np.arange(len(later)))
        ids = later.item_ids.cast(pa.large_string())
        code = pc.index_in(ids, value_set=items).fill_null(-1).to_numpy()  # -1: not in the run
        coded = replace(
            later,
            item=code[later.item].astype(np.int64),
            time=None if later.time is None else later.time.astype(np.float64),
            item_ids=items.combine_chunks(),
            aside=later.aside and replace(later.aside, item=code[later.aside.item]),
        )
        kept = coded.item >= 0
        left_out: dict[str, int] = {}
        missing = int((code < 0).sum())
        if missing:
            reason = f"interactions with {missing:,} items that the run does not have"
            left_out[reason] = int((~kept).sum())
        if coded.time is not None and latest is not None:
            stale = coded.time <= latest[user]
            if stale.any():
                reason = "interactions not later than what the run knows of their user"
                left_out[reason] = int(stale.sum())
            kept &= ~stale
        timeline, part = _together(coded, user, stored, latest, kept)
        repeats = timeline.repeats & (part == TEST)
        again = int(repeats.sum())
        remaining = int((part == TEST).sum())
        if not timeline.ordered:
            timeline, part = timeline.kept(~repeats), part[~repeats]
            timeline = replace(timeline, part=part)
        test: dict[str, Events] = {}
        if remaining:
            protocols = _protocols(timeline, part, split)
            test = {name: events for name, events in protocols.items() if len(events)}
        if not test:
            _refuse_nothing(later, left_out)
        return cls(timeline, test, left_out, remaining, again)


def _refuse_nothing(later: Timeline, left_out: Mapping[str, int]) -> NoReturn:
    """Raise DataError for a file of which no event remains to ask."""
    reasons = "".join(f"; {count:,} {reason}" for reason, count in left_out.items())
    which = "" if later.target is None else " of a behaviour that is evaluated"
    raise DataError(
        f"nothing can be asked of the {len(later):,} interactions: no event{which} is left that has a history before it"
        f"{reasons}"
    )


def _together(
    later: Timeline, user: Events, stored: PastEvents, latest: Times | None, kept: NDArray[np.bool_]
) -> tuple[Timeline, NDArray[np.uint8]]:
    """Return the stored events of each user with a kept event of the file, followed by the kept
    events, and the part of each event."""
    owner, past = stored.items.pairs()
    order = np.argsort(np.concatenate([owner, user]), kind="stable")

    def joined(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        """Return a column of the stored events and of the file, user by user."""
        return np.concatenate([first, second])[order]

    time: NDArray[Any] | None = None
    if later.time is not None:
        before = np.full(len(stored), -np.inf) if latest is None else latest
        time = joined(before[owner], later.time)
    context: NDArray[Any] | None = None
    if later.context is not None and stored.contexts is not None:
        context = joined(stored.contexts.pairs()[1], later.context).astype(np.int32)
    target: NDArray[Any] | None = None
    if later.target is not None:
        use = np.full(len(past), 2) if stored.targets is None else stored.targets.pairs()[1]
        target = joined(use, later.target).astype(np.uint8)
    both = replace(
        later,
        offsets=later.offsets + np.concatenate([[0], stored.items.lengths.cumsum()]),
        item=joined(past, later.item).astype(np.int32),
        time=time,
        context=context,
        target=target,
        weight=None,
        aside=None,
    )
    both = replace(both, aside=_aside_together(later, stored, both))
    part = joined(np.full(len(past), TRAIN, np.uint8), np.full(len(user), TEST, np.uint8))
    chosen = joined(np.isin(owner, user[kept]), kept)
    return both.kept(chosen), part[chosen]


def _aside_together(later: Timeline, stored: PastEvents, both: Timeline) -> Aside | None:
    """Return the items of the run that each user had set aside before the file, and in the file,
    beside the timeline of both."""
    if later.aside is None and stored.aside is None:
        return None
    nothing: NDArray[Any] = np.empty(0, np.int64)
    owner, old = nothing, nothing
    if stored.aside is not None:
        owner, old = stored.aside.pairs()
    fresh, user, place = nothing, nothing, nothing
    if later.aside is not None:
        known = later.aside.item >= 0
        user = np.repeat(np.arange(len(later.user_ids)), np.diff(later.aside.offsets))[known]
        fresh = later.aside.item[known]
        place = later.aside.place[known] + (both.offsets[1:] - later.offsets[1:])[user]
    order = np.argsort(np.concatenate([owner, user]), kind="stable")
    time = None
    if both.time is not None:
        before = np.full(len(old), -np.inf)
        if stored.aside_times is not None:
            before = stored.aside_times.values.astype(np.float64)
        after = np.empty(0)
        if later.aside is not None and later.aside.time is not None:
            after = later.aside.time[known].astype(np.float64)
        time = np.concatenate([before, after])[order]
    lengths = np.bincount(np.concatenate([owner, user]), minlength=len(later.user_ids))
    return Aside(
        np.concatenate([old, fresh])[order].astype(np.int32),
        np.concatenate([[0], lengths.cumsum()]),
        np.concatenate([both.offsets[owner], place])[order],
        np.zeros(len(order), bool),
        time,
    )


def _protocols(timeline: Timeline, part: NDArray[np.uint8], split: Divide) -> Mapping[str, Events]:
    """Return the events to ask, by protocol."""
    if not timeline.ordered:
        return NamedFiles(validation_share=0)(timeline).test
    begin = timeline.offsets[:-1]
    start = begin + np.add.reduceat(part == TRAIN, begin, dtype=np.int64)
    protocol = split if isinstance(split, GlobalTime) else GlobalTime()
    return protocol.targets(timeline, start, timeline.offsets[1:])
