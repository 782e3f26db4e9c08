"""The guide: vectors by row, and what a cross-encoder refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tempera import Batch, Side, Temperature, mnr
from tempera.core.masks import Guided
from tempera.errors import DataError
from tempera.mining.embed import StoredEmbeddings
from tempera.mining.guide import CrossEncoder, Guide, check_negatives
from tempera.mining.vectors import Store


def test_vectors_by_row_are_what_the_mask_takes() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(20, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    guide = Guide(
        StoredEmbeddings(vectors, np.arange(9)),
        StoredEmbeddings(vectors.astype(np.float16), np.arange(19, 12, -1)),
    )
    query, doc = torch.tensor([3, 1, 8]), torch.tensor([0, 6, 2])
    assert torch.equal(guide("query", query), torch.from_numpy(vectors[[3, 1, 8]]))
    for role in ("doc", "negatives", "sampled"):
        expected = torch.from_numpy(vectors[[19, 13, 17]].astype(np.float16)).float()
        assert torch.equal(guide(role, doc), expected)  # type: ignore[arg-type]
    sides = [
        Side(torch.randn(3, 8), guide=guide(role, rows))
        for role, rows in (("query", query), ("doc", doc))
    ]
    assert mnr(Temperature(0.1), masks=(Guided(),))(Batch(*sides)).shape == (3,)
    with pytest.raises(DataError, match="the widths 4 and 3"):
        Guide(guide.query, StoredEmbeddings(vectors[:, :3], np.arange(2)))


def test_a_cross_encoder_judges_each_pair_once(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def judge(pairs: list[tuple[str, str]]) -> np.ndarray:
        asked.extend(pairs)
        return np.array([len(a) - len(b) for a, b in pairs], np.float32)

    for _ in range(2):
        encoder = CrossEncoder(Store(tmp_path, "pairs"), lambda: judge)
        assert encoder([("aa", "b"), ("a", "ab"), ("aa", "b")]).tolist() == [1.0, -1.0, 1.0]
    assert asked == [("aa", "b"), ("a", "ab")]
    assert encoder([]).shape == (0,)


@pytest.mark.parametrize("margin", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_negatives_against_loops(margin: float, kind: str) -> None:
    generator = np.random.default_rng(1)
    queries = [f"q{i}" for i in range(12)]
    positives = [[f"p{i}.{j}" for j in range(generator.integers(0, 3))] for i in range(12)]
    negatives = [[f"n{i}.{j}" for j in range(generator.integers(0, 5))] for i in range(12)]
    table: dict[tuple[str, str], float] = {}

    def score(pairs: list[tuple[str, str]]) -> np.ndarray:
        return np.array(
            [table.setdefault(pair, float(generator.integers(-4, 5))) for pair in pairs], np.float32
        )

    checked = check_negatives(queries, positives, negatives, score, margin, kind)  # type: ignore[arg-type]
    kept = []
    for query, right, wrong in zip(queries, positives, negatives):
        least = min([table[query, doc] for doc in right], default=np.inf)
        size = 1.0 if kind == "absolute" or not right else abs(least)
        kept.append([table[query, doc] <= least - margin * size for doc in wrong])
    assert (
        checked.kept == kept
        and checked.dropped == sum(not good for row in kept for good in row) > 0
    )
    assert check_negatives([], [], [], score).kept == []
