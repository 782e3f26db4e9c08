"""An evaluation with the vectors of an encoded corpus has the figures of one that encodes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.mining.embedder import Model
from tempera.text.judge.evaluate import evaluate

from ..conftest import Command
from .test_interrupted import refused


@pytest.fixture
def encoded(tiny_run: Path, corpus: Path, tmp_path: Path) -> EncodedCorpus:
    return encode(tiny_run, corpus, tmp_path / "out", columns=["text"])


@pytest.fixture
def beir(corpus: Path, tmp_path: Path) -> Path:
    """A retrieval set of two thirds of the corpus, in another order, with 40 queries."""
    parts = [parquet.read_table(path) for path in corpus.rglob("*.parquet")]
    rows = [row for row in pa.concat_tables(parts).to_pylist() if row["text"]]
    draw = random.Random(1)
    draw.shuffle(rows)
    rows = rows[:170]
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    judgements = ["query-id\tcorpus-id\tscore"]
    queries = []
    for number, row in enumerate(rows[:40]):
        text = " ".join(draw.choices(row["text"].split(), k=3))
        queries.append(json.dumps({"_id": f"q{number}", "text": text}))
        judgements.append(f"q{number}\t{row['_id']}\t1")
    documents = [json.dumps({"_id": row["_id"], "text": row["text"]}) for row in rows]
    (folder / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    (folder / "qrels" / "test.tsv").write_text("\n".join(judgements) + "\n")
    return folder


def test_the_figures_are_those_of_encoding(
    tiny_run: Path,
    beir: Path,
    encoded: EncodedCorpus,
    tempera: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = tempera("evaluate", tiny_run, beir, "--bm25", "--json")
    assert expected.code == 0, expected.err

    def refuse(model: Model) -> object:
        raise AssertionError("documents were encoded")

    monkeypatch.setattr(Model, "doc", property(refuse))
    folder = encoded.place.address
    answer = tempera("evaluate", tiny_run, beir, "--bm25", "--json", "--index", folder)
    assert answer.code == 0, answer.err
    assert answer.document == expected.document
    (finding,) = evaluate(tiny_run, beir, bm25=True, index=folder)
    per_query = finding.per_query().to_pylist()
    monkeypatch.undo()
    (other,) = evaluate(tiny_run, beir, bm25=True)
    assert per_query == other.per_query().to_pylist()
    assert 0.1 < finding.systems[str(tiny_run)].intervals()["ndcg@10"].mean < 1


def test_a_table_of_pairs_takes_vectors_by_its_ids(
    tiny_run: Path, corpus: Path, encoded: EncodedCorpus, tmp_path: Path, tempera: Command
) -> None:
    rows = parquet.read_table(corpus / "part-0.parquet").to_pylist()
    lines = []
    for row in rows:
        if row["text"]:
            query = " ".join(row["text"].split()[:2])
            lines.append(json.dumps({"query": query, "doc": row["text"], "doc_id": row["_id"]}))
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(lines) + "\n")
    given = [tiny_run, pairs, "data.doc_id=doc_id", "--json"]
    expected = tempera("evaluate", *given)
    answer = tempera("evaluate", *given, "--index", encoded.place.address)
    assert answer.code == 0, answer.err
    assert answer.document == expected.document


def test_folders_of_other_documents_are_refused(
    tiny_run: Path,
    transformer: Path,
    corpus: Path,
    beir: Path,
    encoded: EncodedCorpus,
    tmp_path: Path,
    tempera: Command,
) -> None:
    folder = encoded.place.address
    refused(tempera("evaluate", transformer, beir, "--index", folder), "another model")
    refused(tempera("evaluate", tiny_run, "--index", folder), "give DATA")
    part = encode(tiny_run, corpus / "part-0.parquet", tmp_path / "part")
    answer = tempera("evaluate", tiny_run, beir, "--index", part.place.address)
    refused(answer, "lacks", "such as that with the id")
    encode(tiny_run, corpus, tmp_path / "queries", role="query")
    answer = tempera("evaluate", tiny_run, beir, "--index", tmp_path / "queries")
    refused(answer, "vectors of queries")
    graded = tmp_path / "graded.jsonl"
    graded.write_text(
        '{"sentence1": "a", "sentence2": "b", "score": 1}\n'
        '{"sentence1": "c", "sentence2": "c", "score": 5}\n'
    )
    answer = tempera("evaluate", tiny_run, graded, "--index", folder)
    refused(answer, "index is for rankings")
    documents = (beir / "corpus.jsonl").read_text().splitlines()
    changed = json.loads(documents[3])
    changed["text"] += " more"
    documents[3] = json.dumps(changed)
    (beir / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    answer = tempera("evaluate", tiny_run, beir, "--index", folder)
    refused(answer, "for another text", changed["_id"])
