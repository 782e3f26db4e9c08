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

# Gradients in fp16 that overflow with this scale are too large themselves.
_LEAST_SCALE = 2.0**-14


@dataclass(frozen=True)
class Progress:
    """The figures of an optimiser step, taken or left out for a fault."""

    step: int  # counted from 1
    steps: int
    loss: float  # weighted mean of the batch
    temperature: float
    learning_rate: float
    grad_norm: float | None  # None where fp16 has overflowed and the step was left out
    seconds: float  # of this step
    fault: Fault | None = None  # with a fault, the step has not changed the weights


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
    # A scaler has no scale before its first use.
    scaler.scale(torch.zeros((), device=devices.group.device))
    return State(modules, optimizer, scaler, options.cached(devices), group=devices.group)


def train(
    state: State,
    batches: Iterable[Batch[Any]],
    steps: int,
    options: Training,
    devices: Devices | None = None,
) -> Iterator[Progress]:
    """Take the steps from `state.step` to `steps` by `take`, each with
    `gradient_accumulation_steps` batches.

    Args:
        batches: this process's rows, from the first batch of step `state.step` on.
    """
    remaining = iter(batches)
    for _ in range(state.step, steps):
        accumulated = islice(remaining, options.gradient_accumulation_steps)
        yield take(state, accumulated, steps, options, devices)


def take(
    state: State,
    batches: Iterable[Batch[Any]],
    steps: int,
    options: Training,
    devices: Devices | None = None,
) -> Progress:
    """Take an optimiser step of `steps`, by the mean gradient of some batches.

    Args:
        state: the state of the run, moved on by one step; may be saved between two steps.
        batches: this process's rows, drawn within the step.

    Raises:
        NotFinite: a loss or a gradient is not finite, after `skip_non_finite` such steps in a row.
        DataError: no batch.
    """
    start = time.perf_counter()
    devices = devices or Devices()
    index = state.step
    towers: Any = state.modules["towers"]
    objective: Any = state.modules["objective"]
    group = devices.group
    seed = seed_of(options.seed, index, group.rank)

    objective.advance(index / max(1, steps - 1))
    chosen = []
    for batch in batches:
        share, by = options.select, options.select_by
        chosen.append(curated(towers, objective, batch, share, by, state.cache, group))
    if not chosen:
        raise DataError(
            f"the batches end before step {index + 1:,} of {steps:,}: give more batches, or fewer steps"
        )
    reseed(seed, group.device)  # the step draws the same however its rows were chosen
    factor = schedule_factor(index, steps, options.warmup_ratio, options.lr_scheduler_type)
    for parameter_group in state.optimizer.param_groups:
        parameter_group["lr"] = parameter_group["initial_lr"] * factor

    memories = [(memory, memory.side()) for memory in state.memories]
    losses = _accumulate(state, [batch for batch, _ in chosen], group)
    loss, norm = _loss_and_norm(losses, state, group)
    overflow = _fp16_overflows(norm, state.scaler)

    fault = None
    if math.isfinite(loss) and (overflow or math.isfinite(norm)):
        state.left_out = 0
        if options.max_grad_norm is not None:
            clip(state.parameters, norm, options.max_grad_norm)
        state.scaler.step(state.optimizer)
    else:
        for memory, earlier in memories:
            memory.hold(earlier)  # the documents of this step would spoil later batches
        reseed(seed, group.device)
        what = "gradient" if math.isfinite(loss) else "loss"
        fault = trace(state, chosen, what, devices)
        state.left_out += 1
        if state.left_out > options.skip_non_finite:
            raise NotFinite(fault)
    state.scaler.update()
    state.step = index + 1
    return Progress(
        step=index + 1,
        steps=steps,
        loss=loss,
        temperature=objective.temperature.value,
        learning_rate=options.learning_rate * factor,
        grad_norm=None if overflow else float(norm),
        seconds=time.perf_counter() - start,
        fault=fault,
    )


def _accumulate(state: State, batches: Sequence[Batch[Any]], group: Group) -> list[Tensor]:
    """Leave the mean gradient of some batches on the parameters; return the process's part of the
    loss of each batch, a scalar each."""
    towers: Any = state.modules["towers"]
    objective: Any = state.modules["objective"]
    clear(state.parameters)
    objective.temperature.owed = None
    losses = []
    for batch in batches:
        loss, everyone = add_gradients(
            towers, objective, batch, state.cache, group, 1 / len(batches), state.scaler
        )
        objective.remember(everyone)
        losses.append(loss.to(widest(loss.device)))
    group.all_reduce_gradients(state.parameters)
    state.scaler.unscale_(state.optimizer)
    return losses


def _loss_and_norm(losses: Sequence[Tensor], state: State, group: Group) -> tuple[float, Tensor]:
    """Return the mean loss of a step's batches, and the norm of all gradients on the host.

    The owed gradient of a learned temperature is collected, too: a step waits for the device only
    here.
    """
    objective: Any = state.modules["objective"]
    dial: Temperature = objective.temperature
    parts = list(losses)
    if dial.owed is not None:
        parts.append(dial.owed)
    sums = group.all_reduce_sums(torch.stack(parts))
    figures = list(sums.unbind())
    gradients_of_dial = []
    if dial.owed is not None:
        scaled = figures.pop()
        gradients_of_dial.append(scaled / state.scaler.scale(torch.ones_like(scaled)))
    norm = total_norm(state.parameters, group, gradients_of_dial)
    # One copy to the host for all numbers.
    numbers = torch.stack([*figures, *gradients_of_dial, norm.to(sums)]).tolist()
    norm_on_host = torch.tensor(numbers.pop(), dtype=norm.dtype)
    if gradients_of_dial:
        dial.owed = torch.tensor(numbers.pop(), dtype=torch.float64)
        dial.collect()
    return sum(numbers) / len(losses), norm_on_host


def _fp16_overflows(norm: Tensor, scaler: torch.amp.GradScaler) -> bool:
    """Return True if gradients have overflowed in fp16 and a smaller scale may help.

    The scaler leaves out a step with an overflow, and lowers the scale.
    """
    if not scaler.is_enabled() or math.isfinite(norm):
        return False
    return scaler.get_scale() > _LEAST_SCALE


def seed_of(seed: int, step: int, rank: int) -> int:
    """Return the seed of a process in a step.

    The seed depends on nothing else, so a resumed run continues as if never stopped.
    """
    state = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)
    return int(state[0] >> 1)


def moments(steps: int, count: int) -> set[int]:
    """Return up to `count` steps, spread evenly over the run, the last step excluded.

    >>> sorted(moments(100, 3))
    [25, 50, 75]
    """
    return {round(steps * (i + 1) / (count + 1)) for i in range(count)} - {0, steps}
