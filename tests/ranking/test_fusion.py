"""Fused rankings against plain loops in float64, and the weight that validation chooses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from tempera.ranking.fusion import (
    USUAL,
    WEIGHTS,
    Fusion,
    fused,
    rank_by_weight,
    reciprocal_ranks,
    standardised,
)
from tempera.ranking.nearest import blocks

QUERIES, DOCS = 7, 40


def two(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines, and scores of words that are mostly 0, with ties in both; the first query has no
    known word."""
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(QUERIES, DOCS)).astype(np.float32)
    words = np.where(
        generator.random((QUERIES, DOCS)) < 0.2, generator.integers(1, 9, (QUERIES, DOCS)), 0
    )
    vectors[:, 30], words[:, 30], words[0] = vectors[:, 3], words[:, 3], 0
    return vectors, words.astype(np.float32)


def plainly_standardised(row: list[float]) -> list[float]:
    mean = math.fsum(row) / len(row)
    deviation = statistics.pstdev(row)
    return [(score - mean) / deviation if deviation else 0.0 for score in row]


def plainly_by_rank(row: list[float]) -> list[float]:
    return [1 / (60 + sum(other >= score for other in row)) for score in row]


@pytest.mark.parametrize(
    ("normalise", "plainly"),
    [(standardised, plainly_standardised), (reciprocal_ranks, plainly_by_rank)],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_fused_ranking_is_that_of_plain_loops_over_the_whole_corpus(
    normalise: Callable[[np.ndarray], np.ndarray],
    plainly: Callable[[list[float]], list[float]],
    seed: int,
) -> None:
    first, second = two(seed)
    parts = [slice(0, 3), slice(3, 4), slice(4, QUERIES)]
    ranked = rank_by_weight(((first[p], second[p]) for p in parts), WEIGHTS, DOCS, normalise)
    for weight, by_query in zip(WEIGHTS, ranked, strict=True):
        for query in range(QUERIES):
            a, b = (
                plainly(scores[query].astype(np.float64).tolist()) for scores in (first, second)
            )
            scores = [weight * x + (1 - weight) * y for x, y in zip(a, b)]
            order = by_query[query].tolist()
            assert sorted(order) == list(range(DOCS))
            for better, worse in pairwise(order):
                assert scores[better] > scores[worse] - 1e-12
                if (
                    second[query, better] == second[query, worse]
                    and first[query, better] == first[query, worse]
                ):
                    assert better < worse  # equal documents stand in the order of the corpus
            assert order.index(3) < order.index(30)


def test_less_depth_is_the_beginning_of_the_whole_ranking() -> None:
    scores = two(0)
    (whole,), (ten,) = (rank_by_weight([scores], [0.4], depth) for depth in (DOCS, 10))
    assert np.array_equal(whole[:, :10], ten)


def test_the_weights_0_and_1_are_the_systems_alone() -> None:
    first, second = two(1)
    words, vectors = rank_by_weight([(first, second)], [0.0, 1.0], DOCS)
    assert np.array_equal(vectors, np.argsort(-first, 1, kind="stable"))
    assert np.array_equal(words, np.argsort(-second, 1, kind="stable"))


def test_fused_scores_are_in_standard_deviations() -> None:
    first, second = two(2)
    scores = fused(1000 * first + 7, second, 0.3)
    assert np.allclose(scores, fused(first, second, 0.3), atol=1e-5) and np.allclose(
        scores.mean(1), 0
    )
    assert np.allclose(
        fused(first, second, 0.3)[0], 0.3 * standardised(first)[0]
    )  # no known word: vectors alone


def test_the_weight_is_the_middle_of_a_plateau_and_not_a_spike_of_noise() -> None:
    means = [0.50, 0.52, 0.56, 0.58, 0.59, 0.58, 0.56, 0.52, 0.595, 0.45, 0.40]
    chosen = Fusion.chosen(
        {weight: np.full(60, mean) for weight, mean in zip(WEIGHTS, means, strict=True)}
    )
    assert chosen == Fusion(0.4, 60)


@pytest.mark.parametrize("slope", [1, -1])
def test_one_system_alone_can_be_chosen(slope: int) -> None:
    chosen = Fusion.chosen({weight: np.full(50, 0.5 + slope * weight / 10) for weight in WEIGHTS})
    assert chosen.weight == (1.0 if slope > 0 else 0.0)


@pytest.mark.parametrize(("gain", "weight"), [(0.005, 0.9), (0.05, 1.0)])
def test_one_system_alone_is_chosen_only_if_it_is_shown_to_be_better(
    gain: float, weight: float
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 100)
    metric = {each: np.full(100, each / 2) for each in WEIGHTS}
    metric[1.0] = metric[0.9] + gain + noise - noise.mean()
    assert Fusion.chosen(metric).weight == weight


@pytest.mark.parametrize(("gain", "weight"), [(0.02, 0.4), (0.01, 0.3), (0.005, 0.1)])
def test_a_gain_that_is_not_shown_has_the_least_weight_that_is_as_good(
    gain: float, weight: float
) -> None:
    """The best weight, 0.4, is above words alone by the gain, with a standard error of 0.008."""
    noise = np.tile([1.0, -1.0], 50)
    metric = {w: 0.5 + gain * (1 - ((w - 0.4) / 0.4) ** 2) + 0.2 * w * noise for w in WEIGHTS}
    assert Fusion.chosen(metric).weight == weight


def test_nothing_is_chosen_on_no_queries() -> None:
    assert Fusion() == Fusion(USUAL, 0) and USUAL in WEIGHTS


def test_blocks_hold_every_query_once() -> None:
    for queries, docs in ((5, 1 << 22), (5000, 3000), (0, 5), (3, 0)):
        assert np.concatenate(
            [np.arange(queries)[part] for part in blocks(queries, docs)] or [[]]
        ).tolist() == list(range(queries))


@pytest.mark.parametrize("depth", [1, 5, DOCS])
def test_rounding_does_not_rank(depth: int) -> None:
    """Each document stands three times, and the vectors of the same words are rounded otherwise."""
    generator = np.random.default_rng(depth)
    vectors, words = (np.repeat(each, 3, axis=1) for each in two(1))
    exact = rank_by_weight([(vectors, words)], WEIGHTS, depth)
    rounded = vectors + generator.normal(size=vectors.shape).astype(np.float32) * np.float32(1e-7)
    for one, other in zip(exact, rank_by_weight([(rounded, words)], WEIGHTS, depth), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_that_are_all_equal_have_no_say(dtype: type) -> None:
    """Words rank alone, and not together with the rounding of one cosine."""
    _, words = two(3)
    generator = np.random.default_rng(3)
    rounding = generator.integers(-3, 4, words.shape) * 2.0**-24
    for cosine in (1.0, 0.3, 0.0):
        alike = (cosine + rounding).astype(dtype)
        assert not standardised(alike).any()
        for weight in (0.1, 0.5, 0.9):
            (together,) = rank_by_weight([(alike, words)], [weight], DOCS)
            (alone,) = rank_by_weight([(alike, words)], [0], DOCS)
            assert np.array_equal(together, alone)
    large = (5e4 + np.arange(6) * 2.0**-8)[None].astype(np.float32)  # of dot products
    assert not standardised(large).any() and standardised(large * 1000 + np.arange(6) * 1e4).any()
