"""A search in shards finds what a search in all rows at once finds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import tempera as package
from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.corpora import many_shards
from tempera.errors import DataError
from tempera.tables.vector_files import read_vectors
from tempera.towers.stamp import Stamp

from ..conftest import Command
from .conftest import ROWS
from .test_interrupted import refused

QUERIES = ["kaban lodor", "the mifin", "tofin racel kaban", "zuban"]


@pytest.fixture
def encoded(tiny_run: Path, corpus: Path, tmp_path: Path) -> EncodedCorpus:
    return encode(tiny_run, corpus, tmp_path / "out", columns=["text", "year"])


@pytest.mark.parametrize("rows", [7, 50, 1 << 16])
@pytest.mark.parametrize("k", [1, 10, 400])
def test_the_nearest_rows_are_those_of_a_plain_loop(
    rows: int, k: int, encoded: EncodedCorpus, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = encoded.blocks
    monkeypatch.setattr(encoded, "blocks", lambda: blocks(rows=rows))
    queries = package.Run(tiny_run).encode(QUERIES)
    scores, positions = encoded.nearest(queries, k)
    every = np.concatenate([block.vectors for block in blocks()]).astype(np.float64)
    assert len(every) == sum(ROWS) == len(encoded)
    assert scores.shape == positions.shape == (4, min(k, len(every)))
    for query, found, places in zip(queries.astype(np.float64), scores, positions):
        products = [float(sum(a * b for a, b in zip(query, row))) for row in every]
        best = sorted(products, reverse=True)[:k]
        assert found.tolist() == pytest.approx(best, abs=1e-6)
        assert len(set(places.tolist())) == len(places)
        assert [products[place] for place in places] == pytest.approx(best, abs=1e-6)


def test_equal_scores_come_in_the_order_of_the_corpus() -> None:
    one = np.array([[0.9, 0.5]], np.float32), np.array([[3, 4]])
    other = np.array([[0.9, 0.5]], np.float32), np.array([[1, 2]])
    for pair in ((one, other), (other, one)):
        assert many_shards.merged(*pair, 3)[1].tolist() == [[1, 3, 2]]


def test_hits_have_ids_texts_columns_and_places(
    encoded: EncodedCorpus, corpus: Path, tempera: Command
) -> None:
    hits = encoded.search("kaban lodor", k=3)
    rows = {}
    for name in encoded.names:
        table = parquet.read_table(corpus / f"{name}.parquet").to_pylist()
        for number, row in enumerate(table):
            rows[row["_id"]] = (f"{name} row {number + 1}", row)
    for rank, hit in enumerate(hits, 1):
        place, row = rows[hit.id]
        assert (hit.rank, hit.place, hit.text) == (rank, place, row["text"])
        assert hit.columns == {"text": row["text"], "year": row["year"]}
    answer = tempera("search", encoded.place.address, "kaban lodor", "-k", 3, "--json")
    assert answer.document["hits"] == [json.loads(json.dumps(hit.json())) for hit in hits]
    shown = tempera("search", encoded.place.address, "kaban lodor", "-k", 1)
    assert hits[0].place in shown.out and hits[0].text[:20] in shown.out
    several = encoded.search(QUERIES, k=2)
    assert [[hit.id for hit in each] for each in several] == [
        [hit.id for hit in encoded.search(query, k=2)] for query in QUERIES
    ]


def test_rows_without_kept_columns_are_shown_by_their_ids(
    tiny_run: Path, corpus: Path, tmp_path: Path, tempera: Command
) -> None:
    encode(tiny_run, corpus, tmp_path / "bare")
    answer = tempera("search", tmp_path / "bare", "kaban", "-k", 1, "--json")
    (hit,) = answer.document["hits"]
    assert hit["text"] == "" and hit["name"] == hit["id"] and hit["columns"] == {}
    shown = tempera("search", tiny_run, "kaban", "--index", tmp_path / "bare", "-k", 1)
    assert hit["id"] in shown.out


def test_the_model_of_the_queries_has_to_be_that_of_the_vectors(
    encoded: EncodedCorpus, transformer: Path, tiny_run: Path, tempera: Command
) -> None:
    folder = encoded.place.address
    refused(tempera("search", transformer, "kaban", "--index", folder), "another model")
    with pytest.raises(DataError, match="another model"):
        EncodedCorpus(folder, transformer).search("kaban")
    assert EncodedCorpus(folder, tiny_run / "model").search("kaban") == encoded.search("kaban")
    with pytest.raises(DataError, match="the queries have 3 dimensions"):
        encoded.nearest(np.ones((1, 3), np.float32), 1)
    for option in (["--hybrid"], ["--explain"], ["--where", "year > 3"], ["--threshold", "0.5"]):
        refused(tempera("search", folder, "kaban", *option), option[0])
    refused(tempera("search", folder, " "), "the query is empty")


def test_a_shard_alone_is_a_file_of_vectors_with_a_stamp(
    encoded: EncodedCorpus, tiny_run: Path
) -> None:
    """Other commands read it, as the documents of a trained query model for one."""
    file = read_vectors(Path(encoded.place.address) / "shards" / "part-0.parquet")
    (block,) = encoded.blocks(["part-0"], with_ids=True)
    assert block.ids is not None
    assert np.array_equal(file.vectors, block.vectors)
    assert file.ids.to_pylist() == block.ids.to_pylist()
    stamp = Stamp.read(file.metadata, tiny_run)
    assert stamp == Stamp(package.Run(tiny_run).fingerprint, 16)


def test_rows_are_read_by_row_groups(
    encoded: EncodedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    real = parquet.ParquetFile.read_row_group

    def noted(self: parquet.ParquetFile, group: int, **options: object) -> pa.Table:
        read.append((group, options["columns"]))
        return real(self, group, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", noted)
    start = encoded.names.index("part-0")
    positions = encoded.starts[start] + np.array([120, 3, 120])
    rows = encoded.rows(positions)
    assert [row["id"] for row in rows] == ["0-120", "0-3", "0-120"]
    assert read == [(0, ["id", "text", "year"]), (2, ["id", "text", "year"])]


def test_folders_that_are_no_corpus_are_refused(tmp_path: Path, encoded: EncodedCorpus) -> None:
    with pytest.raises(DataError, match="holds no corpus of vectors"):
        EncodedCorpus(tmp_path / "absent")
    (Path(encoded.place.address) / "corpus.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match="is damaged"):
        EncodedCorpus(encoded.place.address)
    (Path(encoded.place.address) / "corpus.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        EncodedCorpus(encoded.place.address)
