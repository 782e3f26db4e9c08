"""Batches of events against loops: items once, their chances, what a user knows, what is drawn
besides."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from tempera.core.batch import Batch, divide
from tempera.core.corrections import inclusion_logq
from tempera.core.frame import Events, Frame
from tempera.engine.batches import Draws
from tempera.recommend.read.division import LeaveLastOut
from tempera.recommend.read.timeline import Timeline
from tempera.recommend.train.segments import Contexts, Segments
from tempera.recommend.train.visits import Visits

USERS, ITEMS = 12, 20


def timeline(weighted: bool = False, seed: int = 0) -> Timeline:
    """Users of 3 to 25 events; item i is taken the more often the smaller it is."""
    draw = random.Random(seed)
    rows = [
        (user, draw.choices(range(ITEMS), [1 / (1 + i) for i in range(ITEMS)])[0], at)
        for user in range(USERS)
        for at in range(draw.randint(3, 25))
    ]
    user, item, time = zip(*rows)
    return Timeline.of(user, item, time, [1 + at % 3 for at in time] if weighted else None)


def visits(line: Timeline, last: int = 4, targets: int = 3, **draws: float) -> Visits:
    return Visits(line, LeaveLastOut()(line).train, Contexts(line, last, targets), Draws(**draws))  # type: ignore[arg-type]


def training(made: Visits) -> list[tuple[int, int, int]]:
    """(event, user, item) of every training event, by loops."""
    line = made.timeline
    return [
        (event, user, int(line.item[event]))
        for user in range(len(line.user_ids))
        for event in range(line.offsets[user], line.offsets[user + 1])
        if made.train[event]
    ]


def codes(rows: Frame) -> list[int]:
    column = rows.columns["item"]
    assert isinstance(column, Tensor)
    return column.tolist()


def drawn(batch: Batch[Frame]) -> list[int]:
    return [] if batch.sampled is None else codes(batch.sampled.rows)


@pytest.mark.parametrize("count", [0, 7])
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_what_loops_make_of_its_events(seed: int, count: int) -> None:
    made = visits(timeline(weighted=True), count=count, power=0.5, seed=3)
    rows = training(made)
    item_of, user_of = {e: i for e, _, i in rows}, {e: u for e, u, _ in rows}
    events = random.Random(seed).sample(sorted(item_of), 15)
    batch = made.batch(torch.tensor(events), step=seed)
    assert batch.answer is not None and batch.query.ids is not None and batch.doc.ids is not None
    assert batch.answer.tolist() == [item_of[e] for e in events]
    assert batch.query.ids.tolist() == [user_of[e] for e in events]
    shares = Counter(user for _, user, _ in rows)
    expected = [math.log(len(events) * shares[user_of[e]] / len(rows)) for e in events]
    assert batch.query.logq is not None and batch.query.logq.tolist() == pytest.approx(
        expected, rel=1e-5
    )
    items = codes(batch.doc.rows)
    assert (
        items == sorted({item_of[e] for e in events}) == batch.doc.ids.tolist()
    )  # once, however many rows it answers
    assert [items[at] for at in batch.answers.tolist()] == [item_of[e] for e in events]
    assert batch.weight is not None
    place = {e: e - made.timeline.offsets[user_of[e]] for e in events}
    assert batch.weight.tolist() == [1 + place[e] % 3 for e in events]
    assert batch.known is not None
    present = set(items) | set(drawn(batch))
    for row, event in enumerate(events):
        own = {i for _, u, i in rows if u == user_of[event] and i in present}
        assert batch.known[row : row + 1].values.tolist() == sorted(
            own
        )  # once, however often it was taken


@pytest.mark.parametrize("strict", [False, True])
def test_a_history_holds_what_stands_before_the_event_and_not_the_event(strict: bool) -> None:
    draw = random.Random(5)
    rows = [
        (user, draw.randrange(ITEMS), at // 3)
        for user in range(USERS)
        for at in range(draw.randint(3, 25))
    ]
    line = Timeline.of(*zip(*rows))
    line = Timeline(**{**vars(line), "strict_time": strict})
    made = visits(line, last=4, targets=3)
    events = [k for step in Segments.of(line, made.train, 16, 0, 3)(0, 4) for k in step.tolist()]
    histories = made.batch(torch.tensor(events)).query.rows.columns["history"]
    assert isinstance(histories, Events) and line.time is not None
    for row, event in enumerate(events):
        user = int(line.user_of(np.array([event]))[0])
        before = [
            k
            for k in range(line.offsets[user], line.offsets[user + 1])
            if k < event and not (strict and line.time[k] == line.time[event])
        ]
        seen = histories.items[histories.start[row] : histories.stop[row]].tolist()
        assert seen == [int(line.item[k]) for k in before][-len(seen) or len(before) :]
        assert min(4, len(before)) <= len(seen) <= 4 + 2 + 2 * strict


def test_a_later_event_changes_nothing_of_a_batch_but_its_own_row() -> None:
    """What an event's item could leak into: its own history, or that of rows before it."""
    line = timeline()
    made = visits(line)
    events = torch.tensor(
        [k for step in Segments.of(line, made.train, 40, 0, 3)(0, 2) for k in step.tolist()]
    )
    history = made.frame(events).columns["history"]
    assert isinstance(history, Events)
    for event in events.tolist()[::5]:
        item = line.item.copy()
        item[event] = (item[event] + 1) % ITEMS
        other = visits(Timeline(**{**vars(line), "item": item})).frame(events).columns["history"]
        assert isinstance(other, Events)
        for row, later in enumerate(events.tolist()):
            own, changed = (h.items[h.start[row] : h.stop[row]].tolist() for h in (history, other))
            assert own == changed or later > event, (event, later)


def chance(rows: int, count: int, power: float, made: Visits, item: int) -> float:
    """That a batch of rows drawn one by one, and `count` draws, hold an item."""
    counts = Counter(i for _, _, i in training(made))
    total = sum(counts.values())
    mass = sum(c**power for c in counts.values())
    return 1 - (1 - counts[item] / total) ** rows * (1 - counts[item] ** power / mass) ** count


@pytest.mark.parametrize(("count", "power"), [(0, 0.0), (6, 0.0), (6, 0.75), (6, 1.0)])
def test_logq_is_the_log_of_the_chance_that_a_batch_holds_an_item(count: int, power: float) -> None:
    made = visits(timeline(), count=count, power=power)
    batch = made.batch(torch.tensor([e for e, _, _ in training(made)][:9]), step=2)
    for side in batch.doc, batch.sampled:
        if side is not None:
            assert side.logq is not None
            for item, logq in zip(codes(side.rows), side.logq.tolist()):
                assert logq == pytest.approx(
                    math.log(chance(9, count, power, made, item)), rel=1e-5
                )
    assert count == 0 or power == 1.0 or batch.sampled is not None


@pytest.mark.parametrize(("count", "power"), [(0, 0.0), (5, 0.5)])
def test_batches_hold_items_as_often_as_logq_says_and_sums_over_them_are_sums_over_the_catalogue(
    count: int, power: float
) -> None:
    """Rows are drawn one by one from the training events; each present item over its chance adds up
    to the whole.

    Bounds are of 4.5 standard errors, by the binomial for the chances and by the sample for the
    sums.
    """
    made, runs, rows = visits(timeline(), count=count, power=power, seed=1), 800, 8
    events = torch.tensor([e for e, _, _ in training(made)])
    generator = torch.Generator().manual_seed(0)
    worth = {item: math.exp(math.sin(item)) for item in {i for _, _, i in training(made)}}
    held, sums = Counter[int](), []
    for step in range(runs):
        batch = made.batch(events[torch.randint(len(events), (rows,), generator=generator)], step)
        total = 0.0
        for side in batch.doc, batch.sampled:
            if side is not None:
                assert side.logq is not None
                total += sum(
                    worth[i] / math.exp(q) for i, q in zip(codes(side.rows), side.logq.tolist())
                )
        sums.append(total)
        held.update(
            codes(batch.doc.rows) + drawn(batch)
        )  # no item twice, or the counts would exceed their chances
    for item in worth:
        p = chance(rows, count, power, made, item)
        assert abs(held[item] / runs - p) < 4.5 * math.sqrt(p * (1 - p) / runs), item
    error = np.std(sums) / math.sqrt(runs)
    assert abs(np.mean(sums) - sum(worth.values())) < 4.5 * error < 0.1 * sum(worth.values())


def test_the_expected_count_is_not_the_chance() -> None:
    """With it in place of the chance, the sum above would miss the popular items by as much as they
    come twice."""
    frequency = torch.tensor([0.5, 0.01], dtype=torch.float64)
    chances = inclusion_logq(8, frequency).exp()
    assert chances.tolist() == pytest.approx([1 - 0.5**8, 1 - 0.99**8], rel=1e-12)
    assert float(chances[0]) < 1 < 8 * 0.5
    tiny = inclusion_logq(8, torch.tensor([1e-12], dtype=torch.float64))
    assert float(tiny.exp()) == pytest.approx(8e-12, rel=1e-9)  # no digits are lost for rare items
    assert inclusion_logq(8, torch.tensor([1.0])).tolist() == [0.0]


def test_drawn_items_are_those_that_no_row_has_brought() -> None:
    made = visits(timeline(), count=9, seed=7)
    events = torch.tensor([e for e, _, _ in training(made)][:6])
    for step in range(30):
        batch = made.batch(events, step)
        mine = drawn(batch)
        raw = Draws(9, 0.0, 7)(made.ends, step).tolist()
        assert mine == sorted(set(raw) - set(codes(batch.doc.rows)))


def test_what_is_not_trained_on_is_never_drawn() -> None:
    line = Timeline.of([1, 1, 1, 1, 2, 2, 2, 2], ["a", "b", "x", "y", "b", "a", "z", "x"], range(8))
    made = visits(line, count=50, seed=0)
    names = line.item_ids.to_pylist()
    seen = {names[i] for step in range(5) for i in drawn(made.batch(torch.tensor([0]), step))}
    assert seen == {"b"}  # a is the row's own


def test_batches_follow_from_the_seed_and_the_step() -> None:
    def found(seed: int, step: int) -> list[int]:
        made = visits(timeline(), count=9, seed=seed)
        return drawn(made.batch(torch.tensor([0, 1]), step))

    assert all(found(seed, step) == found(seed, step) for seed in range(3) for step in range(3))
    assert len({tuple(found(seed, step)) for seed in range(3) for step in range(3)}) == 9


@pytest.mark.parametrize("parts", [2, 3])
def test_processes_have_the_whole_batch_between_them(parts: int) -> None:
    made = visits(timeline(weighted=True), count=9, seed=2)
    events = torch.tensor([e for e, _, _ in training(made)][3:14])
    whole = made.batch(events, 4)
    found = [divide(whole, part, parts) for part in range(parts)]
    for role in ("query", "doc", "sampled"):
        mine, all_of = [part.sides()[role] for part in found], whole.sides()[role]  # type: ignore[index]
        assert [i for side in mine for i in side.ids.tolist()] == all_of.ids.tolist()  # type: ignore[union-attr]
        if role != "query":
            assert [q for side in mine for q in side.logq.tolist()] == all_of.logq.tolist()  # type: ignore[union-attr]
    histories = [part.query.rows.columns["history"] for part in found]
    own = whole.query.rows.columns["history"]
    assert isinstance(own, Events)
    rows = [own.items[a:b].tolist() for a, b in zip(own.start.tolist(), own.stop.tolist())]
    assert [
        h.items[a:b].tolist()
        for h in histories
        for a, b in zip(h.start.tolist(), h.stop.tolist())  # type: ignore[union-attr]
    ] == rows
    assert [k for part in found for k in part.known.values.tolist()] == whole.known.values.tolist()  # type: ignore[union-attr]
    assert [w for part in found for w in part.weight.tolist()] == whole.weight.tolist()  # type: ignore[union-attr]


def test_known_items_are_those_of_training_only() -> None:
    """The item to validate on, or to test on, is no known one: masking it would tell which it
    is."""
    line = Timeline.of([1] * 5 + [2] * 5, list("abcde") + list("dcbea"), range(10))
    made = visits(line)
    batch = made.batch(torch.tensor([0, 1, 2, 5, 6, 7]))
    assert batch.known is not None
    names = line.item_ids.to_pylist()
    assert [sorted(names[i] for i in batch.known[k : k + 1].values.tolist()) for k in (0, 3)] == [
        ["a", "b", "c"],
        ["b", "c", "d"],
    ]


def test_time_since_the_latest_event_of_the_history() -> None:
    line = Timeline.of([1, 1, 1, 1, 2, 2, 2], list("abcdabc"), [5, 7, 7, 20, 3, 3, 9])
    elapsed = visits(line).frame(torch.arange(7)).columns["elapsed"]
    assert isinstance(elapsed, Tensor)
    assert torch.equal(elapsed.nan_to_num(-1), torch.tensor([-1.0, 2, 0, 13, -1, 0, 6]))
