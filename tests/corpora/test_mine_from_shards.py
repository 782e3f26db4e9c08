"""Negatives mined from an encoded corpus are those that are mined from its texts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.corpora import many_shards
from tempera.mining.hard_negatives import Mining
from tempera.text.train import mine as mining
from tempera.text.train.mine import mine

from ..conftest import WORDS, Command
from .test_interrupted import refused

OPTIONS = Mining(negatives=4, skip=1, depth=30, relative_margin=0.02)


@pytest.fixture
def pairs(corpus: Path, tmp_path: Path) -> Path:
    """Pairs whose answers are partly documents of the corpus, with and without their ids."""
    rows = parquet.read_table(corpus / "part-0.parquet").to_pylist()
    known = rows[20:60]
    draw = random.Random(3)
    path = tmp_path / "pairs.jsonl"
    with path.open("w") as file:
        for number, row in enumerate(known):
            text = row["text"]
            identifier = row["_id"]
            if number % 3 == 0 or not text:
                text = " ".join(draw.choices(WORDS, k=9))
                identifier = f"new-{number}"
            if number % 3 == 1:
                identifier = f"other-{number}"
            query = " ".join(draw.choices(text.split(), k=4))
            if number == 7:
                query = text  # the query is the answer
            if number % 10 == 8:
                query = rows[70 + number]["text"] or query  # or another document
            line = {"query": query, "doc": text, "doc_id": identifier}
            file.write(json.dumps(line) + "\n")
    return path


@pytest.fixture
def table(corpus: Path, encoded: EncodedCorpus, tmp_path: Path) -> Path:
    """The rows of all shards with a text, in order, as one table."""
    parts = [parquet.read_table(corpus / f"{name}.parquet") for name in encoded.names]
    whole = pa.concat_tables(parts).rename_columns({"_id": "doc_id"})
    rows = [row for row in whole.to_pylist() if row["text"]]
    path = tmp_path / "corpus.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def encoded(tiny_run: Path, corpus: Path, tmp_path: Path) -> EncodedCorpus:
    return encode(tiny_run, corpus, tmp_path / "out", columns=["text"])


@pytest.mark.parametrize("rows", [7, 1 << 16])
def test_the_negatives_are_those_of_the_texts(
    rows: int,
    tiny_run: Path,
    pairs: Path,
    table: Path,
    encoded: EncodedCorpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = mine(tiny_run, pairs, tmp_path / "a.parquet", OPTIONS, corpus=table)
    blocks = many_shards.EncodedShards.blocks

    def small(self: EncodedCorpus, **options: object) -> object:
        return blocks(self, rows=rows, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(many_shards.EncodedShards, "blocks", small)
    read = []
    embed = mining.embed_by

    def noted(model: Path, role: str, texts: list[str], *more: object, **options: object) -> object:
        read.append((role, len(texts)))
        return embed(model, role, texts, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(mining, "embed_by", noted)
    folder = encoded.place.address
    found = mine(tiny_run, pairs, tmp_path / "b.parquet", OPTIONS, corpus=folder)
    assert found == expected
    # Only queries and new answers are encoded.
    asked, new = read
    assert asked[0] == "query" and new[0] == "doc" and new[1] < 20
    one = parquet.read_table(tmp_path / "a.parquet")
    other = parquet.read_table(tmp_path / "b.parquet")
    assert one.schema.equals(other.schema)
    assert sum(map(len, one["negatives"].to_pylist())) > 50
    for name in one.column_names:
        if name.endswith("scores"):
            for row, same in zip(one[name].to_pylist(), other[name].to_pylist(), strict=True):
                assert row == pytest.approx(same, abs=1e-6)
        else:
            assert one[name].to_pylist() == other[name].to_pylist()


def test_folders_that_fit_no_mining_are_refused(
    tiny_run: Path,
    transformer: Path,
    corpus: Path,
    pairs: Path,
    encoded: EncodedCorpus,
    tmp_path: Path,
    tempera: Command,
) -> None:
    out = ["-o", tmp_path / "mined.parquet"]
    folder = encoded.place.address
    answer = tempera("mine", transformer, pairs, *out, "--corpus", folder)
    refused(answer, "another model")
    answer = tempera("mine", tiny_run, pairs, *out, "--corpus", folder, "--faiss", "HNSW32")
    refused(answer, "holds no index of an encoded corpus")
    encode(tiny_run, corpus, tmp_path / "bare")
    answer = tempera("mine", tiny_run, pairs, *out, "--corpus", tmp_path / "bare")
    refused(answer, "--columns text")
    encode(tiny_run, corpus, tmp_path / "queries", columns=["text"], role="query")
    answer = tempera("mine", tiny_run, pairs, *out, "--corpus", tmp_path / "queries")
    refused(answer, "vectors of queries")
    assert tempera("mine", tiny_run, pairs, *out, "--corpus", folder).code == 0
