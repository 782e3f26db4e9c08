"""The recipe: `tempera train` with what the configuration leaves open chosen on the user's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import config as configuration
from ..artifacts.run_folder import Run
from ..build import AUTO, PARTS, RECIPE, SECTIONS
from ..config import Options
from ..run.train import default_output
from ..run.train import train as train_resolved
from ..towers.pair import TowerOptions
from .race import LEARNING_RATE, TEMPERATURE, settle


def train(
    config: Mapping[str, Any] | str | Path | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data: Any = None,
) -> Run:
    """Train a retriever and leave a run folder.

    What the configuration leaves open follows the data: batch size and epochs from the number of training pairs, and for a static
    tower the temperature and the learning rate from a race on validation queries. `recipe: none` keeps their defaults. A run
    that was interrupted has left its checkpoints in `output`.checkpoints; the same call resumes from the latest.

    Args:
        config: options as a mapping, a YAML file, a file or folder of data, or None for the default job: search in the
            installed Python's code.
        output: the folder to make: model/, index/, config.yaml, metrics.json, log.jsonl, report.html; None is runs/ and the
            name of the file, or else runs/first.
        overrides: dotted.key=value, as on the command line.
        overwrite: replace a run that `output` holds, once the new one is complete; forget one that was interrupted.
        data: rows to train on, in place of a source: a datasets.Dataset, a frame of pandas or polars, a table of pyarrow.
            The options of `data:` then say what its columns are; with `source: interactions` they are interactions.

    Raises:
        TemperaError: wrong options, no data, or an output that cannot be written.

    >>> run = train("pairs.yaml", "runs/second", ["objective.temperature=0.1"])
    >>> list(run.metrics)
    ['untrained', 'bm25', 'trained', 'trained + BM25']
    """
    options, free = opened(configuration.of(config, overrides))
    if output is None and isinstance(config, str | Path):
        output = default_output(config)
    return train_resolved(options, output, overwrite=overwrite, data=data, settle=partial(settle, free=free))


def opened(options: Options) -> tuple[Options, list[str]]:
    """Return the options without what only a recipe understands, and the names of those that a race may choose.

    >>> opened(Options({"objective": {"temperature": 0.1}}))[1]
    ['train.learning_rate']
    """
    values, free = dict(options.values), list[str]()
    if values.get(RECIPE, AUTO) != AUTO or not _races(values.get("tower")):
        return options, free
    for name in (TEMPERATURE, LEARNING_RATE):
        section, _, key = name.partition(".")
        own = values.get(section) or {}
        if isinstance(own, Mapping) and own.get(key, AUTO) == AUTO:
            values[section] = {option: value for option, value in own.items() if option != key}
            free.append(name)
    return Options(values, options.places), free


def shown(resolved: Mapping[str, Any], free: Sequence[str]) -> dict[str, Any]:
    """Return resolved options in which those that a race may choose are "auto"."""
    sections = {name: dict(section) for name, section in resolved.items()}
    for name in free if _races(resolved["tower"]) else ():
        section, _, key = name.partition(".")
        sections[section][key] = AUTO
    return sections


def _races(tower: Any) -> bool:
    """Return True if a section describes a tower whose training costs so little that settings are tried first."""
    _, tag, default = SECTIONS["tower"]
    kind = tower.get(tag, default) if isinstance(tower, Mapping) else default
    return bool(getattr(PARTS[TowerOptions].get(kind), "races", False))
