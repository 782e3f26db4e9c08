"""Kept columns are plain columns in Parquet, and those of the index again when it is read."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.corpus.flat_columns import FLAT, flat_names, flattened, nested
from tempera.corpus.index import Index, write_index, write_parquet
from tempera.errors import DataError
from tempera.tables.vector_files import read_vectors
from tempera.towers.stamp import Stamp, checksum

KEPT = [
    {
        "year": 2024,
        "Year": "MMXXIV",
        "id": "ticket 7",
        "embedding": "an old name",
        "_id": None,
        "day": datetime.date(2024, 2, 29),
        "kept_id": True,
        "nothing": None,
    },
    {
        "year": None,
        "Year": "",
        "id": "ticket 8",
        "embedding": None,
        "_id": 3.5,
        "day": None,
        "kept_id": False,
        "nothing": None,
    },
    {
        "year": 1999,
        "Year": "漢字",
        "id": None,
        "embedding": "x",
        "_id": -1.0,
        "day": datetime.date(1999, 1, 1),
        "kept_id": None,
        "nothing": None,
    },
]
VECTORS = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """An index of three documents with kept columns of many types, and its Parquet table."""
    documents = pa.table(
        {
            "doc_id": [11, 12, 13],
            "given_doc_id": ["a", "b", "c"],
            "name": ["", "n", ""],
            "place": ["f:1", "f:2", "f:3"],
            "doc": ["first", "second", "third"],
            "columns": pa.array(KEPT),
        }
    )
    stamp = Stamp("model", 2, checksum=checksum(VECTORS))
    write_index(tmp_path / "index", VECTORS, documents, stamp)
    write_parquet(tmp_path / "parquet", Index(tmp_path / "index"))
    return tmp_path


def test_a_database_sees_a_column_for_each_kept_column(written: Path) -> None:
    table = parquet.read_table(written / "parquet" / "vectors.parquet")
    assert table.column_names == [
        *("id", "name", "place", "text", "key"),
        *("year", "kept_Year", "kept_id", "embedding", "_id", "day", "kept_kept_id", "nothing"),
        "vector",
    ]
    own = ["year", "Year", "id", "embedding", "_id", "day", "kept_id", "nothing"]
    for column, kept in zip(table.column_names[5:-1], own, strict=True):
        assert table[column].to_pylist() == [row[kept] for row in KEPT], column


def test_databases_filter_by_kept_columns(written: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    answer = duckdb.execute(
        "SELECT id, list_inner_product(vector, $1::FLOAT[]) AS score FROM read_parquet($2) "
        "WHERE year < 2000 AND kept_Year = '漢字' AND day < DATE '2000-01-01'",
        [np.array([0.6, 0.8], np.float32), str(written / "parquet" / "vectors.parquet")],
    ).fetchall()
    assert answer == [("c", pytest.approx(0.8))]


def test_the_index_of_the_table_is_the_index_that_it_was_written_from(written: Path) -> None:
    before, after = Index(written / "index"), Index(written / "parquet")
    assert after.documents.equals(before.documents)
    assert after.columns.schema.equals(before.columns.schema)
    assert after.columns.to_pylist() == KEPT
    query = np.array([0.6, 0.8], np.float32)
    assert after.search(query, 3, "model") == before.search(query, 3, "model")
    assert [dict(hit.columns) for hit in after.search(query, 3)] == [KEPT[1], KEPT[2], KEPT[0]]
    vectors = read_vectors(written / "parquet")  # though kept columns have usual names of others
    assert vectors.ids.to_pylist() == ["a", "b", "c"] and np.array_equal(vectors.vectors, VECTORS)


def test_a_table_of_an_earlier_version_has_the_struct(written: Path) -> None:
    index = Index(written / "index")
    column = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), 2)
    (written / "earlier").mkdir()
    parquet.write_table(
        index.documents.append_column("vector", column), written / "earlier" / "vectors.parquet"
    )
    assert Index(written / "earlier").columns.to_pylist() == KEPT


def test_further_columns_of_a_users_own_table_are_no_kept_columns(written: Path) -> None:
    table = parquet.read_table(written / "parquet" / "vectors.parquet")
    (written / "own").mkdir()
    parquet.write_table(table.replace_schema_metadata(None), written / "own" / "vectors.parquet")
    assert Index(written / "own").columns.column_names == []


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("[1, 2]", "the names of its kept columns are not readable"),
        ('{"year": 3}', "the names of its kept columns are not readable"),
        ('{"none": "none"}', "the kept column none is missing"),
        ("{", "is not a readable index"),
    ],
)
def test_damaged_names_are_refused(metadata: str, message: str, written: Path) -> None:
    table = parquet.read_table(written / "parquet" / "vectors.parquet")
    damaged = table.replace_schema_metadata({**table.schema.metadata, FLAT: metadata})
    parquet.write_table(damaged, written / "parquet" / "vectors.parquet")
    with pytest.raises(DataError, match=message):
        Index(written / "parquet")


def test_names_stay_apart_in_any_case() -> None:
    names = ["text", "TEXT", "Vector", "key", "name", "kept_text", "ÄRGER", "ärger"]
    flat = flat_names(names)
    assert list(flat.values()) == names
    taken = [*("id", "name", "place", "text", "key", "vector"), *flat]
    assert len({name.lower() for name in taken}) == len(taken)


def test_documents_without_kept_columns_stay_as_they_are() -> None:
    documents: Any = pa.table({"id": ["a"]})
    assert flattened(documents) is documents and nested(documents) is documents
    without = pa.table({"id": ["a"], "columns": pa.array([{}], pa.struct([]))})
    assert flattened(without).column_names == ["id"]
