"""The plan of a sweep: all runs, checked before the first run is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from ..core.temperature import Temperature
from ..errors import ConfigError
from ..options import yaml_options as configuration
from .grid import TEMPERATURE, Axis, grid
from .record import Record
from .result import Point, Sweep
from .template import PlannedRun, Template

MOST_RUNS = 1000  # a larger sweep has to be confirmed


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep, ordered by data and then by seed."""

    template: Template
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    batch: int | Literal["auto"]
    runs: tuple[PlannedRun, ...]

    @classmethod
    def of(
        cls,
        template: Template,
        axes: tuple[Axis, ...],
        seeds: int,
        learned: Sequence[float] = (),
        scheduled: Sequence[tuple[float, float]] = (),
        yes: bool = False,
    ) -> SweepPlan:
        """Return the plan of all points and seeds; the configuration of every point is checked.

        Raises:
            ConfigError: impossible options of a point, or more than 1,000 runs without `yes`.
        """
        if seeds < 1:
            raise ConfigError(f"--seeds is {seeds}; give at least 1")
        learned = list(dict.fromkeys(learned))
        scheduled = list(dict.fromkeys(scheduled))
        count = (prod(axis.size for axis in axes) + len(learned) + len(scheduled)) * seeds
        if count > MOST_RUNS and not yes:
            raise ConfigError(
                f"this sweep has {count:,} runs; confirm more than {MOST_RUNS:,} with --yes, or take fewer values"
            )
        points = []
        settings = []
        for point, values in _points(axes, template.base.base.temperature, learned, scheduled):
            points.append((point, values, template.config(values)))
            settings.append(values)
        batch = template.smallest_batch(settings)
        first = template.base.train.seed
        runs = []
        for point, values, config in points:
            planned = template.run(config, values, point, batch)
            for seed in range(first, first + seeds):
                record = replace(planned.record, seed=seed)
                options = dict(planned.options)
                options["train"] = {**options["train"], "seed": seed}
                runs.append(replace(planned, record=record, options=options))
        # Runs that share data come together, and of these all points with the first seed: whole
        # curves come early.
        readings = list(dict.fromkeys(run.record.reading for run in runs))
        runs.sort(key=lambda run: (readings.index(run.record.reading), run.record.seed))
        return cls(template, axes, tuple(range(first, first + seeds)), batch, tuple(runs))

    @property
    def about(self) -> str:
        """Return the options that may not change when a sweep is resumed, as YAML."""
        template = self.template
        return configuration.dump(
            {"metric": template.metric, "batch": self.batch, "config": template.base.resolved}
        )

    def result(self, records: Mapping[str, Record], folder: Path) -> Sweep:
        """Return the sweep with the records of all runs."""
        points: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            points.setdefault(run.record.point, []).append(run)
        made = []
        for runs in points.values():
            finished = tuple(records[run.record.key] for run in runs)
            made.append(Point(finished, runs[0].queries))
        return Sweep.of(folder, self.axes, self.template.metric, self.seeds, made)


def _points(
    axes: Sequence[Axis],
    temperature: Temperature,
    learned: Sequence[float],
    scheduled: Sequence[tuple[float, float]],
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yield the record of each point, with the options of the point."""
    for values in grid(axes):
        yield Record(values), values
    bounds = {"floor": temperature.floor, "ceiling": temperature.ceiling}
    for start in learned:
        learnable = {"value": start, "learnable": True} | bounds
        yield Record({}, start=start), {TEMPERATURE: learnable}
    for start, final in scheduled:
        moving = {"value": start, "final": final, "schedule": temperature.schedule}
        yield Record({}, start=start, final=final), {TEMPERATURE: moving}
