"""The result of a sweep: its points, a table of them, and those that may be the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..artifacts.pictures import label, number
from ..errors import quantity
from ..io.console import aligned
from ..ranking.compare import Difference
from .figures import (
    CONFIDENCE,
    NO_CHOICE,
    errors_and_cautions,
    figures,
    mean,
    of_metric,
    shown,
    squared,
)
from .grid import Axis
from .noise import best_region
from .record import Record, moving

# Columns of the printed table; the file has all of them.
SHOWN = {
    "positive_50%": "positive",
    "hardest_50%": "hardest",
    "random_50%": "random",
    "effective_negatives": "effective",
    "hardest_share": "share",
    "alignment": "alignment",
    "uniformity": "uniformity",
}


@dataclass(frozen=True)
class Point:
    """One setting, trained once for each seed.

    Args:
        records: its runs, by seed.
        queries: the options that queries follow from; points with equal ones are compared query by
            query.
    """

    records: tuple[Record, ...]
    queries: str = ""

    @property
    def over(self) -> Mapping[str, Any]:
        """Return the values of the swept options; empty beside the grid."""
        return self.records[0].params

    @property
    def start(self) -> float | None:
        """Return the first value of a temperature that is learned or scheduled; None for a point of
        the grid."""
        return self.records[0].start

    @property
    def final(self) -> float | None:
        """Return the last value of a scheduled temperature."""
        return self.records[0].final

    @property
    def done(self) -> list[Record]:
        """Return the runs that did not fail."""
        return [record for record in self.records if record.done]

    @property
    def failed(self) -> int:
        """Return the number of runs that failed."""
        return len(self.records) - len(self.done)

    @property
    def name(self) -> str:
        """Return the values, for people."""
        return ", ".join(shown(value, 6) for value in self.over.values()) or moving(
            self.start, self.final
        )

    def metric(self, name: str) -> Difference:
        """Return the mean over seeds with Student's interval; nan without a run."""
        values = [record.metrics[name] for record in self.done]
        return of_metric(values) if values else Difference(math.nan, math.nan, math.nan, CONFIDENCE)

    def seen(self, name: str) -> float:
        """Return the mean over seeds of what the objective sees of the fixed batch; nan if it has
        nothing of this name."""
        return mean(record.diagnosis.get(name) for record in self.done)

    @property
    def temperature(self) -> float:
        """Return the temperature at the end of training, the mean over seeds."""
        return mean(record.temperature for record in self.done)

    @property
    def grad_norm(self) -> float:
        """Return the gradient norm of the last steps, the mean over seeds."""
        return mean(record.grad_norm for record in self.done)


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `str` is its table.

    Args:
        points: the grid.
        learned: runs whose temperature was learned.
        scheduled: runs whose temperature followed a schedule.
        region: the points of which none is shown to be worse than another, see `noise.best_region`;
            none if validation asks too little to choose by.

    >>> from tempera import sweep
    >>> result = sweep("pairs.yaml", {"objective.temperature": [0.05, 0.5]}, seeds=1, output="runs/sweep")
    >>> result.best.metric("ndcg@10").mean > 0.1, [row["runs"] for row in result.table]
    (True, [1, 1])
    """

    folder: Path
    axes: tuple[Axis, ...]
    metric: str
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    learned: tuple[Point, ...]
    scheduled: tuple[Point, ...]
    region: tuple[Point, ...]

    @classmethod
    def of(
        cls,
        folder: Path,
        axes: tuple[Axis, ...],
        metric: str,
        seeds: tuple[int, ...],
        made: Sequence[Point],
    ) -> Sweep:
        """Find the best region of these points."""
        points = tuple(point for point in made if point.start is None)
        scores = [
            {run.seed: np.array(run.per_query, np.float64) for run in point.done}
            for point in points
        ]
        chooses = all(run.chooses for point in points for run in point.done)
        region = (
            best_region(scores, [point.queries for point in points], CONFIDENCE) if chooses else []
        )
        learned = tuple(point for point in made if point.start is not None and point.final is None)
        scheduled = tuple(point for point in made if point.final is not None)
        return cls(
            folder,
            axes,
            metric,
            seeds,
            points,
            learned,
            scheduled,
            tuple(points[i] for i in region),
        )

    @property
    def everything(self) -> tuple[Point, ...]:
        """Return the grid, and the points beside it."""
        return (*self.points, *self.learned, *self.scheduled)

    @property
    def records(self) -> list[Record]:
        """Return all runs."""
        return [record for point in self.everything for record in point.records]

    @property
    def best(self) -> Point | None:
        """Return the point with the highest mean, which others of the region may equal; None if the
        region is empty."""
        return max(self.region, key=lambda point: point.metric(self.metric).mean, default=None)

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """Return a row for each point, None where there is no number: values, runs, metrics with
        intervals, all that was seen."""
        return squared([self._row(point) for point in self.everything])

    def _row(self, point: Point) -> dict[str, Any]:
        first = point.metric(self.metric)
        return {
            **{axis.field: point.over.get(axis.field) for axis in self.axes},
            **(
                {"learned from": point.start if point.final is None else None}
                if self.learned
                else {}
            ),
            **({"scheduled from": point.start if point.final else None} if self.scheduled else {}),
            **({"scheduled to": point.final} if self.scheduled else {}),
            "runs": len(point.done),
            "failed": point.failed,
            "in best region": point in self.region,
            **{
                self.metric: first.mean,
                f"{self.metric} low": first.low,
                f"{self.metric} high": first.high,
            },
            **figures(point.done, intervals=True),
        }

    @property
    def sentence(self) -> str:
        """Return the best point, the points that are not shown to be worse, and what that was
        tested on."""
        best = self.best
        if best is None:
            return (
                NO_CHOICE
                if any(point.done for point in self.points)
                else "no point of the grid has succeeded"
            )
        others = [point.name for point in self.region if point is not best]
        field = " x ".join(axis.field for axis in self.axes)
        queries = len(best.done[0].per_query)
        noise = f"{quantity(len(self.seeds), 'seeds')} and {quantity(queries, 'queries')}"
        if len({point.queries for point in self.points if point.done}) > 1:
            noise = f"{quantity(len(self.seeds), 'seeds')}, since queries differ"
        alone = "; one seed does not show what another would give" if len(self.seeds) == 1 else ""
        text = f"best {field}: {best.name} ({label(self.metric)} {number(best.metric(self.metric).mean)})"
        verdict = (
            f"not shown to be worse: {'; '.join(others)}"
            if others
            else "all others are shown to be worse"
        )
        if others and len(self.region) == sum(bool(point.done) for point in self.points):
            verdict = "no other point is shown to be worse"
        return f"{text}; {verdict} ({CONFIDENCE:.0%} confidence, paired over {noise}{alone})"

    def __str__(self) -> str:
        fields = [axis.field for axis in self.axes]
        head = [
            *fields,
            label(self.metric),
            f"{CONFIDENCE:.0%}",
            "best",
            *SHOWN.values(),
            "gradient",
        ]
        lines = [head, *(self._line(point) for point in self.everything)]
        return "\n".join([aligned(lines), *errors_and_cautions(self.records), self.sentence])

    def _line(self, point: Point) -> list[str]:
        metric = point.metric(self.metric)
        name = [shown(point.over[axis.field], 6) for axis in self.axes if axis.field in point.over]
        if point.start is not None:
            kind = "learned" if point.final is None else "scheduled"
            name = [
                f"{kind} {point.start:g} -> {point.temperature:.3g}",
                *[""] * (len(self.axes) - 1),
            ]
        ends = "" if math.isnan(metric.low) else f"{number(metric.low)} to {number(metric.high)}"
        height = "failed" if math.isnan(metric.mean) else number(metric.mean)
        others = [*map(point.seen, SHOWN), point.grad_norm]
        cells = ["" if math.isnan(value) else f"{value:.3g}" for value in others]
        return [*name, height, ends, "*" if point in self.region else "", *cells]

    def json(self) -> dict[str, Any]:
        """Return the sweep as a JSON object."""
        return {
            "output": str(self.folder.absolute()),
            "metric": self.metric,
            "seeds": list(self.seeds),
            "best": None if self.best is None else dict(self.best.over),
            "region": [dict(point.over) for point in self.region],
            "points": self.table,
            "sentence": self.sentence,
        }
