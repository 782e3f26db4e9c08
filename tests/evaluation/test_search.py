"""Nearest documents against sorting everything."""

from __future__ import annotations

import numpy as np
import pytest

from tempera.evaluation.search import top, top_of


def sorted_whole(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions by falling score and then by position, [q, c] -> [q, min(k, c)]."""
    rows = [sorted(range(len(row)), key=lambda i: (-row[i], i))[:k] for row in scores.tolist()]
    assert len(rows) == len(scores)
    return np.array(rows)


@pytest.mark.parametrize("values", [1, 2, 5, 10**6])
@pytest.mark.parametrize("k", [1, 2, 7, 29, 30, 31, 100])
def test_the_best_of_scores_with_ties(values: int, k: int) -> None:
    scores = np.random.default_rng(k).integers(-values, values, (20, 30)).astype(np.float32)
    best, positions = top_of(scores, k)
    assert np.array_equal(positions, sorted_whole(scores, k))
    assert np.array_equal(best, np.take_along_axis(scores, positions, 1))
    assert best.dtype == np.float32 and positions.shape == (20, min(k, 30))


def test_infinite_and_signed_zero_scores() -> None:
    scores = np.array([[0.0, -np.inf, -0.0, np.inf, -np.inf]], np.float32)
    assert top_of(scores, 5)[1].tolist() == [[3, 0, 2, 1, 4]]
    assert top_of(scores, 2)[1].tolist() == [[3, 0]]


@pytest.mark.parametrize("block", [1, 2, 6, 7, 8, 512])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_blocks_of_queries_change_nothing(block: int, k: int) -> None:
    # Small whole numbers, so that products are exact and ties are many.
    generator = np.random.default_rng(block)
    queries, docs = (generator.integers(-2, 3, (n, 4)).astype(np.float32) for n in (7, 25))
    scores, positions = top(queries, docs, k, block)
    expected = sorted_whole(queries.astype(np.float64) @ docs.T.astype(np.float64), k)
    assert np.array_equal(positions, expected)
    assert scores.tolist() == [[float(queries[q] @ docs[d]) for d in row] for q, row in enumerate(expected)]


def test_no_queries() -> None:
    scores, positions = top(np.empty((0, 4), np.float32), np.ones((5, 4), np.float32), 3)
    assert scores.shape == positions.shape == (0, 3)


def test_real_vectors_and_what_is_given_stays_as_it_is() -> None:
    generator = np.random.default_rng(0)
    queries, docs = (generator.normal(size=(n, 16)).astype(np.float32) for n in (600, 300))
    before = queries.copy(), docs.copy()
    scores, positions = top(queries, docs, 10)
    assert np.isfinite(scores).all() and (np.diff(scores, axis=1) <= 0).all()
    assert np.array_equal(positions, sorted_whole(queries @ docs.T, 10))
    assert np.array_equal(queries, before[0]) and np.array_equal(docs, before[1])
