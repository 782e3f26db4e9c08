"""What differences are worth, against scipy, against plain loops, and by trying how often the
verdict is wrong."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from tempera.experiments.noise import best_region, difference, interval


def test_an_interval_is_that_of_the_t_test() -> None:
    values = [0.41, 0.44, 0.39, 0.47]
    want = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = interval(values)
    assert np.allclose([found.low, found.high], want, rtol=1e-9) and math.isclose(
        found.mean, np.mean(values)
    )
    assert math.isnan(interval([0.5]).low) and interval([0.5]).mean == 0.5


def scores(
    mean: float, seeds: int, queries: int, generator: np.random.Generator
) -> dict[int, np.ndarray]:
    """Seeds that differ by 0.02, and within them queries."""
    return {
        s: mean + generator.normal(0, 0.02) + generator.normal(0, 0.1, queries)
        for s in range(seeds)
    }


def test_a_difference_counts_the_noise_of_seeds_and_of_queries() -> None:
    generator = np.random.default_rng(0)
    a, b = (scores(0.5, 3, 7, generator) for _ in "ab")
    found = difference(a, b, same_queries=True)
    by_seed = [sum(a[s][q] - b[s][q] for q in range(7)) / 7 for s in range(3)]
    by_query = [sum(a[s][q] - b[s][q] for s in range(3)) / 3 for q in range(7)]
    mean = sum(by_seed) / 3
    of_seeds = sum((x - mean) ** 2 for x in by_seed) / 2 / 3
    of_queries = sum((x - mean) ** 2 for x in by_query) / 6 / 7
    assert math.isclose(found.mean, mean) and math.isclose(found.error**2, of_seeds + of_queries)
    assert math.isclose(
        found.freedom, (of_seeds + of_queries) ** 2 / (of_seeds**2 / 2 + of_queries**2 / 6)
    )


def test_with_one_seed_it_is_the_paired_t_test_over_queries() -> None:
    generator = np.random.default_rng(1)
    a, b = (scores(0.5, 1, 30, generator) for _ in "ab")
    found = difference(a, b, same_queries=True)
    want = stats.ttest_rel(a[0], b[0])
    assert math.isclose(found.mean / found.error, want.statistic) and math.isclose(
        found.freedom, 29
    )


def test_with_other_queries_it_is_the_paired_t_test_over_seeds() -> None:
    generator = np.random.default_rng(2)
    a, b = (
        scores(0.5, 4, 30, generator),
        scores(0.5, 5, 20, generator),
    )  # the fifth seed has no partner
    found = difference(a, b, same_queries=False)
    want = stats.ttest_rel([a[s].mean() for s in range(4)], [b[s].mean() for s in range(4)])
    assert math.isclose(found.mean / found.error, want.statistic) and math.isclose(found.freedom, 3)


def test_the_best_region_on_made_up_numbers() -> None:
    base = np.linspace(0.2, 0.8, 20)
    wobble = np.tile([0.01, -0.01], 10)
    points = [
        dict.fromkeys((0, 1), base + mean + sign * wobble)
        for mean, sign in ((0, 1), (0.1, 1), (0.1, -1), (-0.2, 1))
    ]
    assert best_region(points, ["same"] * 4) == [1, 2]
    assert best_region([points[0], {}, points[1]], ["same"] * 3) == [2]  # one failed
    assert best_region([{}, {}], ["same"] * 2) == []
    assert best_region(points[:1], ["same"]) == [0]


def test_nothing_is_left_out_where_there_is_no_evidence() -> None:
    one = [{0: np.full(5, 0.9)}, {0: np.full(5, 0.1)}]
    assert best_region(one, ["same", "same"]) == [0]
    assert best_region(one, ["these", "those"]) == [
        0,
        1,
    ]  # one seed, other queries: no noise to compare with
    assert best_region([{0: np.full(5, 0.9)}, {1: np.full(5, 0.1)}], ["same", "same"]) == [
        0,
        1,
    ]  # no seed in common


def test_the_best_point_is_rarely_left_out_and_bad_ones_are() -> None:
    generator = np.random.default_rng(3)
    missed = found_bad = 0
    for _ in range(120):
        points = [scores(mean, 3, 40, generator) for mean in (0.5, 0.5, 0.5, 0.2)]
        region = best_region(points, ["same"] * 4)
        missed += 0 not in region
        found_bad += 3 in region
    assert missed <= 12  # of 120 at 5 %: more than 12 have a chance of 0.002
    assert found_bad <= 12
