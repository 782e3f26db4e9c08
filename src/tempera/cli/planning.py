"""The command to show the cost of a training step on paper."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared import Arguments, Count, Json, answer, say, split


def plan(
    arguments: Arguments = None,
    device: Annotated[str | None, typer.Option("--device")] = None,
    devices: Count = 1,
    as_json: Json = False,
) -> None:
    """Show what a training step costs, on paper.

    Memory, launches, FLOPs, bytes, the least time and the bottleneck of each stage. Reads the data
    and counts the operations of one step; nothing is trained. Takes the arguments of `tempera
    train`.

    Args:
        device: h100, h200, l4, a10g or m3, by its data sheet; cpu, or nothing, is this machine, by
            measurement.
        devices: number of devices to share the batch.
    """
    from ..options import yaml_options as configuration
    from ..run.on_paper import lines, planned
    from ..run.recipe import opened

    file, overrides = split(arguments or [])
    options, _ = opened(configuration.load(file, overrides))
    document = planned(options, device=device, devices=devices)
    answer(document, as_json, lambda: say("\n".join(lines(document))))
