"""Events of a file after stored histories: what is asked, with what before it, and what is left
out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tempera.errors import DataError
from tempera.recommend.judge.continued import Continued
from tempera.recommend.judge.full_catalogue import Histories
from tempera.recommend.judge.past_events import PastEvents
from tempera.recommend.read.division import GlobalTime, LeaveLastOut
from tempera.recommend.read.timeline import Timeline

ITEMS = pa.chunked_array([["a", "b", "c", "d"]])


def stored(*rows: list[int], **others: Histories) -> PastEvents:
    return PastEvents(listed(*rows), **others)


def listed(*rows: list[int]) -> Histories:
    return Histories.of(
        np.array([item for row in rows for item in row], np.int64), np.cumsum([0, *map(len, rows)])
    )


def test_stored_events_come_first_and_unknown_items_are_nobodys_history() -> None:
    later = Timeline.of([1, 1, 1, 2, 2], ["d", "x", "a", "b", "c"], time=[9, 8, 7, 1, 2])
    both = Continued.of(
        later, ITEMS, stored([3, 2], []), np.array([5.0, np.nan]), GlobalTime(least=2, rolling=5)
    )
    assert both.timeline.item.tolist() == [3, 2, 0, 3, 1, 2]
    assert {name: events.tolist() for name, events in both.test.items()} == {
        "next": [2],
        "rolling": [2, 3, 5],
    }
    start, stop = both.timeline.histories(both.test["rolling"])
    assert (start.tolist(), stop.tolist()) == ([0, 0, 4], [2, 3, 5])
    assert both.timeline.time.tolist() == [5, 5, 7, 9, 1, 2]
    assert (
        both.left_out == {"interactions with 1 items that the run does not have": 1}
        and both.again == 1
    )


def test_events_that_the_run_may_know_are_left_out() -> None:
    later = Timeline.of([1, 1, 1], ["a", "b", "c"], time=[4, 5, 6])
    both = Continued.of(later, ITEMS, stored([0, 1]), np.array([5.0]), LeaveLastOut())
    assert both.timeline.item.tolist() == [0, 1, 2] and both.later == 1
    assert both.left_out == {"interactions not later than what the run knows of their user": 2}
    with pytest.raises(
        DataError,
        match=r"nothing can be asked of the 3 interactions: .*; 3 interactions not later than",
    ):
        Continued.of(later, ITEMS, stored([0, 1]), np.array([6.0]), LeaveLastOut())
    with pytest.raises(DataError, match="no event is left that has a history before it"):
        Continued.of(Timeline.of([1], ["a"]), ITEMS, stored([]), None, LeaveLastOut())
    with pytest.raises(DataError, match="1 interactions with 1 items"):
        Continued.of(Timeline.of([1], ["x"]), ITEMS, stored([]), None, LeaveLastOut())


def test_without_an_order_users_are_asked_once_for_what_is_new() -> None:
    later = replace(Timeline.of([1, 1, 1, 2], ["a", "b", "d", "a"]), ordered=False)
    both = Continued.of(later, ITEMS, stored([2, 0], []), None, LeaveLastOut())
    assert both.timeline.item.tolist() == [2, 0, 1, 3, 0] and both.again == 1
    assert both.test["users"].tolist() == [2] and both.timeline.answers(
        both.test["users"]
    ).tolist() == [4]


def test_strict_times_hide_what_happens_at_the_same_time() -> None:
    later = replace(Timeline.of([1, 1, 1], ["a", "b", "c"], time=[7, 7, 8]), strict_time=True)
    both = Continued.of(later, ITEMS, stored([3]), np.array([5.0]), GlobalTime(least=1))
    assert both.timeline.histories(both.test["rolling"])[1].tolist() == [1, 1, 3]
