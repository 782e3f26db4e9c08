"""Training again on all events, after a run has been judged; what is served has then learned from the test, too."""

from __future__ import annotations

from dataclasses import replace

from ..core.matryoshka import Matryoshka
from ..core.objective import Objective
from ..io.console import logger
from ..recommend.recommendation import InteractionTask
from .fit import Fitted
from .prepare import Prepared
from .time_limit import short_run


def refit(prepared: Prepared, fitted: Fitted, objective: Objective | Matryoshka) -> Prepared:
    """Return a run beside a judged one that has trained anew on all events but those of withheld items, as long as it did.

    The length is that of the saved weights, times the batches of an epoch now over those before. Nothing is evaluated.

    Args:
        objective: as it was before training.
    """
    task, group = prepared.task, prepared.devices.group
    assert isinstance(task, InteractionTask)
    whole = task.whole(prepared.config)
    batches = [each.data.sampler.batches_per_epoch for each in (whole, task)]
    chosen = group.all_reduce_max(fitted.step if group.main else 0)  # which only the main process knows
    train = replace(prepared.config.train, max_steps=max(1, round(chosen * batches[0] / batches[1])), refit=False)
    config = replace(prepared.config, train=train, objective=objective)
    if group.main:
        logger.info(f"train.refit: training again on all {whole.train:,} interactions, {train.max_steps:,} steps")
    trained, _ = short_run(replace(prepared, task=whole), config, prepared.devices)
    return replace(prepared, task=trained, config=config)
