"""Rows of features keep what they have seen, whatever is chosen, divided or put together."""

from __future__ import annotations

import math

import pytest
import torch

from tempera.arithmetic.ragged import Ragged, distinct
from tempera.core.batch import Batch, Side, divide
from tempera.core.frame import Events, Frame

START = [4, 0, 9, 0, 4, 22, 9, 9, 4]
STOP = [9, 2, 9, 0, 4, 23, 21, 10, 6]


def histories(events: Events) -> list[list[int]]:
    return [events.items[a:b].tolist() for a, b in zip(events.start.tolist(), events.stop.tolist())]


def wanted(rows: list[int]) -> list[list[int]]:
    """Event k is of item 100 + k."""
    return [list(range(100 + START[i], 100 + STOP[i])) for i in rows]


def made() -> Events:
    return Events.of(
        torch.arange(100, 130, dtype=torch.int32), torch.tensor(START), torch.tensor(STOP)
    )


def test_a_stretch_of_a_timeline_is_cut_out() -> None:
    events = made()
    assert histories(events) == wanted(list(range(9))) and len(events) == 9
    assert events.items.tolist() == [
        100,
        101,
        *range(104, 109),
        *range(109, 121),
        122,
    ]  # what no row has seen is gone
    assert events.items.dtype == torch.int64


@pytest.mark.parametrize("rows", [[0], [8, 0, 0], [3], [2, 3, 4], [], list(range(9))[::-1]])
def test_chosen_rows_bring_their_own_events_and_no_others(rows: list[int]) -> None:
    """Else a tower would embed the events of all rows in every micro-batch."""
    chosen = made()[torch.tensor(rows, dtype=torch.int64)]
    assert histories(chosen) == wanted(rows)
    needed = {item for row in wanted(rows) for item in row}
    assert sorted(chosen.items.tolist()) == sorted(needed)
    mask = torch.zeros(9, dtype=torch.bool)
    mask[rows] = True
    assert histories(made()[mask]) == wanted(sorted(set(rows)))


def test_rows_that_share_a_start_share_events_after_all_that_is_done() -> None:
    events = Events.cat([made()[2:], made()[:2]])
    assert histories(events) == wanted([*range(2, 9), 0, 1])
    at = events.start.tolist()
    assert at[4] == at[5] and len(made()[torch.tensor([0, 4, 8])].items) == 5


def test_a_row_costs_its_share_of_what_is_read_once() -> None:
    events = made()
    longest = {start: max(b - a for a, b in zip(START, STOP) if a == start) for start in START}
    sharing = {start: START.count(start) for start in START}
    assert events.lengths.tolist() == [
        math.ceil(longest[start] / sharing[start]) for start in START
    ]
    frame = Frame({"user": torch.arange(9), "history": events, "tags": Ragged.of([[1, 2]] * 9)})
    assert frame.lengths.tolist() == [1 + cost + 2 for cost in events.lengths.tolist()]


def test_frames_choose_and_join_every_column() -> None:
    frame = Frame(
        {"user": torch.arange(9), "history": made(), "tags": Ragged.of([[i] * i for i in range(9)])}
    )
    again = Frame.cat([frame[5:], frame[torch.tensor([1, 0])]])
    rows = [5, 6, 7, 8, 1, 0]
    assert len(again) == 6 and again.columns["user"].tolist() == rows  # type: ignore[union-attr]
    assert histories(again.columns["history"]) == wanted(rows)  # type: ignore[arg-type]
    assert again.columns["tags"].lengths.tolist() == rows  # type: ignore[union-attr]
    there = again.to(torch.device("cpu"))
    assert histories(there.columns["history"]) == wanted(rows) and len(there) == 6  # type: ignore[arg-type]


def test_a_row_can_be_made_up() -> None:
    frame = Frame(
        {"user": torch.arange(9), "history": made(), "tags": Ragged.of([[i] for i in range(9)])}
    )
    for spare in (frame.spare, frame[:0].spare):
        assert len(spare) == 1 and spare.columns["user"].tolist() == [0]  # type: ignore[union-attr]
        assert histories(spare.columns["history"]) == [[0]]  # type: ignore[arg-type]
        assert spare.columns["tags"].values.tolist() == [0] and len(Frame.cat([frame, spare])) == 10  # type: ignore[union-attr]


@pytest.mark.parametrize("parts", [1, 2, 3, 12])
def test_processes_have_their_rows_with_their_events(parts: int) -> None:
    items = torch.tensor([3, 5, 8, 9])
    answer = items[torch.arange(9) % 4]
    query = Side(Frame({"user": torch.arange(9), "history": made()}), ids=torch.arange(9))
    drawn = Side(Frame({"item": torch.arange(20, 27)}), ids=torch.arange(20, 27))
    batch = Batch(query, Side(Frame({"item": items}), ids=items), sampled=drawn, answer=answer)
    found = [divide(batch, part, parts) for part in range(parts)]
    assert [
        row for part in found for row in histories(part.query.rows.columns["history"])
    ] == wanted(list(range(9)))  # type: ignore[arg-type]
    for role, ids in (("doc", items), ("sampled", drawn.ids)):
        assert [i for part in found for i in part.sides()[role].ids.tolist()] == ids.tolist()  # type: ignore[union-attr, index]
        assert [
            i for part in found for i in part.sides()[role].rows.columns["item"].tolist()
        ] == ids.tolist()  # type: ignore[union-attr, index]
    assert [a for part in found for a in part.answer.tolist()] == answer.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "codes", [[], [0], [5, 5], [3, 0, 3, 9], [10**12, 7, 10**12], list(range(40, 0, -1))]
)
def test_distinct_codes_are_those_that_sorting_finds(codes: list[int]) -> None:
    got, want = (
        distinct(torch.tensor(codes, dtype=torch.int64)),
        torch.unique(torch.tensor(codes), return_inverse=True),
    )
    assert [each.tolist() for each in got] == [each.tolist() for each in want]
