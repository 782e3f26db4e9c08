"""The recipe: `tempera train` with its open options chosen on the user's own data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arguments import refuse_other_kinds
from ..artifacts.run_folder import Run
from ..errors import ConfigError
from ..options import yaml_options as configuration
from ..options.build import kind_of_tower
from ..options.names import AUTO, RECIPE
from ..options.yaml_options import Options
from ..tables.streams import described
from ..task.rounds import Open
from .train import default_output, with_rows
from .train import train as train_resolved


def train(
    config: Options | Mapping[str, Any] | str | Path | None = None,
    output: str | Path | None = None,
    overrides: str | Iterable[str] = (),
    overwrite: bool = False,
    data: Any = None,
) -> Run:
    """Train a retriever and leave a run folder.

    Options that the configuration leaves open follow the data: batch size and epochs from the
    number of training pairs, and for a static tower the temperature and the learning rate from a
    race on validation queries. `recipe: none` keeps the defaults. An interrupted run has left
    checkpoints in `output`.checkpoints; the same call resumes from the latest checkpoint.

    Args:
        config: options as a mapping, a YAML file, a file or folder of data, or None for the default
            job: search in the installed Python's code.
        output: the folder to make: model/, index/, config.yaml, metrics.json, log.jsonl,
            report.html; None is runs/ and the name of the file, or else runs/first.
        overrides: dotted.key=value, as on the command line.
        overwrite: replace a run that `output` holds, once the new run is complete. An interrupted
            run is resumed, and forgotten if its configuration is another.
        data: rows to train on, in place of a source: a datasets.Dataset, a frame of pandas or
            polars, a table of pyarrow. Rows with columns like user_id and item_id are interactions.
            The options of `data:` name further columns.

    Raises:
        TemperaError: wrong options, no data, or an output that cannot be written.

    >>> run = train("pairs.yaml", "runs/second", ["objective.temperature=0.1"])
    >>> list(run.metrics)
    ['untrained', 'bm25', 'trained', 'trained + BM25']
    """
    if hasattr(config, "__arrow_c_stream__"):
        raise ConfigError(
            f"train: config is options or a path, not {described(config)}: hand over rows as train(data=...)"
        )
    refuse_other_kinds(train, locals())
    options, free = opened(with_rows(configuration.of(config, overrides), data))
    if output is None and isinstance(config, str | Path):
        output = default_output(config)
    return train_resolved(options, output, overwrite=overwrite, data=data, free=free)


def opened(options: Options, varied: Collection[str] = ()) -> tuple[Options, list[str]]:
    """Return options with the recipe's values of open options, and the names of the options that a
    race may choose.

    Args:
        varied: options that are set elsewhere, in which runs differ.

    >>> opened(Options({"objective": {"temperature": 0.1}}))[1]
    ['train.learning_rate', 'tower.dimensions', 'tower.token_weights']
    """
    if options.values.get(RECIPE, AUTO) != AUTO:
        return options, []
    values = {}
    for section, own in options.values.items():
        values[section] = dict(own) if isinstance(own, Mapping) else own
    raced = []
    for name, choice in open_options(kind_of_tower(options)).items():
        section, _, key = name.partition(".")
        names = (name, *choice.beside)
        is_open = not any(each in varied or _is_set(options, each) for each in names)
        if is_open or (name in varied and not _is_set(options, name)):
            own = values.get(section) or {}
            values[section] = {option: value for option, value in own.items() if option != key}
        if not is_open:
            continue
        if choice.value is not None:
            values[section][key] = choice.value
        if choice.raced:
            raced.append(name)
    return Options(values, options.places), raced


def open_options(kind: Any) -> Mapping[str, Open]:
    """Return the options that a recipe may choose for a kind of tower; none for a tower that trains
    for long."""
    return getattr(kind, "open", {})


def _is_set(options: Options, name: str) -> bool:
    """Return True if a value other than auto is given, or if the section is no mapping."""
    section, _, key = name.partition(".")
    own = options.values.get(section) or {}
    return not isinstance(own, Mapping) or own.get(key, AUTO) != AUTO


def shown(resolved: Mapping[str, Any], free: Sequence[str]) -> dict[str, Any]:
    """Return resolved options with "auto" for the options that a race may choose."""
    sections = {name: dict(section) for name, section in resolved.items()}
    for name in free:
        section, _, key = name.partition(".")
        sections[section][key] = AUTO
    return sections
