"""An encoded corpus as FAISS's IVF-PQ: the rows of all shards, in order, and the measured recall."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.corpora import many_shards
from tempera.corpus.index import Index
from tempera.errors import OutputError

from ..conftest import Command
from .conftest import ROWS
from .test_interrupted import refused

faiss = pytest.importorskip("faiss")


@pytest.fixture
def encoded(tiny_run: Path, corpus: Path, tmp_path: Path) -> EncodedCorpus:
    return encode(tiny_run, corpus, tmp_path / "out", columns=["text", "year"])


def test_the_share_is_that_of_a_plain_loop_over_the_file(
    encoded: EncodedCorpus, tempera: Command
) -> None:
    folder = Path(encoded.place.address)
    answer = tempera("export", folder, "--to", "faiss", "--json")
    assert answer.code == 0, answer.err
    index = faiss.read_index(str(folder / "export" / "faiss" / "index.faiss"))
    assert index.ntotal == sum(ROWS)
    every = np.concatenate([block.vectors for block in encoded.blocks()])
    shares = []
    for query in many_shards.sampled(encoded, 200):
        # Texts without words have equal vectors: of those at the border, the first are nearest.
        scores = every.astype(np.float32) @ query
        exact = sorted(range(len(every)), key=lambda row: (-scores[row], row))[:10]
        found = index.search(query[None], 10)[1][0].tolist()
        shares.append(len(set(exact) & set(found)) / 10)
    facts = answer.document
    assert facts["overlap@10"] == pytest.approx(np.mean(shares), abs=0.005)
    assert 0.2 < facts["overlap@10"] <= 1
    assert (facts["documents"], facts["dimensions"], facts["kind"]) == (266, 16, "ivf_pq")
    written = json.loads((folder / "export" / "faiss" / "metrics.json").read_text())
    assert written["overlap@10"] == facts["overlap@10"]
    assert tempera("check", folder).code == 0


def test_rows_keep_their_positions_ids_and_columns(
    encoded: EncodedCorpus, tiny_run: Path, tmp_path: Path, tempera: Command, corpus: Path
) -> None:
    encoded.export(output=tmp_path / "index")
    index = Index(tmp_path / "index")
    rows = encoded.rows(np.arange(len(encoded)))
    assert index.documents["id"].to_pylist() == [row["id"] for row in rows]
    assert index.columns.to_pylist() == [row["columns"] for row in rows]
    (document,) = index.hits(np.ones(1, np.float32), np.array([200]))
    place = f"{rows[200]['shard']} row {rows[200]['row'] + 1}"
    assert (document.place, document.text) == (place, rows[200]["columns"]["text"])
    # A row is found by its own text.
    text = parquet.read_table(corpus / "part-0.parquet")["text"][7].as_py()
    answer = tempera("search", tiny_run, text, "--index", tmp_path / "index", "--json")
    assert "0-7" in [hit["id"] for hit in answer.document["hits"]]


@pytest.mark.parametrize("count", [1, 10, 265, 266, 1000])
def test_a_sample_is_of_distinct_rows_from_all_shards(count: int, encoded: EncodedCorpus) -> None:
    every = np.concatenate([block.vectors for block in encoded.blocks()])
    sample = many_shards.sampled(encoded, count)
    assert len(sample) == min(count, 266)
    for number, vector in enumerate(sample):
        part = every[number * 266 // len(sample) : (number + 1) * 266 // len(sample)]
        assert any(np.array_equal(row, vector) for row in part)
    if count >= 266:
        assert np.array_equal(sample, every)


def test_few_vectors_are_in_memory_at_once(
    encoded: EncodedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is the same where blocks of 10 rows are added one by one."""
    encoded.export(output=tmp_path / "whole")
    largest = []
    real = encoded.blocks

    def small(**options: object) -> object:
        for block in real(rows=10, **options):  # type: ignore[arg-type]
            largest.append(len(block.vectors))
            yield block

    monkeypatch.setattr(encoded, "blocks", small)
    monkeypatch.setattr(many_shards, "ROWS", 10)
    encoded.export(output=tmp_path / "parts")
    assert max(largest) == 10
    for name in ("index.faiss", "metrics.json"):
        one = (tmp_path / "whole" / name).read_bytes()
        other = (tmp_path / "parts" / name).read_bytes()
        assert one.replace(b"whole", b"parts") == other
    whole = Index(tmp_path / "whole").documents
    assert whole.equals(Index(tmp_path / "parts").documents)


def test_a_full_disk_is_one_line_and_leaves_no_index(
    encoded: EncodedCorpus, tmp_path: Path
) -> None:
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, earlier[1]))
        with pytest.raises(OutputError, match="cannot write"):
            encoded.export(output=tmp_path / "index")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "index").exists()


def test_other_exports_of_shards_are_refused(
    encoded: EncodedCorpus, tiny_run: Path, corpus: Path, tmp_path: Path, tempera: Command
) -> None:
    folder = encoded.place.address
    refused(tempera("export", folder, "--to", "onnx"), "its shards are Parquet as they are")
    refused(tempera("export", folder, "--to", "faiss", "--kind", "hnsw"), "ivf_pq or ivf_fast")
    refused(tempera("export", folder, "--to", "faiss", "--width", 4), "drop them")
    small = encode(tiny_run, corpus / "part-0.parquet", tmp_path / "small")
    refused(tempera("export", small.place.address, "--to", "faiss"), "at least 256 rows")
    assert tempera("export", folder, "--to", "faiss").code == 0
    refused(tempera("export", folder, "--to", "faiss"), "an earlier result")
    assert tempera("export", folder, "--to", "faiss", "--overwrite").code == 0
    (Path(folder) / "shards" / "part-1.parquet").unlink()
    refused(tempera("export", folder, "--to", "faiss", "--overwrite"), "is missing")
