"""A configuration whose runs differ in some options: what sweeps and tunings have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import xxhash

from ..engine.devices import launched
from ..errors import ConfigError, TemperaError
from ..io.console import logger
from ..options import yaml_options as configuration
from ..options.build import Config, build
from ..options.yaml_options import Options
from ..run.recipe import opened
from ..run.train import default_output
from ..task.rounds import TEMPERATURE
from ..text.read.sources import Given
from .record import Record

_QUERIES = ("data", "evaluation")  # sections that queries follow from
_READ = (*_QUERIES, "tower")  # sections that data follow from,
_READ_OPTIONS = ("train.max_pairs", "train.made_rows")  # and options


@dataclass(frozen=True)
class PlannedRun:
    """One run before it is made.

    Args:
        record: its setting, without results.
        options: all of its options.
        reference: options by which its data are read and the fixed batch is drawn; runs with equal
            ones share data.
        queries: the options that its queries follow from; runs with equal ones are compared query
            by query.
    """

    record: Record
    options: Mapping[str, Any]
    reference: Mapping[str, Any]
    queries: str


@dataclass(frozen=True)
class Template:
    """The options that all runs have in common, as they are given, and the metric by which runs are
    compared."""

    options: Mapping[str, Any]
    places: Mapping[str, str]
    base: Config
    metric: str
    varied: Collection[str] = ()  # options that are no default, since runs differ in them
    kept: str = ""  # what `tempera train` would race for, with the defaults that it has here

    @classmethod
    def of(
        cls,
        config: Options | Mapping[str, Any] | str | Path | None,
        overrides: str | Iterable[str],
        metric: str | None,
        varied: Collection[str] = (),
    ) -> Template:
        """Check the options that all runs have in common; those that `tempera train` would race for
        keep their defaults.

        Args:
            varied: options that are no default, since runs differ in them.

        Raises:
            ConfigError: wrong options, a metric that is not measured, data without a file, or a
                launcher.
        """
        if launched():
            raise ConfigError(
                "sweeps and tunings start their processes themselves; start them without a launcher"
            )
        options = configuration.of(config, overrides)
        resolved, free = opened(options, varied)
        base, kept = build(resolved), ""
        if free:
            values = {
                name: base.resolved[section][key]
                for name in free
                for section, _, key in [name.partition(".")]
            }
            values |= {TEMPERATURE: base.base.temperature.value} if TEMPERATURE in free else {}
            kept = ", ".join(
                f"{name}={value:g}"
                if isinstance(value, float)
                else f"{name}={configuration.inline(value)}"
                for name, value in values.items()
            )
        if isinstance(base.data, Given):
            raise ConfigError(
                "data.source: worker processes read the data themselves; give a file as data.path"
            )
        names = base.evaluation.metrics
        if metric is not None and metric not in names:
            raise ConfigError(
                f"--metric {metric} is not measured; evaluation.metrics has {', '.join(names)}"
            )
        metric = metric or ("ndcg@10" if "ndcg@10" in names else names[0])
        return cls(options.values, options.places, base, metric, varied, kept)

    def folder(self, output: str | Path | None, config: Any, kind: str) -> Path:
        """Return the output; without one runs/, the name of the file of options or data, and what
        is made of it."""
        file = config if isinstance(config, str | Path) else self.base.resolved["data"].get("path")
        return default_output(file, kind) if output is None else Path(output)

    def tell(self) -> None:
        """Say which defaults all runs have; called when nothing can be refused any more."""
        if self.kept:
            logger.info(f"no race: what a run leaves open has its default ({self.kept})")

    def config(self, values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> Config:
        """Return the configuration of a run, with what its recipe leaves to it; `places` tells
        where `values` were written."""
        options = configuration.of(
            self.options,
            [f"{field}={configuration.inline(value)}" for field, value in values.items()],
        )
        options.places.update({**self.places, **(places or {})})
        config = build(opened(options, self.varied)[0])
        if self.metric not in config.evaluation.metrics:
            raise ConfigError(
                f"evaluation.metrics: {self.metric} is missing, by which runs are compared"
            )
        return config

    def run(
        self,
        config: Config,
        values: Mapping[str, Any],
        record: Record,
        batch: int | Literal["auto"],
    ) -> PlannedRun:
        """Return a run of `config`, which has these values; the fixed batch has `batch` rows."""
        read = {
            field: value
            for field, value in values.items()
            if field.split(".")[0] in _READ or field in _READ_OPTIONS
        }
        reference = self.config({**read, "train.batch_size": batch}).resolved
        reading = xxhash.xxh3_64_hexdigest(
            f"{_dumped(config, _READ)}{config.train.max_pairs}".encode()
        )
        origin = xxhash.xxh3_64_hexdigest(_dumped(config, ("data",)).encode())
        return PlannedRun(
            replace(record, reading=reading, origin=origin),
            config.resolved,
            reference,
            _dumped(config, _QUERIES),
        )

    def smallest_batch(self, settings: Iterable[Mapping[str, Any]]) -> int | Literal["auto"]:
        """Return the smallest batch size of these settings, of which the fixed batch is; "auto",
        which data have, if one is."""
        own = self.base.train.batch_size
        sizes = [values.get("train.batch_size", own) for values in settings]
        return "auto" if "auto" in sizes else min(sizes, default=own)


def read_some(options: Iterable[Mapping[str, Any]]) -> None:
    """Read data as resolved options say, until some can be read.

    Raises:
        TemperaError: what is wrong with the first data, if none can be read.
    """
    errors = []
    for each in {configuration.dump(each["data"]): each for each in options}.values():
        try:
            build(Options(dict(each))).data.read()
        except TemperaError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _dumped(config: Config, sections: Sequence[str]) -> str:
    return configuration.dump({name: config.resolved[name] for name in sections})
