"""The first of a run's four functions (prepare, fit, judge, publish): the data read, divided and
tokenised, and the tower built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..core.advice import cautions
from ..core.similarity import cosine
from ..engine.clock import Phases
from ..engine.devices import DTYPES, Devices
from ..io.console import logger
from ..io.documents import JsonLines
from ..options.build import Config
from ..options.names import describe
from ..parallel.distributed import CPU
from ..towers.modules import read_in
from .task import RunTask

CACHE = "cache"  # texts and tokens, mapped; removed with the last step


@dataclass(frozen=True)
class Prepared:
    """Hold a run before its first step.

    Args:
        config: its section `data` says what reading has decided.
        folder: where the run writes.
        log: of the run.
        phases: the time that the run has taken so far.
    """

    config: Config
    task: RunTask
    devices: Devices
    folder: Path
    log: JsonLines
    phases: Phases


def prepare(
    config: Config,
    devices: Devices,
    folder: Path,
    log: JsonLines,
    vectors: Path | None = None,
    shared: RunTask | None = None,
) -> Prepared:
    """Read, divide and tokenise the data, and build the tower.

    Args:
        vectors: folder for the vectors of guides, shared by all processes and by runs beside this
            one; None makes one in `folder`.
        shared: a task that has read the same data: they are not read again.

    Raises:
        TemperaError: no data, or options that do not fit them.
    """
    phases, cache, store = Phases(), folder / CACHE, vectors or folder / "vectors"
    torch.manual_seed(config.train.seed)
    reading = reading_of(config, devices)
    task: RunTask
    if shared is None and (foreword := getattr(config.data, "foreword", None)):
        logger.info(foreword)
    with phases("read"):
        if shared is not None:
            task = shared.again(reading)
        else:
            task = config.world.read_task(config, reading, cache, store, phases)
        facts = task.facts
    # The data may decide options of the tower: a history of interactions without an order is
    # another one.
    if facts.tower is not None:
        ((kind, tower),) = describe(facts.tower).items()
        config = replace(
            config,
            tower=facts.tower,
            resolved={**config.resolved, "tower": {"kind": kind, **tower}},
        )
    # Batch size and epochs follow the number of training pairs.
    config = config.settled(facts.counts["train"], reading.train.large_pays).trained_with(
        made_rows=facts.made_rows
    )
    if facts.source is not None:
        ((name, options),) = describe(facts.source).items()
        config = replace(config, resolved={**config.resolved, "data": {"source": name, **options}})
    move_tower(config, task, devices)
    for line in facts.lines:
        logger.info(line)
    log.write(event="data", pairs=facts.counts["pairs"], dropped=facts.counts["dropped"])
    settle_temperature(config)
    for caution in cautions(config.base, DTYPES[devices.mixed_precision], task.data.tower.unit):
        logger.warning(f"caution: {caution}")
        log.write(event="caution", text=caution)
    return Prepared(config, task, devices, folder, log, phases)


def reading_of(config: Config, devices: Devices) -> Config:
    """Return a configuration by which a task reads texts: on the device, in bf16 if the run
    computes in bf16 on a CPU, else in float32."""
    half = _half(devices)
    read = replace(
        config.train, mixed_precision="bf16" if half else "no", device=str(devices.group.device)
    )
    return replace(config, train=read)


def _half(devices: Devices) -> bool:
    return devices.mixed_precision == "bf16" and devices.group.device == CPU


def move_tower(config: Config, task: RunTask, devices: Devices) -> None:
    """Let a task's tower embed texts for reading in bf16, if the run computes in bf16 on a CPU, and
    move the tower to the device before it is first judged.

    A tower that processes divide is moved when it is divided.
    """
    if _half(devices):
        read_in(task.data.tower, torch.bfloat16)
    if not config.train.divides:
        task.data.tower.to(devices.group.device)


def settle_temperature(config: Config) -> None:
    """Settle an automatic temperature, before an optimiser is made."""
    options, base = config.train, config.base
    base.temperature.resolve(options.size + options.sampled, normalised=base.similarity == cosine)
