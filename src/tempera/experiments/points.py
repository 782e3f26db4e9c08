"""What a sweep is going to do, checked before it does anything."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .. import config as configuration
from ..build import Config, build
from ..core.temperature import Temperature
from ..errors import ConfigError
from .grid import Axis, grid
from .outcome import Outcome, key_of
from .result import Point, Sweep

TEMPERATURE = "objective.temperature"
_ASKED, _READ = ("data", "evaluation"), ("tower",)  # sections that decide what is asked, and how data are read besides

Reading = tuple[str, str]  # these sections as text


@dataclass(frozen=True)
class Planned:
    """One run that is to be made."""

    over: dict[str, Any]
    start: float | None
    final: float | None
    seed: int
    options: configuration.Options

    @property
    def config(self) -> Config:
        """Made anew at each call: no two runs share an object."""
        return build(copy.deepcopy(self.options))

    @property
    def key(self) -> str:
        """As its outcome's."""
        return key_of(self.over, self.start, self.final, self.seed)


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep: first all of those that share what is read, seed after seed."""

    base: Config
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    metric: str
    runs: tuple[Planned, ...]
    readings: Mapping[str, Reading]  # by key of a run: what its data are read by
    references: Mapping[Reading, Config]  # what reads these data, and chooses the split and the fixed batch

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any] | str | Path | None,
        axes: tuple[Axis, ...],
        seeds: int,
        overrides: Sequence[str],
        learned: Sequence[float],
        scheduled: Sequence[tuple[float, float]],
        metric: str | None,
    ) -> Plan:
        """Build every point once.

        Raises:
            ConfigError: options that a point cannot have, or a metric that is not measured.
        """
        if seeds < 1:
            raise ConfigError(f"--seeds is {seeds}, and at least 1 is expected")
        base = build(configuration.of(given, overrides))
        names = base.evaluation.metrics
        if metric is not None and metric not in names:
            raise ConfigError(f"--metric {metric} is not measured; evaluation.metrics has {', '.join(names)}")
        chosen = metric or ("ndcg@10" if "ndcg@10" in names else names[0])
        first, batch = base.train.seed, f"train.batch_size={_batch(axes, base)}"
        runs, readings, references = [], {}, {}
        for over, begin, end, values in _settings(axes, base.base.temperature, learned, scheduled):
            changed = [f"{field}={as_yaml(value)}" for field, value in values.items()]
            reading = reading_of(build(configuration.of(given, (*overrides, *changed))))
            if reading not in references:
                read = [text for text in changed if text.split(".")[0] in _ASKED + _READ]
                references[reading] = build(configuration.of(given, (*overrides, *read, batch)))
            for seed in range(first, first + seeds):
                seeded = configuration.of(given, (*overrides, *changed, f"train.seed={seed}"))
                runs.append(Planned(over, begin, end, seed, seeded))
                readings[runs[-1].key] = reading
        order = list(references)
        runs.sort(key=lambda run: (order.index(readings[run.key]), run.seed))  # whole curves come early
        return cls(base, axes, tuple(range(first, first + seeds)), chosen, tuple(runs), readings, references)

    @property
    def about(self) -> str:
        """What has to be alike when a sweep is taken up again."""
        batch = _batch(self.axes, self.base)
        return configuration.dump({"metric": self.metric, "batch": batch, "config": self.base.resolved})

    def result(self, outcomes: Mapping[str, Outcome], folder: Path) -> Sweep:
        """What the outcomes say."""
        points: dict[str, list[Planned]] = {}
        for run in self.runs:
            points.setdefault(key_of(run.over, run.start, run.final, 0), []).append(run)
        made = [
            Point(
                runs[0].over,
                runs[0].start,
                tuple(outcomes[run.key] for run in sorted(runs, key=lambda run: run.seed)),
                self.readings[runs[0].key][0],
                runs[0].final,
            )
            for runs in points.values()
        ]
        return Sweep.of(folder, self.axes, self.metric, self.seeds, made)


def _batch(axes: Sequence[Axis], base: Config) -> int:
    """Rows of the fixed batch: the configuration's batch, or the smallest one of the sweep."""
    sizes = [value for axis in axes if axis.field == "train.batch_size" for value in axis.values]
    return min(sizes, default=base.train.batch_size)


def _settings(
    axes: Sequence[Axis],
    temperature: Temperature,
    learned: Sequence[float],
    scheduled: Sequence[tuple[float, float]],
) -> Iterator[tuple[dict[str, Any], float | None, float | None, dict[str, Any]]]:
    """Of each point: what it is called by, from where to where its temperature moves, and options with their values."""
    for over in grid(axes):
        yield over, None, None, over
    bounds = {"floor": temperature.floor, "ceiling": temperature.ceiling}
    for begin in dict.fromkeys(learned):
        yield {}, begin, None, {TEMPERATURE: {"value": begin, "learnable": True, **bounds}}
    for begin, end in dict.fromkeys(scheduled):
        yield {}, begin, end, {TEMPERATURE: {"value": begin, "final": end, "schedule": temperature.schedule}}


def reading_of(config: Config) -> Reading:
    """By what a configuration reads its data."""
    asked, read = (configuration.dump({name: config.resolved[name] for name in part}) for part in (_ASKED, _READ))
    return asked, read


def as_yaml(value: Any) -> str:
    """A value as it stands in an override."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1 << 20)
    return text.removesuffix("...\n").strip()
