"""`tempera plan`: the training data of a run, and the cost of a step on a device, on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..engine import outlook
from ..engine.curation import as_many
from ..engine.devices import DTYPES, Devices, start
from ..errors import ConfigError
from ..io.console import silenced
from ..io.documents import JsonLines
from ..options import yaml_options as configuration
from ..options.build import build
from ..options.yaml_options import Options
from ..paper.machines import MACHINES, Machine, measured, timed
from ..paper.stages import StepOnPaper, step_on_paper
from ..parallel.distributed import CPU
from .prepare import prepare


def planned(
    config: Options | Path | None = None,
    overrides: Sequence[str] = (),
    device: str | None = None,
    devices: int = 1,
) -> dict[str, Any]:
    """Read the data, and count a step on the first batch; nothing is trained, and nothing is left.

    Args:
        device: a name of `MACHINES`; "cpu" is the CPU of this machine, and None the default device
            of a run here: both are measured.
        devices: number of devices that share the batch.

    Returns:
        The machine's rates, the micro-batches, memory, and each stage's launches, bytes, FLOPs,
        seconds and bottleneck.

    Raises:
        TemperaError: the run would be refused; an unknown device, or more devices than the batch
            has rows.
    """
    made = build(configuration.of(config, overrides))
    if device is not None and device != "cpu" and device not in MACHINES:
        raise ConfigError(
            f"--device is {device}: give one of {', '.join(MACHINES)}, cpu, or nothing for this machine"
        )
    named = MACHINES.get(device or "")
    made.train.refuse(devices)
    if devices > 1 and not (named and named.network):
        among = ", ".join(name for name, machine in MACHINES.items() if machine.network)
        of = f"how fast {device or 'this machine'} sends to another is not known"
        raise ConfigError(
            f"--devices is {devices}, but {of}: give --device {among}, or --devices 1"
        )
    here = Devices() if named else start(made.train.mixed_precision, device or made.train.device)
    machine = named or measured(here.group.device)
    precision = named.precision(made.train.mixed_precision) if named else here.mixed_precision
    with TemporaryDirectory() as folder, JsonLines(Path(folder) / "log.jsonl") as log:
        # Without a number on an accelerator, where the batch is another one.
        prepared = prepare(made, here if here.group.device == CPU else Devices(), Path(folder), log)
        if named is not None or here.group.device != CPU:
            count = prepared.task.facts.counts["train"]
            resolved = replace(prepared.config, train=made.train).settled(count, large=True)
            if resolved.train.batch_size != prepared.config.train.batch_size:
                with silenced():  # it has told of the data already
                    prepared = prepare(resolved, Devices(), Path(folder), log, shared=prepared.task)
        data, options = (
            prepared.task.data,
            replace(prepared.config.train, mixed_precision=precision),
        )
        (rows,) = data.sampler(0, 1)
        if devices > len(rows):
            raise ConfigError(
                f"--devices is {devices}, but the batch has {len(rows)} rows: give at most one a row"
            )
        batch = data.batches(rows, 0)[0]
        objective = prepared.config.objective
        paper = step_on_paper(
            data.tower.train(), objective, batch, options, machine.memory, devices, machine.kernels
        )
    if machine.memory is None:
        machine = replace(machine, timed=timed(paper.examples, CPU))
    return {
        **document(paper, machine, len(rows), devices, precision),
        "chosen": len(as_many(batch, options.select)),
    }


def document(
    paper: StepOnPaper, machine: Machine, pairs: int, devices: int, precision: str
) -> dict[str, Any]:
    """Return a step on paper as numbers by name."""
    stages = list[dict[str, Any]]()
    for name, stage in paper.stages.items():
        limits = machine.seconds(stage)
        seconds = sum(limits.values()) + (stage.host if machine.timed else 0.0)
        if stage.launches:
            counts = {kind: round(stage.total(kind)) for kind in ("flops", "bytes", "sent")}
            bottleneck = max(limits, key=lambda each: limits[each])
            stages.append(
                {
                    "stage": name,
                    "launches": round(stage.launches),
                    **counts,
                    "seconds": seconds,
                    "bottleneck": bottleneck,
                }
            )
    whole = sum(each["seconds"] for each in stages)
    rates = {str(dtype).removeprefix("torch."): rate for dtype, rate in machine.flops.items()}
    return {
        "device": machine.name,
        "measured": machine.name not in MACHINES,
        "devices": devices,
        "precision": precision,
        "rates": {
            "flops": rates,
            "bandwidth": machine.bandwidth,
            "launch": machine.launch,
            "network": machine.network,
        },
        "pairs": pairs,
        "width": paper.width,
        "tile": paper.tile,
        "towers": str(paper.plan),
        "kernel": paper.kernel,
        "memory": paper.memory,
        "capacity": machine.memory,
        "stages": stages,
        "seconds": whole,
        "pairs_per_second": pairs / whole,
    }


def lines(plan: dict[str, Any]) -> list[str]:
    """Return a plan as lines of text."""
    several = f"{plan['devices']} x " if plan["devices"] > 1 else ""
    source = (
        "measured here"
        if plan["measured"]
        else "by its data sheet: the least time, which no program reaches"
    )
    chosen = (
        f", of which a guide chooses {plan['chosen']:,}," if plan["chosen"] < plan["pairs"] else ""
    )
    titles = f"{'one device':<20}{'launches':>10}{'GFLOP':>12}{'GB moved':>10}{'GB sent':>9}{'ms':>12}  bottleneck"
    where = f"{several}{plan['device']} ({source})"
    shown = [
        f"{plan['pairs']:,} pairs a step{chosen} on {where}, towers in {_PRECISIONS[plan['precision']]}",
        f"towers: {plan['towers']}",
        outlook.described(plan["memory"], plan["capacity"]),
        *(["loss: by fused kernels"] if plan["kernel"] == "triton" else []),
        titles,
    ]
    for each in plan["stages"]:
        figures = (
            f"{each['flops'] / 1e9:>12,.1f}{each['bytes'] / 1e9:>10,.3f}{each['sent'] / 1e9:>9,.3f}"
        )
        shown.append(
            f"{each['stage']:<20}{each['launches']:>10,}{figures}{1000 * each['seconds']:>12,.2f}  {each['bottleneck']}"
        )
    shown.append(
        f"a step {1000 * plan['seconds']:,.2f} ms, {plan['pairs_per_second']:,.0f} pairs a second"
    )
    return shown


_PRECISIONS = {name: str(dtype).removeprefix("torch.") for name, dtype in DTYPES.items()}
