"""The plan of a sweep: its runs, checked before the first one is made."""

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

MOST_RUNS = 1000  # without being asked


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep: first all of those that share data, seed after seed."""

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
        """Build the configuration of every point once.

        Raises:
            ConfigError: options that a point cannot have, or more than 1,000 runs without `yes`.
        """
        if seeds < 1:
            raise ConfigError(f"--seeds is {seeds}; give at least 1")
        learned, scheduled = list(dict.fromkeys(learned)), list(dict.fromkeys(scheduled))
        count = (prod(axis.size for axis in axes) + len(learned) + len(scheduled)) * seeds
        if count > MOST_RUNS and not yes:
            raise ConfigError(
                f"this sweep has {count:,} runs; confirm more than {MOST_RUNS:,} with --yes, or take fewer values"
            )
        made = _points(axes, template.base.base.temperature, learned, scheduled)
        points = [(point, values, template.config(values)) for point, values in made]
        batch, first = (
            template.smallest_batch(values for _, values, _ in points),
            template.base.train.seed,
        )
        runs = []
        for point, values, config in points:
            planned = template.run(config, values, point, batch)
            for seed in range(first, first + seeds):
                options = {**planned.options, "train": {**planned.options["train"], "seed": seed}}
                runs.append(
                    replace(planned, record=replace(planned.record, seed=seed), options=options)
                )
        order = list(dict.fromkeys(run.record.reading for run in runs))
        runs.sort(
            key=lambda run: (order.index(run.record.reading), run.record.seed)
        )  # whole curves come early
        return cls(template, axes, tuple(range(first, first + seeds)), batch, tuple(runs))

    @property
    def about(self) -> str:
        """Return the options that have to be alike when a sweep is resumed."""
        template = self.template
        return configuration.dump(
            {"metric": template.metric, "batch": self.batch, "config": template.base.resolved}
        )

    def result(self, records: Mapping[str, Record], folder: Path) -> Sweep:
        """Return the sweep with the records of its runs."""
        runs: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            runs.setdefault(run.record.point, []).append(run)
        points = [
            Point(tuple(records[run.record.key] for run in members), members[0].queries)
            for members in runs.values()
        ]
        return Sweep.of(folder, self.axes, self.template.metric, self.seeds, points)


def _points(
    axes: Sequence[Axis],
    temperature: Temperature,
    learned: Sequence[float],
    scheduled: Sequence[tuple[float, float]],
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yield each point as a record, and the options that it sets."""
    for values in grid(axes):
        yield Record(values), values
    bounds = {"floor": temperature.floor, "ceiling": temperature.ceiling}
    for start in learned:
        yield Record({}, start=start), {TEMPERATURE: {"value": start, "learnable": True, **bounds}}
    for start, final in scheduled:
        dial = {"value": start, "final": final, "schedule": temperature.schedule}
        yield Record({}, start=start, final=final), {TEMPERATURE: dial}
