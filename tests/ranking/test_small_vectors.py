"""Smaller vectors: the numbers are those that the objective trains with, and rankings those of
loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tempera.core.precisions import at_precision
from tempera.ranking.metrics import Relevant, evaluate
from tempera.ranking.nearest import top
from tempera.ranking.ranking import Ranking
from tempera.ranking.small_vectors import CANDIDATES, RESCORED, SmallVectors, by_precision, ranked

METRICS = ("ndcg@10", "recall@10")


def unit(count: int, width: int = 24, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("precision", ["float32", "int8", "binary"])
def test_what_is_ranked_by_is_what_the_objective_sees(precision: str) -> None:
    vectors = unit(20)
    trained = at_precision(torch.from_numpy(vectors[:, :16]), precision)
    expected = torch.nn.functional.normalize(trained, dim=1).numpy()
    np.testing.assert_allclose(SmallVectors(vectors, 16, precision)[:], expected, atol=1e-6)
    np.testing.assert_array_equal(
        SmallVectors(vectors, 16, precision)[3:5],
        SmallVectors(vectors, 16, precision)[np.array([3, 4])],
    )


@pytest.mark.parametrize("once", [0, 1 << 24])
def test_binary_ranks_by_hamming_distance_and_rescoring_by_int8(
    once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempera.ranking.small_vectors._ONCE", once)
    queries, docs, width = unit(5, seed=1), unit(900, seed=2), 16
    hamming = [
        [sum((a > 0) != (b > 0) for a, b in zip(q[:width], d[:width], strict=True)) for d in docs]
        for q in queries
    ]
    order = np.argsort(hamming, axis=1, kind="stable")
    assert ranked(queries, docs, width, 30)["binary"].tolist() == order[:, :30].tolist()
    near = order[:, :CANDIDATES]
    coarse = SmallVectors(docs, width, "int8")[:]
    for q, rows, given in zip(
        queries, near, ranked(queries, docs, width, 10)[RESCORED], strict=True
    ):
        scores = [float(q[:width] @ coarse[row]) for row in rows]
        assert given.tolist() == [
            int(rows[i]) for i in sorted(range(len(rows)), key=lambda i: -scores[i])[:10]
        ]


def test_each_width_and_precision_is_judged_and_float32_is_the_ranking_itself() -> None:
    queries, docs = unit(30, seed=3), unit(200, seed=4)
    relevant = Relevant.of([[i, i + 1] for i in range(30)])
    table = by_precision(queries, docs, relevant, METRICS, [24, 8])
    assert table["queries"] == 30 and len(table["rows"]) == 8
    assert (
        table["rows"][0]["metrics"] == Ranking.by_vectors(queries, docs, relevant, METRICS).metrics
    )
    assert [row["bytes"] for row in table["rows"][:4]] == [
        96_000_000,
        24_000_000,
        3_000_000,
        27_000_000,
    ]


def test_of_many_scores_fewer_queries_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempera.ranking.small_vectors._CELLS", 420 * 50)
    queries, docs, relevant = (
        unit(600, seed=5),
        unit(50, seed=6),
        Relevant.of([[i % 50] for i in range(600)]),
    )
    table = by_precision(queries, docs, relevant, METRICS, [24])
    some = np.sort(np.random.default_rng(0).permutation(600)[:420])
    expected = evaluate(top(queries, docs, 10)[1], relevant, METRICS)["ndcg@10"][some].mean()
    assert table["queries"] == 420 and table["rows"][0]["metrics"]["ndcg@10"] == pytest.approx(
        expected
    )
