"""A step on paper has the launches and the bytes that the pretend accelerator counts, stage by
stage."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from on_loss_stage import LEARNED, batch, on
from on_runs import ITEMS, TEXT, Choice, config_of
from pretend import GIB, Accelerator
from torch import Tensor, nn

from tempera import Batch, Objective, mnr
from tempera.engine.cache import Cache
from tempera.engine.devices import Devices
from tempera.engine.optim import adam, total_norm
from tempera.io.documents import JsonLines
from tempera.paper.cost import META, Ledger
from tempera.paper.stages import (
    BACKWARD,
    FIRST,
    LOSS,
    OPTIMISER,
    loss_on_paper,
    objective_on_paper,
    step_on_paper,
)
from tempera.parallel.distributed import ALONE
from tempera.run.prepare import prepare

Counts = tuple[int, int]


def executed(objective: Objective, rows: Batch[Tensor], memory: int) -> Counts:
    """Return launches and bytes of a loss stage that computes."""
    with Accelerator(memory) as used:
        objective, rows = objective.to(used.device), on(used, rows)
        if objective.memory is not None:
            for _ in range(-(-objective.memory.size // len(rows.doc))):
                objective.remember(rows)
        objective.tile_size(used.device)
        used.clear()
        objective.propagate(objective.recall(rows), rows.shares())
        return used.total("launches"), used.bytes


def counted(objective: Objective, rows: Batch[Tensor], memory: int) -> Counts:
    """Return the same on paper."""
    ledger, rows = Ledger(META), rows.to(META).map(lambda x: x.detach().requires_grad_())
    loss_on_paper(ledger, objective_on_paper(objective, META), rows, memory)
    return ledger.stages[LOSS].launches, ledger.stages[LOSS].total("bytes")


@pytest.mark.parametrize("name", LEARNED)
def test_the_loss_stage_on_paper_is_the_one_that_runs(name: str) -> None:
    memory = 3 * 40 * 40 * 16 * 8 // 4  # free bytes that make several tiles
    assert counted(LEARNED[name](), batch(), memory) == executed(LEARNED[name](), batch(), memory)


def test_the_loss_stage_of_many_tiles() -> None:
    memory = 1024 * 1024 * 16 * 8 // 5
    few, many = (counted(mnr(), batch(1024), each) for each in (80 * GIB, memory))
    assert few[0] < many[0] and many == executed(mnr(), batch(1024), memory)


def each_stage(tower: Any, objective: Any, rows: Batch[Any], options: Any) -> dict[str, Counts]:
    """Return launches and bytes of the stages of a step that computes."""
    counts = {}
    with Accelerator(80 * GIB) as used:

        def note(stage: str) -> None:
            counts[stage] = used.total("launches"), used.bytes
            used.clear()

        tower, objective = tower.to(used.device).train(), objective.to(used.device)
        cache = Cache(options.cache, 40 * GIB, options.micro_batch_tokens, used.device)
        cache.plan(tower, rows)
        objective.tile_size(used.device)
        used.clear()
        embedded = cache.embed(tower, rows)
        note(FIRST)
        everyone = ALONE.gather(embedded.batch)
        used.clear()
        objective.propagate(everyone, everyone.shares())
        note(LOSS)
        grads = ALONE.reduce_scatter(everyone)
        used.clear()
        embedded.backward(grads)
        note(BACKWARD)
        modules = nn.ModuleDict({"towers": tower, "objective": objective})
        optimizer = adam(modules, 0.1, 0.1, 0.0)
        for p in tower.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        used.clear()
        total_norm(list(modules.parameters()), ALONE)
        optimizer.step()
        note(OPTIMISER)
    return counts


SMALL = {
    **TEXT["tower"][1]["tower"],
    "dropout": 0.0,
}  # attention draws its dropout in a kernel of each device
STEPS: list[Choice] = [
    {**TEXT["tower"][0], "objective.preset": "symmetric"},
    {"tower": SMALL, "objective.preset": "gte", "train.cache": "always"},
    {
        "tower": SMALL,
        "train.micro_batch_tokens": 100,
        "objective.temperature": {"value": 0.05, "learnable": True},
    },
    {**ITEMS["doc"][0], **ITEMS["history"][0], **ITEMS["objective"][0]},
]


@pytest.mark.parametrize("choice", STEPS)
def test_each_stage_of_a_step_on_paper_is_the_one_that_runs(choice: Choice, tmp_path: Path) -> None:
    with JsonLines(tmp_path / "log.jsonl") as log:
        run = prepare(config_of(choice), Devices(), tmp_path, log)
    data, options, objective = run.task.data, run.config.train, run.config.objective
    rows = data.batch(next(iter(data.sampler(0, 1))), 0)
    paper = step_on_paper(data.tower, objective, rows, options, 80 * GIB)
    counts = {
        name: (stage.launches, stage.total("bytes"))
        for name, stage in paper.stages.items()
        if stage.launches
    }
    assert counts == each_stage(copy.deepcopy(data.tower), copy.deepcopy(objective), rows, options)
