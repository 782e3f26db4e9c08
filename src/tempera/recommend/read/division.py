"""Divisions of a timeline into training and evaluation events: by time, by last events, by files,
or by chance.

Letters in shapes: e events, u users, t targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import ConfigError, DataError, quantity
from ...io.flat import spread
from ...task.evaluation import Part
from .timeline import REPEATED, Events, Timeline

TRAIN, VALIDATION, TEST = 0, 1, 2
Mask = NDArray[np.bool_]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Division:
    """Hold the part of every event, and the targets of evaluation, which are among the later parts'
    events.

    A target's history is what `Timeline.histories` says, of whatever part: weights see the training
    part only.
    """

    part: NDArray[np.uint8]  # [e] TRAIN, VALIDATION or TEST
    validation: Mapping[str, Events]  # targets of each protocol, in rising order, [t]
    test: Mapping[str, Events]
    counts: Mapping[str, int] = field(default_factory=dict)  # what is not asked, by reason
    notes: tuple[str, ...] = ()  # what a reader of the results should know
    timeline: Timeline | None = None  # with the events in another order, where the split moves them

    @property
    def train(self) -> Mask:
        """Training events, [e]: the first events of every user."""
        mask: Mask = self.part == TRAIN
        return mask

    def extended(self, part: Part) -> Division:
        """Return a division that trains also on the events of this part and before it."""
        last = {"validation": VALIDATION, "test": TEST}[part]
        return replace(self, part=np.where(self.part <= last, TRAIN, self.part).astype(np.uint8))


Divide = Callable[[Timeline], Division]


@dataclass(frozen=True)
class GlobalTime:
    """Train on events before a time and evaluate on later ones, so that training sees nothing of
    the future.

    The cut is the event time at rank e (1 - test_share), and what happens at the cut stands after
    it. Two protocols:

        next       the first event after the cut, of each user with `least` events before it
        rolling    the first `rolling` events after the cut that have a history, of every user, each asked with all
                   that stands before it, also what came after the cut

    Validation is the same, between a cut at rank e (1 - test_share - validation_share) and the
    test's.

    Args:
        test_share: share of the events in the test part.
        validation_share: share in the validation part; 0 is none.
        least: events before the cut that `next` needs.
        rolling: events of a user that `rolling` asks at most.

    Raises:
        ConfigError: a timeline with an order only, or shares that leave nothing.
        DataError: times that cannot be cut so.

    >>> timeline = Timeline.of([1, 1, 1, 2, 2], ["x", "y", "z", "x", "y"], time=[1, 2, 9, 3, 8])
    >>> division = GlobalTime(test_share=0.4, validation_share=0, least=2)(timeline)
    >>> division.part.tolist(), division.test["next"].tolist(), division.test["rolling"].tolist()
    ([0, 0, 2, 0, 2], [2], [2, 4])
    """

    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    validation_share: Share = 0.1
    least: Annotated[int, Field(ge=1)] = 5
    rolling: Annotated[int, Field(ge=1)] = 20

    def __post_init__(self) -> None:
        _refuse_shares(self.test_share, self.validation_share)

    def __call__(self, timeline: Timeline) -> Division:
        """Divide at two times."""
        time = timeline.time
        if not timeline.ordered:
            raise ConfigError(
                "global_time divides by times, of which data.ordered=false says that they mean nothing: leave one of them out"
            )
        if time is None:
            raise ConfigError(
                "global_time needs times, but the interactions have only an order: name a column of times with "
                "data.time=COLUMN, or set data.split=leave_last_out"
            )
        ranks = [
            len(time) - round(len(time) * share)
            for share in (self.test_share + self.validation_share, self.test_share)
        ]
        if ranks[1] == len(time):
            raise DataError(
                f"test_share {self.test_share:g} of {len(time):,} events is less than 1: give a larger share"
            )
        validation, test = np.partition(time, ranks)[ranks]
        part = ((time >= validation).astype(np.uint8)) + (time >= test)
        if self.validation_share and ranks[0] == ranks[1] and (part == TRAIN).any():
            raise DataError(
                f"validation_share {self.validation_share:g} of {len(time):,} events leaves none: give a larger share, or 0"
            )
        if not (part == TRAIN).any() or (self.validation_share and validation == test):
            raise DataError(
                f"{len(time):,} events cannot be cut by time: too many of them happen at {test}: "
                "give other shares, or set data.split=leave_last_out"
            )
        first, second = (_boundary(part, timeline.offsets, least) for least in (VALIDATION, TEST))
        return Division(
            part,
            self.targets(timeline, first, second) if self.validation_share else {},
            self.targets(timeline, second, timeline.offsets[1:]),
            {"users without an event to train on": int((first == timeline.offsets[:-1]).sum())},
        )

    def targets(self, timeline: Timeline, start: Events, stop: Events) -> dict[str, Events]:
        """Return both protocols' targets between two positions of each user, [u]."""
        begin = timeline.offsets[:-1]
        first = np.maximum(
            start, begin + _first(timeline)
        )  # an event that has no history is not asked
        judged = timeline.judged
        low, high = np.searchsorted(judged, first), np.searchsorted(judged, stop)
        eligible = (start - begin >= self.least) & (low < high)
        lengths = np.clip(high - low, 0, self.rolling)
        return {"next": judged[low[eligible]], "rolling": judged[spread(low, lengths)]}


@dataclass(frozen=True)
class LeaveLastOut:
    """Test on the last event of each user that may be evaluated, validate on the one before it,
    train on those before.

    As the published sequential recommenders do; users without two such events and one before them
    train only. Where users overlap in time, training sees the future of what is asked.

    >>> division = LeaveLastOut()(Timeline.of([1, 1, 1, 2, 2], ["x", "y", "z", "x", "y"]))
    >>> division.part.tolist(), division.validation["last"].tolist(), division.test["last"].tolist()
    ([0, 1, 2, 0, 0], [1], [2])
    """

    def __call__(self, timeline: Timeline) -> Division:
        """Divide each user's events."""
        if not timeline.ordered:
            raise ConfigError(
                "leave_last_out needs an order, and data.ordered is false: set data.split=random"
            )
        judged = timeline.judged
        ends = np.searchsorted(judged, timeline.offsets)
        two = np.diff(ends) >= 2
        before = judged[ends[1:][two] - 2]
        enough = timeline.has_history(before)
        before, last, stop = (
            before[enough],
            judged[ends[1:][two] - 1][enough],
            timeline.offsets[1:][two][enough],
        )
        options = {
            "data.strict_time": timeline.strict_time,
            "data.targets": timeline.target is not None,
        }
        limits = " and ".join(option for option, limited in options.items() if limited)
        if not len(last):
            which = (
                f", two of them to ask and with a history before them by {limits}" if limits else ""
            )
            raise DataError(
                f"leave_last_out needs users with at least 3 events{which}, but there are none: give more data"
            )
        rises = np.zeros(len(timeline) + 1, np.int8)
        for events, by in ((before, 1), (last, 1), (stop, -2)):
            np.add.at(rises, events, by)
        part = rises[:-1].cumsum(dtype=np.int8).astype(np.uint8)
        few = len(timeline.user_ids) - len(last)
        note = (
            "leave_last_out trains on what other users did after the moment that is asked about: figures are higher "
            "than a user of the model will see; global_time does not look ahead"
        )
        notes = [note]
        if timeline.time is None and getattr(timeline.source, "position", None) is None:
            notes.append(
                "the interactions have no column of times, so that the order of their rows is taken for the order in which "
                "they happened; if it is another, name the column with data.time=COLUMN or data.position=COLUMN"
            )
            again = np.count_nonzero(timeline.item[last] == timeline.item[before])
            if again > len(last) / 4:
                notes.append(
                    f"{again:,} of {len(last):,} users have the same item twice at their end: if events are written twice, "
                    "remove the repetitions, since they make the test easy"
                )
        reason = (
            "without two events to ask that have a history before them"
            if limits
            else "of fewer than 3 events"
        )
        return Division(
            part, {"last": before}, {"last": last}, {f"users {reason}": few}, tuple(notes)
        )


@dataclass(frozen=True)
class NamedFiles:
    """Train on the interactions of data.path, and evaluate on those of data.validation and
    data.test.

    The protocol `user` asks for each user once: all of the user's test items are to be found, those
    of the earlier files left out. Users without an interaction in an earlier file are not asked.

    Args:
        validation_share: without data.validation, the share of the training events that are
            validation: drawn by chance, or the last of each user where there is an order; 0 is
            none. Every user keeps at least one to train on.
        seed: of the draw.
    """

    validation_share: Share = 0.1
    seed: Annotated[int, Field(ge=0)] = 0

    def __call__(self, timeline: Timeline) -> Division:
        """Divide by the file of each event."""
        if timeline.part is None:
            raise ConfigError(
                "data.split is files: name the file of test interactions with data.test=FILE"
            )
        if (repeats := timeline.dropped.get(REPEATED)) and not (timeline.part == TEST).any():
            raise DataError(
                f"data.test has no interaction of its own: a repeated one counts once, in the first file that holds it "
                f"({quantity(repeats, REPEATED)} left out); give a test that data.path and data.validation do not hold"
            )
        if not self.validation_share or (timeline.part == VALIDATION).any():
            return _by_part(timeline)
        part = self._drawn(timeline)
        note = (
            f"validation is {np.count_nonzero(part == VALIDATION):,} of the training interactions, as data.validation names no "
            "file; the model that is evaluated learns them, too, if train.refit is validation, all or auto"
        )
        return replace(_by_part(timeline.arranged(part)), notes=(note,))

    def _drawn(self, timeline: Timeline) -> NDArray[np.uint8]:
        """Return the parts of all events, with some training events as validation, [e]."""
        assert timeline.part is not None
        part = timeline.part.copy()
        if timeline.ordered:
            last = timeline.ends[:, 0] - 1
            part[last[last > timeline.offsets[:-1]]] = VALIDATION
            return part
        draw = np.where(part == TRAIN, np.random.default_rng(self.seed).random(len(part)), -1)
        most = np.maximum.reduceat(draw, timeline.offsets[:-1])
        part[
            (draw >= 0)
            & (draw < self.validation_share)
            & (draw < np.repeat(most, timeline.lengths))
        ] = VALIDATION
        return part


@dataclass(frozen=True)
class AtRandom:
    """Draw the validation and the test events by chance, one by one; every user keeps at least one
    to train on.

    The protocol is that of `NamedFiles`: all test items of a user are to be found at once.

    Args:
        test_share: chance that an event is in the test part.
        validation_share: chance that it is in the validation part.
        seed: of the draw.

    >>> timeline = Timeline.of([1, 1, 1, 1, 2], list("abcda"))
    >>> division = AtRandom(test_share=0.5, validation_share=0)(timeline)
    >>> division.part.tolist(), division.test["users"].tolist()
    ([0, 2, 2, 2, 0], [1])
    """

    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    validation_share: Share = 0.1
    seed: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        _refuse_shares(self.test_share, self.validation_share)

    def __call__(self, timeline: Timeline) -> Division:
        """Divide by chance."""
        draw = np.random.default_rng(self.seed).random(len(timeline))
        part = (draw < self.test_share + self.validation_share).astype(np.uint8) + (
            draw < self.test_share
        )
        most = np.maximum.reduceat(draw, timeline.offsets[:-1])
        part[draw == np.repeat(most, timeline.lengths)] = TRAIN
        return _by_part(timeline.arranged(part.astype(np.uint8)))


@dataclass(frozen=True)
class Undivided:
    """Train on all events; nothing is evaluated."""

    def __call__(self, timeline: Timeline) -> Division:
        """Return all events as training events."""
        part = np.zeros(len(timeline), np.uint8)
        note = "data.split is none: all interactions are trained on, and nothing is evaluated"
        return Division(
            part,
            {},
            {},
            notes=(note,),
            timeline=None if timeline.ordered else timeline.arranged(part),
        )


@dataclass(frozen=True)
class Fitting:
    """Choose by the data: files where data.test names one, random where there is no order, else by
    time or by order."""

    def __call__(self, timeline: Timeline) -> Division:
        """Divide as the choice does."""
        return self.choice(timeline)(timeline)

    def choice(self, timeline: Timeline) -> Divide:
        """Return the division that suits a timeline."""
        if timeline.part is not None:
            return NamedFiles()
        if not timeline.ordered:
            return AtRandom()
        return LeaveLastOut() if timeline.time is None else GlobalTime()


def _by_part(timeline: Timeline) -> Division:
    """Return the division of a timeline with parts, whose queries are users."""
    part = timeline.part
    assert part is not None
    if timeline.strict_time and not timeline.rises:
        raise ConfigError(
            "data.strict_time=true needs times that rise from the training part to the test part, which those of this data.split "
            "(random or files) do not: leave out data.strict_time, or set data.split=global_time"
        )
    user = timeline.user_of(np.arange(len(part)))
    fresh = np.diff(user * 3 + part, prepend=-1) > 0
    fresh &= timeline.has_history(np.arange(len(part)))
    validation, test = (np.flatnonzero(fresh & (part == each)) for each in (VALIDATION, TEST))
    untrained = len(timeline.user_ids) - len(np.unique(user[part == TRAIN]))
    counts = {"users without an event to train on": untrained}
    return Division(
        part,
        {"users": validation} if len(validation) else {},
        {"users": test},
        counts,
        timeline=timeline,
    )


def _refuse_shares(test: float, validation: float) -> None:
    if test + validation >= 1:
        raise ConfigError(
            f"test_share {test:g} and validation_share {validation:g} leave nothing to train on: give shares of less than 1 "
            "together"
        )


def _first(timeline: Timeline) -> Events | int:
    """Return the number of events of each user that have no history, [u]."""
    if not timeline.strict_time or timeline.time is None:
        return 1
    begin = timeline.offsets[:-1]
    same = timeline.time == np.repeat(timeline.time[begin], timeline.lengths)
    first: Events = np.add.reduceat(same, begin, dtype=np.int64)
    return first


def _boundary(part: NDArray[np.uint8], offsets: Events, least: int) -> Events:
    """Return the position at which each user's events of at least this part begin, [u]."""
    boundary: Events = offsets[:-1] + np.add.reduceat(part < least, offsets[:-1], dtype=np.int64)
    return boundary
