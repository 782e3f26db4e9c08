"""What differences are worth, and how far pairs stand from random pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tempera.ranking.compare import Comparison, Difference, bootstrap, bootstrap_columns
from tempera.ranking.spread import Spread, spread

T_95 = 1.97196  # the 0.975 quantile of Student's t with 199 degrees of freedom


def noise(seed: int, n: int = 200) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.1, 1, n)


def test_normal_differences_have_the_interval_of_the_t_test() -> None:
    for seed in range(5):
        a = noise(seed)
        found = bootstrap(a, np.zeros(200))
        half = T_95 * a.std(ddof=1) / math.sqrt(200)
        assert found.mean == pytest.approx(a.mean(), abs=1e-12)
        assert found.low == pytest.approx(a.mean() - half, abs=0.12 * half)
        assert found.high == pytest.approx(a.mean() + half, abs=0.12 * half)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        found = bootstrap(noise(seed, 50), np.zeros(50), confidence=0.8, draws=400)
        held += found.low <= 0.1 <= found.high
    assert 0.72 <= held / 200 <= 0.88


def test_the_same_numbers_on_every_run_and_others_for_another_seed() -> None:
    a, b = noise(0), noise(1)
    assert bootstrap(a, b) == bootstrap(a.copy(), b.copy()) == bootstrap(a, b, seed=0)
    assert bootstrap(a, b, seed=1) != bootstrap(a, b)


def test_pairs_are_kept_together_and_sides_tell_the_sign() -> None:
    hard = np.random.default_rng(0).normal(0, 100, 300)  # how hard queries are cancels
    found = bootstrap(hard + 1, hard)
    assert (
        found.mean == pytest.approx(1)
        and found.low == pytest.approx(1)
        and found.high == pytest.approx(1)
    )
    one, other = bootstrap(noise(0), noise(1)), bootstrap(noise(1), noise(0))
    assert (one.mean, one.low, one.high) == pytest.approx(
        (-other.mean, -other.high, -other.low), abs=0.01
    )
    assert bootstrap(noise(0) + 5, noise(1)).low > 0 > bootstrap(noise(0) - 5, noise(1)).high


def test_more_confidence_is_a_wider_interval() -> None:
    a, b = noise(0), noise(1)
    found = [bootstrap(a, b, confidence) for confidence in (0.5, 0.8, 0.95, 0.99)]
    widths = [difference.high - difference.low for difference in found]
    assert widths == sorted(widths) and [d.confidence for d in found] == [0.5, 0.8, 0.95, 0.99]
    assert all(d.low <= d.mean <= d.high for d in found)


def test_as_many_draws_as_asked_for_in_blocks() -> None:
    """150,000 differences are resampled in blocks; one draw is its own interval."""
    wide = np.arange(150_000) / 150_000
    few = bootstrap(wide, np.zeros(150_000), draws=20)
    assert 0 < few.high - few.low < 0.01 and few.low < 0.5 < few.high
    single = bootstrap(noise(0), noise(1), draws=1)
    assert single.low == single.high


def test_a_single_query() -> None:
    found = bootstrap(np.array([0.5]), np.array([0.25]))
    assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)


def chance(pairs: np.ndarray, random: np.ndarray) -> float:
    """That a pair is more similar than a random pair, ties counting half."""
    wins = sum((p > r) + 0.5 * (p == r) for p in pairs.tolist() for r in random.tolist())
    return wins / (len(pairs) * len(random))


@pytest.mark.parametrize(
    ("n", "m", "values"), [(1, 1, 1), (1, 9, 3), (20, 30, 2), (30, 20, 7), (25, 25, 10**6)]
)
@pytest.mark.parametrize("shift", [0, 1, -1])
def test_the_area_under_the_curve_with_ties(n: int, m: int, values: int, shift: int) -> None:
    generator = np.random.default_rng(n)
    pairs, random = (generator.integers(0, values, size).astype(np.float32) for size in (n, m))
    pairs += shift
    assert Spread(pairs, random).auc == pytest.approx(chance(pairs, random), abs=1e-12)
    assert Spread(random, pairs).auc == pytest.approx(1 - chance(pairs, random), abs=1e-12)


def test_pairs_and_random_pairs_of_vectors() -> None:
    # Each row has a direction of its own, so that a product tells which rows were paired.
    n = 40
    queries = np.eye(n, dtype=np.float32)
    docs = np.arange(n * n, dtype=np.float32).reshape(n, n)  # document j gives query i  n * j + i
    found = spread(queries, docs)
    assert found.pairs.tolist() == [n * i + i for i in range(n)]
    other, query = np.divmod(found.random.astype(int), n)
    assert query.tolist() == list(range(n))
    assert (other != query).all() and len(set(other.tolist())) > n / 2
    assert np.array_equal(spread(queries, docs).random, found.random)
    assert not np.array_equal(spread(queries, docs, seed=1).random, found.random)


def test_a_summary() -> None:
    found = Spread(np.arange(101, dtype=np.float32), np.arange(101, dtype=np.float32) - 1000)
    assert found.summary() == {
        "pairs_5%": 5,
        "pairs_50%": 50,
        "pairs_95%": 95,
        "random_5%": -995,
        "random_50%": -950,
        "random_95%": -905,
        "auc": 1,
    }


def test_a_worse_system_is_told_in_one_sign() -> None:
    worse = Comparison(Difference(-0.02, -0.03, -0.01, 0.95), 0.002, 300)
    want = (
        "a is worse than b in m by 0.0200 (95 % interval 0.0100 to 0.0300, p = 0.0020, 300 queries)"
    )
    assert worse.sentence("a", "b", "m") == want


def test_columns_are_resampled_as_one_is() -> None:
    values = np.stack([noise(0), noise(1) * 3], 1)
    for i, found in enumerate(bootstrap_columns(values, draws=500, seed=3)):
        alone = bootstrap(values[:, i], draws=500, seed=3)
        assert (found.mean, found.low, found.high) == pytest.approx(
            (alone.mean, alone.low, alone.high), abs=1e-12
        )


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_rows_of_a_group_are_drawn_together(confidence: float) -> None:
    groups = np.array([5, 3, 5, 5, 9, 3, 9, 0])
    values = np.random.default_rng(0).normal(size=(8, 2))
    found = bootstrap_columns(values, groups, confidence, draws=40, seed=1)
    rows = [[i for i in range(8) if groups[i] == g] for g in (0, 3, 5, 9)]
    drawn = np.random.default_rng(1).integers(0, 4, (40, 4)).tolist()
    for column, difference in enumerate(found):
        means = []
        for draw in drawn:
            taken = [values[i, column] for g in draw for i in rows[g]]
            means.append(sum(taken) / len(taken))
        tail = (1 - confidence) / 2
        assert difference.low == pytest.approx(np.quantile(means, tail))
        assert difference.high == pytest.approx(np.quantile(means, 1 - tail))
        assert (
            difference.mean == pytest.approx(values[:, column].mean())
            and difference.confidence == confidence
        )


def test_copies_of_a_query_are_worth_one() -> None:
    values = noise(0, 100)[:, None]
    (once,) = bootstrap_columns(values)
    (copied,) = bootstrap_columns(np.repeat(values, 9, 0), np.repeat(np.arange(100), 9))
    (alone,) = bootstrap_columns(np.repeat(values, 9, 0))
    assert (copied.mean, copied.low, copied.high) == pytest.approx((once.mean, once.low, once.high))
    assert alone.high - alone.low < 0.5 * (once.high - once.low)
