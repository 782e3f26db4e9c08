"""The result of a sweep: its points, their table, and the region of the best points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..artifacts.pictures import label, number
from ..errors import OutputError, quantity
from ..io.console import aligned
from ..ranking.compare import Difference
from .figures import (
    CONFIDENCE,
    NO_CHOICE,
    cell,
    complete_rows,
    errors_and_cautions,
    figures,
    mean,
    metric_interval,
)
from .grid import Axis
from .noise import Scores, best_region
from .record import Record, name_beside_grid

# Columns of the printed table and their short names; points.csv has all columns.
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
        records: the point's runs, by seed.
        queries: the options that queries follow from; points with equal options are compared query
            by query.
    """

    records: tuple[Record, ...]
    queries: str = ""

    @property
    def over(self) -> Mapping[str, Any]:
        """Return the values of the swept options; empty for a point beside the grid."""
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
        """Return the point's values as a text for people."""
        if not self.over:
            return name_beside_grid(self.start, self.final)
        return ", ".join(cell(value, 6) for value in self.over.values())

    @property
    def scores(self) -> Scores:
        """Return the compared metric of each query, by seed."""
        return {record.seed: np.array(record.per_query, np.float64) for record in self.done}

    def metric(self, name: str) -> Difference:
        """Return the mean over seeds with Student's interval; nan without a finished run."""
        values = [record.metrics[name] for record in self.done]
        if not values:
            return Difference(math.nan, math.nan, math.nan, CONFIDENCE)
        return metric_interval(values)

    def seen(self, name: str) -> float:
        """Return a figure of the objective on the fixed batch, the mean over seeds; nan if the
        diagnosis has no figure of this name."""
        return mean(record.diagnosis.get(name) for record in self.done)

    @property
    def temperature(self) -> float:
        """Return the temperature at the end of training, the mean over seeds."""
        return mean(record.temperature for record in self.done)

    @property
    def grad_norm(self) -> float:
        """Return the gradient norm of the last steps, the mean over seeds."""
        return mean(record.grad_norm for record in self.done)


def _refuse_other_queries(folder: Path, points: Sequence[Point]) -> None:
    """Raise OutputError if runs that were asked the same queries have other numbers of them, as a
    damaged record says."""
    counts: dict[str, int] = {}
    for point in points:
        for record in point.done:
            count = counts.setdefault(point.queries, len(record.per_query))
            if count != len(record.per_query):
                raise OutputError(
                    f"{folder} is damaged: its record of {record.name} has {len(record.per_query):,} queries, and others "
                    f"{count:,}: give another folder, or --overwrite"
                )


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `str` is its table.

    Args:
        points: the points of the grid.
        learned: points whose temperature was learned.
        scheduled: points whose temperature followed a schedule.
        region: the points that are not shown to be worse than another, see `noise.best_region`;
            empty if validation has too few queries to choose by.

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
        """Return the sweep of all points, with the best region of its grid.

        Raises:
            OutputError: runs of the same queries have other numbers of them.
        """
        _refuse_other_queries(folder, made)
        points, learned, scheduled = [], [], []
        for point in made:
            if point.start is None:
                points.append(point)
            elif point.final is None:
                learned.append(point)
            else:
                scheduled.append(point)
        region = []
        if all(run.chooses for point in points for run in point.done):
            scores = [point.scores for point in points]
            indices = best_region(scores, [point.queries for point in points], CONFIDENCE)
            region = [points[i] for i in indices]
        return cls(
            folder=folder,
            axes=axes,
            metric=metric,
            seeds=seeds,
            points=tuple(points),
            learned=tuple(learned),
            scheduled=tuple(scheduled),
            region=tuple(region),
        )

    @property
    def everything(self) -> tuple[Point, ...]:
        """Return the points of the grid, then the points beside the grid."""
        return self.points + self.learned + self.scheduled

    @property
    def records(self) -> list[Record]:
        """Return all runs."""
        return [record for point in self.everything for record in point.records]

    @property
    def best(self) -> Point | None:
        """Return the point of the region with the highest mean; None if the region is empty."""
        return max(self.region, key=lambda point: point.metric(self.metric).mean, default=None)

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """Return a row for each point: values, runs, metrics with intervals, and all figures.

        A cell without a number is None.
        """
        return complete_rows([self._row(point) for point in self.everything])

    def _row(self, point: Point) -> dict[str, Any]:
        row: dict[str, Any] = {axis.field: point.over.get(axis.field) for axis in self.axes}
        if self.learned:
            row["learned from"] = point.start if point.final is None else None
        if self.scheduled:
            row["scheduled from"] = point.start if point.final else None
            row["scheduled to"] = point.final
        row["runs"] = len(point.done)
        row["failed"] = point.failed
        row["in best region"] = point in self.region
        score = point.metric(self.metric)
        row[self.metric] = score.mean
        row[f"{self.metric} low"] = score.low
        row[f"{self.metric} high"] = score.high
        return row | figures(point.done, intervals=True)

    @property
    def sentence(self) -> str:
        """Return a sentence for people: the best point, its equals, and the noise of the test."""
        best = self.best
        if best is None:
            if any(point.done for point in self.points):
                return NO_CHOICE
            return "no point of the grid has succeeded"
        field = " x ".join(axis.field for axis in self.axes)
        height = f"{label(self.metric)} {number(best.metric(self.metric).mean)}"
        confidence = f"{CONFIDENCE:.0%} confidence, paired over {self._noise(best)}"
        return f"best {field}: {best.name} ({height}); {self._verdict(best)} ({confidence})"

    def _verdict(self, best: Point) -> str:
        """Return the points that are not shown to be worse than the best point, in words."""
        others = [point.name for point in self.region if point is not best]
        if not others:
            return "all others are shown to be worse"
        if len(self.region) == sum(bool(point.done) for point in self.points):
            return "no other point is shown to be worse"
        return f"not shown to be worse: {'; '.join(others)}"

    def _noise(self, best: Point) -> str:
        """Return the seeds and queries that points were compared over, in words."""
        seeds = quantity(len(self.seeds), "seeds")
        if len({point.queries for point in self.points if point.done}) > 1:
            noise = f"{seeds}, since queries differ"
        else:
            noise = f"{seeds} and {quantity(len(best.done[0].per_query), 'queries')}"
        if len(self.seeds) == 1:
            noise += "; one seed does not show what another would give"
        return noise

    def __str__(self) -> str:
        head = [axis.field for axis in self.axes]
        head += [label(self.metric), f"{CONFIDENCE:.0%}", "best"]
        head += SHOWN.values()
        head.append("gradient")
        lines = [head]
        lines += [self._line(point) for point in self.everything]
        text = [aligned(lines)]
        text += errors_and_cautions(self.records)
        text.append(self.sentence)
        return "\n".join(text)

    def _line(self, point: Point) -> list[str]:
        """Return the cells of a point in the printed table."""
        if point.start is None:
            cells = [cell(point.over[axis.field], 6) for axis in self.axes]
        else:
            kind = "learned" if point.final is None else "scheduled"
            cells = [f"{kind} {point.start:g} -> {point.temperature:.3g}"]
            cells += [""] * (len(self.axes) - 1)
        score = point.metric(self.metric)
        cells.append("failed" if math.isnan(score.mean) else number(score.mean))
        ends = "" if math.isnan(score.low) else f"{number(score.low)} to {number(score.high)}"
        cells.append(ends)
        cells.append("*" if point in self.region else "")
        explaining = [point.seen(column) for column in SHOWN]
        explaining.append(point.grad_norm)
        cells += ["" if math.isnan(value) else f"{value:.3g}" for value in explaining]
        return cells

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
