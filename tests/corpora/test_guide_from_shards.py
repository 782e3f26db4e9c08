"""A guide and a teacher take vectors from an encoded corpus, and compute those that it lacks."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.encoded_corpus import encode
from tempera.experiments.distill import distill
from tempera.mining import embed
from tempera.mining.embedder import run_of
from tempera.mining.guide import Guide
from tempera.mining.guide_source import GuideSource
from tempera.run.train import train
from tempera.towers.saved import load

from ..conftest import Command
from .test_interrupted import refused


@pytest.fixture
def texts(corpus: Path) -> list[str]:
    """Texts of two shards, one of them twice, and two that no shard holds."""
    rows = [*parquet.read_table(corpus / "part-1.parquet")["text"].to_pylist()]
    rows += parquet.read_table(corpus / "more" / "part-3.parquet")["text"].to_pylist()[10:60]
    rows = [text for text in rows if text]
    return [*rows, rows[3], "a text of no shard", "nor this one", f" {rows[5]}  "]


def records_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All texts that are read from now on."""
    read = list[str]()
    read_by = embed.read_by

    def noting(*given: Any) -> Any:
        encode_texts = read_by(*given)

        def noted(texts: Any) -> Any:
            read.extend(texts)
            return encode_texts(texts)

        return noted

    monkeypatch.setattr(embed, "read_by", noting)
    return read


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_only_texts_that_the_corpus_lacks_are_read(
    dtype: Any,
    tiny_run: Path,
    corpus: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    encode(tiny_run, corpus, tmp_path / "vectors", columns=["text"], dtype=dtype)
    read = counted(monkeypatch)
    caplog.set_level(logging.INFO, "tempera")
    model = GuideSource.of(tmp_path / "vectors")
    vectors = model.embed("doc", texts, tmp_path / "store")[:]
    assert sorted(read) == ["a text of no shard", "nor this one"]
    distinct = len(set(texts)) - 2
    assert f"{distinct} vectors taken from {tmp_path / 'vectors'}, and 2 texts" in caplog.text
    alone = load(model.folder, "doc")(texts)
    worst = {"float32": 1e-6, "float16": 1e-3, "int8": 0.02}[dtype]
    assert np.abs(vectors - alone).max() < worst
    # Another call finds all of them in the store, and rounded vectors have a store of their own.
    read.clear()
    assert np.array_equal(model.embed("doc", texts, tmp_path / "store")[:], vectors)
    assert not read
    exact = GuideSource.of(tiny_run).embed("doc", texts, tmp_path / "store")[:]
    assert np.abs(exact - alone).max() < 1e-6
    assert bool(read) == (dtype != "float32")


def test_a_model_with_prompts_takes_the_vectors_of_one_role(
    transformer: Path, corpus: Path, texts: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    path = transformer / "config_sentence_transformers.json"
    before = path.read_text()
    document = json.loads(before)
    document["prompts"] = {"query": "ask: ", "document": ""}
    path.write_text(json.dumps(document))
    try:
        encode(transformer, corpus, tmp_path / "vectors", columns=["text"])
        read = counted(monkeypatch)
        guide = Guide.of(tmp_path / "vectors", texts[:5], texts[:9], tmp_path / "store")
        assert sorted(read) == sorted(texts[:5])
        folder = GuideSource.of(tmp_path / "vectors").folder
        asked = load(folder, "query")(texts[:5])
        answering = load(folder, "doc")(texts[:9])
        assert np.abs(guide.query[:] - asked).max() < 3e-6
        assert np.abs(guide.doc[:] - answering).max() < 3e-6
    finally:
        path.write_text(before)


def test_a_run_with_an_encoded_guide_and_teacher_is_the_run_with_the_model(
    tiny_run: Path,
    options: dict[str, Any],
    pairs_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode(tiny_run, pairs_file, tmp_path / "vectors", text="doc", columns=["doc"])
    options["objective"] = {"masks": [{"guided": {"margin": 0.05, "kind": "relative"}}]}
    losses = []
    for name, source in (("one", tiny_run), ("two", tmp_path / "vectors")):
        options["train"] |= {"guide": str(source), "teacher": str(source), "max_steps": 8}
        read = counted(monkeypatch)
        train(options, tmp_path / name / "run")
        monkeypatch.undo()
        records = records_in(tmp_path / name / "run" / "log.jsonl")
        losses.append([each["loss"] for each in records if each["event"] == "step"])
        docs = {each["doc"] for each in records_in(pairs_file)}
        assert bool(docs & set(read)) == (name == "one")
    assert losses[0] == losses[1] and len(losses[0]) == 8
    # A caution on queries that the guide was trained on needs the run of the model.
    assert run_of(tmp_path / "vectors").resolve() == tiny_run.resolve()


def test_an_encoded_corpus_teaches_a_static_model(
    tiny_run: Path, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(tiny_run, pairs_file, tmp_path / "vectors", text="doc", columns=["doc"])
    read = counted(monkeypatch)
    small = ["tower.dimensions=4", "train.max_steps=5", "evaluation.bm25=false"]
    run = distill(tmp_path / "vectors", pairs_file, tmp_path / "small", small)
    assert "teacher" in run.metrics
    docs = {each["doc"] for each in records_in(pairs_file)}
    assert read and not docs & set(read)  # queries, and parts of documents


def test_corpora_that_guide_nothing_are_refused(
    tiny_run: Path,
    transformer: Path,
    corpus: Path,
    pairs_file: Path,
    tiny: list[str],
    tmp_path: Path,
    tempera: Command,
) -> None:
    folder = tmp_path / "vectors"
    command = ["train", *tiny, f"train.teacher={folder}", "-o", tmp_path / "run"]
    encode(tiny_run, corpus, folder)
    refused(tempera(*command), "without keeping the column text", "--columns text")
    manifest = folder / "corpus.json"
    manifest.write_text(manifest.read_text().replace(str(tiny_run), str(transformer)))
    refused(tempera(*command), "holds vectors of another model")
    manifest.unlink()
    refused(tempera(*command), "is not finished")
