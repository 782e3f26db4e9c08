"""The loop: an iterator of `Progress`, without callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from ..core.batch import Batch
from ..core.ragged import Ragged
from ..errors import TemperaError
from .optim import Schedule, adam, rate
from .step import Loss, Towers, step


@dataclass(frozen=True)
class Training:
    """How long, how fast, and in which batches a run trains. Names follow Hugging Face where one exists.

    Args:
        batch_size: pairs in one softmax, over all devices.
        num_train_epochs: passes over the training pairs.
        max_steps: stop after this many optimiser steps instead; None is by epochs.
        learning_rate: peak rate of AdamW. .03 suits static embeddings; transformers want about 2e-5.
        temperature_learning_rate: peak rate of a learnable temperature's log.
        warmup_ratio: share of the steps in which the rate rises.
        lr_scheduler_type: how the rate falls afterwards.
        weight_decay: AdamW's, on everything but the temperature.
        max_grad_norm: gradients are scaled down to this norm; None leaves them.
        sampled: documents drawn from the training documents besides each batch, for the pool `sampled`.
        sampled_power: their chance is their frequency to this power; 0 is uniform, 1 by frequency.
        seed: of the weights, the order of the rows and the choice of what is held out.
        evaluations: how often the held-out queries are asked during training.
    """

    batch_size: Annotated[int, Field(gt=1)] = 2048
    num_train_epochs: Annotated[float, Field(gt=0)] = 4.0
    max_steps: Annotated[int, Field(gt=0)] | None = None
    learning_rate: Annotated[float, Field(gt=0)] = 0.03
    temperature_learning_rate: Annotated[float, Field(gt=0)] = 0.01
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    lr_scheduler_type: Schedule = "linear"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] | None = None
    sampled: Annotated[int, Field(ge=0)] = 0
    sampled_power: Annotated[float, Field(ge=0)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluations: Annotated[int, Field(ge=0)] = 4

    def steps(self, batches_per_epoch: int) -> int:
        """Optimiser steps of the run."""
        return self.max_steps or max(1, round(self.num_train_epochs * batches_per_epoch))


@dataclass(frozen=True)
class Progress:
    """One optimiser step that has been taken."""

    step: int  # counted from 1
    steps: int
    loss: float  # weighted mean of the batch
    temperature: float
    learning_rate: float
    grad_norm: float
    seconds: float  # of this step


def train(
    towers: Towers,
    modules: nn.Module,
    objective: Loss,
    batches: Iterable[Batch[Ragged]],
    steps: int,
    options: Training,
) -> Iterator[Progress]:
    """Take one optimiser step a batch.

    Args:
        modules: holds every parameter to train, of towers and objective.

    Raises:
        TemperaError: a loss or a gradient that is not finite.
    """
    optimizer = adam(modules, options.learning_rate, options.temperature_learning_rate, options.weight_decay)
    peaks = [group["lr"] for group in optimizer.param_groups]
    parameters = [p for p in modules.parameters() if p.requires_grad]
    modules.train()
    for i, batch in enumerate(batches):
        start = time.perf_counter()
        share = rate(i, steps, options.warmup_ratio, options.lr_scheduler_type)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * share
        objective.temperature.advance(i / max(1, steps - 1))
        optimizer.zero_grad()
        loss = float(step(towers, objective, batch))
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        for name, value in (("loss", loss), ("gradient norm", float(norm))):
            if not math.isfinite(value):
                raise TemperaError(
                    f"the {name} of step {i + 1} is {value}: lower train.learning_rate or raise objective.temperature"
                )
        if options.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, options.max_grad_norm, norm)
        optimizer.step()
        yield Progress(
            i + 1, steps, loss, objective.temperature.value, peaks[0] * share, float(norm), time.perf_counter() - start
        )


def moments(steps: int, count: int) -> set[int]:
    """`count` steps spread evenly over the run, the last one excluded.

    >>> sorted(moments(100, 3))
    [25, 50, 75]
    """
    return {round(steps * (i + 1) / (count + 1)) for i in range(count)} - {0, steps}
