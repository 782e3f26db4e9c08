"""The engines of `bench/engines.py`, each loaded from the Parquet file or the FAISS index of an
export, in an environment without Tempera.

`python bench/_engines.py FOLDER` reads the exports of a run and its queries below FOLDER, and
prints a JSON object with the figures of each engine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

K = 10
TIES = 1e-6  # scores that differ by a smaller share are equal, and either document is right

Hits = Sequence[tuple[str, float]]
Search = Callable[[np.ndarray], Hits]


@dataclass(frozen=True)
class Exported:
    """The export of a run, as another engine finds it."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "parquet" / "vectors.parquet"

    @property
    def table(self) -> pa.Table:
        return parquet.read_table(self.file)

    @property
    def ids(self) -> list[str]:
        ids: list[str] = self.table["id"].to_pylist()
        return ids

    @property
    def vectors(self) -> np.ndarray:
        return np.stack(self.table["vector"].to_numpy())

    @property
    def is_normalised(self) -> bool:
        """True if the model compares by cosine, and all vectors have length 1."""
        stamp = json.loads(parquet.read_schema(self.file).metadata[b"tempera"])
        return bool(stamp["normalised"])

    def space(self, name: str) -> Path:
        """Return an empty folder for the files of an engine."""
        place = self.folder / "engines" / name.replace(" ", "_").replace(",", "")
        place.mkdir(parents=True)
        return place


def size_of(place: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if place.is_file():
        return place.stat().st_size
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Loaded:
    """An engine that holds an export."""

    search: Search
    size: int  # bytes of what it searches in
    server: int | None = None  # the process that searches, unless it is this one

    def seconds(self) -> float:
        """Return the CPU seconds of this process and of the server so far."""
        if self.server is None:
            return time.process_time()
        fields = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime and stime (proc(5))
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


Engine = Callable[[Exported, Path], Loaded]  # loads an export, into an empty folder


def faiss_flat(export: Exported, place: Path) -> Loaded:
    import faiss

    vectors, ids = export.vectors, export.ids
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)

    def search(query: np.ndarray) -> Hits:
        scores, rows = index.search(query[None], K)
        return [(ids[row], score) for row, score in zip(rows[0], scores[0])]

    return Loaded(search, index.ntotal * index.d * 4)


def faiss_exported(export: Exported, place: Path) -> Loaded:
    import faiss

    file = export.folder / "faiss" / "index.faiss"
    index = faiss.read_index(str(file))
    documents = pa.memory_map(str(export.folder / "faiss" / "documents.arrow"))
    ids = pa.ipc.open_file(documents).read_all()["id"].to_pylist()

    def search(query: np.ndarray) -> Hits:
        scores, rows = index.search(query[None], K)
        return [(ids[row], score) for row, score in zip(rows[0], scores[0])]

    return Loaded(search, size_of(file))


_BY_DUCKDB = (
    "SELECT id, list_inner_product(vector, $1::FLOAT[]) AS score FROM {} "
    f"ORDER BY score DESC LIMIT {K}"
)


def duckdb_file(export: Exported, place: Path) -> Loaded:
    import duckdb

    database = duckdb.connect()
    nearest = _BY_DUCKDB.format(f"'{export.file}'")
    return Loaded(lambda query: database.execute(nearest, [query]).fetchall(), size_of(export.file))


def duckdb_table(export: Exported, place: Path) -> Loaded:
    import duckdb

    database = duckdb.connect(str(place / "documents.duckdb"))
    database.execute(f"CREATE TABLE documents AS FROM '{export.file}'")
    database.execute("CHECKPOINT")
    nearest = _BY_DUCKDB.format("documents")
    return Loaded(lambda query: database.execute(nearest, [query]).fetchall(), size_of(place))


def qdrant_memory(export: Exported, place: Path) -> Loaded:
    import warnings
    from uuid import NAMESPACE_URL, uuid5

    from qdrant_client import QdrantClient, models

    warnings.simplefilter("ignore")  # it advises a server from 20,000 documents on
    vectors = export.vectors
    client = QdrantClient(":memory:")
    compared = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection("documents", vectors_config=compared)
    points = [str(uuid5(NAMESPACE_URL, name)) for name in export.ids]
    payload = export.table.drop_columns("vector").to_pylist()
    client.upload_collection("documents", vectors, payload=payload, ids=points)

    def search(query: np.ndarray) -> Hits:
        points = client.query_points("documents", query, limit=K).points
        return [(point.payload["id"], point.score) for point in points]

    return Loaded(search, vectors.nbytes)


def pgvector_scan(export: Exported, place: Path, *settings: str) -> Loaded:
    import pgserver
    import psycopg
    from pgvector.psycopg import register_vector

    address = pgserver.get_server(str(place)).get_uri()
    database = psycopg.connect(address, autocommit=True)
    # One process does all the work, whose CPU time is known.
    database.execute("SET max_parallel_workers_per_gather = 0")
    database.execute("SET max_parallel_maintenance_workers = 0")
    database.execute("CREATE EXTENSION vector")
    register_vector(database)
    vectors = export.vectors
    width = vectors.shape[1]
    database.execute(
        f"CREATE TABLE documents (id text PRIMARY KEY, text text, vector vector({width}))"
    )
    with database.cursor().copy("COPY documents FROM STDIN WITH (FORMAT BINARY)") as copy:
        copy.set_types(["text", "text", "vector"])
        for row in zip(export.ids, export.table["text"].to_pylist(), vectors):
            copy.write_row(row)
    for setting in settings:
        database.execute(setting)
    nearest = f"SELECT id, -(vector <#> %s) FROM documents ORDER BY vector <#> %s LIMIT {K}"
    (size,) = database.execute("SELECT pg_total_relation_size('documents')").fetchone()
    return Loaded(
        lambda query: database.execute(nearest, [query, query]).fetchall(),
        size,
        database.info.backend_pid,
    )


def pgvector_hnsw(export: Exported, place: Path) -> Loaded:
    index = "CREATE INDEX ON documents USING hnsw (vector vector_ip_ops)"
    return pgvector_scan(export, place, index, "SET hnsw.ef_search = 200")


def sqlite_vec_scan(export: Exported, place: Path) -> Loaded:
    """Search by cosine, or for inner products by L2 with one number more."""
    import pysqlite3
    import sqlite_vec

    database = pysqlite3.connect(str(place / "documents.db"))
    database.enable_load_extension(True)
    sqlite_vec.load(database)
    vectors, ids = export.vectors, export.ids
    metric = "cosine"
    squares = (vectors**2).sum(axis=1)
    longest = squares.max()
    if not export.is_normalised:
        vectors = np.column_stack([vectors, np.sqrt(longest - squares)])
        metric = "L2"
    width = vectors.shape[1]
    columns = f"id TEXT PRIMARY KEY, vector FLOAT[{width}] distance_metric={metric}"
    database.execute(f"CREATE VIRTUAL TABLE documents USING vec0({columns})")
    rows = [(name, vector) for name, vector in zip(ids, vectors) if vector.any()]
    database.executemany("INSERT INTO documents VALUES (?, ?)", rows)
    database.commit()
    nearest = f"SELECT id, distance FROM documents WHERE vector MATCH ? AND k = {K}"

    def by_cosine(query: np.ndarray) -> Hits:
        return [(name, 1 - far) for name, far in database.execute(nearest, [query])]

    def by_length(query: np.ndarray) -> Hits:
        rows = database.execute(nearest, [np.append(query, np.float32(0))])
        return [(name, (longest + query @ query - far**2) / 2) for name, far in rows]

    return Loaded(by_cosine if export.is_normalised else by_length, size_of(place))


def lance_scan(export: Exported, place: Path) -> Loaded:
    import lancedb

    table = lancedb.connect(str(place)).create_table("documents", export.table)

    def search(query: np.ndarray) -> Hits:
        rows = table.search(query).distance_type("dot").select(["id", "_distance"])
        return [(row["id"], 1 - row["_distance"]) for row in rows.limit(K).to_list()]

    return Loaded(search, size_of(place))


def usearch_graph(export: Exported, place: Path, **options: Any) -> Loaded:
    from usearch.index import Index

    vectors, ids = export.vectors, export.ids
    index = Index(ndim=vectors.shape[1], metric="ip", **options)
    index.add(np.arange(len(vectors)), vectors)
    index.save(str(place / "index.usearch"))

    def search(query: np.ndarray) -> Hits:
        return [(ids[key], 1 - far) for key, far in index.search(query, K).to_list()]

    return Loaded(search, size_of(place))


def usearch_float32(export: Exported, place: Path) -> Loaded:
    return usearch_graph(export, place, dtype="f32")


# By the name in the table: the package and the function.
ENGINES: dict[str, tuple[str, Engine]] = {
    "FAISS, flat": ("faiss-cpu", faiss_flat),
    "FAISS, exported HNSW": ("faiss-cpu", faiss_exported),
    "DuckDB, file": ("duckdb", duckdb_file),
    "DuckDB, table": ("duckdb", duckdb_table),
    "Qdrant, in memory": ("qdrant-client", qdrant_memory),
    "pgvector": ("pgserver", pgvector_scan),
    "pgvector, HNSW": ("pgserver", pgvector_hnsw),
    "sqlite-vec": ("sqlite-vec", sqlite_vec_scan),
    "LanceDB": ("lancedb", lance_scan),
    "usearch, float32": ("usearch", usearch_float32),
    "usearch, its default": ("usearch", usearch_graph),
}
EXACT = ("FAISS, flat", "DuckDB, file", "DuckDB, table", "Qdrant, in memory", "pgvector",
         "sqlite-vec", "LanceDB")  # fmt: skip


def measured(engine: Engine, export: Exported, name: str) -> dict[str, float]:
    """Return recall, the largest difference of a score, CPU seconds to load, CPU milliseconds of
    a query, and megabytes.

    A difference is a share of the largest score of the query.
    """
    queries = np.load(export.folder / "queries.npy")
    scores = np.load(export.folder / "scores.npy")  # of every document, by Tempera
    position = {document: row for row, document in enumerate(export.ids)}
    started = time.process_time()
    loaded = engine(export, export.space(name))
    load = loaded.seconds() - started
    loaded.search(queries[0])
    recalls, differences, times = [], [0.0], []
    for query, own in zip(queries, scores, strict=True):
        started = loaded.seconds()
        hits = loaded.search(query)
        times.append(loaded.seconds() - started)
        largest = float(np.abs(own).max())
        least = np.sort(own)[-K] - TIES * largest
        right = 0
        for document, score in hits:
            true = float(own[position[document]])
            differences.append(abs(float(score) - true) / largest)
            if true >= least:
                right += 1
        recalls.append(right / K)
    return {
        "recall@10": statistics.mean(recalls),
        "largest difference": max(differences),
        "load s": load,
        "query ms": 1000 * statistics.mean(times),
        "MB": loaded.size / 1e6,
    }


def main() -> None:
    """Measure every engine on the export of the command line."""
    export = Exported(Path(sys.argv[1]))
    figures: dict[str, Any] = {}
    for name, (package, engine) in ENGINES.items():
        figures[name] = {"version": version(package), **measured(engine, export, name)}
        print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
