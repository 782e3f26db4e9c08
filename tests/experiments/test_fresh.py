"""Data that several runs share: each of them is the run that it would have been alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tempera.engine.devices import Devices
from tempera.io.documents import JsonLines
from tempera.options import yaml_options as configuration
from tempera.options.build import Config, build
from tempera.run.fit import fit
from tempera.run.prepare import prepare
from tempera.run.task import RunTask

SCRATCH = {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "vocabulary": 300}


def config_of(options: dict[str, Any], *overrides: str) -> Config:
    return build(configuration.of(options, overrides))


def prepared(config: Config, folder: Path) -> RunTask:
    folder.mkdir()
    with JsonLines(folder / "log.jsonl") as log:
        return prepare(config, Devices(), folder, log).task


def trained(
    config: Config, folder: Path, task: RunTask | None = None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of a run, on its own data or on that of another one."""
    folder.mkdir()
    config = replace(config, train=replace(config.train, evaluations=0))
    with JsonLines(folder / "log.jsonl") as log:
        run = prepare(config, Devices(), folder, log, shared=task)
        fit(run)
        losses = [record["loss"] for record in log.records if record["event"] == "step"]
    return losses, {name: value.clone() for name, value in run.task.data.tower.state_dict().items()}


@pytest.mark.parametrize("kind", ["static", "transformer", "recommender"])
def test_a_run_on_shared_data_is_the_run_alone(
    kind: str, options: dict[str, Any], recommender: dict[str, Any], tmp_path: Path
) -> None:
    if kind == "recommender":
        options = recommender
    elif kind == "transformer":
        options |= {"tower": SCRATCH}
    few = ("train.max_steps=4", "train.sampled=3")
    task = prepared(
        config_of(options, "train.batch_size=16"), tmp_path / "shared"
    )  # a run of other options
    trained(
        config_of(options, *few, "objective.temperature=0.5"), tmp_path / "before", task
    )  # and one before it
    changed = (*few, "objective.temperature=0.02")
    alone = trained(config_of(options, *changed), tmp_path / "alone")
    shared = trained(config_of(options, *changed), tmp_path / "run", task)
    assert shared[0] == alone[0] and len(alone[0]) == 4
    assert all(torch.equal(shared[1][name], value) for name, value in alone[1].items())


def test_seeds_change_weights_and_rows_and_not_the_split(
    options: dict[str, Any], tmp_path: Path
) -> None:
    task = prepared(config_of(options), tmp_path / "shared")
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        made.append(task.again(config_of(options, f"train.seed={seed}")))
    a, b = made
    assert not torch.equal(next(a.data.tower.parameters()), next(b.data.tower.parameters()))
    assert not torch.equal(next(a.data.sampler(0, 1)), next(b.data.sampler(0, 1)))
    for one, other in zip(a.data.content(), b.data.content(), strict=True):
        assert torch.equal(one, other)


def test_seeds_ask_a_recommender_the_same(recommender: dict[str, Any], tmp_path: Path) -> None:
    task = prepared(config_of(recommender), tmp_path / "shared")
    asked = []
    for seed in (0, 1):
        run: Any = task.again(config_of(recommender, f"train.seed={seed}"))
        asked.append(run.held_out._some(np.arange(30), 12))
    assert np.array_equal(*asked)


@pytest.mark.parametrize("sides", ["one", "heads", "two"])
def test_a_transformer_again_reads_alike_and_is_untrained(
    sides: str, options: dict[str, Any]
) -> None:
    made = config_of({**options, "tower": {**SCRATCH, "sides": sides}}).tower
    texts = ["kaban locel midor", "the nufin of ragar", ""] * 3
    torch.manual_seed(3)
    tower = made.build(texts)
    read = tower.features(texts)  # a tokenizer is not the same before and after its first batch
    for parameter in tower.parameters():
        parameter.data.add_(1)
    torch.manual_seed(3)
    again, whole = made.again(tower), None
    torch.manual_seed(3)
    whole = made.build(texts)
    found = again.features(texts)
    assert torch.equal(found.values, read.values) and torch.equal(found.offsets, read.offsets)
    for (name, one), (_, other) in zip(
        again.named_parameters(), whole.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name
