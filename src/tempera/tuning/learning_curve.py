"""A learning curve: the test score at each number of training pairs, extrapolated by a power law.

Letters in shapes: k sizes, s seeds, q queries, d resamples, e exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..artifacts.pictures import label, number
from ..errors import quantity
from ..experiments.figures import CONFIDENCE, complete_rows, errors_and_cautions, figures
from ..experiments.record import Record
from ..experiments.result import Point
from ..io.console import aligned
from ..ranking.compare import GAPS, Difference, interval, resampled, widened

Floats = NDArray[np.float64]
LEAST_SIZES = 3  # for a power law, which has three parameters
EXPONENTS = np.linspace(0.0, 1.0, 21)
_DRAWS = 2000


@dataclass(frozen=True)
class PowerLaw:
    """Power laws of the score, one for each resample: y(n) = level + slope g(n / last), with g(x) =
    (1 - x^-c) / c.

    This is the law a - b n^-c of Hestness et al. (2017) and Viering and Loog (2021), written so
    that `level` is the score at the last size. The exponent c is between 0 and 1; for 0, g(x) is
    log x, a straight line over the logarithm of the size. More pairs never make the curve fall:
    `slope` is at least 0.

    Args:
        last: the largest size.
        level: score at the largest size, [d].
        slope: slope over g, [d].
        exponent: c, [d].

    >>> sizes = np.array([100.0, 200, 400, 800])
    >>> law = PowerLaw.fit(sizes, 0.6 - 2 * sizes[None] ** -0.5)
    >>> float(law.exponent[0]), [round(float(law.at(n)[0]), 3) for n in (800, 1600)], round(0.6 - 2 * 1600**-0.5, 3)
    (0.5, [0.529, 0.55], 0.55)
    """

    last: float
    level: Floats
    slope: Floats
    exponent: Floats

    @classmethod
    def fit(cls, sizes: Floats, scores: Floats) -> PowerLaw:
        """Fit each resample by least squares, with the exponent of the smallest error.

        Args:
            sizes: [k], ascending.
            scores: [d, k].
        """
        x = growth(sizes / sizes[-1], EXPONENTS[:, None])  # [e, k]
        centred = x - x.mean(1, keepdims=True)
        squares = np.square(centred).sum(1, keepdims=True)  # [e, 1]
        slope = np.maximum(0.0, centred @ scores.T / squares)  # [e, d]
        level = scores.mean(1) - slope * x.mean(1, keepdims=True)  # [e, d]
        residuals = scores - level[..., None] - slope[..., None] * x[:, None]  # [e, d, k]
        best = np.square(residuals).sum(2).argmin(0)  # [d]
        draws = np.arange(len(scores))
        return cls(float(sizes[-1]), level[best, draws], slope[best, draws], EXPONENTS[best])

    @classmethod
    def of_resamples(cls, sizes: Floats, scores: Floats, seed: int = 0) -> PowerLaw:
        """Fit each resample to a random number of the largest sizes, at least three.

        Small sizes may follow another law.

        Args:
            sizes: [k], ascending.
            scores: [d, k].
        """
        starts = len(sizes) - LEAST_SIZES + 1
        first = np.random.default_rng(seed).integers(0, starts, len(scores))
        laws = [cls.fit(sizes[i:], scores[first == i][:, i:]) for i in range(starts)]
        return cls(
            last=float(sizes[-1]),
            level=np.concatenate([law.level for law in laws]),
            slope=np.concatenate([law.slope for law in laws]),
            exponent=np.concatenate([law.exponent for law in laws]),
        )

    def at(self, size: float) -> Floats:
        """Return the score at a size, [d], cut to 0 to 1, the range of every metric."""
        x = np.full(1, size / self.last)
        scores: Floats = np.clip(self.level + self.slope * growth(x, self.exponent), 0, 1)
        return scores


def growth(x: Floats, exponent: Floats) -> Floats:
    """Return g(x) = (1 - x^-c) / c, and log x for c = 0.

    Args:
        x: sizes as shares of the largest size.
        exponent: c.
    """
    linear = exponent == 0
    c = np.where(linear, 1.0, exponent)  # 1 where the value is not used
    values: Floats = np.where(linear, np.log(x), (1 - x**-c) / c)
    return values


def resampled_scores(scores: Sequence[Floats], draws: int = _DRAWS, seed: int = 0) -> Floats:
    """Return the mean score at each size, [1 + d, k]: first as measured, then of each resample.

    A resample draws queries, the same for all sizes, since all sizes are asked the same queries. It
    also draws seeds, for each size alone. The deviations of seeds are enlarged by sqrt(s / (s - 1)),
    because a resample of few seeds is too narrow by this factor.

    Args:
        scores: the scores at each size, [s, q].
    """
    generator = np.random.default_rng(seed)
    columns = []
    for table in scores:
        seeds, queries = table.shape
        totals = resampled(table.T, draws=draws, seed=seed)
        means = np.concatenate([table.mean(1)[None], totals / queries])  # [1 + d, s]
        drawn = np.zeros((draws, 1), np.int64)
        if seeds > 1:
            drawn = generator.integers(0, seeds, (draws, seeds))
        picked = np.concatenate([np.arange(seeds)[None], drawn])  # [1 + d, s]
        middle = means.mean(1)
        deviation = np.take_along_axis(means, picked, 1).mean(1) - middle
        enlarged = middle + deviation * np.sqrt(seeds / max(1, seeds - 1))
        columns.append(np.clip(enlarged, 0, 1))  # the range of every metric
    return np.stack(columns, 1)


@dataclass(frozen=True)
class LearningCurve:
    """A finished learning curve. `str` is its table and the gain to expect from more pairs.

    Args:
        folder: the folder of its files.
        metric: name of the score.
        seeds: seeds of weights and of the order of the rows, at each size.
        points: the runs at each size, by number of training pairs.
        more: number of pairs that the extrapolation adds.

    >>> def point(size: int, score: float) -> Point:
    ...     return Point((Record({"train.max_pairs": size}, per_query=[score, score], metrics={"ndcg@10": score}),))
    >>> points = tuple(point(size, 0.1 * i) for i, size in enumerate((100, 200, 400, 800)))
    >>> print(LearningCurve(Path("runs/learn"), "ndcg@10", (0,), points, 800).sentence)
    measured: 400 more pairs (400 -> 800): +0.100 nDCG@10 [-0.432, +0.501]
    by extrapolation: 800 more pairs (800 -> 1,600): +0.100 nDCG@10 [+0.100, +0.100]
    """

    folder: Path
    metric: str
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    more: int

    @cached_property
    def measured(self) -> list[tuple[int, Point]]:
        """Return the sizes with a finished run, ascending, each with its point."""
        finished = [(pairs_of(point), point) for point in self.points if point.done]
        return sorted(finished, key=lambda entry: entry[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes with a finished run, ascending."""
        return tuple(size for size, _ in self.measured)

    @property
    def records(self) -> list[Record]:
        """Return all runs."""
        return [record for point in self.points for record in point.records]

    @cached_property
    def scores(self) -> Floats:
        """Return the mean score at each size, [1 + d, k]: as measured, then of each resample."""
        return resampled_scores(self._tables)

    @property
    def _tables(self) -> list[Floats]:
        """Return the scores at each size, [s, q]."""
        return [np.array([run.per_query for run in point.done]) for _, point in self.measured]

    @property
    def _by_query(self) -> list[Floats]:
        """Return the mean score of each query over the seeds, [q], at each size."""
        return [table.mean(0) for table in self._tables]

    @cached_property
    def intervals(self) -> list[Difference]:
        """Return the mean score at each size with its interval over queries and seeds."""
        intervals = []
        for column, queries in zip(self.scores.T, self._by_query, strict=True):
            intervals.append(widened(_interval(column), queries))
        return intervals

    @cached_property
    def law(self) -> PowerLaw | None:
        """Return the power laws of all resamples; None with fewer than three sizes."""
        sizes = np.array(self.sizes, np.float64)
        if len(sizes) < LEAST_SIZES:
            return None
        return PowerLaw.of_resamples(sizes, self.scores[1:])

    def gain_at(self, size: float) -> Difference | None:
        """Return the gain that the law expects from the largest measured size to another size, with
        its interval; None without a law."""
        if self.law is None:
            return None
        return percentile_interval(self.law.at(size) - self.law.at(self.law.last))

    @property
    def gain(self) -> Difference | None:
        """Return the gain to expect from `more` pairs; None with fewer than three sizes."""
        return self.gain_at(self.sizes[-1] + self.more)

    @property
    def sentence(self) -> str:
        """Return the measured gain of the last step of sizes, and the gain of more pairs, in words."""
        sizes = self.sizes
        lines = []
        if len(sizes) > 1:
            before, after = self._by_query[-2:]
            step = _interval(self.scores[:, -1] - self.scores[:, -2])
            step = widened(step, after - before, bounds=GAPS)
            lines.append(f"measured: {self._gained(sizes[-2], sizes[-1], step)}")
        gain = self.gain
        if gain is None:
            lines.append(
                f"{quantity(len(sizes), 'sizes')} cannot be extrapolated: a power law has three parameters; give at least "
                f"{LEAST_SIZES} with --sizes"
            )
        else:
            text = self._gained(sizes[-1], sizes[-1] + self.more, gain)
            lines.append(f"by extrapolation: {text}")
        return "\n".join(lines)

    def _gained(self, start: int, end: int, gain: Difference) -> str:
        """Return the gain between two sizes, in words."""
        values = f"{gain.mean:+z.3f} {label(self.metric)} [{gain.low:+z.3f}, {gain.high:+z.3f}]"
        return f"{quantity(end - start, 'more pairs')} ({start:,} -> {end:,}): {values}"

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """Return a row for each size, None where there is no number."""
        rows = []
        for (size, point), score in zip(self.measured, self.intervals, strict=True):
            row = {
                "pairs": size,
                "runs": len(point.done),
                "failed": point.failed,
                self.metric: score.mean,
                f"{self.metric} low": score.low,
                f"{self.metric} high": score.high,
            }
            columns = figures(point.done)
            columns.pop(self.metric, None)  # the row has the mean of the intervals
            rows.append(row | columns)
        return complete_rows(rows)

    def __str__(self) -> str:
        lines = [["pairs", label(self.metric), f"{CONFIDENCE:.0%}", "seconds"]]
        for row, score in zip(self.table, self.intervals, strict=True):
            ends = f"{number(score.low)} to {number(score.high)}"
            lines.append(
                [f"{row['pairs']:,}", number(score.mean), ends, f"{row['seconds'] or 0.0:.1f}"]
            )
        text = [aligned(lines)]
        text += errors_and_cautions(self.records)
        text.append(self.sentence)
        return "\n".join(text)

    def json(self) -> dict[str, Any]:
        """Return the curve as a JSON object; `gain` is null without an extrapolation."""
        gain = None
        if self.gain is not None:
            gain = {"mean": self.gain.mean, "low": self.gain.low, "high": self.gain.high}
        return {
            "output": str(self.folder.absolute()),
            "metric": self.metric,
            "seeds": list(self.seeds),
            "points": self.table,
            "more": self.more,
            "gain": gain,
            "sentence": self.sentence,
        }


def pairs_of(point: Point) -> int:
    """Return the number of training pairs of a point."""
    return int(point.over["train.max_pairs"])


def percentile_interval(draws: Floats) -> Difference:
    """Return the mean of resamples with their percentile interval."""
    return interval(float(draws.mean()), draws, CONFIDENCE)


def _interval(values: Floats) -> Difference:
    """Return the first value, with the percentile interval of the other values, its resamples."""
    return interval(float(values[0]), values[1:], CONFIDENCE)
