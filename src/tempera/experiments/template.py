"""The common configuration of all runs of a sweep or a tuning."""

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
_READ = ("data", "evaluation", "tower")  # sections that data follow from
_READ_OPTIONS = ("train.max_pairs", "train.made_rows")  # further options that data follow from


@dataclass(frozen=True)
class PlannedRun:
    """A run, planned and not yet made.

    Args:
        record: the setting of the run, without results.
        options: all options of the run.
        reference: options for reading data and drawing the fixed batch; runs with equal references
            share the data.
        queries: the options behind the queries; runs with equal options are compared query by
            query.
    """

    record: Record
    options: Mapping[str, Any]
    reference: Mapping[str, Any]
    queries: str


@dataclass(frozen=True)
class Template:
    """The options common to all runs, and the metric to compare runs by.

    Args:
        options: the common options, as written by the user.
        places: where each option was written.
        base: the configuration of the common options.
        metric: the metric to compare runs by.
        varied: options that differ between runs.
        kept: options that `tempera train` would choose by a race, with the defaults, in words.
    """

    options: Mapping[str, Any]
    places: Mapping[str, str]
    base: Config
    metric: str
    varied: Collection[str] = ()
    kept: str = ""

    @classmethod
    def of(
        cls,
        config: Options | Mapping[str, Any] | str | Path | None,
        overrides: str | Iterable[str],
        metric: str | None,
        varied: Collection[str] = (),
    ) -> Template:
        """Check the common options, and return the template.

        Options that `tempera train` would choose by a race keep the defaults.

        Args:
            varied: options that differ between runs, and therefore keep no default.

        Raises:
            ConfigError: wrong options, an unmeasured metric, data without a file, or a launcher.
        """
        if launched():
            raise ConfigError(
                "sweeps and tunings start their processes themselves; start them without a launcher"
            )
        options = configuration.of(config, overrides)
        resolved, free = opened(options, varied)
        base = build(resolved)
        if isinstance(base.data, Given):
            raise ConfigError(
                "data.source: worker processes read the data themselves; give a file as data.path"
            )
        names = base.evaluation.metrics
        if metric is not None and metric not in names:
            raise ConfigError(
                f"--metric {metric} is not measured; evaluation.metrics has {', '.join(names)}"
            )
        if metric is None:
            metric = "ndcg@10" if "ndcg@10" in names else names[0]
        return cls(
            options=options.values,
            places=options.places,
            base=base,
            metric=metric,
            varied=varied,
            kept=_defaults(base, free),
        )

    def folder(self, output: str | Path | None, config: Any, kind: str) -> Path:
        """Return the output folder: the user's, or else runs/ with the name of the file of options
        or data, and the kind of experiment."""
        if output is not None:
            return Path(output)
        if isinstance(config, str | Path):
            return default_output(config, kind)
        return default_output(self.base.resolved["data"].get("path"), kind)

    def log_kept_defaults(self) -> None:
        """Log the defaults in place of a race; called when nothing can be refused any more."""
        if self.kept:
            logger.info(f"no race: what a run leaves open has its default ({self.kept})")

    def config(self, values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> Config:
        """Return the configuration of a run.

        Args:
            values: the varied options, with the values of the run.
            places: where the values were written.
        """
        overrides = [f"{field}={configuration.inline(value)}" for field, value in values.items()]
        options = configuration.of(self.options, overrides)
        options.places.update(self.places)
        options.places.update(places or {})
        resolved, _ = opened(options, self.varied)
        config = build(resolved)
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
        """Return the plan of one run.

        Args:
            config: the configuration of the run.
            values: the options in which runs differ, with the values of this run.
            record: the setting of the run.
            batch: number of rows of the fixed batch.
        """
        reference: dict[str, Any] = {}
        for field, value in values.items():
            section = field.split(".")[0]
            if section in _READ or field in _READ_OPTIONS:
                reference[field] = value
        reference["train.batch_size"] = batch
        reading = f"{_dumped(config, _READ)}{config.train.max_pairs}"
        origin = _dumped(config, ("data",))
        record = replace(
            record,
            reading=xxhash.xxh3_64_hexdigest(reading.encode()),
            origin=xxhash.xxh3_64_hexdigest(origin.encode()),
        )
        return PlannedRun(
            record=record,
            options=config.resolved,
            reference=self.config(reference).resolved,
            queries=_dumped(config, _QUERIES),
        )

    def smallest_batch(self, settings: Iterable[Mapping[str, Any]]) -> int | Literal["auto"]:
        """Return the smallest batch size of these settings, the size of the fixed batch.

        "auto", where the data choose the size, comes before any number.
        """
        own = self.base.train.batch_size
        sizes = [values.get("train.batch_size", own) for values in settings]
        if "auto" in sizes:
            return "auto"
        return min(sizes, default=own)


def read_some(options: Iterable[Mapping[str, Any]]) -> None:
    """Read the data of one run, to prove early that the data are readable.

    Args:
        options: resolved options of runs. Each different section `data` is tried in turn, until
            data have been read.

    Raises:
        TemperaError: the fault of the first data, if none can be read.
    """
    by_data = {configuration.dump(each["data"]): each for each in options}
    errors = []
    for each in by_data.values():
        try:
            build(Options(dict(each))).data.read()
        except TemperaError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _defaults(base: Config, free: Collection[str]) -> str:
    """Return the defaults of options left open by a run, in words."""
    values = {}
    for name in free:
        section, _, key = name.partition(".")
        values[name] = base.resolved[section][key]
    if TEMPERATURE in free:
        values[TEMPERATURE] = base.base.temperature.value
    texts = []
    for name, value in values.items():
        text = f"{value:g}" if isinstance(value, float) else configuration.inline(value)
        texts.append(f"{name}={text}")
    return ", ".join(texts)


def _dumped(config: Config, sections: Sequence[str]) -> str:
    """Return some sections of a configuration as YAML."""
    return configuration.dump({name: config.resolved[name] for name in sections})
