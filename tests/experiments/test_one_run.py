"""One training: what is recorded of it, and data that are read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tempera.core.batch import Batch, Side
from tempera.core.diagnose import diagnose
from tempera.core.masks import SameId
from tempera.core.objective import Objective
from tempera.experiments import one_run
from tempera.experiments.one_run import Trainings
from tempera.experiments.record import Record
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.run.train import train
from tempera.text import retrieval
from tempera.text.read.sources import PairsFile
from tempera.towers import static
from tempera.towers.saved import load


def job(given: dict[str, Any], folder: Path, *overrides: str, **changed: Any) -> dict[str, Any]:
    """A run of these options; its data are read by `given` alone."""
    folder.mkdir(exist_ok=True)
    (folder / "run").mkdir(exist_ok=True)
    metrics = given["evaluation"].get("metrics", ["ndcg@10"])
    return {
        "record": {"params": {}},
        "options": build(configuration.of(given, overrides)).resolved,
        "reference": build(configuration.of(given)).resolved,
        "folder": str(folder / "run"),
        "cache": str(folder / "cache"),
        "vectors": str(folder / "vectors"),
        "metric": metrics[0],
        "part": "validation",
        "data": "",
        "source": "",
        "watched": False,
        "publish": False,
        "bar": None,
        "threads": None,
        **changed,
    }


def made(trainings: Trainings, job: dict[str, Any], report: Any = lambda value: False) -> Record:
    record = trainings(job, report)
    assert record.error is None
    return record


def test_the_diagnosis_is_of_the_fixed_batch(small: dict[str, Any], tmp_path: Path) -> None:
    """The model is trained alone, saved, opened, and given the texts."""
    short = ("train.max_steps=12", "train.learning_rate=0.01", "objective.temperature=0.5")
    alone, trainings = train(small, tmp_path / "alone", short), Trainings()
    diagnosis = dict(made(trainings, job(small, tmp_path, *short)).diagnosis)
    assert trainings.data is not None
    data: Any = trainings.data.task.data
    split = data.texts.split
    rows = split.train[next(iter(data.sampler(0, 1))).numpy()]
    assert len(rows) == len(split.train) // data.sampler.batches_per_epoch
    texts = {role: split.pairs.texts(role, rows) for role in ("query", "doc")}
    encode = load(alone.folder / "model")
    sides = {
        role: Side(torch.from_numpy(encode(text)), torch.tensor([text.index(one) for one in text]))
        for role, text in texts.items()
    }
    objective = Objective(temperature=0.5, masks=[SameId()])
    want = diagnose(objective, Batch(sides["query"], sides["doc"])).summary()
    assert diagnosis.pop("masked_SameId") == want.pop("masked")["SameId"]
    assert diagnosis.keys() == want.keys()
    for name, value in want.items():
        assert diagnosis[name] == pytest.approx(value, abs=2e-4), name


def test_embeddings_are_without_dropout_and_in_blocks(
    recommender: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task: Any = Trainings().read(job(recommender, tmp_path)).task.data
    batch = task.batch(next(iter(task.sampler(0, 1))), 0)
    whole = {role: task.tower.eval().of(role)(side.rows) for role, side in batch.sides().items()}
    assert set(whole) == {"query", "doc", "sampled"}
    monkeypatch.setattr(one_run, "_ROWS", 7)
    task.tower.train()
    blocks = one_run.embedded(task.tower, batch)
    for role, side in blocks.sides().items():
        assert torch.allclose(side.rows, whole[role], atol=1e-6) and not side.rows.requires_grad


def test_data_are_read_once(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(name: str, inner: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(name)
            return inner(*given, **named)

        return call

    monkeypatch.setattr(PairsFile, "read", counted("read", PairsFile.read))
    monkeypatch.setattr(retrieval, "hold_out", counted("divided", retrieval.hold_out))
    monkeypatch.setattr(retrieval, "stored", counted("tokenised", retrieval.stored))
    monkeypatch.setattr(static, "train_tokenizer", counted("tokenizer", static.train_tokenizer))
    trainings = Trainings()
    for temperature in (0.1, 0.5):
        made(
            trainings,
            job(small, tmp_path, f"objective.temperature={temperature}", "train.max_steps=1"),
        )
    assert calls == ["read", "divided", "tokenizer", "tokenised", "tokenised"]
    calls.clear()
    shorter = {**small, "tower": {**small["tower"], "max_length": 2}}
    made(trainings, job(shorter, tmp_path, "train.max_steps=1"))
    assert calls == ["read", "divided", "tokenizer", "tokenised", "tokenised"]


def test_other_data_are_not_trained_on(small: dict[str, Any], tmp_path: Path) -> None:
    trainings = Trainings()
    record = made(trainings, job(small, tmp_path, "train.max_steps=1", data="other"))
    assert (
        trainings.data is not None and record.data == trainings.data.hash and record.metrics == {}
    )


def test_a_watched_run_reports_and_can_be_ended(small: dict[str, Any], tmp_path: Path) -> None:
    steps, values = ("train.max_steps=12", "train.evaluations=4"), []

    def report(value: float | None) -> bool:
        values.append(value)
        return len(values) == 2

    record = made(Trainings(), job(small, tmp_path, *steps, watched=True), report)
    assert record.pruned and record.state == "pruned" and len(values) == 2 and all(values)
    assert made(Trainings(), job(small, tmp_path, *steps, watched=True)).done
    assert len(values) == 2  # the last one was not watched


def test_an_error_is_in_the_record(small: dict[str, Any], tmp_path: Path) -> None:
    record = Trainings()(
        job(small, tmp_path, "train.learning_rate=1e38", "train.max_steps=9"), lambda value: False
    )
    assert (
        record.state == "failed"
        and "lower train.learning_rate" in (record.error or "")
        and record.data
    )
    missing = {**small, "data": {"source": "pairs", "path": str(tmp_path / "none.jsonl")}}
    record = Trainings()(job(missing, tmp_path), lambda value: False)
    assert record.state == "failed" and "none.jsonl" in (record.error or "") and record.data == ""


def test_numbers_of_a_record_that_are_not_finite_are_null() -> None:
    record = Record({}, per_query=[float("nan"), 1.0], metrics={"m": float("inf")})
    assert json.loads(record.json())["per_query"] == [None, 1.0] and json.loads(record.json())[
        "metrics"
    ] == {"m": None}
