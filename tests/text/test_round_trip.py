"""Queries that a language model has written: those that do not find their document again are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempera.errors import DataError
from tempera.io.tables import read_table
from tempera.text.lexical import Lexical
from tempera.text.pairs import RANKED, TEST, TRAIN, Pairs
from tempera.text.round_trip import found_again
from tempera.text.sources import PairsFile

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


def test_a_query_about_another_document_is_left_out(generated: str) -> None:
    everything = PairsFile(generated).read()[0]
    pairs = PairsFile(generated, generated=True, found_within=2).read()[0]
    assert len(everything) == 40
    trained = np.flatnonzero(pairs.part == TRAIN)
    assert pairs.texts("doc", trained) == [topic for i, topic in enumerate(TOPICS) if i not in WRONG]
    others = np.flatnonzero(pairs.part == RANKED)
    assert pairs.texts("doc", others) == [TOPICS[i] for i in WRONG] and set(pairs.texts("query", others)) == {""}
    assert set(pairs.ids("doc")) == set(everything.ids("doc"))  # nothing becomes easier to find
    assert pairs.dropped["generated queries that do not find their document among the first 2 of BM25"] == len(WRONG)
    assert "37 of 40 generated queries find their document again; judged on generated queries" in pairs.about


def test_the_ranks_are_those_of_the_definition(generated: str) -> None:
    everything = PairsFile(generated).read()[0]
    ranking = Lexical(everything.texts("doc")).rank(everything.texts("query"), 40)
    rank = np.array([row.tolist().index(i) if i in row else 99 for i, row in enumerate(ranking)])
    for k in (1, 2, 5, 40):
        kept, others = found_again(everything, k)
        assert kept.texts("query") == [q for q, of in zip(everything.texts("query"), rank, strict=True) if of < k]
        assert sorted([*kept.texts("doc"), *others.texts("doc")]) == sorted(TOPICS)


def test_repeated_texts_are_told_apart_once() -> None:
    pairs = Pairs.of(["a b", "a b", "c", "x"], ["a b", "b c", "b c", "a b"])
    kept, others = found_again(pairs, 2)
    assert kept.texts("query") == ["a b", "a b", "c"] and not len(others)


def test_real_queries_are_kept_as_they_are(generated: str, tmp_path: Path) -> None:
    real = written(tmp_path / "real.csv", query=["nothing like it", "nor this"], document=TOPICS[:2])
    pairs = PairsFile(generated, test=real, generated=True, found_within=2).read()[0]
    assert (pairs.part == TRAIN).sum() == 37 and (pairs.part == TEST).sum() == 2
    assert "judged on the test given" in pairs.about


def test_a_table_of_nothing_but_wrong_queries_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "wrong.csv", query=["nothing", "none"], document=["one thing", "two things"])
    assert len(read_table(Path(path))) == 2
    with pytest.raises(
        DataError, match="none of its 2 generated queries finds its document among the first 10 of BM25"
    ):
        PairsFile(path, generated=True).read()
