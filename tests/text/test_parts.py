"""Files and splits that a user names for validation and test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tempera.errors import DataError
from tempera.task.evaluation import Evaluation
from tempera.text.read.beir import _read_texts as read_texts
from tempera.text.read.pairs import TEST, TRAIN, VALIDATION, Pairs
from tempera.text.read.sources import BeirFolder, PairsFile
from tempera.text.train.catalogue import Catalogue
from tempera.text.train.mixture import Mixture
from tempera.text.train.split import SHARES_DOCUMENT, SHARES_QUERY, hold_out

Put = Callable[..., str]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, *rows: dict[str, object]) -> str:
        (tmp_path / name).write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
        return str(tmp_path / name)

    return write


def pair(query: str, doc: str) -> dict[str, object]:
    return {"query": query, "doc": doc}


@pytest.mark.parametrize("mapped", [False, True])
def test_files_for_validation_and_test_keep_their_own_rows_and_columns(
    put: Put, tmp_path: Path, mapped: bool
) -> None:
    train = put("train.jsonl", *({**pair(f"q{i}", f"d{i}"), "negative": f"n{i}"} for i in range(6)))
    test = put(
        "test.jsonl", {"question": "t0", "answer": "d0"}, {"question": "q1", "answer": "d1"}
    )  # one is trained on
    source = PairsFile(train, validation=put("dev.jsonl", pair("v0", "x0")), test=test)
    pairs, candidates = source.read(tmp_path / "cache" if mapped else None)
    assert pairs.part.tolist() == [TRAIN] * 6 + [VALIDATION] + [TEST] * 2 and candidates.all()
    assert pairs.texts("query") == [*(f"q{i}" for i in range(6)), "v0", "t0", "q1"]
    assert pairs.negatives[1].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 6, 6]
    split = hold_out(pairs, candidates, Evaluation())
    assert [part.tolist() for part in (split.train, split.validation, split.test)] == [
        [2, 3, 4, 5],
        [6],
        [7, 8],
    ]
    assert split.dropped == {SHARES_QUERY: 1, SHARES_DOCUMENT: 1}
    again, _ = source.read()
    assert again.table.select(["query", "doc", "part"]).equals(
        pairs.table.select(["query", "doc", "part"])
    )


def test_one_file_leaves_the_table_as_it_was(put: Put) -> None:
    pairs, _ = PairsFile(put("train.jsonl", pair("a", "b"))).read()
    assert "part" not in pairs.table.column_names and pairs.part.tolist() == [TRAIN]
    assert isinstance(pairs.source, PairsFile) and pairs.source.query == "query"


def test_the_same_file_twice_leaves_nothing_to_train_on_and_says_why(put: Put) -> None:
    path = put("train.jsonl", *(pair(f"q{i}", f"d{i}") for i in range(4)))
    with pytest.raises(
        DataError,
        match=r"no pairs are left to train on: .* 4 are pairs that hold a query of validation",
    ):
        hold_out(*PairsFile(path, test=path).read(), Evaluation())


def test_a_mixture_keeps_the_test_of_its_sources(put: Put) -> None:
    first = PairsFile(put("a.jsonl", pair("q", "d"), *(pair(f"a{i}", f"x{i}") for i in range(5))))
    second = PairsFile(put("b.jsonl", pair("r", "e")), test=put("c.jsonl", pair("q", "d")))
    pairs, candidates = Mixture((first, second)).read()
    split = hold_out(pairs, candidates, Evaluation())
    assert pairs.texts("query", split.test) == ["q"] and split.dropped == {SHARES_QUERY: 1}
    assert sorted(pairs.texts("query", split.train)) == ["a0", "a1", "a2", "a3", "a4", "r"]


def test_ids_of_two_beir_folders_are_not_mixed_up(put: Put, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "qrels").mkdir(parents=True)
        put(
            f"{name}/corpus.jsonl",
            *({"_id": str(i), "text": f"text {name if i else ''}{i}"} for i in range(4)),
        )
        put(
            f"{name}/queries.jsonl",
            *({"_id": str(i), "text": f"{name} asks {i}"} for i in range(2)),
        )
        (tmp_path / name / "qrels" / "train.tsv").write_text(
            "query-id\tcorpus-id\tscore\n0\t0\t1\n1\t1\t1\n"
        )
    pairs, candidates = Mixture(
        tuple(BeirFolder(str(tmp_path / name)) for name in ("a", "b"))
    ).read()
    catalogue = Catalogue.of(pairs)
    assert sorted(catalogue.queries[:]) == ["", "a asks 0", "a asks 1", "b asks 0", "b asks 1"]
    assert candidates.all() and not pairs.dropped
    assert catalogue.docs.take(catalogue.doc_of) == pairs.texts("doc")
    assert catalogue.queries.take(catalogue.query_of[:2]) == ["a asks 0", "a asks 1"]
    assert sorted(catalogue.docs[:]) == sorted(
        {f"text {n if i else ''}{i}" for n in "ab" for i in range(4)}
    )  # one is in both


def test_splits_of_a_beir_folder(put: Put, tmp_path: Path) -> None:
    put("corpus.jsonl", *({"_id": f"d{i}", "title": "", "text": f"text {i}"} for i in range(9)))
    put("queries.jsonl", *({"_id": f"q{i}", "text": f"asks {i}"} for i in range(8)))
    (tmp_path / "qrels").mkdir()
    judged = {
        "train": ["q0 d0", "q1 d1", "q2 d2", "q3 d3"],
        "dev": ["q4 d3", "q5 d5"],
        "test": ["q6 d0", "q7 d7"],
    }
    for name, rows in judged.items():
        lines = ["query-id corpus-id score", *(f"{row} 1" for row in rows)]
        (tmp_path / "qrels" / f"{name}.tsv").write_text("\n".join(lines).replace(" ", "\t") + "\n")
    folder = BeirFolder(str(tmp_path), validation="dev", test="test")
    whole, asked = folder.read()
    everything = hold_out(whole, asked, Evaluation())
    assert not whole.dropped and everything.count == 8
    assert sorted(whole.texts("doc", everything.corpus)) == [f"text {i}" for i in range(9)]
    ids = whole.shown_ids("doc", everything.corpus).to_pylist()
    assert ids == [
        f"d{i}" for i in reversed(range(9))
    ]  # answers stand no sooner than what nothing asks for
    read = Catalogue.of(whole).trained(everything.train)  # what nothing asks for is not held out
    assert sorted(read) == ["asks 1", "asks 2", *(f"text {i}" for i in (1, 2, 4, 6, 8))]
    pairs, candidates = replace(folder, corpus="judged").read()
    assert pairs.dropped == {
        "documents that answer no query, and are not searched (data.corpus=judged)": 3
    }  # d4, d6, d8
    split = hold_out(pairs, candidates, Evaluation())
    for part in ("train", "validation", "test"):
        assert whole.texts("query", getattr(everything, part)) == pairs.texts(
            "query", getattr(split, part)
        )
    texts = {
        part: pairs.texts("query", getattr(split, part)) for part in ("train", "validation", "test")
    }
    assert texts == {
        "train": ["asks 1", "asks 2"],
        "validation": ["asks 4", "asks 5"],
        "test": ["asks 6", "asks 7"],
    }
    assert split.dropped == {SHARES_DOCUMENT: 2} and len(split.corpus) == 6
    kept = hold_out(pairs, candidates, Evaluation(shared_documents="keep"))
    assert len(kept.train) == 4 and kept.shared == 2
    assert isinstance(pairs, Pairs) and np.array_equal(kept.test, split.test)


def test_judgements_that_train_nothing_are_counted(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("corpus.jsonl", *({"_id": f"d{i}", "text": f"text {i}"} for i in range(4)))
    put("queries.jsonl", *({"_id": f"q{i}", "text": f"asks {i}"} for i in range(4)))
    (tmp_path / "qrels").mkdir()
    judged = {"train": ["q0 d0 1", "q0 d0 1", "q1 d1 0", "q1 d2 0"], "dev": ["q2 d2 1", "q3 d3 0"]}
    for name, rows in judged.items():
        lines = "\n".join(["query-id corpus-id score", *rows]).replace(" ", "\t")
        (tmp_path / "qrels" / f"{name}.tsv").write_text(lines + "\n")
    read: list[str] = []
    monkeypatch.setattr(
        "tempera.text.read.beir._read_texts",
        lambda folder, files, part, keeper=None: (
            read.append(part) or read_texts(folder, files, part, keeper)
        ),
    )
    pairs, _ = BeirFolder(str(tmp_path), validation="dev").read()
    assert pairs.dropped == {
        "queries without a relevant document": 2,
        "judgements of queries without a relevant document": 3,
        "repeated judgements": 1,
    }
    assert read == ["corpus", "queries"]  # once for both splits


def test_documents_without_a_query_are_no_query_of_their_own(put: Put, tmp_path: Path) -> None:
    put("corpus.jsonl", *({"_id": f"d{i}", "text": f"text {i}"} for i in range(300)))
    put("queries.jsonl", *({"_id": f"q{i}", "text": f"asks {i}"} for i in range(99)))
    (tmp_path / "qrels").mkdir()
    rows = "".join(f"q{i}\td{i}\t1\n" for i in range(99))
    (tmp_path / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    splits = [
        hold_out(*BeirFolder(str(tmp_path), corpus=corpus).read(), Evaluation())
        for corpus in ("all", "judged")
    ]
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(splits[0], part), getattr(splits[1], part))
    assert len(splits[0].test) == 9 and [len(split.corpus) for split in splits] == [300, 99]
