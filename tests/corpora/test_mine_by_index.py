"""Negatives mined from an encoded corpus through an index of FAISS: exact scores, and the recall that
is said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.io.manifest import MANIFEST
from tempera.mining import hard_negatives
from tempera.mining.hard_negatives import Mining
from tempera.mining.indexed_shards import IndexedShards
from tempera.mining.shortfall import Report
from tempera.text.train import mine as mining
from tempera.text.train.mine import mine
from tempera.towers.saved import load

from ..conftest import Command
from .test_interrupted import refused
from .test_mine_from_shards import pairs  # noqa: F401

faiss = pytest.importorskip("faiss")

Mine = Callable[..., Report]


@pytest.fixture
def encoded(tiny_run: Path, corpus: Path, tmp_path: Path) -> EncodedCorpus:
    return encode(tiny_run, corpus, tmp_path / "out", columns=["text"])


@pytest.fixture
def mine_to(tiny_run: Path, pairs: Path, encoded: EncodedCorpus, tmp_path: Path) -> Mine:  # noqa: F811
    def call(name: str, depth: int, **options: Any) -> Report:
        wanted = Mining(negatives=4, skip=1, depth=depth, relative_margin=0.02)
        return mine(tiny_run, pairs, tmp_path / name, wanted, corpus=tmp_path / "out", **options)

    return call


@pytest.mark.parametrize("kind", ["ivf_pq", "ivf_fast"])
def test_where_every_document_is_a_candidate_the_negatives_are_exact(
    kind: str, encoded: EncodedCorpus, mine_to: Mine, tmp_path: Path
) -> None:
    encoded.export(output=tmp_path / "index", kind=kind)
    expected = mine_to("exact.parquet", 120)
    report = mine_to("index.parquet", 120, faiss=str(tmp_path / "index"), recall=1.0)
    assert report.recall == 1.0 and expected.recall is None
    assert report.candidates == expected.candidates > 1000 and report.kept == expected.kept > 50
    one = parquet.read_table(tmp_path / "exact.parquet")
    other = parquet.read_table(tmp_path / "index.parquet")
    assert one.schema.equals(other.schema)
    for name in one.column_names:
        for row, same in zip(one[name].to_pylist(), other[name].to_pylist(), strict=True):
            assert row == (pytest.approx(same, abs=1e-6) if name.endswith("scores") else same), name


def test_the_recall_is_that_of_a_plain_loop(
    tiny_run: Path,
    encoded: EncodedCorpus,
    mine_to: Mine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    encoded.export(output=tmp_path / "index", kind="ivf_fast")
    caplog.set_level(logging.INFO, "tempera")
    exact = mine_to("exact.parquet", 12)
    report = mine_to("index.parquet", 12, faiss=str(tmp_path / "index"), recall=0.3)
    assert exact.candidates == report.candidates
    assert report.recall is not None and 0.3 <= report.recall < 1
    assert f"finds {report.recall:.1%} of the 12 nearest documents of" in caplog.text
    assert report.cpu_seconds > 0
    # All mined negatives of both: what the exact search alone has is what the index has lost.
    encode_text = load(tiny_run / "model", "query"), load(tiny_run / "model", "doc")
    rows = parquet.read_table(tmp_path / "index.parquet").to_pylist()
    right = parquet.read_table(tmp_path / "exact.parquet").to_pylist()
    shared = 0
    for row, same in zip(rows, right, strict=True):
        assert row["positives"] == same["positives"]
        shared += len(set(row["negatives"]) & set(same["negatives"]))
        if row["negatives"]:
            query = encode_text[0]([row["query"]])[0]
            scores = encode_text[1](row["negatives"]) @ query
            assert row["negative_scores"] == pytest.approx(scores.tolist(), abs=1e-5)
            assert row["negative_scores"] == sorted(row["negative_scores"], reverse=True)
            assert not set(row["negatives"]) & {*row["positives"], row["query"]}
    assert 0.2 < shared / sum(len(row["negatives"]) for row in right) < 1


def test_candidates_are_those_of_the_index_in_plain_loops(
    tiny_run: Path, encoded: EncodedCorpus, mine_to: Mine, tmp_path: Path, monkeypatch: Any
) -> None:
    encoded.export(output=tmp_path / "index")
    asked = list[Any]()
    tuned = IndexedShards.tuned

    def noted(self: IndexedShards, *given: Any) -> Any:
        result, recall = tuned(self, *given)
        asked.append((result, recall, given))
        return result, recall

    monkeypatch.setattr(IndexedShards, "tuned", noted)
    mine_to("index.parquet", 12, faiss=str(tmp_path / "index"), recall=0.6)
    ((documents, recall, (queries, k, without, _)),) = asked
    near = documents.documents.near
    every = np.concatenate([block.vectors for block in encoded.blocks()])
    vectors = np.concatenate([near, every[documents.documents.rows]])
    excluded = set(zip(without[0].tolist(), without[1].tolist(), strict=True))
    assert excluded and (documents.row >= len(encoded)).any() and (documents.row >= 0).all()
    index = documents.index
    index.nprobe = documents.probes
    added = np.flatnonzero(documents.row >= len(encoded))
    itself = [row in index.search(near[i : i + 1], 5)[1] for i, row in enumerate(documents.row)]
    assert np.mean([itself[i] for i in added]) > 0.8
    most = int(np.bincount(without[0]).max())
    hits = index.search(queries, min(3 * (k + most), index.ntotal))[1]
    found, wanted = 0, 0
    scores, positions = documents.search(queries, k, without)
    for number, query in enumerate(queries):
        products = vectors.astype(np.float64) @ query.astype(np.float64)
        allowed = [i for i in range(len(vectors)) if (number, i) not in excluded]
        # Documents within a rounding error of the last may stand for it.
        last = sorted((products[i] for i in allowed), reverse=True)[k - 1]
        candidates = []
        for hit in hits[number].tolist():
            position = int(documents.position[hit]) if hit >= 0 else -1
            if position >= 0 and (number, position) not in excluded:
                candidates.append(position)
        best = sorted((float(products[i]) for i in candidates), reverse=True)[:k]
        kept = scores[number][np.isfinite(scores[number])]
        assert kept.tolist() == pytest.approx(best, abs=1e-5)
        for position, score in zip(positions[number], scores[number], strict=True):
            assert position < 0 or products[position] == pytest.approx(score, abs=1e-5)
        found += sum(score >= last - 1e-6 for score in best)
        wanted += k
    assert recall == pytest.approx(found / wanted, abs=0.02)
    assert 0.6 <= recall < 1


def test_an_interrupted_search_goes_on_with_its_clusters(
    encoded: EncodedCorpus, mine_to: Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded.export(output=tmp_path / "index")
    monkeypatch.setattr(mining, "BLOCK", 4)
    monkeypatch.setattr(hard_negatives, "BLOCK", 4)
    monkeypatch.setattr(hard_negatives, "QUERIES", 3)
    options = {"faiss": str(tmp_path / "index"), "recall": 0.6}
    expected = mine_to("whole.parquet", 12, **options)
    table = mining._table
    written = list[int]()

    def failing(task: Any, block: Any, start: int) -> Any:
        if start == 20:
            raise KeyboardInterrupt
        written.append(start)
        return table(task, block, start)

    monkeypatch.setattr(mining, "_table", failing)
    with pytest.raises(KeyboardInterrupt):
        mine_to("broken.parquet", 12, **options)
    assert written == [0, 4, 8, 12, 16]

    def refuse(*_: Any) -> None:
        raise AssertionError("the clusters were chosen again")

    monkeypatch.setattr(mining, "_table", table)
    monkeypatch.setattr(IndexedShards, "tuned", refuse)
    assert mine_to("broken.parquet", 12, **options) == expected
    one, other = (tmp_path / f"{name}.parquet" for name in ("whole", "broken"))
    assert parquet.read_table(one).equals(parquet.read_table(other))


def test_folders_without_the_index_of_a_corpus_are_refused(
    tiny_run: Path,
    transformer: Path,
    corpus: Path,
    pairs: Path,  # noqa: F811
    encoded: EncodedCorpus,
    tmp_path: Path,
    tempera: Command,
) -> None:
    command = ["mine", tiny_run, pairs, "-o", tmp_path / "mined.parquet"]
    searched = [*command, "--corpus", tmp_path / "out", "--faiss"]
    refused(tempera(*searched, "HNSW32"), "holds no index of an encoded corpus")
    (corpus / "part-9.parquet").write_bytes((corpus / "part-1.parquet").read_bytes())
    more = encode(tiny_run, corpus, tmp_path / "more")
    more.export(output=tmp_path / "larger")
    refused(tempera(*searched, tmp_path / "larger"), "indexes 326 vectors", "has 266 of 16")
    other = encode(transformer, corpus, tmp_path / "other")
    other.export(output=tmp_path / "foreign")
    refused(tempera(*searched, tmp_path / "foreign"), "vectors of another model")
    encoded.export(output=tmp_path / "index")
    path = tmp_path / "index" / "index.faiss"
    path.write_bytes(path.read_bytes()[:5000])
    refused(tempera(*searched, tmp_path / "index"), f"{path} is damaged")
    (tmp_path / "index" / MANIFEST).unlink()
    refused(tempera(*searched, tmp_path / "index"), "is not a readable FAISS index")
    refused(tempera(*command, "--recall", "0.5"), "give --corpus and --faiss")
