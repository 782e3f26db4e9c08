"""Texts with ids of the source beside texts without: nothing that is held out is trained on, and
equal texts are one document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from tempera.errors import DataError
from tempera.io.ids import content_id
from tempera.mining.hard_negatives import Mining
from tempera.ranking.ranking import Evaluation
from tempera.text.read.pairs import REPEATED, Pairs
from tempera.text.read.sources import PairsFile
from tempera.text.train.catalogue import Catalogue
from tempera.text.train.mine import mine
from tempera.text.train.mining_task import MiningTask
from tempera.text.train.mixture import Mixture
from tempera.text.train.split import HELD_OUT, SHARES_QUERY, Split, hold_out


def table(path: Path, rows: range, *columns: str) -> str:
    """Pairs of their number, with the columns of ids, and two negatives, which are the answers of
    other rows."""
    texts: dict[str, list[object]] = {
        "query": [f"question {i}" for i in rows],
        "doc": [f"answer {i}" for i in rows],
    }
    texts |= {
        "negatives": [[f"answer {(i + 1) % 40}", f"answer {i} "] for i in rows]
    }  # the second is its own answer
    ids: dict[str, list[object]] = {
        "query_id": [f"q{i}" for i in rows],
        "doc_id": [f"d{i}" for i in rows],
    }
    ids |= {"negative_ids": [[f"d{(i + 1) % 40}", f"d{i}"] for i in rows]}
    parquet.write_table(pa.table(texts | {name: ids[name] for name in columns}), path)
    return str(path)


def texts_of(split: Split, rows: np.ndarray) -> set[str]:
    return {*split.pairs.texts("query", rows), *split.pairs.texts("doc", rows)}


def leaks(split: Split) -> set[str]:
    learned = texts_of(split, split.train)
    if "negatives" in split.pairs.table.column_names:
        catalogue = Catalogue.of(split.pairs, split.withheld)
        learned |= {
            *catalogue.docs.take(catalogue.negatives[torch.from_numpy(split.train)].values.numpy())
        }
    return learned & texts_of(split, np.concatenate([split.test, split.validation]))


@pytest.mark.parametrize("columns", [("query_id", "doc_id"), ("query_id",), ("doc_id",)])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_test_without_ids_is_not_trained_on(
    columns: tuple[str, ...], mapped: bool, tmp_path: Path
) -> None:
    path, test = (
        table(tmp_path / "ids.parquet", range(40), *columns),
        table(tmp_path / "test.parquet", range(30, 40)),
    )
    pairs, candidates = PairsFile(path, test=test).read(tmp_path / "cache" if mapped else None)
    split = hold_out(pairs, candidates, Evaluation(validation=0))
    assert len(split.test) == 10 and len(split.train) == 30 and not leaks(split)
    assert (
        split.dropped == {SHARES_QUERY: 10, HELD_OUT: 1} and len(split.corpus) == 40
    )  # that of question 29
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


@pytest.mark.parametrize(
    "columns", [(), ("doc_id",), ("negative_ids",), ("doc_id", "negative_ids")]
)
def test_negatives_are_known_by_their_texts_where_one_side_has_ids(
    columns: tuple[str, ...], tmp_path: Path
) -> None:
    pairs, _ = PairsFile(table(tmp_path / "pairs.parquet", range(40), *columns)).read()
    assert pairs.dropped == {"negatives that are a query or answer of the same row": 40}
    ids, offsets = pairs.negatives
    assert (
        offsets.tolist() == list(range(41))
        and ids.tolist() == np.roll(pairs.ids("doc"), -1).tolist()
    )
    assert len(Catalogue.of(pairs).doc_ids) == 40  # each is searched once
    if columns:
        assert pairs.given("doc").to_pylist() == [f"d{i}" for i in range(40)]
        assert pairs.negative_given.to_pylist() == [f"d{(i + 1) % 40}" for i in range(40)]


@pytest.mark.parametrize(
    "columns", [("query_id", "doc_id", "negative_ids"), ("doc_id",), ("query_id",), ()]
)
def test_mined_rows_have_the_ids_of_their_source(
    columns: tuple[str, ...], tiny_run: Path, tmp_path: Path
) -> None:
    path, output = (
        table(tmp_path / "pairs.parquet", range(40), *columns),
        tmp_path / "mined.parquet",
    )
    corpus = {"doc": ["answer 7", "more", "far"], "doc_id": ["d7", "d99", "d98"]}
    parquet.write_table(
        pa.table(corpus if "doc_id" in columns else {"doc": corpus["doc"]}),
        tmp_path / "corpus.parquet",
    )
    mine(tiny_run, path, output, Mining(45, depth=50), corpus=tmp_path / "corpus.parquet")
    mined, source = PairsFile(str(output)).read()[0], PairsFile(path).read()[0]
    for role in ("query", "doc"):
        if f"{role}_id" in columns:
            own = dict(zip(source.texts(role), source.given(role).to_pylist(), strict=True))
            assert mined.given(role).to_pylist() == [own[text] for text in mined.texts(role)]
            assert set(mined.ids(role)) == set(source.ids(role))
    known = {f"answer {i}": f"d{i}" for i in range(40)} | {"more": "d99", "far": "d98"}
    negatives = dict(
        zip(mined.negative_texts.to_pylist(), mined.negative_given.to_pylist(), strict=True)
    )
    of = known if "doc_id" in columns else {text: str(content_id(text)) for text in known}
    assert negatives == {text: of[text] for text in negatives} and {"far", "answer 7"} <= set(
        negatives
    )
    kind = pa.large_string() if "doc_id" in columns else pa.int64()
    assert parquet.read_schema(output).field("negative_ids").type.value_type == kind


def test_a_text_of_an_answers_id_is_no_negative_of_its_query(
    tiny_run: Path, tmp_path: Path
) -> None:
    rows = {
        "query": ["a", "b"],
        "doc": ["ka zu", "ban"],
        "doc_id": ["1", "2"],
        "negatives": [["ban"], ["ka zu mori"]],
    }
    parquet.write_table(
        pa.table(rows | {"negative_ids": [["2"], ["1"]]}), tmp_path / "pairs.parquet"
    )
    task = MiningTask.read(tmp_path / "pairs.parquet")
    assert task.docs.texts == ["ka zu", "ban"] and task.docs.shown.to_pylist() == ["1", "2"]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        '{"text": "ka zu, whole", "doc_id": 1}\n{"text": "ban", "doc_id": 2}\n{"text": "tel", "doc_id": 3}\n'
    )
    task = MiningTask.read(tmp_path / "pairs.parquet", corpus=corpus)
    assert task.docs.texts == ["ka zu", "ban", "tel"] and task.docs.shown.to_pylist() == [
        "1",
        "2",
        "3",
    ]
    before = MiningTask.read(tmp_path / "pairs.parquet").key()
    parquet.write_table(
        pa.table(rows | {"negative_ids": [["2"], ["7"]]}), tmp_path / "pairs.parquet"
    )
    assert MiningTask.read(tmp_path / "pairs.parquet").key() != before
    corpus.write_text('{"text": "tel", "doc_id": 1}\n{"text": "fin", "doc_id": 2}\n')
    with pytest.raises(
        DataError, match=r"corpus\.jsonl: 2 documents have an id that .* gives to another text"
    ):
        MiningTask.read(tmp_path / "pairs.parquet", corpus=corpus)


@pytest.mark.parametrize(
    "columns", [(), ("query_id", "doc_id"), ("query_id", "doc_id", "negative_ids")]
)
def test_no_row_learns_a_held_out_document_as_a_negative(
    columns: tuple[str, ...], tmp_path: Path
) -> None:
    pairs, candidates = PairsFile(table(tmp_path / "pairs.parquet", range(40), *columns)).read()
    options = Evaluation(queries=6, validation=6)
    split = hold_out(pairs, candidates, options)
    assert not leaks(split)
    ids, _ = pairs.negatives
    assert len(ids) == 40, "a row's own answer is no negative"
    want = np.isin((np.arange(40) + 1) % 40, [*split.test, *split.validation])
    count = int((np.isin(np.arange(40), split.train) & want).sum())
    assert split.withheld.tolist() == want.tolist() and split.dropped[HELD_OUT] == count > 0
    whole = Catalogue.of(pairs)
    catalogue = Catalogue.of(pairs, split.withheld)
    assert catalogue.doc_ids.tolist() == whole.doc_ids.tolist(), "they are searched, and ranked"
    assert whole.negatives.values[~split.withheld].tolist() == catalogue.negatives.values.tolist()
    assert (
        len(catalogue.negatives) == 40
        and np.isin(whole.doc_ids[catalogue.negatives.values], ids[~want]).all()
    )
    more, all_of_it = split.extended("validation"), split.extended("test")
    assert (
        not leaks(replace(more, validation=more.test))
        and more.withheld.sum() < split.withheld.sum()
    )
    assert not all_of_it.withheld.any() and HELD_OUT not in all_of_it.dropped
    kept = hold_out(pairs, candidates, replace(options, shared_documents="keep"))
    assert not kept.withheld.any() and HELD_OUT not in kept.dropped
