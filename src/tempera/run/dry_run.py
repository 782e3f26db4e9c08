"""`tempera train --dry-run`: the training data of a run, and the time of its training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..engine.devices import start
from ..errors import quantity
from ..io.documents import JsonLines
from ..options import yaml_options as configuration
from ..options.build import build
from ..options.yaml_options import Options
from .prepare import prepare
from .refit import Refit
from .time_limit import first_steps, step_seconds


def rehearse(config: Options | Path | None = None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read and tokenise all data, take a few steps, and leave nothing.

    Returns:
        Three rows with their roles, quantiles of lengths, shares of repeated and of longest texts,
        negatives a row, counts of left-out rows, the number of steps, and the expected seconds of
        training (not of evaluation).

    Raises:
        TemperaError: the run would be refused.
    """
    made = build(configuration.of(config, overrides))
    devices = start(made.train.mixed_precision, made.train.device)
    made.train.check(devices)
    with TemporaryDirectory() as folder, JsonLines(Path(folder) / "log.jsonl") as log:
        unlimited = replace(made, train=replace(made.train, max_time=None))
        prepared = prepare(unlimited, devices, Path(folder), log)
        preview = prepared.config.world.preview(prepared.task)
        taken = step_seconds(prepared, first_steps(prepared))
    train = prepared.config.train
    steps = train.steps(prepared.task.data.sampler.batches_per_epoch)
    pairs = prepared.task.facts.counts["train"]
    # The first step makes things that later steps use again.
    if train.made_rows:  # a median would leave out the steps with more rows
        seconds = statistics.mean(taken[1:])
    else:
        seconds = statistics.median(taken[1:])
    times = Refit(prepared).times
    if made.train.max_time is not None:
        steps = min(steps, max(1, int(made.train.max_time / seconds / times)))
    return {**preview, "pairs": pairs, "steps": steps, "expected_seconds": steps * seconds * times}


def lines(facts: dict[str, Any]) -> list[str]:
    """Return a dry run as lines of text; `open` names the options that a race may choose."""
    unit = facts["unit"]
    shown: list[str] = []
    for row in facts["rows"]:
        shown.append(row["place"])
        texts = [("query", row["query"]), ("doc", row["doc"])]
        for text in row["negatives"]:
            texts.append(("negative", text))
        for role, text in texts:
            one = unit if text[unit] != 1 else unit[:-1]
            shown.append(f"  {role:<9} {text[unit]:>5} {one:<{len(unit)}}  {text['text']!r}")
    for role, quantiles in facts[unit].items():
        values = [
            f"{share} {value:.0f}" for share, value in quantiles.items() if share != "at_limit"
        ]
        line = f"{unit} of {role}: {', '.join(values)}"
        if quantiles["at_limit"]:
            longest = f"{quantiles['at_limit']:.2%} are as long as the longest"
            line += f"; {longest}, as where texts are cut"
        shown.append(line)
    repeated = [f"{share:.2%} of {role}" for role, share in facts["repeated"].items()]
    shown.append(f"repeated: {', '.join(repeated)}")
    shown.append("{what}: {least} to {most}, {mean:.2f} on average".format(**facts["negatives"]))
    counted = f"{quantity(facts['pairs'], 'pairs')}, {quantity(facts['steps'], 'steps')}"
    shown.append(f"{counted}, about {facts['expected_seconds']:,.0f} s of training")
    if facts.get("open"):
        names = ", ".join(facts["open"])
        shown.append(f"left open, for a race to choose first where the data allow one: {names}")
    return shown
