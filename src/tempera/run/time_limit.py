"""The number of steps within a time limit: measured once, by short runs before the first step, so
that the rest of the run is exact."""

from __future__ import annotations

import copy
from collections.abc import Mapping
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


def limited(prepared: Prepared) -> Prepared:
    """Return a run with chosen options and at most the steps that `train.max_time` allows; all
    processes call, and the slowest decides."""
    limit = limit_of(prepared)
    return limit_chosen(within(prepared, limit), prepared, limit)


def limit_of(
    prepared: Prepared,
    known: Mapping[str, Any] | None = None,
    checkpoints: Checkpoints | None = None,
) -> dict[str, Any] | None:
    """Return the steps within `train.max_time`, for the run with its refits; None without a limit.

    All processes call, and the slowest decides.

    Args:
        known: the recorded limit of an interrupted run, which is kept.
        checkpoints: keep a measured limit for a run that is interrupted before its first step; None
            keeps nothing.
    """
    seconds = prepared.config.train.max_time
    if seconds is None:
        return None
    return dict(known or _measured(prepared, seconds, checkpoints))


def limit_chosen(
    chosen: Prepared, before: Prepared, limit: Mapping[str, Any] | None, is_known: bool = False
) -> Prepared:
    """Return a run after the choice of its options, with the steps that a limit allows the chosen
    tower.

    Args:
        chosen: the run with its options.
        before: the run before the choice; the steps of another tower are measured anew.
        limit: of `limit_of`; None is no limit.
        is_known: True if an interrupted run has recorded the limit; nothing is measured anew.
    """
    if limit is None:
        return chosen
    seconds = before.config.train.max_time
    assert seconds is not None
    train = replace(chosen.config.train, max_time=seconds, max_steps=None)
    unlimited = replace(chosen, config=replace(chosen.config, train=train))
    if not is_known and chosen.task is not before.task:
        limit = measure(unlimited, seconds)
    wanted = _steps(unlimited)
    allowed = int(limit["steps"])
    if unlimited.devices.group.main:
        unlimited.log.write(event=TIME_LIMIT, **limit)
        verdict = f"of {wanted:,} without the limit"
        if allowed >= wanted:
            verdict = "more than it needs"
        logger.info(f"train.max_time of {seconds:g} s allows {allowed:,} steps, {verdict}")
    return within(unlimited, limit)


def _measured(
    prepared: Prepared, limit: float, checkpoints: Checkpoints | None
) -> dict[str, float]:
    """Return the measured limit, or the limit that an interrupted run has measured."""
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


def within(prepared: Prepared, limit: Mapping[str, Any] | None) -> Prepared:
    """Return the run with the steps of a limit in place of its time, unless the run takes fewer;
    the same run without a limit."""
    if limit is None:
        return prepared
    steps: int | None = int(limit["steps"])
    if int(limit["steps"]) >= _steps(prepared):
        steps = None
    train = replace(prepared.config.train, max_time=None, max_steps=steps)
    return replace(prepared, config=replace(prepared.config, train=train))


def rate(prepared: Prepared, limit: float) -> tuple[float, float]:
    """Return the mean seconds of a step, and the seconds of the whole measurement."""
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
    """Return the number of steps of a short run for measuring the time of a step."""
    return _COUNT if prepared.config.train.made_rows else _COUNTS[0]


def step_seconds(prepared: Prepared, count: int) -> list[float]:
    """Return the seconds of each step of a short run, which leaves nothing."""
    train = replace(prepared.config.train, max_steps=count, max_time=None)
    config = replace(
        prepared.config, train=train, objective=copy.deepcopy(prepared.config.objective)
    )
    _, records = short_run(prepared, config, prepared.devices)
    return [record["seconds"] for record in records if record["event"] == "step"]


def short_run(
    prepared: Prepared, config: Config, devices: Devices
) -> tuple[RunTask, list[dict[str, Any]]]:
    """Train anew on the data of a prepared run, without looks; return the task and the log's
    records.

    Args:
        config: with a separate objective, which training changes.
        devices: of the training.
    """
    with (
        TemporaryDirectory(dir=prepared.folder) as place,
        silenced(),
        JsonLines(Path(place) / "log.jsonl") as log,
    ):
        run = prepare(config, devices, Path(place), log, shared=prepared.task)
        fit(run, looks=False)
    return run.task, log.records
