"""A model saved with dot is judged, mined, calibrated and taught with by inner products, as
sentence-transformers computes them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

from tempera.errors import ConfigError
from tempera.finished.calibrate import calibrate
from tempera.ranking.spread import normalised
from tempera.run.train import train
from tempera.text.judge.evaluate import evaluate
from tempera.text.judge.tasks import RetrievalTask
from tempera.text.train.mine import mine
from tempera.towers.static import Static

st = pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def rows(pairs_file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in pairs_file.read_text().splitlines()]


@pytest.fixture(scope="module", params=["dot", "cosine"])
def model(
    request: Any, rows: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model without normalisation, whose inner products rank otherwise than its cosines."""
    folder = tmp_path_factory.mktemp("models")
    tower = Static(dimensions=16, vocabulary=300, init="normal").build(
        [" ".join(row.values()) for row in rows]
    )
    generator = torch.Generator().manual_seed(0)
    tower.embedding.weight.data *= (
        torch.rand(len(tower.embedding.weight), 1, generator=generator) * 4
    )
    tower.save(folder / "body")
    body = st.SentenceTransformer(str(folder / "body"), device="cpu")[0]
    prompts = {"query": "the of ", "document": ""}
    st.SentenceTransformer(
        modules=[body], device="cpu", similarity_fn_name=request.param, prompts=prompts
    ).save(str(folder / request.param))
    return folder / str(request.param)


def similarities(model: Path, queries: list[str], docs: list[str]) -> np.ndarray:
    """The similarity of every query and document by sentence-transformers."""
    opened = st.SentenceTransformer(str(model), device="cpu")
    return np.asarray(opened.similarity(opened.encode_query(queries), opened.encode_document(docs)))


def test_ranking_is_by_the_similarity_of_the_model(model: Path, pairs_file: Path) -> None:
    task = RetrievalTask.pairs(pairs_file)
    queries, docs = task.queries["text"].to_pylist(), task.corpus["text"].to_pylist()
    scores = similarities(model, queries, docs)
    (finding,) = evaluate(model, task, metrics=["mrr@10"])
    (ranking,) = finding.systems.values()
    ranked: Any = ranking
    best = np.take_along_axis(scores, ranked.ranked[:, :10], 1)
    wanted = -np.sort(-scores, axis=1)[:, :10]
    np.testing.assert_allclose(best, wanted, rtol=0, atol=1e-5)


def test_mined_scores_are_the_similarities_of_the_model(
    model: Path, pairs_file: Path, tmp_path: Path
) -> None:
    mine(model, pairs_file, tmp_path / "mined.parquet")
    table = parquet.read_table(tmp_path / "mined.parquet").slice(0, 20).to_pylist()
    assert sum(len(row["negatives"]) for row in table) > 50
    for row in table:
        for side in ("positive", "negative"):
            wanted = similarities(model, [row["query"]], row[f"{side}s"] or [""])[0]
            wanted = wanted[: len(row[f"{side}s"])]
            np.testing.assert_allclose(row[f"{side}_scores"], wanted, rtol=0, atol=1e-5)


def test_sentences_are_compared_by_the_similarity_of_the_model(
    model: Path, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    graded = [
        {"sentence1": row["query"], "sentence2": rows[i + i % 2]["doc"], "score": float(i % 5)}
        for i, row in enumerate(rows[:40])
    ]
    path = tmp_path / "graded.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in graded))
    (finding,) = evaluate(model, path)
    (agreement,) = finding.systems.values()
    opened = st.SentenceTransformer(str(model), device="cpu")
    sides = (
        opened.encode_document([each[side] for each in graded])
        for side in graded[0]
        if side[:8] == "sentence"
    )
    wanted = np.asarray(opened.similarity_pairwise(*sides))
    np.testing.assert_allclose(agreement.per_query[model.name], wanted, rtol=0, atol=1e-5)


def test_probabilities_are_of_the_similarity_of_the_model(
    model: Path, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    labelled = [
        {"query": row["query"], "doc": rows[(i + shift) % 150]["doc"], "score": int(not shift)}
        for i, row in enumerate(rows[:150])
        for shift in (0, 7)
    ]
    path = tmp_path / "labelled.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in labelled))
    calibration = calibrate(model, path)
    opened = st.SentenceTransformer(str(model), device="cpu")
    queries = opened.encode_query([each["query"] for each in labelled])
    docs = opened.encode_document([each["doc"] for each in labelled])
    scores = np.asarray(opened.similarity_pairwise(queries, docs), np.float64)
    p = calibration.probability(scores)
    right = np.array([each["score"] for each in labelled])
    # At its optimum a logistic map has the mean and the scores of the labels.
    assert p.mean() == pytest.approx(right.mean(), abs=0.01)
    assert (p * scores).mean() == pytest.approx((right * scores).mean(), rel=0.05)


def test_training_by_another_similarity_than_the_models_is_said(
    model: Path, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options["tower"] = {"kind": "pretrained", "model": str(model)}
    options["train"] |= {"max_steps": 1}
    for similarity in ("cosine", "dot"):
        caplog.clear()
        options["objective"] = {"similarity": similarity, "temperature": 1.0}
        with caplog.at_level(logging.WARNING, "tempera"):
            run = train(options, tmp_path / similarity)
        said = f"the pretrained model compares by {model.name}, and this run trains, judges" in (
            caplog.text
        )
        assert said == (similarity != model.name)
        stamp = run.index.stamp
        assert stamp is not None and stamp.metric == similarity
        assert ("precisions" in run.results) == (similarity == "cosine")
        spread = run.results["spread"]["trained"]
        # Pictures and alarms of a collapse are about cosines.
        assert -1 <= spread["random_95%"] <= 1 + 1e-6


def test_a_teachers_inner_products_ask_for_a_temperature(
    model: Path, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options["train"] |= {"max_steps": 1, "teacher": str(model)}
    for name, teacher in (("own", {}), ("given", {"temperature": 1.0})):
        caplog.clear()
        options["objective"] = {"teacher": {"weight": 0.5, **teacher}}
        with caplog.at_level(logging.WARNING, "tempera"):
            train(options, tmp_path / name)
        said = "set objective.teacher.temperature" in caplog.text
        assert said == (model.name == "dot" and name == "own")


def test_kept_vectors_of_inner_products_are_not_trained_for_by_cosine(
    model: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    options["tower"] = {
        "query": {"kind": "head", "model": str(model)},
        "doc": {"kind": "pretrained", "model": str(model), "frozen": True},
    }
    options["train"] |= {"max_steps": 1}
    if model.name == "cosine":
        train(options, tmp_path / "run")
        return
    with pytest.raises(ConfigError, match=r"tower.doc are compared by inner .*similarity=dot"):
        train(options, tmp_path / "run")


def test_normalised_vectors_have_length_1_or_0() -> None:
    vectors = np.array([[3.0, 4.0], [0.0, 0.0], [1e-3, 0.0]], np.float32)
    np.testing.assert_allclose(np.linalg.norm(normalised(vectors), axis=1), [1, 0, 1], atol=1e-6)
