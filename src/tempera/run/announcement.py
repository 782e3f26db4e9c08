"""The plan of a training, logged before the first step: steps, negatives, micro-batches and
memory."""

from __future__ import annotations

from ..core.batch import divide
from ..core.tiles import SCORE_BYTES
from ..engine import outlook
from ..engine.batches import own_part
from ..engine.checkpoint import State
from ..engine.curation import as_many
from ..errors import quantity
from ..io.console import logger
from .prepare import Prepared


def announce(prepared: Prepared, state: State, steps: int) -> None:
    """Print and log the plan of a training; all processes call, and the main process prints.

    Args:
        prepared: the run.
        state: of the training, before the first step.
        steps: of the training.
    """
    data = prepared.task.data
    group = prepared.devices.group
    options = prepared.config.train
    objective = prepared.config.base
    together = options.gradient_accumulation_steps
    (rows,) = data.sampler(0, 1)
    pairs, *made = data.batches(rows, 0, 0.0)
    batch = as_many(pairs, options.select)
    largest = max([batch, *made], key=len)
    part = own_part(batch, data.sampler, group)
    largest_part = part
    if largest is not batch:
        largest_part = divide(largest, group.rank, group.size)

    epochs = steps * together / data.sampler.batches_per_epoch
    passes = f"{epochs:.3g} epochs"
    if f"{epochs:.3g}" == "1":
        passes = "1 epoch"
    negatives = outlook.negatives(objective, part, group, options.size)
    first = f"{quantity(steps, 'steps')}, {passes}; {negatives}"
    if len(batch) < len(rows):
        first += f"; a guide chooses these of {len(rows):,} pairs"

    plan = state.cache.plan(state.modules["towers"], largest_part, group)
    width = data.tower.encode(batch.doc.rows[:1]).shape[1]
    tile = objective.tile_size(group.device)
    block = outlook.block(objective, largest, len(largest_part))
    memory = outlook.memory(plan, [state.modules], SCORE_BYTES * min(tile, block), width)
    lines = [f"towers: {plan}", outlook.described(memory)]
    if group.device.type != "cpu":
        lines.append(f"device: {group.device}; scores in tiles of {tile:,}")
    if together > 1:
        lines.append(
            f"{together} batches a step: each is a softmax of its own, which averages gradients "
            "and adds no negatives"
        )
    if group.main:
        logger.info(first)
        for line in lines:
            logger.debug(line)
        prepared.log.write(
            event="plan", text=[first, *lines], expected_bytes=memory, replayed=plan.replayed
        )
