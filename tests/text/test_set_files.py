"""Retrieval sets as tables of any kind: corpus, queries and judgements by their names and columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import DataError
from tempera.forms.set_files import is_beir
from tempera.options.build import build
from tempera.options.yaml_options import load
from tempera.text.judge.tasks import RetrievalTask
from tempera.text.read.beir import read_beir

CORPUS = [{"_id": f"d{i}", "title": f"Part {i}", "text": f"how part {i} is made"} for i in range(6)]
QUERIES = [{"_id": f"q{i}", "text": f"who makes part {i}?"} for i in range(6)]
JUDGED = [{"query-id": f"q{i}", "corpus-id": f"d{i}", "score": 1} for i in range(6)]
Rows = list[dict[str, Any]]


def jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def lines(rows: Rows, sign: str = "\t", names: bool = True) -> bytes:
    table = [[*rows[0]] if names else None, *([*row.values()] for row in rows)]
    return "".join(sign.join(map(str, row)) + "\n" for row in table if row).encode()


def columns(rows: Rows) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def renamed(rows: Rows, **names: str) -> Rows:
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


def without(rows: Rows, *names: str) -> Rows:
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


COLLECTION = [{"pid": i, "passage": f'a "quote {i} that is never closed'} for i in range(6)]
NUMBERED = [{"qid": 100 + i, "zero": 0, "pid": i, "rel": 1} for i in range(6)]
LAYOUTS: dict[str, tuple[dict[str, bytes], str]] = {
    "hub": (
        {
            "corpus/test-00000-of-00001.parquet": columns(CORPUS),
            "queries/test-00000-of-00001.parquet": columns(QUERIES),
            "qrels/test-00000-of-00001.parquet": columns(JUDGED),
        },
        "test",
    ),
    "default": (
        {
            "corpus/train-00000-of-00002.parquet": columns(CORPUS[:4]),
            "corpus/train-00001-of-00002.parquet": columns(CORPUS[4:]),
            "queries/train-00000-of-00001.parquet": columns(QUERIES),
            "default/dev.jsonl": jsonl(without(JUDGED, "score")),
        },
        "dev",
    ),
    "judgements in lines": (
        {
            "corpus.jsonl": jsonl(CORPUS),
            "queries.jsonl": jsonl(QUERIES),
            "qrels/test.jsonl": jsonl(JUDGED),
        },
        "test",
    ),
    "judgements of TREC": (
        {
            "corpus.jsonl": jsonl(CORPUS),
            "queries.jsonl": jsonl(QUERIES),
            "qrels/train.tsv": lines([{"q": r["query-id"], "z": 0, "d": r["corpus-id"], "g": 1} for r in JUDGED], names=False),
        },
        "train",
    ),
    "MS MARCO": (
        {
            "collection.tsv": lines(COLLECTION, names=False),
            "queries.train.tsv": lines([{"q": 100 + i, "t": f"who makes part {i}?"} for i in range(6)], names=False),
            "qrels.train.tsv": lines(NUMBERED, names=False),
        },
        "train",
    ),
    "spaces": (
        {
            "collection.tsv": lines(COLLECTION, names=False),
            "queries.dev.tsv": lines([{"q": 100 + i, "t": f"who makes part {i}?"} for i in range(6)], names=False),
            "qrels.dev.txt": lines(NUMBERED, "  ", names=False),
        },
        "dev",
    ),
    "commas": (
        {
            "documents.csv": lines(renamed(CORPUS, _id="id", text="content"), ","),
            "queries.csv": lines(renamed(QUERIES, _id="query_id", text="query"), ","),
            "judgements.csv": lines(renamed(JUDGED, **{"query-id": "qid", "score": "relevance"}), ","),
        },
        "all",
    ),
}  # fmt: skip


@pytest.fixture
def put(tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    def write(files: dict[str, bytes]) -> Path:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return write


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_is_read_whatever_its_kind_of_file(put, name: str) -> None:
    files, split = LAYOUTS[name]
    folder = put(files)
    assert is_beir(folder)
    found = read_beir(folder, split)
    assert found.queries["text"].to_pylist() == [f"who makes part {i}?" for i in range(6)]
    assert len(found.corpus) == 6 and found.doc.tolist() == found.query.tolist() == [*range(6)]
    config = build(load(folder))
    assert config.resolved["data"]["source"] == "beir"
    assert config.resolved["data"]["split"] == split
    about = config.data.read()[0].about
    assert f"{folder} is a retrieval set: corpus = " in about and all(
        any(file.startswith(word) for file in files) is (word in about)
        for word in ("collection", "documents", "default")
    )


def test_what_is_no_set(put) -> None:
    """Pairs in files of such names, a corpus alone, and tables of events."""
    pairs = lines([{"query": "who?", "doc": "they"}])
    assert not is_beir(put({"docs/a.tsv": pairs, "queries.tsv": pairs}))
    assert not is_beir(put({"docs/a.tsv": b"user\titem\n1\t2\n"}))


def test_a_set_without_a_part_and_several_sets_are_told(put, tmp_path: Path) -> None:
    folder = put({
        "x/collection.tsv": lines(COLLECTION, names=False),
        "x/qrels.tsv": lines(NUMBERED, names=False),
        "x/triples.tsv": b"a\tb\tc\n",
    })  # fmt: skip
    with pytest.raises(
        DataError, match=r"x holds a retrieval set without queries, in .*triples.tsv"
    ):
        build(load(folder / "x")).data.read()
    for name in "ab":
        put({
            f"sets/{name}/corpus.parquet": columns(CORPUS),
            f"sets/{name}/queries.parquet": columns(QUERIES),
        })  # fmt: skip
    with pytest.raises(
        DataError, match=r"sets holds 2 retrieval sets, with .*: give the folder of"
    ):
        build(load(folder / "sets"))
    with pytest.raises(
        DataError, match=r"no such file: .*qrels/train.tsv; add judgements: a header"
    ):
        build(load(folder / "sets" / "a")).data.read()


def test_a_query_that_is_a_document_by_its_id_is_left_out_of_its_ranking(put) -> None:
    """As in ArguAna; numbers that both sides count from 1 say nothing."""
    arguments = [{"_id": f"a{i}", "text": f"argument {i} and more"} for i in range(4)]
    corpus = [*({**row, "title": "On"} for row in arguments), {"_id": "c", "text": "counter"}]
    judged = [{"query-id": f"a{i}", "corpus-id": "c", "score": 1} for i in range(4)]
    judged.append({"query-id": "a3", "corpus-id": "a3", "score": 1})
    files = {
        "corpus.jsonl": jsonl(corpus),
        "queries.jsonl": jsonl(arguments),
        "qrels/test.tsv": lines(judged),
    }
    task = RetrievalTask.beir(put(files))
    assert task.counts["queries that are a document of their id, which is left out"] == 3
    ids = task.corpus["id"].to_pylist()
    eye = np.eye(len(ids), dtype=np.float32)
    queries = eye[[ids.index(name) for name in task.ids]] * 2 + eye[ids.index("c")]
    ranked = task.by_vectors((queries, eye), ("mrr@1",))
    assert ranked.metrics["mrr@1"] == 1.0
    numbered = {
        "corpus.jsonl": jsonl([{"_id": str(i), "text": f"part {i}"} for i in range(4)]),
        "queries.jsonl": jsonl([{"_id": str(i), "text": f"who makes {i}?"} for i in range(4)]),
        "qrels/test.tsv": lines([{"query-id": "1", "corpus-id": "2", "score": 1}]),
    }
    assert not len(RetrievalTask.beir(put(numbered)).itself)
