"""What a sweep has found: its points, a table of them, and those that may be the best."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..artifacts.pictures import label, number
from ..ranking.compare import Difference
from .grid import Axis
from .noise import best_region, interval
from .outcome import Outcome, moving

CONFIDENCE = 0.95
# What is printed of what an objective sees; the file has all of it.
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
    """One setting, trained once a seed."""

    over: Mapping[str, Any]
    start: float | None  # of a temperature that is learned or scheduled; None is a point of the grid
    outcomes: tuple[Outcome, ...]
    asked: str  # which data, held out how: points that were asked alike are compared query by query
    final: float | None = None  # of a schedule

    @property
    def done(self) -> list[Outcome]:
        """Runs that have not failed."""
        return [outcome for outcome in self.outcomes if outcome.error is None]

    @property
    def failed(self) -> int:
        """How many have."""
        return len(self.outcomes) - len(self.done)

    @property
    def name(self) -> str:
        """As people write it."""
        return ", ".join(_shown(value) for value in self.over.values()) or moving(self.start, self.final)

    def metric(self, name: str) -> Difference:
        """The mean over seeds with Student's interval; nan without a run."""
        values = [outcome.metrics[name] for outcome in self.done]
        return interval(values, CONFIDENCE) if values else Difference(math.nan, math.nan, math.nan, CONFIDENCE)

    def seen(self, name: str) -> float:
        """The mean over seeds of what the objective sees of the fixed batch; nan where there is nothing of the kind."""
        return _mean(outcome.diagnosis.get(name) for outcome in self.done)

    @property
    def temperature(self) -> float:
        """At the end of training, the mean over seeds."""
        return _mean(outcome.temperature for outcome in self.done)

    @property
    def grad_norm(self) -> float:
        """Of the last steps, the mean over seeds."""
        return _mean(outcome.grad_norm for outcome in self.done)


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `str` is its table.

    Args:
        points: the grid.
        learned: runs whose temperature was learned.
        scheduled: runs whose temperature followed a schedule.
        region: the points of which none is shown to be worse than another, see `noise.best_region`.

    >>> from tempera import sweep
    >>> found = sweep("pairs.yaml", {"objective.temperature": [0.05, 0.5]}, seeds=1, output="runs/sweep")
    >>> found.best.metric("ndcg@10").mean > 0.1, [row["runs"] for row in found.table]
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
        cls, folder: Path, axes: tuple[Axis, ...], metric: str, seeds: tuple[int, ...], made: Sequence[Point]
    ) -> Sweep:
        """Find the best region of these points."""
        points = tuple(point for point in made if point.start is None)
        scores = [{run.seed: np.array(run.per_query, np.float64) for run in point.done} for point in points]
        region = best_region(scores, [point.asked for point in points], CONFIDENCE)
        learned = tuple(point for point in made if point.start is not None and point.final is None)
        scheduled = tuple(point for point in made if point.final is not None)
        return cls(folder, axes, metric, seeds, points, learned, scheduled, tuple(points[i] for i in region))

    @property
    def everything(self) -> tuple[Point, ...]:
        """The grid, and what is beside it."""
        return (*self.points, *self.learned, *self.scheduled)

    @property
    def best(self) -> Point | None:
        """The point with the highest mean, which others of the region may equal."""
        return max(self.region, key=lambda point: point.metric(self.metric).mean, default=None)

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """A row a point, None where there is no number: its values, runs, metrics with intervals, and all that was seen."""
        rows = [self._row(point) for point in self.everything]
        columns = dict.fromkeys(name for row in rows for name in row)
        return [{name: _plain(row.get(name)) for name in columns} for row in rows]

    def _row(self, point: Point) -> dict[str, Any]:
        metrics: dict[str, float] = {}
        for name in dict.fromkeys([self.metric, *(name for run in point.done for name in run.metrics)]):
            found = point.metric(name) if point.done else None
            metrics |= {name: found.mean, f"{name} low": found.low, f"{name} high": found.high} if found else {}
        names = dict.fromkeys(name for run in point.done for name in run.diagnosis)
        spreads = dict.fromkeys(name for run in point.done for name in run.spread)
        return {
            **{axis.field: point.over.get(axis.field) for axis in self.axes},
            **({"learned from": point.start if point.final is None else None} if self.learned else {}),
            **({"scheduled from": point.start if point.final else None} if self.scheduled else {}),
            **({"scheduled to": point.final} if self.scheduled else {}),
            "runs": len(point.done),
            "failed": point.failed,
            "in best region": point in self.region,
            **metrics,
            "temperature at the end": point.temperature,
            **{name: point.seen(name) for name in names if name != "temperature"},
            **{f"held out {name}": _mean(run.spread[name] for run in point.done) for name in spreads},
            "loss": _mean(run.loss for run in point.done),
            "gradient norm": point.grad_norm,
            "seconds": _mean(run.seconds for run in point.done),
        }

    @property
    def sentence(self) -> str:
        """The best point, what is not shown to be worse, and by which noise."""
        best = self.best
        if best is None:
            return "no point of the grid has succeeded"
        others = [point.name for point in self.region if point is not best]
        field = " x ".join(axis.field for axis in self.axes)
        queries = len(best.done[0].per_query)
        noise = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)} and {queries:,} queries"
        alone = "; one seed does not show what another would give" if len(self.seeds) == 1 else ""
        text = f"best {field}: {best.name} ({label(self.metric)} {number(best.metric(self.metric).mean)})"
        verdict = f"not shown to be worse: {'; '.join(others)}" if others else "all others are shown to be worse"
        if others and len(self.region) == sum(bool(point.done) for point in self.points):
            verdict = "no other point is shown to be worse"
        return f"{text}; {verdict} ({CONFIDENCE:.0%} confidence, paired over {noise}{alone})"

    def __str__(self) -> str:
        head = [
            *(axis.field for axis in self.axes),
            label(self.metric),
            f"{CONFIDENCE:.0%}",
            "best",
            *SHOWN.values(),
            "gradient",
        ]
        lines = [head, *(self._line(point) for point in self.everything)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)
        errors = dict.fromkeys(run.error for point in self.everything for run in point.outcomes if run.error)
        failed = sum(point.failed for point in self.everything)
        ends = [f"{failed} failed: {error}" for error in list(errors)[:1]]
        return "\n".join([text, *ends, self.sentence])

    def _line(self, point: Point) -> list[str]:
        found = point.metric(self.metric)
        name = [_shown(point.over[axis.field]) for axis in self.axes if axis.field in point.over]
        if point.start is not None:
            kind = "learned" if point.final is None else "scheduled"
            name = [f"{kind} {point.start:g} -> {point.temperature:.3g}", *[""] * (len(self.axes) - 1)]
        interval = "" if math.isnan(found.low) else f"{number(found.low)} to {number(found.high)}"
        mean = "failed" if math.isnan(found.mean) else number(found.mean)
        seen = ["" if math.isnan(value) else f"{value:.3g}" for value in (point.seen(name) for name in SHOWN)]
        norm = "" if math.isnan(point.grad_norm) else f"{point.grad_norm:.3g}"
        return [*name, mean, interval, "*" if point in self.region else "", *seen, norm]

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "output": str(self.folder.absolute()),
            "metric": self.metric,
            "seeds": list(self.seeds),
            "best": None if self.best is None else dict(self.best.over),
            "region": [dict(point.over) for point in self.region],
            "points": self.table,
            "sentence": self.sentence,
        }


def csv_of(table: Sequence[Mapping[str, Any]]) -> str:
    """A table as text; an empty cell is no number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _mean(values: Any) -> float:
    there = [value for value in values if value is not None and not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace("'", "")
