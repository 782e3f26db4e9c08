"""Items rated low are no interactions and count as seen: from then on, in evaluation, baselines and
answers alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest

from tempera.recommend.judge.continued import Continued
from tempera.recommend.judge.full_catalogue import Histories, inner, rank
from tempera.recommend.judge.past_events import PastEvents
from tempera.recommend.read.division import AtRandom, GlobalTime
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.read.timeline import Timeline
from tempera.run.train import train

USERS, ITEMS = 12, 15
NAMES = ("user", "item", "rating", "time")
Row = tuple[int, int, int, int]


def generated(seed: int = 0, ties: bool = False) -> list[Row]:
    draw, rows = np.random.default_rng(seed), list[Row]()
    for user in range(USERS):
        items = draw.permutation(ITEMS)[:10].tolist()
        times = np.sort(draw.integers(0, 8 if ties else 10_000, len(items))).tolist()
        rows += [(user, i, int(draw.integers(1, 6)), t) for i, t in zip(items, times)]
    return rows


def table(rows: list[Row]) -> pa.Table:
    return pa.table({name: list(column) for name, column in zip(NAMES, zip(*rows))})


def read(rows: list[Row], **options: Any) -> Timeline:
    return Interactions.of(table(rows), **{"min_rating": 4, **options}).read()


def met(line: Timeline, events: Any) -> list[set[int]]:
    """Ids of the items that are set aside for each event."""
    rows = line.aside_of(events)
    assert rows is not None
    items, start, stop = rows
    return [{line.item_ids[int(code)].as_py() for code in items[a:b]} for a, b in zip(start, stop)]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_an_item_counts_as_seen_after_it_was_rated(ties: bool, strict: bool) -> None:
    rows = generated(2, ties)
    line = read(rows, strict_time=strict)
    taken = {item for _, item, rating, _ in rows if rating >= 4}
    events = np.arange(len(line))
    assert line.time is not None
    for event, found in zip(events, met(line, events)):
        user = line.user_ids[int(line.user_of(np.array([event]))[0])].as_py()
        own = [row for row in rows if row[0] == user]
        place = own.index(
            next(row for row in own if row[1] == line.item_ids[int(line.item[event])].as_py())
        )
        before = [
            row for row in own[:place] if not strict or row[3] < own[place][3]
        ]  # rows of one time stand in their order
        assert found == {item for _, item, rating, _ in before if rating < 4 and item in taken}
    assert any(met(line, events))


def test_without_an_order_all_low_ratings_count() -> None:
    rows = generated(3)
    line = AtRandom(0.3, 0.1)(read(rows, ordered=False, split="random")).timeline
    assert line is not None
    taken = {item for _, item, rating, _ in rows if rating >= 4}
    events = np.arange(len(line))
    for user, found in zip(line.user_of(events), met(line, events)):
        name = line.user_ids[int(user)].as_py()
        assert found == {
            item for u, item, rating, _ in rows if u == name and rating < 4 and item in taken
        }


def test_ratings_of_a_test_file_are_not_known_before_it(tmp_path: Path) -> None:
    parts = {"train": generated(4)[0::2], "test": generated(4)[1::2]}
    for name, rows in parts.items():
        csv.write_csv(table(rows), tmp_path / f"{name}.csv")
    options = {"path": str(tmp_path / "train.csv"), "test": str(tmp_path / "test.csv")}
    line = Interactions(min_rating=4, **options).read()
    assert line.part is not None and line.aside is not None
    taken = {item for rows in parts.values() for _, item, rating, _ in rows if rating >= 4}
    low = {
        name: {(str(u), str(i)) for u, i, rating, _ in rows if rating < 4 and i in taken}
        for name, rows in parts.items()
    }
    asked = np.flatnonzero(line.part == 2)
    for user, found in zip(line.user_of(asked), met(line, asked)):
        name = line.user_ids[int(user)].as_py()
        assert found == {item for u, item in low["train"] if u == name}
    # those of the test are known to whoever asks later
    assert len(line.aside.item) == sum(map(len, low.values()))


def test_forgotten_ratings_leave_no_trace() -> None:
    rows = generated(5)
    forgotten, seen = read(rows, below_min_rating="forget"), read(rows)
    high = Interactions.of(table([row for row in rows if row[2] >= 4]), metadata=("rating",)).read()
    assert forgotten.aside is None and "below_min_rating" not in forgotten.about
    assert forgotten.dropped == seen.dropped == {"rows below min_rating": len(rows) - len(high)}
    for name in ("item", "offsets", "time"):
        for line in (forgotten, seen):
            assert np.array_equal(getattr(line, name), getattr(high, name))
    assert "rows rated below 4 train nothing" in seen.about


def test_ranks_leave_out_what_was_set_aside_but_never_the_target() -> None:
    draw = np.random.default_rng(0)
    queries, items = draw.normal(size=(9, 4)), draw.normal(size=(ITEMS, 4))
    scores = inner(queries.astype(np.float32), items.astype(np.float32))
    target = draw.integers(0, ITEMS, 9)
    seen = Histories.of(draw.integers(0, ITEMS, 18), np.arange(0, 19, 2))
    beside = draw.integers(0, ITEMS, 27)
    beside[::3] = target  # rated low once, and taken now
    aside = Histories.of(beside, np.arange(0, 28, 3))
    found = rank(scores, ITEMS, target, seen, 5, aside=aside)
    level = scores(slice(0, 9)).copy()
    for row in range(9):
        out = {*seen[row : row + 1].items[2 * row : 2 * row + 2], *beside[3 * row : 3 * row + 3]}
        left = [item for item in range(ITEMS) if item not in out or item == target[row]]
        order = sorted(left, key=lambda item: (-level[row, item], item))
        assert found.excluded[row] == 1 + order.index(target[row])
        assert found.top[row].tolist() == (order + [-1] * 5)[:5]


def test_later_events_know_low_ratings_of_the_run_and_of_the_file() -> None:
    later = read([(1, 5, 2, 10), (1, 6, 5, 11), (1, 7, 1, 12), (1, 8, 4, 13), (2, 6, 5, 9)])
    items = pa.chunked_array([[str(item) for item in range(9)]])
    stored = PastEvents(
        Histories(np.array([0, 1]), np.array([0, 2]), np.array([2, 2])),
        times=Histories(np.array([1, 2]), np.array([0, 2]), np.array([2, 2])),
        aside=Histories(np.array([3]), np.array([0, 1]), np.array([1, 1])),
        aside_times=Histories(np.array([2]), np.array([0, 1]), np.array([1, 1])),
    )
    # as `evaluate` reads a file: its items need not be taken in it
    whole = Interactions.of(
        table([(1, 5, 2, 10), (1, 6, 5, 11), (1, 7, 1, 12), (1, 8, 4, 13), (2, 6, 5, 9)]),
        min_rating=4,
    ).read(whole=False)
    assert later.aside is None and whole.aside is not None
    both = Continued.of(whole, items, stored, np.array([2.0, np.nan]), GlobalTime(least=2))
    line, asked = both.timeline, both.test["rolling"]
    assert [line.item_ids[int(line.item[event])].as_py() for event in asked] == ["6", "8"]
    assert met(line, asked) == [{"3", "5"}, {"3", "5", "7"}]


@pytest.mark.parametrize("below_min_rating", ["seen", "forget"])
def test_no_user_is_recommended_what_he_rated_low(below_min_rating: str, tmp_path: Path) -> None:
    rows = generated(6)
    options = {
        "data": {"source": "interactions", "min_rating": 4, "below_min_rating": below_min_rating},
        "tower": {"dimensions": 8, "history": {"pools": [{"mean": {"last": 3}}]}},
        "train": {"max_steps": 3, "batch_size": 16, "evaluations": 0, "refit": "none"},
        "evaluation": {"baselines": True, "validation": 0},
    }
    run = train(options, tmp_path / "run", data=table(rows))
    shown = {user: {int(hit.id) for hit in run.recommend(user, k=ITEMS).hits} for user in range(9)}
    known = set(map(int, run.recommender.item_ids.to_pylist()))
    for user, items in shown.items():
        own = [row for row in rows if row[0] == user]
        high = {item for _, item, rating, _ in own if rating >= 4}
        low = {item for _, item, rating, _ in own if rating < 4} & known
        assert items == known - high - (low if below_min_rating == "seen" else set())
