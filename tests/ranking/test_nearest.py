"""Nearest documents against sorting everything."""

from __future__ import annotations

import numpy as np
import pytest

from tempera.errors import DataError
from tempera.ranking.nearest import ROUNDING, break_ties, nearest, top, top_of


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


def test_rows_of_equal_scores_and_wide_rows() -> None:
    generator = np.random.default_rng(0)
    for width in (
        5,
        1023,
        1024,
        1025,
        2100,
    ):  # around the groups by whose maxima the best are bounded
        scores = generator.integers(-3, 4, (6, width)).astype(np.float32)
        scores[1], scores[2, 5:] = 0, -np.inf
        for k in (1, 4, width - 1, width):
            best, positions = top_of(scores, k)
            assert np.array_equal(positions, sorted_whole(scores, k))
            assert np.array_equal(best, np.take_along_axis(scores, positions, 1))


def test_scores_with_nan_are_refused() -> None:
    scores = np.zeros((3, 100), np.float32)
    scores[1] = np.nan
    with pytest.raises(DataError, match="row 1 of the scores has NaN"):
        top_of(scores, 4)


@pytest.mark.parametrize("block", [1, 2, 6, 7, 8, 512])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_blocks_of_queries_change_nothing(block: int, k: int) -> None:
    # Small whole numbers, so that products are exact and ties are many.
    generator = np.random.default_rng(block)
    queries, docs = (generator.integers(-2, 3, (n, 4)).astype(np.float32) for n in (7, 25))
    scores, positions = top(queries, docs, k, block)
    expected = sorted_whole(queries.astype(np.float64) @ docs.T.astype(np.float64), k)
    assert np.array_equal(positions, expected)
    assert scores.tolist() == [
        [float(queries[q] @ docs[d]) for d in row] for q, row in enumerate(expected)
    ]


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


def loops(
    queries: np.ndarray, docs: np.ndarray, k: int, without: set[tuple[int, int]]
) -> tuple[list, list]:
    """Positions and scores by the definition, in float64; -1 and -inf where there are no more
    documents."""
    positions, scores = [], []
    for q, query in enumerate(queries.astype(np.float64)):
        allowed = [
            (-float(query @ doc), d)
            for d, doc in enumerate(docs.astype(np.float64))
            if (q, d) not in without
        ]
        best = sorted(allowed)[:k]
        missing = min(k, len(docs)) - len(best)
        positions.append([d for _, d in best] + [-1] * missing)
        scores.append([-s for s, _ in best] + [-np.inf] * missing)
    return positions, scores


@pytest.mark.parametrize("order", ["random", "rising", "falling"])
@pytest.mark.parametrize(("width", "k"), [(3, 2), (3, 7), (8, 1), (8, 5), (64, 60)])
def test_blocks_of_documents_and_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, order: str, width: int, k: int
) -> None:
    monkeypatch.setattr("tempera.ranking.nearest._WIDTH", width)
    generator = np.random.default_rng(width * k)
    queries, docs = (generator.integers(-2, 3, (n, 3)).astype(np.float32) for n in (9, 60))
    if order != "random":
        sums = docs @ np.abs(queries[0]) * (1 if order == "rising" else -1)
        docs = docs[np.argsort(sums, kind="stable")]
    rows, columns = np.divmod(np.sort(generator.choice(9 * 60, 200, replace=False)), 60)
    rows, columns = (
        np.concatenate([rows[rows != 4], np.full(58, 4)]),
        np.concatenate([columns[rows != 4], np.arange(58)]),
    )
    in_order = np.argsort(rows, kind="stable")
    rows, columns = rows[in_order], columns[in_order]
    for docs_given in (docs, docs.astype(np.float16)):
        scores, positions = top(queries, docs_given, k, 4, (rows, columns))
        expected = loops(queries, docs, k, set(zip(rows.tolist(), columns.tolist())))
        assert positions.tolist() == expected[0]
        assert scores.tolist() == expected[1]
    assert top(queries, docs, k, 4)[1].tolist() == loops(queries, docs, k, set())[0]


def test_many_documents_that_beat_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempera.ranking.nearest._WIDTH", 16)
    docs = np.arange(1000, dtype=np.float32)[:, None]
    queries = np.array([[1.0], [-1.0], [0.0]], np.float32)
    assert top(queries, docs, 5)[1].tolist() == [
        [999, 998, 997, 996, 995],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
    ]


@pytest.mark.parametrize("k", [1, 3, 10])
def test_rounding_does_not_rank(k: int) -> None:
    """Documents of the same words have vectors that differ by the order in which the words were
    added up."""
    draw = np.random.default_rng(k)
    queries, docs = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in draw.normal(size=(2, 40, 64))
    )
    docs = np.repeat(docs, 3, 0)
    exact = sorted_whole(queries @ docs.T, k)
    for _ in range(3):
        rounded = (docs + draw.normal(size=docs.shape) * 1e-8).astype(np.float32)
        assert np.array_equal(nearest(queries.astype(np.float32), rounded, k), exact)


def in_groups(scores: list[float], positions: list[int]) -> list[int]:
    """Positions by groups of scores that are within a rounding error of the first of each."""
    ranked: list[int] = []
    while scores:
        count = sum(scores[0] - score <= ROUNDING for score in scores)
        ranked += sorted(positions[:count])
        scores, positions = scores[count:], positions[count:]
    return ranked


def test_scores_that_follow_each_other_closely_are_not_all_equal() -> None:
    """Ten scores of a nearly collapsed model span six rounding errors, and rank."""
    close = 0.9 - 6.5e-7 * np.arange(10)[None]
    against = np.arange(10)[None, ::-1].copy()
    assert break_ties(close, against).tolist() == [[8, 9, 6, 7, 4, 5, 2, 3, 0, 1]]
    generator = np.random.default_rng(0)
    scores = -np.sort(generator.integers(0, 60, (200, 25)) * -1.5e-7, axis=1)[:, ::-1].copy()
    scores = -np.sort(-scores, axis=1)
    positions = np.stack([generator.permutation(25) for _ in scores])
    expected = [
        in_groups(row, where)
        for row, where in zip(scores.tolist(), positions.tolist(), strict=True)
    ]
    assert break_ties(scores, positions).tolist() == expected


def test_a_nearly_collapsed_model_ranks_by_its_scores() -> None:
    """Vectors that lie close to one, of which the last in the corpus is the nearest."""
    angles = np.linspace(1e-2, 3e-3, 40)
    docs = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    ranked = nearest(np.array([[1.0, 0.0]], np.float32), docs, 10)[0]
    scores = docs[ranked, 0]
    assert sorted(ranked.tolist()) == list(range(30, 40)) and ranked[0] >= 37
    assert (np.minimum.accumulate(scores) - scores >= -ROUNDING).all()
