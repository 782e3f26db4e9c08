"""Tiers, coverage, novelty and Gini against their definitions in loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tempera.recommend.judge.popularity import Popularity, coverage, exposure, gini


def lists(seed: int, q: int = 30, c: int = 23, depth: int = 6) -> np.ndarray:
    """Distinct items a row, some rows short or empty."""
    generator = np.random.default_rng(seed)
    top = np.stack([generator.permutation(c)[:depth] for _ in range(q)])
    for row, length in enumerate(generator.integers(0, depth + 1, q)):
        top[row, length:] = -1
    top[0], top[1] = -1, np.arange(depth)
    assert (top == -1).any()
    return top


@pytest.mark.parametrize(
    ("items", "sizes"),
    [
        (10, [1, 4, 5]),
        (20, [2, 8, 10]),
        (70, [7, 28, 35]),
        (11, [2, 4, 5]),
        (1, [1, 0, 0]),
        (3, [1, 1, 1]),
    ],
)
def test_tiers(items: int, sizes: list[int]) -> None:
    counts = np.random.default_rng(items).integers(0, 4, items)  # many are equal
    tiers = Popularity(counts).tiers.tolist()
    assert [tiers.count(tier) for tier in range(3)] == sizes
    order = sorted(range(items), key=lambda i: (-counts[i], i))
    assert [tiers[i] for i in order] == sorted(tiers)


@pytest.mark.parametrize("seed", range(3))
def test_what_lists_hold(seed: int) -> None:
    top = lists(seed)
    counts = np.random.default_rng(seed + 10).integers(0, 5, 23)
    popularity = Popularity(counts)
    held = [[i for i in row if i >= 0] for row in top.tolist()]
    total = int(counts.sum())
    novelty = [
        sum(-math.log2(max(1, counts[i]) / total) for i in row) / len(row) if row else 0.0
        for row in held
    ]
    np.testing.assert_allclose(popularity.novelty(top), novelty, rtol=1e-13)
    tiers = popularity.tiers.tolist()
    assert popularity.places(top).tolist() == [
        [[tiers[i] for i in row].count(tier) for tier in range(3)] for row in held
    ]
    shown = exposure(top, 23)
    assert shown.tolist() == [sum(i in row for row in held) for i in range(23)]
    assert coverage(shown) == sum(any(i in row for row in held) for i in range(23)) / 23


@pytest.mark.parametrize("seed", range(3))
def test_gini_is_half_the_relative_mean_difference(seed: int) -> None:
    shown = np.random.default_rng(seed).integers(0, 9, 17)
    apart = sum(abs(a - b) for a in shown.tolist() for b in shown.tolist())
    assert gini(shown) == pytest.approx(apart / (2 * 17 * shown.sum()), rel=1e-13)
    assert (
        gini(np.random.default_rng(0).permutation(shown))
        == gini(shown)
        == pytest.approx(gini(3 * shown))
    )


def test_nothing_is_shown() -> None:
    nothing = exposure(np.full((4, 3), -1), 5)
    assert (nothing.tolist(), coverage(nothing), gini(nothing)) == ([0] * 5, 0.0, 0.0)
    unseen = Popularity(np.zeros(5, np.int64))
    assert unseen.novelty(np.array([[1, 2]])).tolist() == [0] and sorted(unseen.tiers.tolist()) == [
        0,
        1,
        1,
        2,
        2,
    ]
