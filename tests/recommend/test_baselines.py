"""Baselines against their definitions in plain loops, over toy histories with repeats, gaps and
empty users."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tempera.errors import DataError
from tempera.recommend.judge import baselines
from tempera.recommend.judge.baselines import (
    BASELINES,
    UNORDERED,
    Ease,
    ItemKNN,
    Observed,
    Popular,
    Transitions,
    by_history,
    grid,
)
from tempera.recommend.judge.full_catalogue import Histories, rank

USERS = [[0, 1, 2, 1], [2, 3], [], [4, 0, 1, 5, 2], [1, 1, 3], [5], [0, 2, 4, 5, 3]]
ITEMS = 7  # nobody had item 6
ASKED = [[0, 2], [], [1, 1, 4], [6], [3, 0, 5, 2, 1]]


def events(seed: int | None = None) -> tuple[Observed, list[list[int]]]:
    """All events, or those that are drawn; and what is left of each user for training."""
    lengths = [len(row) for row in USERS]
    item = np.array([i for row in USERS for i in row], np.int32)
    train = (
        np.ones(len(item), bool)
        if seed is None
        else np.random.default_rng(seed).random(len(item)) < 0.7
    )
    offsets = np.cumsum([0, *lengths])
    kept = [item[a:b][train[a:b]].tolist() for a, b in pairwise(offsets)]
    return Observed(item, offsets, ITEMS, train), kept


def histories(rows: list[list[int]]) -> Histories:
    return Histories.of(
        np.array([i for row in rows for i in row], np.int32), np.cumsum([0, *map(len, rows)])
    )


def counted(kept: list[list[int]]) -> np.ndarray:
    """How often each user had each item, [u, c]."""
    return np.array([[row.count(i) for i in range(ITEMS)] for row in kept], np.float64)


def close(ours: np.ndarray, expected: list[list[float]]) -> None:
    assert ours.dtype == np.float32 and ours.shape == (len(ASKED), ITEMS)
    np.testing.assert_allclose(ours, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_popularity(seed: int | None) -> None:
    given, kept = events(seed)
    expected = [sum(row.count(i) for row in kept) for i in range(ITEMS)]
    close(
        Popular().fit(given).scores(histories(ASKED)), [[float(n) for n in expected]] * len(ASKED)
    )


def test_of_equal_cosines_the_smaller_code_is_the_neighbour() -> None:
    """1 / sqrt(2 * 4) and 3 / sqrt(18 * 4) are equal, which floating point does not see."""
    rows = [[2, 0], [2, 1, 1, 1], [2], [2], [0], [1, 1, 1]]
    offsets = np.cumsum([0, *map(len, rows)])
    item = np.array([i for row in rows for i in row], np.int32)
    scores = (
        ItemKNN(1, None)
        .fit(Observed(item, offsets, 3, np.ones(len(item), bool)))
        .scores(histories([[0], [1], [2]]))
    )
    assert scores[2, 0] == scores[0, 2] == np.float32(8**-0.5)
    assert (
        min(scores[2, 1], scores[1, 2]) == 0
    )  # one of the two keeps the other, which is its only one


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("neighbours", [1, 2, 3, 50])
@pytest.mark.parametrize(("last", "decay"), [(None, 0.5), (1, 1.0), (2, 0.8), (10, 1.0)])
def test_item_knn(seed: int | None, neighbours: int, last: int | None, decay: float) -> None:
    given, kept = events(seed)
    x = counted(kept)

    def cosine(i: int, j: int) -> float:
        across = float((x[:, i] * x[:, j]).sum())
        return (
            across / np.sqrt((x[:, i] ** 2).sum() * (x[:, j] ** 2).sum())
            if across and i != j
            else 0.0
        )

    near = [
        sorted(range(ITEMS), key=lambda i, j=j: (-cosine(i, j), i))[:neighbours]
        for j in range(ITEMS)
    ]  # type: ignore[misc]
    expected = [
        [
            sum(decay**g * cosine(i, j) for g, i in enumerate(row[::-1][:last]) if i in near[j])
            for j in range(ITEMS)
        ]
        for row in ASKED
    ]
    close(ItemKNN(neighbours, last, decay).fit(given).scores(histories(ASKED)), expected)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("regularisation", [0.5, 10.0])
@pytest.mark.parametrize("last", [None, 2])
def test_ease_is_a_ridge_regression_of_each_item_on_the_others(
    seed: int | None, regularisation: float, last: int | None
) -> None:
    given, kept = events(seed)
    x = counted(kept)
    weights = np.zeros((ITEMS, ITEMS))
    for j in range(ITEMS):
        others = [i for i in range(ITEMS) if i != j]
        a = x[:, others]
        weights[others, j] = np.linalg.solve(
            a.T @ a + regularisation * np.eye(ITEMS - 1), a.T @ x[:, j]
        )
    expected = [
        [sum(weights[i, j] for i in row[-(last or 99) :]) for j in range(ITEMS)] for row in ASKED
    ]
    close(Ease(regularisation, last, 1.0).fit(given).scores(histories(ASKED)), expected)


@pytest.mark.parametrize("items", [1, 3, ITEMS, 99])
def test_ease_of_some_items_is_that_of_their_events_alone(items: int) -> None:
    given, kept = events(0)
    x = counted(kept)
    count = x.sum(0)
    frequent = sorted(range(ITEMS), key=lambda j: (-count[j], j))[:items]
    weights = np.zeros((ITEMS, ITEMS))
    for j in frequent:
        others = [i for i in frequent if i != j]
        a = x[:, others]
        weights[others, j] = np.linalg.solve(a.T @ a + 0.5 * np.eye(len(others)), a.T @ x[:, j])
    expected = [[sum(weights[i, j] for i in row) for j in range(ITEMS)] for row in ASKED]
    close(Ease(0.5, None, 1.0, items).fit(given).scores(histories(ASKED)), expected)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("window", [1, 2, 30])
@pytest.mark.parametrize(
    ("slope", "share", "discount", "last", "decay", "successors"),
    [(0.0, 0.0, 0.0, None, 1.0, 99), (0.5, 0.5, 0.2, 10, 0.7, 99), (1.0, 1.0, 1.0, 2, 0.5, 2)],
)
def test_transitions(
    seed: int | None,
    window: int,
    slope: float,
    share: float,
    discount: float,
    last: int | None,
    decay: float,
    successors: int,
) -> None:
    given, kept = events(seed)
    table = np.zeros(
        (ITEMS, ITEMS), np.float32
    )  # sums in float32 have the ties of the sums that are tested
    for gap in range(1, window + 1):
        for row in kept:
            for first, second in zip(row, row[gap:]):
                table[first, second] += np.float32(gap) ** np.float32(-slope)
    for first in range(ITEMS):
        table[
            first, sorted(range(ITEMS), key=lambda j, i=first: (-table[i, j], j))[successors:]
        ] = 0  # type: ignore[misc]
    count = [max(1, sum(row.count(j) for row in kept)) for j in range(ITEMS)]

    def score(row: list[int], j: int) -> float:
        found = 0.0
        for gap, i in enumerate(row[::-1][:last], 1):
            found += decay ** (gap - 1) * table[i, j] / count[i] ** share
        return found / count[j] ** discount

    expected = [[score(row, j) for j in range(ITEMS)] for row in ASKED]
    close(
        Transitions(window, slope, share, discount, last, decay, successors)
        .fit(given)
        .scores(histories(ASKED)),
        expected,
    )


@pytest.mark.parametrize("name", BASELINES)
def test_what_is_not_for_training_changes_nothing(name: str) -> None:
    """Baselines are ranked as a model is; scores may be written over, and what is held out is not
    learned from."""
    given, kept = events(1)
    alone = Observed(*_flat(kept))
    asked, target = histories(ASKED), np.array([3, 0, 2, 5, 4])
    one, other = (BASELINES[name].fit(each) for each in (given, alone))
    first = one.scores(asked)
    ranks = [rank(by_history(fitted, asked), ITEMS, target, asked, 3) for fitted in (one, other)]
    assert (
        ranks[0].excluded.tolist() == ranks[1].excluded.tolist()
        and ranks[0].top.tolist() == ranks[1].top.tolist()
    )
    assert np.array_equal(first, one.scores(asked))
    assert np.array_equal(first[1:3], one.scores(asked[1:3]))


def _flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    item = np.array([i for row in rows for i in row], np.int32)
    return item, np.cumsum([0, *map(len, rows)]), ITEMS, np.ones(len(item), bool)


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = events()
    nothing = Observed(given.item, given.offsets, ITEMS, np.zeros(len(given.item), bool))
    for name in ("item-kNN", "EASE", "transitions"):
        with pytest.raises(DataError, match=f"^{name} has no training events to learn from$"):
            BASELINES[name].fit(nothing)


def test_tables_are_counted_some_items_at_a_time_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = events()
    whole = {
        name: baseline.fit(given).scores(histories(ASKED)) for name, baseline in BASELINES.items()
    }
    monkeypatch.setattr(baselines, "_CELLS", 1)  # so that every item is counted alone
    for name, baseline in BASELINES.items():
        again = baseline.fit(Observed(given.item, given.offsets, ITEMS, given.train)).scores(
            histories(ASKED)
        )
        np.testing.assert_allclose(again, whole[name], rtol=1e-6)
    fitted = Transitions().fit(given)
    table = given.latest
    assert len(table) == 1 and Transitions(decay=0.9).fit(given).decay == 0.9 != fitted.decay
    assert (
        given.latest == table
        and Transitions(window=3).fit(given)
        and given.latest.keys() != table.keys()
    ) or table


@pytest.mark.parametrize("system", UNORDERED)
def test_without_an_order_the_places_of_a_history_say_nothing(system: str) -> None:
    given, _ = events()
    choices = grid(system, given, ordered=False)
    assert not {"last", "decay"} & {*choices} and ("regularisation" in choices) == (
        system == "EASE"
    )
    fitted = UNORDERED[system].fit(given)
    forward, back = (fitted.scores(histories([row[::step] for row in ASKED])) for step in (1, -1))
    np.testing.assert_allclose(forward, back, rtol=1e-6, atol=1e-7)


def test_tables_are_those_of_their_own_events() -> None:
    whole, _ = events()
    some, _ = events(0)
    Ease().fit(whole)
    again = Ease().fit(replace(whole, train=some.train)).scores(histories(ASKED))
    np.testing.assert_array_equal(again, Ease().fit(some).scores(histories(ASKED)))
