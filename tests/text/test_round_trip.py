"""Queries that a language model has written: those that do not find their document again are left
out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tempera.errors import ConfigError, DataError
from tempera.io.tables import read_table
from tempera.ranking.ranking import Evaluation
from tempera.text import round_trip
from tempera.text.lexical import Lexical
from tempera.text.pairs import TEST, Pairs
from tempera.text.sources import PairsFile
from tempera.text.split import NOT_FOUND, hold_out
from tempera.towers.saved import load
from tempera.towers.static import Static

TOPICS = [f"topic{i} word{i % 7} thing{i % 11}" for i in range(40)]
QUERIES = [f"what is topic{i} thing{i % 11}" for i in range(40)]
WRONG = {3: 20, 17: 4, 31: 8}  # queries about another document


def written(path: Path, **columns: Any) -> str:
    lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def generated(tmp_path: Path) -> str:
    queries = [QUERIES[WRONG.get(i, i)] + ("?" if i in WRONG else "") for i in range(40)]
    return written(tmp_path / "generated.csv", query=queries, document=TOPICS)


def test_a_query_about_another_document_is_not_trained_on(generated: str) -> None:
    pairs = PairsFile(generated, generated=True, found_within=2).read()[0]
    assert np.flatnonzero(~pairs.trainable).tolist() == sorted(WRONG)
    assert (
        "37 of 40 generated queries find their document again; validation and test: generated queries, which are easier"
        in pairs.about
    )
    assert PairsFile(generated).read()[0].trainable.all()
    split = hold_out(pairs, np.ones(40, bool), Evaluation(queries=8, validation=8))
    assert (
        pairs.trainable[split.train].all() and len(split.corpus) == 40
    )  # nothing becomes easier to find
    held = [rows.tolist() for rows in (split.validation, split.test)]
    left = set(WRONG) - {*held[0], *held[1]}
    assert len(split.train) == 24 - len(left) and split.dropped.get(NOT_FOUND, 0) == len(left)


def test_queries_that_are_held_out_are_not_chosen_by_what_bm25_finds(generated: str) -> None:
    """Else BM25 would be perfect on them."""
    pairs = PairsFile(generated, generated=True, found_within=2).read()[0]
    plain = PairsFile(generated).read()[0]
    splits = [
        hold_out(each, np.ones(40, bool), Evaluation(queries=15, validation=15))
        for each in (pairs, plain)
    ]
    held = [np.concatenate([each.validation, each.test]) for each in splits]
    assert held[0].tolist() == held[1].tolist() and not pairs.trainable[held[0]].all()


@pytest.mark.parametrize("option", [{"found_within": 5}, {"found_by": "model"}])
def test_options_of_generated_queries_need_them(generated: str, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(
        ConfigError,
        match=f"data.{name} is for queries that a language model has written: add data.gen",
    ):
        PairsFile(generated, **option)


def test_the_ranks_are_those_of_the_definition(
    generated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trip, "_BLOCK", 7)
    pairs = PairsFile(generated).read()[0]
    ranking = Lexical(pairs.texts("doc")).rank(pairs.texts("query"), 40)
    rank = np.array([row.tolist().index(i) if i in row else 99 for i, row in enumerate(ranking)])
    for k in (1, 2, 5, 40):
        assert round_trip.found_again(pairs, k).trainable.tolist() == (rank < k).tolist()


def test_a_saved_model_finds_documents_by_its_vectors(generated: str, tmp_path: Path) -> None:
    Static(dimensions=16, vocabulary=300).build([*TOPICS, *QUERIES]).save(tmp_path / "model")
    pairs = PairsFile(generated).read()[0]
    encode = load(tmp_path / "model")
    scores = encode(pairs.texts("query")) @ encode(pairs.texts("doc")).T
    rank = (scores > np.diag(scores)[:, None]).sum(1)
    marked = PairsFile(
        generated, generated=True, found_within=5, found_by=str(tmp_path / "model")
    ).read()[0]
    assert marked.trainable.tolist() == (rank < 5).tolist() and 0 < marked.trainable.sum() < 40
    with pytest.raises(
        DataError, match=r"no such folder: .*none; give that of a run or of a saved model"
    ):
        PairsFile(generated, generated=True, found_by=str(tmp_path / "none")).read()


def test_repeated_texts_are_told_apart_once() -> None:
    pairs = Pairs.of(["a b", "a b", "c", "x"], ["a b", "b c", "b c", "a b"])
    assert round_trip.found_again(pairs, 2).trainable.tolist() == [True, True, True, False]


def test_real_queries_are_kept_as_they_are(generated: str, tmp_path: Path) -> None:
    real = written(
        tmp_path / "real.csv", query=["nothing like it", "nor this"], document=TOPICS[:2]
    )
    pairs = PairsFile(generated, test=real, generated=True, found_within=2).read()[0]
    assert (
        (pairs.part == TEST).sum() == 2
        and pairs.trainable[pairs.part == TEST].all()
        and (~pairs.trainable).sum() == 3
    )
    assert "again; validation: generated queries" in pairs.about


def test_rows_stay_in_their_file(generated: str, tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    pairs = PairsFile(generated, generated=True).read(tmp_path / "rows")[0]
    assert pa.total_allocated_bytes() - before < 1000 < pairs.table.nbytes


def test_a_table_of_nothing_but_wrong_queries_is_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path / "wrong.csv", query=["nothing", "none"], document=["one thing", "two things"]
    )
    assert len(read_table(Path(path))) == 2
    with pytest.raises(
        DataError,
        match="none of its 2 generated queries finds its document among the first 10 by bm25",
    ):
        PairsFile(path, generated=True).read()
