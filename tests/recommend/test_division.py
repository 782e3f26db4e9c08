"""Divisions against their definitions, event by event."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tempera.errors import ConfigError, DataError
from tempera.recommend.read.division import (
    TEST,
    TRAIN,
    VALIDATION,
    Division,
    GlobalTime,
    LeaveLastOut,
)
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.read.timeline import Timeline, timeline_of


def generated(seed: int, events: int = 400, users: int = 30, times: int = 90) -> Timeline:
    draw = random.Random(seed)
    rows = [
        (draw.randrange(users) ** 2 // users, draw.randrange(9), draw.randrange(times))
        for _ in range(events)
    ]
    return Timeline.of(*map(list, zip(*rows)))


def users_of(timeline: Timeline) -> list[range]:
    return [range(a, b) for a, b in zip(timeline.offsets, timeline.offsets[1:])]


def protocols(
    timeline: Timeline, low: float, high: float, least: int, rolling: int
) -> dict[str, list[int]]:
    """Targets with low <= time < high."""
    found: dict[str, list[int]] = {"next": [], "rolling": []}
    for own in users_of(timeline):
        after = [k for k in own if low <= timeline.time[k] < high]
        before = sum(timeline.time[k] < low for k in own)
        if after and before >= least:
            found["next"].append(after[0])
        found["rolling"] += [k for k in after if k > own[0]][:rolling]
    return found


def plain(targets) -> dict[str, list[int]]:
    return {name: events.tolist() for name, events in targets.items()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("test", "validation", "least", "rolling"),
    [(0.2, 0.1, 5, 20), (0.35, 0.3, 1, 2), (0.2, 0, 3, 4)],
)
def test_global_time(seed: int, test: float, validation: float, least: int, rolling: int) -> None:
    timeline = generated(seed)
    division = GlobalTime(test, validation, least, rolling)(timeline)
    times = sorted(timeline.time.tolist())
    cut = times[len(times) - round(len(times) * test)]
    earlier = times[len(times) - round(len(times) * (test + validation))]
    parts = [
        TEST if t >= cut else VALIDATION if t >= earlier else TRAIN for t in timeline.time.tolist()
    ]
    if not validation:
        parts = [TRAIN if part == VALIDATION else part for part in parts]
    assert division.part.tolist() == parts
    assert plain(division.test) == protocols(timeline, cut, np.inf, least, rolling)
    assert plain(division.validation) == (
        protocols(timeline, earlier, cut, least, rolling) if validation else {}
    )
    assert len(division.test["next"]) > 3 and len(division.test["rolling"]) > 10
    untrained = sum(all(parts[k] != TRAIN for k in own) for own in users_of(timeline))
    assert division.counts == {"users without an event to train on": untrained}


@pytest.mark.parametrize("seed", range(3))
def test_nothing_of_the_future_trains_with_global_time(seed: int) -> None:
    timeline = generated(seed)
    division = GlobalTime()(timeline)
    assert timeline.time[division.train].max() < timeline.time[division.part == VALIDATION].min()
    assert (
        timeline.time[division.extended("validation").train].max()
        < timeline.time[division.part == TEST].min()
    )
    for targets in (*division.validation.values(), *division.test.values()):
        begin, stop = timeline.histories(targets)
        assert (stop > begin).all() and not division.train[targets].any()


def test_with_strict_time_nobody_is_asked_without_a_history() -> None:
    timeline = Timeline.of([1, 1, 1, 2, 2], ["x", "y", "z", "x", "y"], time=[8, 8, 9, 1, 2])
    for strict, asked in ((False, [1, 2]), (True, [2])):
        division = GlobalTime(0.6, 0)(replace(timeline, strict_time=strict))
        assert division.test["rolling"].tolist() == asked
        begin, stop = replace(timeline, strict_time=strict).histories(division.test["rolling"])
        assert (begin < stop).all()
    timeline = Timeline.of(
        [1, 1, 1, 2, 2, 2], ["x", "y", "z", "x", "y", "z"], time=[8, 8, 9, 1, 2, 2]
    )
    for strict, asked in ((False, [1, 4]), (True, [4])):
        division = LeaveLastOut()(replace(timeline, strict_time=strict))
        assert division.validation["last"].tolist() == asked
        reason = (
            "without two events to ask that have a history before them"
            if strict
            else "of fewer than 3 events"
        )
        assert division.counts == {f"users {reason}": 2 - len(asked)}
    with pytest.raises(
        DataError, match=r"3 events, two of them to ask .* by data\.strict_time, but there are none"
    ):
        LeaveLastOut()(replace(timeline, strict_time=True).kept(timeline.time == 8))
    bought = replace(timeline, target=np.array([2, 0, 2, 2, 2, 2], np.uint8))
    assert LeaveLastOut()(bought).counts == {
        "users without two events to ask that have a history before them": 1
    }
    with pytest.raises(
        DataError, match=r"by data\.strict_time and data\.targets, but there are none"
    ):
        LeaveLastOut()(replace(bought, strict_time=True, target=np.zeros(6, np.uint8)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strict", [False, True])
def test_histories_of_named_parts_are_of_earlier_parts_and_times(seed: int, strict: bool) -> None:
    draw = np.random.default_rng(seed)
    part, time = np.sort(draw.integers(0, 3, (20, 12))), np.sort(draw.integers(0, 6, (20, 12)))
    rows = pa.table(
        {
            "user": np.repeat(np.arange(20), 12),
            "item": draw.integers(0, 9, 240),
            "part": part.ravel().astype(np.uint8),
            "time": time.ravel(),
        }
    )
    timeline = timeline_of(rows, strict_time=strict)
    begin, stop = timeline.histories(np.arange(240))
    for k in range(240):
        own = range(k // 12 * 12, k // 12 * 12 + 12)
        known = [
            j
            for j in own
            if timeline.part[j] < timeline.part[k] or (timeline.part[k] == TRAIN and j < k)
        ]
        before = [j for j in known if not strict or timeline.time[j] < timeline.time[k]]
        assert list(range(begin[k], stop[k])) == before


def training_stands_first(timeline: Timeline, division: Division) -> bool:
    return all(
        (np.diff(division.part[own.start : own.stop].astype(int)) >= 0).all()
        for own in users_of(timeline)
    )


@pytest.mark.parametrize("seed", range(3))
def test_leave_last_out(seed: int) -> None:
    timeline = generated(seed, events=150)
    division = LeaveLastOut()(timeline)
    long = [own for own in users_of(timeline) if len(own) >= 3]
    assert plain(division.test) == {"last": [own[-1] for own in long]}
    assert plain(division.validation) == {"last": [own[-2] for own in long]}
    held = {k for own in long for k in own[-2:]}
    assert np.flatnonzero(~division.train).tolist() == sorted(held)
    assert np.flatnonzero(~division.extended("validation").train).tolist() == [
        own[-1] for own in long
    ]
    assert (
        division.counts
        == {"users of fewer than 3 events": len(users_of(timeline)) - len(long)}
        != {}
    )
    assert training_stands_first(timeline, division) and training_stands_first(
        timeline, GlobalTime()(timeline)
    )
    assert "global_time does not look ahead" in division.notes[0]


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="have only an order"):
        GlobalTime()(Timeline.of([1, 1, 1], [1, 2, 3]))
    with pytest.raises(DataError, match="too many of them happen at 4"):
        GlobalTime()(Timeline.of([1, 1, 1], [1, 2, 3], time=[4, 4, 4]))
    with pytest.raises(DataError, match="at least 3 events, but there are none"):
        LeaveLastOut()(Timeline.of([1, 1, 2], [1, 2, 3], time=[4, 4, 4]))
    with pytest.raises(ConfigError, match="less than 1 together"):
        GlobalTime(0.6, 0.4)


def test_a_share_without_an_event_is_refused() -> None:
    events = generated(0)
    with pytest.raises(
        DataError, match=r"test_share 1e-06 of .* events is less than 1: give a larger share"
    ):
        GlobalTime(test_share=1e-6, validation_share=0.1)(events)
    with pytest.raises(
        DataError,
        match=r"validation_share 1e-06 of .* events leaves none: give a larger share, or 0",
    ):
        GlobalTime(validation_share=1e-6)(events)


def test_times_may_be_fractions() -> None:
    timeline = Timeline.of([1] * 10, list(range(10)), time=[i / 8 for i in range(10)])
    assert GlobalTime()(timeline).part.tolist() == [0] * 7 + [1] + [2] * 2


def test_an_order_of_rows_alone_is_noted() -> None:
    def notes(**columns: list[int]) -> str:
        table = pa.table({"user": [1] * 3, "item": [1, 2, 3], **columns})
        return " ".join(LeaveLastOut()(Interactions.of(table).read()).notes)

    twice = Interactions.of(
        pa.table({"user": [1] * 4 + [2] * 4, "item": [1, 1, 2, 2, 1, 1, 3, 4]})
    ).read()
    assert "1 of 2 users have the same item twice at their end" in LeaveLastOut()(twice).notes[-1]
    assert "twice" not in notes()

    assert "the order of their rows is taken for the order in which they happened" in notes()
    assert "order of their rows" not in notes(time=[3, 2, 1]) + notes(position=[3, 2, 1])
