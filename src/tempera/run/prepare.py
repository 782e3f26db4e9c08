"""The reading of a run's data: from a configuration to divided data, ready for training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..core.advice import cautions
from ..core.similarity import cosine
from ..engine.clock import Phases
from ..engine.devices import DTYPES, Devices, Wanted
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
        config: with the options decided by the data.
        folder: of the run's files.
        log: of the run.
        phases: the time of the run so far.
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
        vectors: folder for the vectors of guides, for all processes and neighbouring runs; None is
            a folder in `folder`.
        shared: a task with the same data, which are not read again.

    Raises:
        TemperaError: no data, or options that do not fit the data.
    """
    phases = Phases()
    torch.manual_seed(config.train.seed)
    reading = reading_of(config, devices)
    task: RunTask
    foreword = getattr(config.data, "foreword", None)
    if foreword and shared is None:
        logger.info(foreword)
    with phases("read"):
        if shared is not None:
            task = shared.again(reading)
        else:
            store = vectors or folder / "vectors"
            task = config.world.read_task(
                config, reading, folder / CACHE, store, phases, devices.group
            )
        facts = task.facts
    # The data may decide options of the tower: a history of interactions without an order is
    # another one.
    if facts.tower is not None:
        ((kind, options),) = describe(facts.tower).items()
        resolved = {**config.resolved, "tower": {"kind": kind, **options}}
        config = replace(config, tower=facts.tower, resolved=resolved)
    # Batch size and epochs follow the number of training pairs.
    config = config.settled(facts.counts["train"], reading.train.large_pays)
    config = config.trained_with(made_rows=facts.made_rows)
    if facts.source is not None:
        ((name, options),) = describe(facts.source).items()
        resolved = {**config.resolved, "data": {"source": name, **options}}
        config = replace(config, resolved=resolved)
    move_tower(config, task, devices)
    for line in facts.lines:
        logger.info(line)
    log.write(event="data", pairs=facts.counts["pairs"], dropped=facts.counts["dropped"])
    resolve_temperature(config)
    for caution in cautions(config.base, DTYPES[devices.mixed_precision], task.data.tower.unit):
        logger.warning(f"caution: {caution}")
        log.write(event="caution", text=caution)
    return Prepared(config, task, devices, folder, log, phases)


def reading_of(config: Config, devices: Devices) -> Config:
    """Return a configuration by which a task reads texts: on the device, in bf16 if the run
    computes in bf16 on a CPU, else in float32."""
    precision: Wanted = "bf16" if _reads_in_bf16(devices) else "no"
    device = str(devices.group.device)
    return replace(config, train=replace(config.train, mixed_precision=precision, device=device))


def _reads_in_bf16(devices: Devices) -> bool:
    return devices.mixed_precision == "bf16" and devices.group.device == CPU


def move_tower(config: Config, task: RunTask, devices: Devices) -> None:
    """Let a task's tower embed texts for reading in bf16, if the run computes in bf16 on a CPU, and
    move the tower to the device before it is first judged.

    A tower that processes divide is moved when it is divided.
    """
    if _reads_in_bf16(devices):
        read_in(task.data.tower, torch.bfloat16)
    if not config.train.divides:
        task.data.tower.to(devices.group.device)


def resolve_temperature(config: Config) -> None:
    """Resolve an automatic temperature, before an optimiser is made."""
    options, base = config.train, config.base
    base.temperature.resolve(options.size + options.sampled, normalised=base.similarity == cosine)
