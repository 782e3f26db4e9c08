"""The number of steps that fit a time: measured once, by short runs before the first step, so that
all that follows is exact."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from ..engine.devices import Devices
from ..io.console import logger, silenced
from ..io.documents import JsonLines
from ..options.build import Config
from .fit import fit
from .prepare import Prepared, prepare
from .refit import Refit
from .resume import Checkpoints
from .task import RunTask

TIME_LIMIT = "time limit"  # event of the log
_COUNTS = (
    4,
    32,
)  # steps of the short runs; the second follows if its steps take little of the time
# of the first, where the steps at the beginning have more rows: enough for their share to show
_COUNT = 16
_SHARE = 0.05


def limited(
    prepared: Prepared,
    known: Mapping[str, Any] | None = None,
    settle: Callable[[Prepared], Prepared] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Prepared:
    """Return the run with at most as many steps as `train.max_time` allows it and its training
    again, if there is one.

    All processes call, and the slowest decides.

    Args:
        known: what an interrupted run has recorded of its limit, which then stands.
        settle: chooses options that are still open, within the limit of the run as it is. Where the
            tower is another one after that, its steps are measured anew.
        checkpoints: keep what was measured before that, so that a run which is interrupted in
            between goes on with the same limit; None keeps nothing.
    """
    options, settle = prepared.config.train, settle or (lambda run: run)
    if options.max_time is None:
        return settle(prepared)
    record = dict(known or _measured(prepared, options.max_time, checkpoints))
    settled = settle(_within(prepared, record))
    train = replace(settled.config.train, max_time=options.max_time, max_steps=None)
    settled = replace(settled, config=replace(settled.config, train=train))
    if not known and settled.task is not prepared.task:
        record = measure(settled, options.max_time)
    wanted, allowed = _steps(settled), int(record["steps"])
    if settled.devices.group.main:
        settled.log.write(event=TIME_LIMIT, **record)
        verdict = "more than it needs" if allowed >= wanted else f"of {wanted:,} without the limit"
        logger.info(f"train.max_time of {options.max_time:g} s allows {allowed:,} steps, {verdict}")
    within = _within(settled, record)
    within.task.held_out.afford(within.config)  # fewer steps leave less for looks
    return within


def _measured(
    prepared: Prepared, limit: float, checkpoints: Checkpoints | None
) -> dict[str, float]:
    """Return what `measure` does, or what an interrupted run has measured."""
    record: dict[str, float] | None = None
    if checkpoints is not None:
        record = checkpoints.notes.get(TIME_LIMIT)
    if record is None:
        record = measure(prepared, limit)
        if checkpoints is not None and prepared.devices.group.main:
            checkpoints.note(TIME_LIMIT, record)
    return record


def measure(prepared: Prepared, limit: float) -> dict[str, float]:
    """Return the steps that fit a limit in seconds, the limit, and the seconds of a step."""
    step, spent = rate(prepared, limit)
    allowed = max(1, int((limit - spent) / step / Refit(prepared).times))
    return {
        "steps": -prepared.devices.group.all_reduce_max(-allowed),
        "seconds": limit,
        "step_seconds": step,
    }


def _steps(prepared: Prepared) -> int:
    return prepared.config.train.steps(prepared.task.data.sampler.batches_per_epoch)


def _within(prepared: Prepared, record: Mapping[str, float]) -> Prepared:
    """Return the run with the steps of a limit in place of its time, unless it takes fewer."""
    allowed = int(record["steps"])
    train = replace(
        prepared.config.train,
        max_time=None,
        max_steps=allowed if allowed < _steps(prepared) else None,
    )
    return replace(prepared, config=replace(prepared.config, train=train))


def rate(prepared: Prepared, limit: float) -> tuple[float, float]:
    """Return the mean seconds of a step, and the seconds of all steps that were taken to measure
    it."""
    spent = step = 0.0
    for count in (first_steps(prepared), _COUNTS[-1]):
        seconds = step_seconds(prepared, count)
        spent, step = (
            spent + sum(seconds),
            mean(seconds[1:]),
        )  # the first makes what the others use again
        if prepared.devices.group.all_reduce_max(int(step * _COUNTS[-1] > _SHARE * limit)):
            break
    return step, spent


def first_steps(prepared: Prepared) -> int:
    """Return the steps of a short run that tell the time of one."""
    return _COUNT if prepared.config.train.made_rows else _COUNTS[0]


def step_seconds(prepared: Prepared, count: int) -> list[float]:
    """Return the seconds of each step of a short run beside this one, of which nothing stays."""
    train = replace(prepared.config.train, max_steps=count, max_time=None)
    config = replace(
        prepared.config, train=train, objective=copy.deepcopy(prepared.config.objective)
    )
    _, records = short_run(prepared, config, prepared.devices)
    return [record["seconds"] for record in records if record["event"] == "step"]


def short_run(
    prepared: Prepared, config: Config, devices: Devices
) -> tuple[RunTask, list[dict[str, Any]]]:
    """Train anew on the data of a prepared run, without looks; return the task and the records of
    the log.

    Args:
        config: with an objective of its own, which training changes.
        devices: that train.
    """
    with (
        TemporaryDirectory(dir=prepared.folder) as place,
        silenced(),
        JsonLines(Path(place) / "log.jsonl") as log,
    ):
        run = prepare(config, devices, Path(place), log, shared=prepared.task)
        fit(run, looks=False)
    return run.task, log.records
