"""A teacher's scores of pairs and negatives, from columns of the data and by a cross-encoder, as
batches hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tempera import config as configuration
from tempera.build import build
from tempera.errors import ConfigError, DataError
from tempera.mining.guide import CrossEncoder
from tempera.mining.vectors import Store
from tempera.text.retrieval import TextTask


def rows(count: int = 40) -> list[dict[str, Any]]:
    """Pairs with 0 to 2 negatives, each with a score that its text tells."""
    return [
        {
            "query": f"query {i}",
            "pos": [f"answer {i}"],
            "neg": [f"other {i} {j}" for j in range(i % 3)],
            "pos_scores": [float(i)],
            "neg_scores": [i + 0.25 * j - 100 for j in range(i % 3)],
        }
        for i in range(count)
    ]


def task_of(folder: Path, table: list[dict[str, Any]], teacher: str, **sections: Any) -> TextTask:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    given = {
        "data": {"source": "pairs", "path": str(path)},
        "tower": {"dimensions": 8, "vocabulary": 120},
        "train": {"batch_size": 6, "max_steps": 3, "teacher": teacher},
        "evaluation": {"queries": 4, "validation": 0, "bm25": False},
        **sections,
    }
    return TextTask.read(build(configuration.of(given)), folder / "cache", folder / "vectors")


def test_columns_of_scores_are_those_of_their_texts(tmp_path: Path) -> None:
    data = task_of(tmp_path, rows(), "columns").data
    catalogue = data.texts.catalogue
    for number, chosen in enumerate(data.sampler(0, 3)):
        batch = data.batch(chosen, number)
        queries = catalogue.pairs.texts("query", data.texts.split.train[chosen.numpy()])
        assert batch.query.score.tolist() == [float(query.split()[1]) for query in queries]
        texts = dict(zip(catalogue.doc_ids.tolist(), catalogue.docs[:], strict=True))
        said = [texts[number].split() for number in batch.negatives.ids.tolist()]
        assert batch.negatives.score.tolist() == [int(i) + 0.25 * int(j) - 100 for _, i, j in said]
        assert batch.negatives.owner.tolist() == [queries.index(f"query {i}") for _, i, _ in said]
        assert batch.doc.score is None and batch.query.teacher is None


def test_scores_stay_with_negatives_where_others_are_held_out(tmp_path: Path) -> None:
    table = [
        {**row, "neg": [f"answer {j}" for j in at], "neg_scores": [100.0 * i + j for j in at]}
        for i, row in enumerate(rows())
        for at in [[(i + step) % 40 for step in (1, 2, 3)]]
    ]
    data = task_of(tmp_path, table, "columns").data
    catalogue, held = (
        data.texts.catalogue,
        {*data.texts.split.pairs.texts("doc", data.texts.split.test)},
    )
    left_out = sum(text in held for i in data.texts.split.train for text in table[i]["neg"])
    assert left_out and data.dropped["negatives that are texts of validation or test"] == left_out
    texts = dict(zip(catalogue.doc_ids.tolist(), catalogue.docs[:], strict=True))
    for number, chosen in enumerate(data.sampler(0, 3)):
        batch, own = data.batch(chosen, number), data.texts.split.train[chosen.numpy()]
        said = [texts[each] for each in batch.negatives.ids.tolist()]
        assert said and not held & {*said}
        row = own[batch.negatives.owner.numpy()]
        assert batch.negatives.score.tolist() == [
            100 * i + int(text.split()[1]) for i, text in zip(row.tolist(), said, strict=True)
        ]


@pytest.mark.parametrize("missing", ["pos_scores", "neg_scores"])
def test_a_column_that_is_missing_is_told(tmp_path: Path, missing: str) -> None:
    table = [{name: value for name, value in row.items() if name != missing} for row in rows()]
    with pytest.raises(
        DataError, match=r"name the columns as data\.positive_scores and data\.negative_scores"
    ):
        task_of(tmp_path, table, "columns")


def test_a_cross_encoder_scores_pairs_and_whatever_negatives_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def judge(pairs: list[tuple[str, str]]) -> np.ndarray:
        seen.extend(pairs)
        return np.array([len(query) + 100 * sum(map(ord, doc)) for query, doc in pairs], np.float32)

    store = Store(tmp_path / "scores", "pairs")
    monkeypatch.setattr(
        CrossEncoder, "of", lambda model, folder, device: CrossEncoder(store, lambda: judge)
    )
    scored = {
        "objective": {
            "teacher": {"by": "scores", "loss": "margin_mse"},
            "pools": ["docs", "negatives"],
        }
    }
    data = task_of(tmp_path, rows(), "folder", **scored, mining={"every": 2, "negatives": 2}).data
    catalogue, split = data.texts.catalogue, data.texts.split
    docs = catalogue.docs[:]
    for step in (0, 2):
        data.refresh(step)
        batch = data.batch(chosen := torch.arange(6), step)
        queries, answers = (
            catalogue.pairs.texts(role, split.train[chosen.numpy()]) for role in ("query", "doc")
        )
        assert batch.query.score.tolist() == judge(list(zip(queries, answers))).tolist()
        negatives = [docs[at] for at in data.rows.negatives[chosen].values.tolist()]
        pairs = [
            (queries[i], doc)
            for i, doc in zip(batch.negatives.owner.tolist(), negatives, strict=True)
        ]
        assert batch.negatives.score.tolist() == judge(pairs).tolist()
    assert len(negatives) == 12


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"objective\.teacher\.by: is vectors, but train\.teacher is columns of scores",
    ):
        task_of(tmp_path, rows(), "columns", objective={"teacher": {"by": "vectors"}})
    with pytest.raises(
        ConfigError, match=r"mining\.every replaces the negatives that train\.teacher=columns"
    ):
        task_of(tmp_path, rows(), "columns", mining={"every": 2})
