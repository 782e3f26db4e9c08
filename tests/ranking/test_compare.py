"""What differences are worth, and how far pairs stand from random pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tempera.ranking.compare import (
    GAPS,
    SCORES,
    Bounds,
    Comparison,
    Difference,
    bootstrap,
    bootstrap_columns,
    bootstrap_metrics,
    widened,
)
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


def held(interval: Difference, truth: float) -> bool:
    return interval.low <= truth + 1e-12 and truth - 1e-12 <= interval.high


@pytest.mark.parametrize("n", [5, 10, 30, 100])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_few_queries_that_are_right_or_wrong_hold_the_truth(n: int, p: float) -> None:
    """All numbers of right answers, each with its probability."""
    covered = 0.0
    for right in range(n + 1):
        values = np.repeat([1.0, 0.0], [right, n - right])
        found = bootstrap(values, draws=300, bounds=SCORES)
        assert 0 <= found.low <= found.mean <= found.high <= 1 and found.high - found.low > 0
        covered += held(found, p) * math.comb(n, right) * p**right * (1 - p) ** (n - right)
    assert covered >= 0.93


@pytest.mark.parametrize("n", [5, 10, 30, 100])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("bounds", [SCORES, GAPS], ids=["a metric", "a difference"])
def test_few_values_between_bounds_hold_the_truth(n: int, p: float, bounds: Bounds) -> None:
    """Reciprocal ranks, and their differences from a system that is right with a chance of 0.9."""
    generator = np.random.default_rng(0)
    places = np.arange(2, 11)
    truth = p + (1 - p) * float((1 / places).mean())
    covered = 0
    for _ in range(1000):
        values = np.where(generator.random(n) < p, 1.0, 1 / generator.choice(places, n))
        if bounds is GAPS:
            values -= generator.random(n) < 0.9
        mean, half = values.mean(), 1.96 * values.std() / math.sqrt(n)  # as resamples have it
        found = widened(Difference(mean, mean - half, mean + half, 0.95), values, bounds=bounds)
        covered += held(found, truth - (0.9 if bounds is GAPS else 0))
    assert covered / 1000 >= 0.93


def test_systems_that_never_differ_may_differ_on_the_next_query() -> None:
    for n in (5, 10, 100):
        found = bootstrap_metrics({"hit@1": np.ones(n)}, {"hit@1": np.ones(n)})["hit@1"]
        assert found.mean == 0 and found.low == pytest.approx(-found.high)
        assert found.high > 1 - 0.2 ** (1 / n)  # one such gain in so many is missed by 1 in 5


def test_many_queries_have_the_interval_of_the_resamples() -> None:
    values = np.random.default_rng(0).beta(1, 2, 5000)
    plain, found = bootstrap(values), bootstrap(values, bounds=SCORES)
    assert found.low == plain.low
    assert found.high == pytest.approx(plain.high, abs=0.1 * (plain.high - plain.low) / 2)


def test_queries_of_one_user_are_worth_one_when_intervals_are_widened() -> None:
    right, users = np.ones((40, 1)), np.repeat(np.arange(4), 10)
    (alone,) = bootstrap_columns(right, bounds=SCORES)
    (together,) = bootstrap_columns(right, users, bounds=SCORES)
    (four,) = bootstrap_columns(right[:4], bounds=SCORES)
    assert together.low == pytest.approx(four.low) and together.low < alone.low < 1
    uneven = np.r_[users[:39], 9]
    (other,) = bootstrap_columns(right, uneven, bounds=SCORES)  # sizes alone are no noise
    assert other.low == pytest.approx(bootstrap_columns(right[:5], bounds=SCORES)[0].low)


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
