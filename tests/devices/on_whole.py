"""Whole runs with mining, guides and teachers, of a pretrained tower too, and the commands that use
them, as on a CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from on_runs import (  # noqa: F401
    ITEMS,
    LEARNED,
    SMALL,
    TEXT,
    Choice,
    config_of,
    cut_alike,
    events,
    pairs,
    sections,
    warm,
)
from pretend import Accelerator
from typer import Typer

from tempera import Run, train
from tempera.engine.devices import Devices
from tempera.io.documents import JsonLines
from tempera.mining.embed import embed_by
from tempera.mining.embedder import Model
from tempera.parallel.distributed import Group
from tempera.run.prepare import prepare
from tempera.towers.saved import load
from tempera.towers.static import Static
from tempera.towers.transformer import Transformer

pytestmark = pytest.mark.long

HELD_OUT = {"evaluation": {"queries": 24, "validation": 0, "bm25": False}}
GUIDED = {"objective.masks": ["same_id", {"guided": {"kind": "relative", "margin": 0.1}}]}
MINED = {
    "mining.again": 2,
    "train.refit": "auto",
    "mining.depth": 12,
    "mining.relative_margin": None,
}
STATIC = TEXT["tower"][0]
# Without dropout, a CPU has a kernel for attention that rounds otherwise.
PRETRAINED = {"tower": {"kind": "pretrained", "model": "STUDENT", "attn_implementation": "eager"}}
# Each way to mine, to guide and to teach at least once, and with each kind of tower; GUIDE and
# STUDENT are saved models.
TEXTS: list[Choice] = [
    {
        **STATIC,
        **MINED,
        **GUIDED,
        "train.guide": "GUIDE",
    },
    {
        **PRETRAINED,
        **MINED,
        **GUIDED,
        "train.guide": "GUIDE",
        "train.mixed_precision": "no",
        "objective.temperature": LEARNED,
    },
    {
        "tower": SMALL,
        "train.teacher": "GUIDE",
        "objective.teacher": {"weight": 1.0},
        "objective.preset": "gte",
    },
]
RECOMMENDER = {
    **ITEMS["doc"][1],
    **ITEMS["history"][1],
    **ITEMS["objective"][0],
    "tower.kind": "features",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of two models, by the names that stand for them."""
    folder, texts = (
        tmp_path_factory.mktemp("models"),
        [text for column in pairs().to_pydict().values() for text in column],
    )
    torch.manual_seed(0)
    Static(dimensions=8, vocabulary=200).build(texts).save(folder / "guide")
    Transformer(layers=1, width=16, heads=2, vocabulary=200, max_length=16, dropout=0.0).build(
        texts
    ).save(folder / "student")
    return {"GUIDE": str(folder / "guide"), "STUDENT": str(folder / "student")}


def named(value: Any, models: dict[str, str]) -> Any:
    """Return options in which folders stand for the names of models."""
    if isinstance(value, dict):
        return {key: named(each, models) for key, each in value.items()}
    return models.get(value, value) if isinstance(value, str) else value


@pytest.fixture
def answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    from tempera.cli import app

    def said(*command: object) -> str:
        assert isinstance(app, Typer)
        capsys.readouterr()
        app([str(part) for part in command], standalone_mode=False)
        return capsys.readouterr().out

    return said


def both(folder: Path, options: dict[str, Any], data: Any = None) -> Iterator[Path]:
    """Yield the folder of a run on a CPU, and then that of one on the device, while the device is
    there."""
    (folder / "cpu").mkdir()
    yield train(options, folder / "cpu" / "run", ["train.device=cpu"], data=data).folder
    with Accelerator() as used:
        run = train(options, folder / "device" / "run", data=data)
        assert used.total("launches") > 100
        yield run.folder


def assert_alike(folder: Path, least: int) -> None:
    """Fail if a file of weights, vectors or scores of the device is not that of the CPU."""
    files = [path.relative_to(folder / "cpu") for path in (folder / "cpu").rglob("*.safetensors")]
    assert len(files) >= least
    for file in files:
        assert (folder / "cpu" / file).read_bytes() == (folder / "device" / file).read_bytes(), file


NAMES = ("mined, guided", "pretrained, guided", "taught alone")


@pytest.mark.parametrize("choice", TEXTS, ids=NAMES)
def test_runs_that_mine_are_guided_and_taught_and_their_commands(
    choice: Choice, models: dict[str, str], tmp_path: Path, answer: Callable[..., str]
) -> None:
    options = {**named(sections(choice), models), "recipe": "none", **HELD_OUT}
    options["train"] = {
        "batch_size": 16,
        "max_steps": 5,
        "evaluations": 1,
        "learning_rate": 0.01,
    } | options.get("train", {})
    said = []
    parquet.write_table(pairs(), tmp_path / "pairs.parquet")
    options["data"] = {"path": str(tmp_path / "pairs.parquet")}
    for run in both(tmp_path, options):
        commands = [("search", run, "kaban lofin", "-k", 3), ("calibrate", run, "--precision", 0.5)]
        said.append([answer(*command).replace(str(run), "RUN") for command in commands])
    assert said[0] == said[1] and all(said[0])
    assert_alike(tmp_path, 2)


def test_texts_are_read_on_the_device(models: dict[str, str], tmp_path: Path) -> None:
    texts, student = pairs()["doc"].to_pylist(), Path(models["STUDENT"])
    want = embed_by(student, "doc", texts, tmp_path / "cpu", device="cpu")[:]
    config = config_of(TEXT["tower"][1])
    with Accelerator() as used:
        got = embed_by(student, "doc", texts, tmp_path / "device")[:]
        assert used.total("launches") > 10
        encoded = Model(str(student)).query(texts[:2])
        shutil.copytree(student, tmp_path / "run" / "model")
        used.clear()
        by_run = Run(tmp_path / "run").encode(texts[:2])
        assert used.total("launches") > 10
        with JsonLines(tmp_path / "log.jsonl") as log:
            run = prepare(config, Devices(Group(device=used.device)), tmp_path, log)
        assert {each.device.type for each in run.task.data.tower.parameters()} == {
            used.device.type
        }  # and judged there
    np.testing.assert_allclose(got, want, atol=1e-6)
    for vectors in (encoded, by_run):
        np.testing.assert_allclose(vectors, load(student, "query")(texts[:2]), atol=1e-6)


def test_a_recommender_answers_alike(tmp_path: Path, answer: Callable[..., str]) -> None:
    table, items = events()
    parquet.write_table(items, tmp_path / "items.parquet")
    options = sections({**RECOMMENDER, "data.items": str(tmp_path / "items.parquet")})
    options = {**options, "recipe": "none", "evaluation": {"metrics": ["hit@10"]}}
    options["data"] |= {"source": "interactions", "split": "leave_last_out"}
    options["train"] = {"batch_size": 16, "max_steps": 5, "evaluations": 1, "learning_rate": 0.01}
    said = [
        answer("recommend", run, "--user", 3, "-k", 5) for run in both(tmp_path, options, table)
    ]
    assert said[0] == said[1] and len(said[0].splitlines()) >= 5
    assert_alike(tmp_path, 1)


def test_a_warm_step_of_a_taught_model_waits_once(models: dict[str, str], tmp_path: Path) -> None:
    with Accelerator() as used:
        warm(
            named({**STATIC, "train.teacher": "GUIDE", **GUIDED, "train.guide": "GUIDE"}, models),
            tmp_path / "run",
            used,
        )
    waits = {"engine/loop.py _loss_and_norm": 1}
    used.within(waits=waits, copies={where.place: 16 for _, where in used.counts}, launches=344)
