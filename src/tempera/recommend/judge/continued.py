"""Interactions of another file, put after the histories that a run has stored, and the events of
them that are asked.

Letters in shapes: u users of the file, e events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
    """Hold the users of a file, with their stored events and those of the file that are left, and
    the events to ask."""

    timeline: Timeline  # codes of its items are those of the run
    test: Mapping[str, Events]  # by protocol
    left_out: Mapping[str, int]  # events of the file, by reason
    later: int  # events of the file that are left
    again: int  # of them, with an item that the stored history of their user holds

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

        Events with an item that the run does not have, and those not later than what the run knows
        of their user, are left out and counted. Data with an order are asked as `GlobalTime` asks
        events after its cut, others as `NamedFiles` does.

        Args:
            later: the events of the file, with ids as `items` has them; their contexts, if there
                are any, are numbered like the stored ones.
            items: ids of the run's items, as texts.
            stored: what each user of the file has done before, u rows.
            latest: the time of each user's latest stored event, [u], nan where there is none; None
                without times.
            split: the division of the run, whose settings are used if it is by time.

        Raises:
            DataError: nothing is left to ask.

        >>> from tempera.recommend.judge.full_catalogue import Histories
        >>> later = Timeline.of(["new", "new", "old"], ["a", "b", "b"])
        >>> stored = PastEvents(Histories(np.array([0, 1]), np.array([0, 0]), np.array([0, 2])))
        >>> both = Continued.of(later, pa.chunked_array([["a", "b", "c"]]), stored, None, GlobalTime(least=2))
        >>> both.timeline.item.tolist(), {name: events.tolist() for name, events in both.test.items()}
        ([0, 1, 0, 1, 1], {'next': [4], 'rolling': [1, 4]})
        """
        user = later.user_of(np.arange(len(later)))
        at = (
            pc.index_in(later.item_ids.cast(pa.large_string()), value_set=items)
            .fill_null(-1)
            .to_numpy()
        )
        item, left_out = at[later.item].astype(np.int64), dict[str, int]()
        known, fresh = item >= 0, np.ones(len(later), bool)
        if missing := int((at < 0).sum()):
            what = f"interactions with {missing:,} items that the run does not have"
            left_out[what] = int((~known).sum())
        time = None if later.time is None else later.time.astype(np.float64)
        if time is not None and latest is not None:
            fresh = ~(time <= latest[user])
            if not fresh.all():
                left_out["interactions not later than what the run knows of their user"] = int(
                    (~fresh).sum()
                )
        aside = later.aside and replace(later.aside, item=at[later.aside.item])
        coded = replace(later, item=item, time=time, item_ids=items.combine_chunks(), aside=aside)
        timeline, part = _together(coded, user, stored, latest, known & fresh)
        repeats = timeline.repeats & (part == TEST)
        again, left = int(repeats.sum()), int((part == TEST).sum())
        if not timeline.ordered:
            timeline, part = timeline.kept(~repeats), part[~repeats]
            timeline = replace(timeline, part=part)
        protocols = _protocols(timeline, part, split) if left else {}
        test = {name: events for name, events in protocols.items() if len(events)}
        if not test:
            reasons = "".join(f"; {count:,} {reason}" for reason, count in left_out.items())
            which = "" if later.target is None else " of a behaviour that is evaluated"
            raise DataError(
                f"nothing can be asked of the {len(later):,} interactions: no event{which} is left that has a history before it"
                f"{reasons}"
            )
        return cls(timeline, test, left_out, left, again)


def _together(
    later: Timeline, user: Events, stored: PastEvents, latest: Times | None, left: NDArray[np.bool_]
) -> tuple[Timeline, NDArray[np.uint8]]:
    """Return the stored events of each user of whom an event of the file is left, followed by
    these, and the part of each."""
    owner, past = stored.items.pairs()
    order = np.argsort(np.concatenate([owner, user]), kind="stable")
    part = np.repeat(np.array([TRAIN, TEST], np.uint8), [len(past), len(user)])[order]
    columns: dict[str, Any] = {"item": np.concatenate([past, later.item])[order].astype(np.int32)}
    if later.time is not None:
        before = np.full(len(stored), -np.inf) if latest is None else latest
        columns["time"] = np.concatenate([before[owner], later.time])[order]
    if later.context is not None and stored.contexts is not None:
        columns["context"] = np.concatenate([stored.contexts.pairs()[1], later.context])[
            order
        ].astype(np.int32)
    if later.target is not None:
        use = np.full(len(past), 2) if stored.targets is None else stored.targets.pairs()[1]
        columns["target"] = np.concatenate([use, later.target])[order].astype(np.uint8)
    absent: dict[str, Any] = dict.fromkeys(("time", "weight", "context", "target", "aside"))
    offsets = later.offsets + np.concatenate([[0], stored.items.lengths.cumsum()])
    both = replace(later, offsets=offsets, **{**absent, **columns})
    both = replace(both, aside=_aside_together(later, stored, both))
    kept = np.concatenate([np.isin(owner, user[left]), left])[order]
    return both.kept(kept), part[kept]


def _aside_together(later: Timeline, stored: PastEvents, both: Timeline) -> Aside | None:
    """Return what each user had set aside before the file, and in it, beside the timeline of both;
    of items that the run has."""
    if later.aside is None and stored.aside is None:
        return None
    nothing: NDArray[Any] = np.empty(0, np.int64)
    owner, old = (nothing, nothing) if stored.aside is None else stored.aside.pairs()
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
    start = timeline.offsets[:-1] + np.add.reduceat(
        part == TRAIN, timeline.offsets[:-1], dtype=np.int64
    )
    protocol = split if isinstance(split, GlobalTime) else GlobalTime()
    return protocol.targets(timeline, start, timeline.offsets[1:])
