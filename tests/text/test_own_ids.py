"""Texts with ids of the source beside texts without: nothing that is held out is trained on, and equal texts are one document."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.ranking.ranking import Evaluation
from tempera.text.catalogue import Catalogue
from tempera.text.mixture import Mixture
from tempera.text.pairs import REPEATED, Pairs
from tempera.text.sources import PairsFile
from tempera.text.split import SHARES_QUERY, Split, hold_out


def table(path: Path, rows: range, *columns: str) -> str:
    """Pairs of their number, with the columns of ids, and two negatives, which are the answers of other rows."""
    texts: dict[str, list[object]] = {"query": [f"question {i}" for i in rows], "doc": [f"answer {i}" for i in rows]}
    texts |= {"negatives": [[f"answer {(i + 1) % 40}", f"answer {i} "] for i in rows]}  # the second is its own answer
    ids: dict[str, list[object]] = {"query_id": [f"q{i}" for i in rows], "doc_id": [f"d{i}" for i in rows]}
    ids |= {"negative_ids": [[f"d{(i + 1) % 40}", f"d{i}"] for i in rows]}
    parquet.write_table(pa.table(texts | {name: ids[name] for name in columns}), path)
    return str(path)


def texts_of(split: Split, rows: np.ndarray) -> set[str]:
    return {*split.pairs.texts("query", rows), *split.pairs.texts("doc", rows)}


def leaks(split: Split) -> set[str]:
    return texts_of(split, split.train) & texts_of(split, np.concatenate([split.test, split.validation]))


@pytest.mark.parametrize("columns", [("query_id", "doc_id"), ("query_id",), ("doc_id",)])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_test_without_ids_is_not_trained_on(columns: tuple[str, ...], mapped: bool, tmp_path: Path) -> None:
    path, test = table(tmp_path / "ids.parquet", range(40), *columns), table(tmp_path / "test.parquet", range(30, 40))
    pairs, candidates = PairsFile(path, test=test).read(tmp_path / "cache" if mapped else None)
    split = hold_out(pairs, candidates, Evaluation(validation=0))
    assert len(split.test) == 10 and len(split.train) == 30 and not leaks(split)
    assert split.dropped == {SHARES_QUERY: 10} and len(split.corpus) == 40
    if "doc_id" in columns:
        assert pairs.given("doc").to_pylist() == [f"d{i}" for i in [*range(40), *range(30, 40)]]


@pytest.mark.parametrize("first", [True, False])
def test_a_pair_of_two_sources_counts_once_whichever_has_ids(first: bool, tmp_path: Path) -> None:
    paths = [
        table(tmp_path / "ids.parquet", range(40), "query_id", "doc_id", "negative_ids"),
        table(tmp_path / "plain.parquet", range(40)),
    ]
    pairs, _ = Mixture([PairsFile(path) for path in (paths if first else paths[::-1])]).read()
    assert len(pairs) == 40 and pairs.dropped[REPEATED] == 40
    assert pairs.given("query").to_pylist() == [f"q{i}" for i in range(40)]


def test_a_text_with_two_ids_is_not_held_out_by_one_and_trained_on_by_the_other() -> None:
    both = [*range(40), *range(40)]
    rows = {"query": [f"question {i}" for i in both], "doc": [f"answer {i}" for i in both]}
    ids = {f"given_{role}_id": [f"{role}{i}" for i in range(80)] for role in ("query", "doc")}
    hashes = {f"{role}_id": np.arange(80) for role in ("query", "doc")}
    nothing = {"name": [""] * 80, "place": [""] * 80}
    pairs = Pairs.distinct_of([pa.table(rows | ids | hashes | nothing)])
    assert len(pairs) == 80
    split = hold_out(pairs, np.ones(80, bool), Evaluation(queries=10, validation=10))
    assert len(split.train) > 40 and not leaks(split)


@pytest.mark.parametrize("columns", [(), ("doc_id",), ("negative_ids",), ("doc_id", "negative_ids")])
def test_negatives_are_known_by_their_texts_where_one_side_has_ids(columns: tuple[str, ...], tmp_path: Path) -> None:
    pairs, _ = PairsFile(table(tmp_path / "pairs.parquet", range(40), *columns)).read()
    assert pairs.dropped == {"negatives that are a query or answer of the same row": 40}
    ids, offsets = pairs.negatives
    assert offsets.tolist() == list(range(41)) and ids.tolist() == np.roll(pairs.ids("doc"), -1).tolist()
    assert len(Catalogue.of(pairs).doc_ids) == 40  # each is searched once
    if columns:
        assert pairs.given("doc").to_pylist() == [f"d{i}" for i in range(40)]
        assert pairs.negative_given.to_pylist() == [f"d{(i + 1) % 40}" for i in range(40)]
