"""The code of the page on other engines runs as it stands, and finds what the run finds."""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempera.artifacts.run_folder import Run
from tempera.run.train import train
from tempera.towers.static import Static

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
FIRST = "Search the vectors in another engine"  # heading of the block that opens the run
QUERY = "how do I reset my password"
TOLERANCE = 1e-5
LIBRARIES = {
    "FAISS": ("faiss",),
    "DuckDB": ("duckdb",),
    "Qdrant": ("qdrant_client",),
    "pgvector": ("pgserver", "psycopg", "pgvector"),
    "sqlite-vec": ("sqlite_vec",),
    "LanceDB": ("lancedb",),
    "usearch": ("usearch",),
    "A recommender": ("duckdb",),
}


def examples() -> dict[str, list[str]]:
    """The blocks of Python of the page, by heading."""
    blocks: dict[str, list[str]] = {}
    heading = ""
    pattern = re.compile(r"^(#+ [^\n]*|```python\n.*?```)$", re.M | re.S)
    for part in pattern.split(PAGE.read_text("utf-8")):
        if part.startswith("#"):
            heading = part.lstrip("# ")
        elif part.startswith("```python\n"):
            code = part.removeprefix("```python\n").removesuffix("```")
            blocks.setdefault(heading, []).append(code)
    return blocks


@pytest.fixture(scope="module")
def by_inner_product(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that compares by inner product: the lengths of its vectors differ."""
    st = pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("dot")
    tower = Static(dimensions=16, vocabulary=300, init="normal").build([pairs_file.read_text()])
    lengths = np.random.default_rng(0).uniform(0, 4, (len(tower.embedding.weight), 1))
    tower.embedding.weight.data *= tower.embedding.weight.data.new_tensor(lengths)
    tower.save(folder / "unit")
    body = st.SentenceTransformer(str(folder / "unit"), device="cpu")[0]
    model = st.SentenceTransformer(modules=[body], device="cpu", similarity_fn_name="dot")
    model.save(str(folder / "model"))
    options = {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {"kind": "pretrained", "model": str(folder / "model")},
        "objective": {"similarity": "dot", "temperature": 1.0},
        "train": {"batch_size": 32, "max_steps": 2, "evaluations": 0},
        "evaluation": {"queries": 40, "validation": 0, "bm25": False},
    }
    train(options, folder / "run")
    return folder / "run"


@pytest.fixture(params=["cosine", "dot"])
def place(request: Any, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the run of the page, into which its code writes."""
    run = tiny_run if request.param == "cosine" else request.getfixturevalue("by_inner_product")
    shutil.copytree(run, tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def are_the_hits(hits: Sequence[tuple[str, float]], run: Run) -> None:
    """Assert that an engine found the ten documents of the run, in the order of the run except
    for documents with equal scores."""
    every = {hit.id: hit.score for hit in run.search(QUERY, len(run.index.documents))}
    best = run.search(QUERY, 10)
    assert len(hits) == len({name for name, _ in hits}) == len(best) == 10
    for (name, score), expected in zip(hits, best, strict=True):
        assert score == pytest.approx(expected.score, rel=TOLERANCE, abs=TOLERANCE)
        assert every[name] == pytest.approx(expected.score, rel=TOLERANCE, abs=TOLERANCE)


def given_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the SQLite that the page names where Python's own loads no extensions."""
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        replacement = pytest.importorskip("pysqlite3")
        monkeypatch.setitem(sys.modules, "sqlite3", replacement)


def ran(block: str, names: dict[str, Any]) -> None:
    """Run a block of the page."""
    exec(compile(block, str(PAGE), "exec"), names)


@pytest.mark.parametrize(
    "engine", ["FAISS", "DuckDB", "Qdrant", "pgvector", "sqlite-vec", "LanceDB", "usearch"]
)
def test_an_engine_finds_what_the_run_finds(
    engine: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in LIBRARIES[engine]:
        pytest.importorskip(library)
    if engine == "sqlite-vec":
        given_sqlite(monkeypatch)
    blocks = examples()
    run = Run("runs/first")
    stamp = run.index.stamp
    assert stamp is not None
    names: dict[str, Any] = {}
    ran(blocks[FIRST][0], names)
    for block in blocks[engine]:
        ran(block, names)
        if stamp.metric == "dot" and "distance_metric=cosine" in block:
            with pytest.raises(AssertionError):  # so the page has another block for such runs
                are_the_hits(names["hits"], run)
        else:
            are_the_hits(names["hits"], run)
    if engine == "pgvector":
        names["database"].close()
        names["pgserver"].get_server("postgres").cleanup()


def test_every_example_is_run() -> None:
    assert set(examples()) == {FIRST, *LIBRARIES}


def test_an_exact_index_of_faiss_is_made_of_the_table(place: Path) -> None:
    faiss = pytest.importorskip("faiss")
    names: dict[str, Any] = {}
    ran(examples()[FIRST][0], names)
    index = faiss.IndexFlatIP(len(names["query"]))
    index.add(names["vectors"])
    scores, positions = index.search(names["query"][None], 10)
    hits = [(names["ids"][row], score) for row, score in zip(positions[0], scores[0])]
    are_the_hits(hits, Run("runs/first"))


def test_cut_vectors_are_found_by_queries_that_are_cut_as_the_page_says(
    tiny_run: Path, tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb")
    run = Run(shutil.copytree(tiny_run, tmp_path / "run"))
    run.export("parquet", width=6)
    cut = run.encode([QUERY])[0][:6]
    cut = cut / np.linalg.norm(cut)
    hits = duckdb.execute(
        "SELECT id, list_inner_product(vector, $1::FLOAT[]) AS score FROM read_parquet($2) "
        "ORDER BY score DESC LIMIT 10",
        [cut, str(tmp_path / "run/export/parquet/vectors.parquet")],
    ).fetchall()
    expected = run.search(QUERY, 10, index=tmp_path / "run/export/parquet")
    assert [name for name, _ in hits] == [hit.id for hit in expected]
    assert [score for _, score in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)


def test_duckdb_ranks_the_items_of_a_user(
    recommender: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    run = train(recommender, "runs/movielens")
    names: dict[str, Any] = {"Run": Run, "duckdb": __import__("duckdb")}
    ran(examples()["A recommender"][0], names)
    expected = run.recommend(42, k=10, exclude_seen=False, hybrid=False).hits
    assert len(names["hits"]) == len(expected) == 10
    for (name, score), item in zip(names["hits"], expected, strict=True):
        assert name == item.id
        assert score == pytest.approx(item.score, abs=TOLERANCE)
