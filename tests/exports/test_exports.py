"""What is exported finds what the run finds, and refuses a model that did not make it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from tempera.artifacts.run_folder import Run
from tempera.corpus import approximate
from tempera.corpus.index import Index, write_index
from tempera.errors import ConfigError, DataError, MissingLibrary, OutputError
from tempera.exports.export import export
from tempera.towers.saved import fingerprint, load
from tempera.towers.stamp import Stamp
from tempera.towers.static import StaticTower
from tempera.towers.tokenizer import train_tokenizer

WORDS = [
    a + b
    for a in ("ka", "lo", "mi", "nu", "ra", "to", "vi")
    for b in ("ban", "cel", "dor", "fin", "gar")
]
COUNT, WIDTH = 600, 16


def texts_of(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, 3)) for _ in range(count)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: a static model and its index of 600 documents."""
    run = tmp_path_factory.mktemp("runs") / "run"
    tower = StaticTower(train_tokenizer([" ".join(WORDS)] * 3, 200, 16), WIDTH)
    tower.embedding.weight.data = torch.from_numpy(
        np.random.default_rng(0).normal(size=tower.embedding.weight.shape)
    ).float()
    tower.save(run / "model")
    docs = texts_of(COUNT, 0)
    table = pa.table(
        {
            "doc_id": np.arange(COUNT),
            "name": docs,
            "place": [f"f:{i}" for i in range(COUNT)],
            "doc": docs,
        }
    )
    vectors = load(run / "model", "doc")(docs)
    write_index(run / "index", vectors, table, Stamp(fingerprint(run / "model"), WIDTH))
    (run / "metrics.json").write_text("{}")
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def other_model(run: Path) -> None:
    """Change one weight of a run's model."""
    path = run / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_model_of_an_index_is_known(run: Path) -> None:
    assert Run(run).search("kaban locel")
    (run / "model" / "README.md").write_text("a card does not change vectors")
    (run / "model" / ".gitattributes").write_text("x")
    assert Run(run).search("kaban locel")
    other_model(run)
    with pytest.raises(
        DataError,
        match=rf"^{run}/index holds vectors of another model \(\w+; this model is \w+\): build",
    ):
        Run(run).search("kaban locel")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "modules.json", "1_Normalize/config.json", "model.safetensors"]
)
def test_every_file_that_decides_vectors_is_in_the_fingerprint(run: Path, name: str) -> None:
    path = run / "model" / name
    seen = [fingerprint(run / "model")]
    path.write_bytes(path.read_bytes() + b" ")
    seen.append(fingerprint(run / "model"))
    path.rename(path.with_name(f"{path.name}x"))
    seen.append(fingerprint(run / "model"))
    assert len(set(seen)) == 3 and {len(digest) for digest in seen} == {32}


def test_an_index_without_a_stamp_is_searched(run: Path) -> None:
    index = Index(run / "index")
    bare = run / "bare"
    bare.mkdir()
    np.save(bare / "vectors.npy", index.vectors)
    table = index.documents.replace_schema_metadata(None)
    with (
        pa.OSFile(str(bare / "documents.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    assert Index(bare).stamp is None and Run(run).search("kaban", index=bare) == Run(run).search(
        "kaban"
    )


def test_parquet_holds_ids_and_vectors_and_finds_the_same(run: Path) -> None:
    facts = export(run, "parquet")
    place = run / "export" / "parquet"
    assert facts == {"to": "parquet", "output": str(place), "documents": COUNT, "dimensions": WIDTH}
    table = parquet.read_table(place / "vectors.parquet")
    assert table.column_names == ["id", "name", "place", "text", "vector"]
    assert table["vector"].type == pa.list_(pa.float32(), WIDTH)
    assert np.array_equal(
        np.array(table["vector"].to_pylist(), np.float32), Index(run / "index").vectors
    )
    stamp = json.loads(table.schema.metadata[b"tempera"])
    assert len(stamp.pop("checksum")) == 16
    assert stamp == {
        "model": fingerprint(run / "model"),
        "dimensions": WIDTH,
        "metric": "cosine",
        "normalised": True,
    }
    for query in texts_of(5, 1):
        assert Run(run).search(query, 7, index=place) == Run(run).search(query, 7)
    other_model(run)
    with pytest.raises(DataError, match="another model"):
        Run(run).search("kaban", index=place)


@pytest.mark.parametrize(
    ("kind", "least"),
    [("hnsw", 0.99), ("ivf_pq", 0.3), ("ivf_fast", 0.2), ("int8", 0.95), ("binary", 0.75)],
)
def test_faiss_finds_nearly_the_same(run: Path, kind: str, least: float) -> None:
    pytest.importorskip("faiss")
    facts = export(run, "faiss", run / "out", kind)
    assert facts["overlap@10"] >= least and facts["kind"] == kind and facts["documents"] == COUNT
    assert sorted(p.name for p in (run / "out").iterdir()) == [
        "documents.arrow",
        "index.faiss",
        "metrics.json",
        "tempera-manifest.json",
    ]
    same = total = 0
    opened = Run(run)
    for query in texts_of(20, 1):
        exact, near = opened.search(query), opened.search(query, index=run / "out")
        assert [hit.rank for hit in near] == list(range(1, len(near) + 1))
        assert [hit.score for hit in near] == sorted((hit.score for hit in near), reverse=True)
        same += len({hit.id for hit in exact} & {hit.id for hit in near})
        total += 10
        if kind == "hnsw":  # its vectors are whole, so that scores are cosines
            scores = {hit.id: hit.score for hit in opened.search(query, COUNT)}
            assert all(hit.score == pytest.approx(scores[hit.id], abs=1e-5) for hit in near)
    assert same / total >= least - 0.1
    assert (
        len(opened.search("kaban", COUNT // 2, index=run / "out")) == COUNT // 2
    )  # more than one cluster holds
    other_model(run)
    with pytest.raises(DataError, match="another model"):
        Run(run).search("kaban", index=run / "out")


@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_cut_vectors_are_found_by_cut_queries(run: Path, to: str) -> None:
    if to == "faiss":
        pytest.importorskip("faiss")
    facts = export(run, to, run / "out", "int8" if to == "faiss" else None, width=6)
    assert facts["dimensions"] == 6
    opened, vectors = Run(run), np.asarray(Index(run / "index").vectors)[:, :6]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for query in texts_of(5, 1):
        vector = opened.encode([query])[0, :6]
        hits = opened.search(query, index=run / "out")
        assert hits[0].score == pytest.approx(
            float((vectors @ vector / np.linalg.norm(vector)).max()), abs=0.02
        )
    if to == "parquet":
        assert int(hits[0].id) == int(np.argmax(vectors @ vector))
        assert opened.search(query, index=run / "out", hybrid=False)[0].probability is None
    with pytest.raises(DataError, match="a threshold is for similarities of whole vectors"):
        opened.search("kaban", index=run / "out", threshold=0.5)
    with pytest.raises(
        DataError, match=r"the width is 17; the vectors of .* have 1 to 16 numbers to keep"
    ):
        export(run, to, run / "wide", width=17)
    with pytest.raises(ConfigError, match="a width is for vectors"):
        export(run, "onnx", run / "narrow", width=3)


def test_few_documents_are_all_rescored(run: Path) -> None:
    pytest.importorskip("faiss")
    vectors = np.asarray(Index(run / "index").vectors)[:50]
    approximate.write(run / "few", vectors, "binary")
    scores, positions = approximate.Approximate(run / "few").top(vectors[:3], 50)
    assert np.sort(positions, 1).tolist() == [list(range(50))] * 3 and positions[:, 0].tolist() == [
        0,
        1,
        2,
    ]
    np.testing.assert_allclose(scores[:, 0], 1, atol=0.01)


def test_how_much_is_found_is_measured(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against an index that knows half the corpus, half is found."""
    faiss = pytest.importorskip("faiss")
    vectors = np.asarray(Index(run / "index").vectors)
    half = vectors.copy()
    half[::2] = 0  # never near
    approximate.write(run / "half", half, "hnsw")
    assert 0.35 < approximate.overlap(run / "half", vectors) < 0.65
    assert faiss.read_index(str(run / "half")).metric_type == faiss.METRIC_INNER_PRODUCT


def test_what_cannot_be_exported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError,
        match=r"cannot export to 'onxx'; choose one of onnx, faiss, parquet, beir. Did you mean onnx\?",
    ):
        export(run, "onxx")
    with pytest.raises(DataError, match="no such run"):
        export(run / "none", "parquet")
    with pytest.raises(DataError, match="is not an index"):
        export(run / "model", "parquet", run / "out")
    for width in (True, 2.5, "8"):
        with pytest.raises(
            ConfigError, match=f"width is a number of dimensions or None, not {width!r}"
        ):
            export(run, "parquet", width=width)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot export to None; choose one of"):
        export(run, None)  # type: ignore[arg-type]
    export(run, "parquet")
    with pytest.raises(OutputError, match="an earlier result"):
        export(run, "parquet")
    if pytest.importorskip("faiss"):
        with pytest.raises(
            ConfigError,
            match="unknown approximate index 'flat'; choose one of hnsw, ivf_pq, ivf_fast, int8, binary",
        ):
            export(run, "faiss", kind="flat")
        with pytest.raises(
            DataError,
            match="IVF-PQ needs at least 256 documents, but there are 9; give --kind hnsw",
        ):
            approximate.write(run / "x", np.eye(9, dtype=np.float32), "ivf_pq")
        (run / "bad").mkdir()
        (run / "bad" / "index.faiss").write_bytes(b"no index")
        with pytest.raises(DataError, match="is not a readable FAISS index"):
            Index(run / "bad")
        monkeypatch.setitem(__import__("sys").modules, "faiss", None)
        with pytest.raises(MissingLibrary, match=r"pip install 'tempera\[faiss\]'"):
            export(run, "faiss")
    assert not (run / "export" / "faiss").exists() and not (run / "out").exists()


def test_the_commands(run: Path, tempera: Callable[..., Any]) -> None:
    done = tempera("export", run, "--to", "parquet", "--json")
    assert done.code == 0 and done.document["documents"] == COUNT
    found = tempera("search", run, "kaban locel", "--index", run / "export" / "parquet", "--json")
    assert (
        found.document == tempera("search", run, "kaban locel", "--json").document
        and len(found.document["hits"]) == 10
    )
    wrong = tempera("export", run, "--to", "tar")
    assert (
        wrong.code == 2
        and wrong.err
        == "tempera: cannot export to 'tar'; choose one of onnx, faiss, parquet, beir.\n"
    )


def test_a_run_is_never_replaced_by_its_own_export(run: Path) -> None:
    before = sorted(run.rglob("*"))
    for output in (run, run.parent):
        (run.parent / "metrics.json").write_text("{}")
        with pytest.raises(
            OutputError, match=r"is, or holds, .*, which this command reads; give another folder"
        ):
            export(run, "parquet", output, overwrite=True)
    with pytest.raises(OutputError, match="model, whose files tell it from others"):
        export(run, "parquet", run / "model" / "vectors")
    with pytest.raises(ConfigError, match="a kind is for FAISS: drop int8 for parquet"):
        export(run, "parquet", kind="int8")
    assert sorted(run.rglob("*")) == before


def test_an_export_in_its_model_does_not_make_it_another_model(run: Path) -> None:
    before = fingerprint(run / "model")
    (run / "model" / "export" / "onnx").mkdir(parents=True)
    (run / "model" / "export" / "onnx" / "model.onnx").write_bytes(b"weights")
    assert fingerprint(run / "model") == before
    (run / "model" / "exported.json").write_text("{}")
    assert fingerprint(run / "model") != before


def test_a_file_of_an_export_is_no_index(run: Path, tempera: Callable[..., Any]) -> None:
    export(run, "parquet")
    file = run / "export" / "parquet" / "vectors.parquet"
    with pytest.raises(
        DataError,
        match=r"is not a readable index: it is a file; give the folder of an index, or of an export$",
    ):
        Index(file)
    assert tempera("search", run, "kaban", "--index", file).code == 2


def test_a_graph_finds_many_hits_as_well_as_few(tmp_path: Path) -> None:
    """A search keeps four documents for each hit, and not as many as there are hits: those lost a
    tenth of 400."""
    pytest.importorskip("faiss")
    draw = np.random.default_rng(0)
    vectors = (
        draw.standard_normal((50, 64))[draw.integers(0, 50, 6000)]
        + 1.2 * draw.standard_normal((6000, 64))
    ).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    approximate.write(tmp_path / "index", vectors, "hnsw")
    index, exact = approximate.Approximate(tmp_path / "index"), vectors[:40] @ vectors.T
    for k in (10, 100, 400):
        best = np.argsort(-exact, axis=1)[:, :k]
        got = index.top(vectors[:40], k)[1]
        assert np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(best, got)]) > 0.97
    assert index.index.hnsw.efSearch == 128  # other threads search by it
    assert index.top(vectors[:2], 10**10)[1].shape[1] <= 6000
