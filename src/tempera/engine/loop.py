"""The loop: an iterator of `Progress`, without callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..arithmetic.abilities import reseed, widest
from ..core.batch import Batch
from ..core.objective import Objective
from ..core.temperature import Temperature
from ..errors import DataError
from ..layers.lookup import clear
from ..parallel.distributed import Group
from .checkpoint import State
from .curation import curated
from .devices import Devices
from .faults import Fault, NotFinite, trace
from .fused import reach
from .optim import adam, clip, schedule_factor, total_norm
from .step import Loss, TowersLike, add_gradients
from .training_options import Training

_LEAST_SCALE = (
    2.0**-14
)  # of gradients in fp16; below it they would not be too small for it, but too large


@dataclass(frozen=True)
class Progress:
    """One optimiser step that has been taken, or left out for its fault."""

    step: int  # counted from 1
    steps: int
    loss: float  # weighted mean of the batch
    temperature: float
    learning_rate: float
    grad_norm: float | None  # None where fp16 has overflowed and the step was left out
    seconds: float  # of this step
    fault: Fault | None = None  # the weights are as they were before


def begin(
    towers: TowersLike, objective: Loss, options: Training, devices: Devices | None = None
) -> State:
    """Return the state of a run before its first step."""
    devices = devices or Devices()
    modules = nn.ModuleDict({"towers": towers, "objective": objective}).train()  # type: ignore[dict-item]
    for module in modules.modules():
        if isinstance(module, Objective):
            module.loss_pass = options.loss_pass(
                reach(devices.group.device), devices.mixed_precision
            )
    optimizer = adam(
        modules,
        options.learning_rate,
        options.temperature_learning_rate,
        options.weight_decay,
        options.table_optimizer,
        options.table_learning_rate,
    )
    scaler = devices.scaler()
    scaler.scale(
        torch.zeros((), device=devices.group.device)
    )  # a scaler has no scale before its first use
    return State(modules, optimizer, scaler, options.cached(devices), group=devices.group)


def train(
    state: State,
    batches: Iterable[Batch[Any]],
    steps: int,
    options: Training,
    devices: Devices | None = None,
) -> Iterator[Progress]:
    """Take the steps from `state.step` to `steps`, each with `gradient_accumulation_steps` batches;
    see `take`.

    Args:
        batches: this process's rows, from the first batch of step `state.step` on.
    """
    remaining = iter(batches)
    for _ in range(state.step, steps):
        yield take(
            state, islice(remaining, options.gradient_accumulation_steps), steps, options, devices
        )


def take(
    state: State,
    batches: Iterable[Batch[Any]],
    steps: int,
    options: Training,
    devices: Devices | None = None,
) -> Progress:
    """Take one optimiser step of `steps`, by the mean gradient of some batches.

    Args:
        state: what the run has come to; moves on by the step, and may be saved between two of them.
        batches: this process's rows; they are drawn within the step.

    Raises:
        NotFinite: a loss or a gradient, `skip_non_finite` steps before it included.
        DataError: no batch.
    """
    start, i = time.perf_counter(), state.step
    devices = devices or Devices()
    group, optimizer, scaler = devices.group, state.optimizer, state.scaler
    towers: Any = state.modules["towers"]
    objective: Any = state.modules["objective"]
    parameters = state.parameters
    objective.advance(i / max(1, steps - 1))
    chosen = [
        curated(towers, objective, batch, options.select, options.select_by, state.cache, group)
        for batch in batches
    ]
    if not chosen:
        raise DataError(
            f"the batches end before step {i + 1:,} of {steps:,}: give more batches, or fewer steps"
        )
    reseed(
        seed_of(options.seed, i, group.rank), group.device
    )  # the step draws the same however its rows were chosen
    factor = schedule_factor(i, steps, options.warmup_ratio, options.lr_scheduler_type)
    for each in optimizer.param_groups:
        each["lr"] = each["initial_lr"] * factor
    clear(parameters)
    objective.temperature.owed = None
    memories = [(memory, memory.side()) for memory in state.memories]
    losses = []
    for batch, _ in chosen:
        mine, everyone = add_gradients(
            towers, objective, batch, state.cache, group, 1 / len(chosen), scaler
        )
        objective.remember(everyone)
        losses.append(mine.to(widest(mine.device)))
    group.all_reduce_gradients(parameters)
    scaler.unscale_(optimizer)
    loss, norm = _figures(losses, objective.temperature, parameters, scaler, group)
    grad_norm = float(norm)
    # The scaler leaves such a step out and lowers its scale, which helps as long as there is one to
    # lower.
    overflow = (
        scaler.is_enabled() and not math.isfinite(grad_norm) and scaler.get_scale() > _LEAST_SCALE
    )
    fault = None
    if not math.isfinite(loss) or not (overflow or math.isfinite(grad_norm)):
        for memory, earlier in memories:
            memory.hold(earlier)  # what it has seen would spoil the batches to come
        reseed(seed_of(options.seed, i, group.rank), group.device)
        what = "gradient" if math.isfinite(loss) else "loss"
        fault = trace(state, chosen, what, devices)
        state.left_out += 1
        if state.left_out > options.skip_non_finite:
            raise NotFinite(fault)
    else:
        state.left_out = 0
        if options.max_grad_norm is not None:
            clip(parameters, norm, options.max_grad_norm)
        scaler.step(optimizer)
    scaler.update()
    state.step = i + 1
    seconds = time.perf_counter() - start
    dial, learning_rate = objective.temperature.value, options.learning_rate * factor
    norm_of_step = None if overflow else grad_norm
    return Progress(i + 1, steps, loss, dial, learning_rate, norm_of_step, seconds, fault)


def _figures(
    losses: Sequence[Tensor],
    dial: Temperature,
    parameters: Sequence[nn.Parameter],
    scaler: torch.amp.GradScaler,
    group: Group,
) -> tuple[float, Tensor]:
    """Return the mean loss of a step's batches, and the norm of all gradients on the host: the one
    time that a step waits.

    The gradient that a learned temperature is owed comes along.
    """
    owed = [] if dial.owed is None else [dial.owed]
    figures = group.all_reduce_sums(torch.stack([*losses, *owed]))
    owed = [
        gradient / scaler.scale(torch.ones_like(gradient)) for gradient in figures[len(losses) :]
    ]
    norm = total_norm(parameters, group, owed)
    *each, length = torch.stack([*figures[: len(losses)], *owed, norm.to(figures)]).tolist()
    if owed:
        dial.owed = torch.tensor(each.pop(), dtype=torch.float64)
        dial.collect()
    return sum(each) / len(losses), torch.tensor(length, dtype=norm.dtype)


def seed_of(seed: int, step: int, rank: int) -> int:
    """Return the seed of one process in one step, so that a resumed run continues as if it had
    never stopped."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> 1)


def moments(steps: int, count: int) -> set[int]:
    """Return up to `count` steps, spread evenly over the run, the last one excluded.

    >>> sorted(moments(100, 3))
    [25, 50, 75]
    """
    return {round(steps * (i + 1) / (count + 1)) for i in range(count)} - {0, steps}
