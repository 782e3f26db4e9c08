"""MTEB's own tasks on its own small data, by a saved model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tempera.errors import DataError
from tempera.text.mteb import MtebModel
from tempera.towers.saved import load
from tempera.towers.static import StaticTower
from tempera.towers.tokenizer import train_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A run folder that holds a model without prompts."""
    words = ["this", "is", "a", "positive", "negative", "sentence", "query", "document", "test", "some", "text"]
    StaticTower(train_tokenizer([" ".join(words)] * 3, 120, 16), 8).save(tmp_path / "run" / "model")
    return tmp_path / "run"


def test_batches_are_encoded_in_order_by_role(model: Path) -> None:
    encoder = MtebModel(model)
    batches = [{"text": ["a query", "some text"]}, {"text": ["this is a test"]}]
    texts = ["a query", "some text", "this is a test"]
    options = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    expected = load(model / "model", "doc")(texts)
    assert np.array_equal(encoder.encode(batches, **options, batch_size=2), expected)
    vars(encoder.model)["query"] = lambda texts: np.zeros((len(texts), 8))  # in place of what is loaded
    assert not encoder.encode(batches, **options, prompt_type="query").any()
    assert encoder.encode(batches, **options, prompt_type="document").any()


def test_similarities_are_cosines(model: Path) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(3, 4)) for _ in "ab")
    found = MtebModel(model).similarity(a, torch.from_numpy(b))
    for i in range(3):
        for j in range(3):
            cosine = a[i] @ b[j] / np.linalg.norm(a[i]) / np.linalg.norm(b[j])
            assert float(found[i, j]) == pytest.approx(cosine, abs=1e-6)
        assert float(MtebModel(model).similarity_pairwise(a, b)[i]) == pytest.approx(float(found[i, i]), abs=1e-6)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a saved model of texts nor a run"):
        MtebModel(tmp_path)


def test_tasks_of_mteb(model: Path, tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb")
    from mteb.models import EncoderProtocol

    mocks = pytest.importorskip("mteb.mocks")
    encoder = MtebModel(model)
    assert isinstance(encoder, EncoderProtocol)
    tasks = [mocks.MockRetrievalTask(), mocks.MockSTSTask()]
    results = mteb.evaluate(encoder, tasks, cache=None)
    assert [result.task_name for result in results.task_results] == [task.metadata.name for task in tasks]
    for result in results.task_results:
        assert 0 <= abs(result.get_score()) <= 1
    assert encoder.mteb_model_meta.name == "tempera/run"
    json.dumps(results.task_results[0].to_dict(), default=str)
