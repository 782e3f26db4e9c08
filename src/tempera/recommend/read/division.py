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
    """Hold the part of every event, and the targets of evaluation among the events of later parts.

    The history of a target is `Timeline.histories`, which may hold events of every part; weights
    see the training part only.

    Args:
        part: TRAIN, VALIDATION or TEST of each event, [e].
        validation: targets of each protocol, in rising order, [t].
        test: targets of each protocol, in rising order, [t].
        counts: counts of users not evaluated, by reason.
        notes: cautions for a reader of the results.
        timeline: the events in another order, if the split moves them.
    """

    part: NDArray[np.uint8]
    validation: Mapping[str, Events]
    test: Mapping[str, Events]
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    timeline: Timeline | None = None

    @property
    def train(self) -> Mask:
        """True for each training event, [e]: the first events of every user."""
        mask: Mask = self.part == TRAIN
        return mask

    def extended(self, part: Part) -> Division:
        """Return a division that trains also on the events of this part and of earlier parts."""
        last = {"validation": VALIDATION, "test": TEST}[part]
        return replace(self, part=np.where(self.part <= last, TRAIN, self.part).astype(np.uint8))


Divide = Callable[[Timeline], Division]


@dataclass(frozen=True)
class GlobalTime:
    """Train on events before a time and evaluate on later ones, so training sees nothing of the
    future.

    The cut is the event time at rank e (1 - test_share), and an event at the cut counts as after
    the cut. Two protocols:

        next       the first event after the cut, of each user with `least` events before the cut
        rolling    the first `rolling` events after the cut that have a history, of every user; the history of each is
                   all events before it, also those after the cut

    Validation is the same, between a cut at rank e (1 - test_share - validation_share) and the cut
    of the test.

    Args:
        test_share: share of the events in the test part.
        validation_share: share of the events in the validation part; 0 is none.
        least: events before the cut needed for `next`.
        rolling: most events of a user in `rolling`.

    Raises:
        ConfigError: a timeline with an order only, or shares that leave nothing.
        DataError: times of which no cut gives these shares.

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
        held_out = self.test_share + self.validation_share
        validation_rank = len(time) - round(len(time) * held_out)
        test_rank = len(time) - round(len(time) * self.test_share)
        if test_rank == len(time):
            raise DataError(
                f"test_share {self.test_share:g} of {len(time):,} events is less than 1: give a larger share"
            )
        ranks = [validation_rank, test_rank]
        validation_time, test_time = np.partition(time, ranks)[ranks]
        part = (time >= validation_time).astype(np.uint8) + (time >= test_time)
        trains = (part == TRAIN).any()
        if self.validation_share and validation_rank == test_rank and trains:
            raise DataError(
                f"validation_share {self.validation_share:g} of {len(time):,} events leaves none: give a larger share, or 0"
            )
        if not trains or (self.validation_share and validation_time == test_time):
            raise DataError(
                f"{len(time):,} events cannot be cut by time: too many of them happen at {test_time}: "
                "give other shares, or set data.split=leave_last_out"
            )
        begin = timeline.offsets[:-1]
        end = timeline.offsets[1:]
        validation_begin = _boundary(part, timeline.offsets, VALIDATION)
        test_begin = _boundary(part, timeline.offsets, TEST)
        validation = {}
        if self.validation_share:
            validation = self.targets(timeline, validation_begin, test_begin)
        test = self.targets(timeline, test_begin, end)
        untrained = int((validation_begin == begin).sum())
        return Division(part, validation, test, {"users without an event to train on": untrained})

    def targets(self, timeline: Timeline, start: Events, stop: Events) -> dict[str, Events]:
        """Return the targets of both protocols between two positions of each user, [u]."""
        begin = timeline.offsets[:-1]
        # An event without a history is not asked.
        first = np.maximum(start, begin + _events_without_history(timeline))
        judged = timeline.judged
        low = np.searchsorted(judged, first)
        high = np.searchsorted(judged, stop)
        eligible = (start - begin >= self.least) & (low < high)
        lengths = np.clip(high - low, 0, self.rolling)
        return {"next": judged[low[eligible]], "rolling": judged[spread(low, lengths)]}


@dataclass(frozen=True)
class LeaveLastOut:
    """Test on the last event of each user that may be evaluated, validate on the last but one,
    train on all events before.

    Published sequential recommenders do the same. Users without two events to evaluate and an event
    before them train only. Where users overlap in time, training sees the future of the targets.

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
        has_two = np.diff(ends) >= 2  # [u]
        end = ends[1:][has_two]
        before = judged[end - 2]
        enough = timeline.has_history(before)
        before = before[enough]
        last = judged[end - 1][enough]
        stop = timeline.offsets[1:][has_two][enough]
        limits = []
        if timeline.strict_time:
            limits.append("data.strict_time")
        if timeline.target is not None:
            limits.append("data.targets")
        if not len(last):
            which = ""
            if limits:
                which = (
                    f", two of them to ask and with a history before them by {' and '.join(limits)}"
                )
            raise DataError(
                f"leave_last_out needs users with at least 3 events{which}, but there are none: give more data"
            )
        # The part rises by 1 at either target, and falls back to 0 at the end of the user.
        rises = np.zeros(len(timeline) + 1, np.int8)
        np.add.at(rises, before, 1)
        np.add.at(rises, last, 1)
        np.add.at(rises, stop, -2)
        part = rises[:-1].cumsum(dtype=np.int8).astype(np.uint8)
        reason = "users of fewer than 3 events"
        if limits:
            reason = "users without two events to ask that have a history before them"
        counts = {reason: len(timeline.user_ids) - len(last)}
        notes = self._notes(timeline, before, last)
        return Division(part, {"last": before}, {"last": last}, counts, notes)

    def _notes(self, timeline: Timeline, before: Events, last: Events) -> tuple[str, ...]:
        """Return cautions about a look ahead, and about the order of rows without times.

        Args:
            before: the validation target of each user who is asked.
            last: the test target of the same users.
        """
        look_ahead = (
            "leave_last_out trains on what other users did after the moment that is asked about: figures are higher "
            "than a user of the model will see; global_time does not look ahead"
        )
        if timeline.time is not None or getattr(timeline.source, "position", None) is not None:
            return (look_ahead,)
        order = (
            "the interactions have no column of times, so that the order of their rows is taken for the order in which "
            "they happened; if it is another, name the column with data.time=COLUMN or data.position=COLUMN"
        )
        again = np.count_nonzero(timeline.item[last] == timeline.item[before])
        if again <= len(last) / 4:
            return (look_ahead, order)
        twice = (
            f"{again:,} of {len(last):,} users have the same item twice at their end: if events are written twice, "
            "remove the repetitions, since they make the test easy"
        )
        return (look_ahead, order, twice)


@dataclass(frozen=True)
class NamedFiles:
    """Train on the interactions of data.path, and evaluate on those of data.validation and
    data.test.

    The protocol `users` asks for each user once: all of the user's test items are to be found, and
    the items of the earlier files are left out of the ranking. Users without an interaction in an
    earlier file are not asked.

    Args:
        validation_share: without data.validation, the share of the training events that are
            validation: drawn by chance, or the last event of each user where there is an order; 0
            is none. Every user keeps at least one event to train on.
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
        repeats = timeline.dropped.get(REPEATED)
        if repeats and not (timeline.part == TEST).any():
            raise DataError(
                f"data.test has no interaction of its own: a repeated one counts once, in the first file that holds it "
                f"({quantity(repeats, REPEATED)} left out); give a test that data.path and data.validation do not hold"
            )
        if not self.validation_share or (timeline.part == VALIDATION).any():
            return _by_part(timeline)
        part = self._with_validation(timeline)
        note = (
            f"validation is {np.count_nonzero(part == VALIDATION):,} of the training interactions, as data.validation names no "
            "file; the model that is evaluated learns them, too, if train.refit is validation, all or auto"
        )
        return replace(_by_part(timeline.arranged(part)), notes=(note,))

    def _with_validation(self, timeline: Timeline) -> NDArray[np.uint8]:
        """Return the parts of all events, with some training events as validation, [e]."""
        assert timeline.part is not None
        part = timeline.part.copy()
        if timeline.ordered:
            last = timeline.ends[:, 0] - 1
            part[last[last > timeline.offsets[:-1]]] = VALIDATION
            return part
        draw = np.random.default_rng(self.seed).random(len(part))
        draw = np.where(part == TRAIN, draw, -1)
        # The training event of the highest draw stays with its user.
        highest = np.maximum.reduceat(draw, timeline.offsets[:-1])
        is_drawn = (draw >= 0) & (draw < self.validation_share)
        is_drawn &= draw < np.repeat(highest, timeline.lengths)
        part[is_drawn] = VALIDATION
        return part


@dataclass(frozen=True)
class AtRandom:
    """Draw the validation and the test events by chance, one by one; every user keeps at least one
    event to train on.

    The protocol is that of `NamedFiles`: all test items of a user are to be found at once.

    Args:
        test_share: chance that an event is in the test part.
        validation_share: chance that an event is in the validation part.
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
        part = np.full(len(timeline), TRAIN, np.uint8)
        part[draw < self.test_share + self.validation_share] = VALIDATION
        part[draw < self.test_share] = TEST
        # The event of the highest draw trains, so that no user is without training events.
        highest = np.maximum.reduceat(draw, timeline.offsets[:-1])
        part[draw == np.repeat(highest, timeline.lengths)] = TRAIN
        return _by_part(timeline.arranged(part))


@dataclass(frozen=True)
class Undivided:
    """Train on all events; nothing is evaluated."""

    def __call__(self, timeline: Timeline) -> Division:
        """Return all events as training events."""
        part = np.zeros(len(timeline), np.uint8)
        note = "data.split is none: all interactions are trained on, and nothing is evaluated"
        division = Division(part, validation={}, test={}, notes=(note,))
        if timeline.ordered:
            return division
        return replace(division, timeline=timeline.arranged(part))


@dataclass(frozen=True)
class Fitting:
    """Choose the division by the data: files where data.test names a file, random where there is no
    order, else by time or by order."""

    def __call__(self, timeline: Timeline) -> Division:
        """Divide by the division that suits the timeline."""
        return self.choice(timeline)(timeline)

    def choice(self, timeline: Timeline) -> Divide:
        """Return the division that suits a timeline."""
        if timeline.part is not None:
            return NamedFiles()
        if not timeline.ordered:
            return AtRandom()
        if timeline.time is None:
            return LeaveLastOut()
        return GlobalTime()


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
    # One event stands for all of a user's part: the first.
    begins = np.diff(user * 3 + part, prepend=-1) > 0
    begins &= timeline.has_history(np.arange(len(part)))
    validation = {"users": np.flatnonzero(begins & (part == VALIDATION))}
    if not len(validation["users"]):
        validation = {}
    test = {"users": np.flatnonzero(begins & (part == TEST))}
    untrained = len(timeline.user_ids) - len(np.unique(user[part == TRAIN]))
    counts = {"users without an event to train on": untrained}
    return Division(part, validation, test, counts, timeline=timeline)


def _refuse_shares(test: float, validation: float) -> None:
    if test + validation >= 1:
        raise ConfigError(
            f"test_share {test:g} and validation_share {validation:g} leave nothing to train on: give shares of less than 1 "
            "together"
        )


def _events_without_history(timeline: Timeline) -> Events | int:
    """Return the number of events of each user that have no history, [u]."""
    if not timeline.strict_time or timeline.time is None:
        return 1
    begin = timeline.offsets[:-1]
    same = timeline.time == np.repeat(timeline.time[begin], timeline.lengths)
    counts: Events = np.add.reduceat(same, begin, dtype=np.int64)
    return counts


def _boundary(part: NDArray[np.uint8], offsets: Events, least: int) -> Events:
    """Return the position at which each user's events of at least this part begin, [u]."""
    begin = offsets[:-1]
    boundary: Events = begin + np.add.reduceat(part < least, begin, dtype=np.int64)
    return boundary
