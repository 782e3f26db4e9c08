"""A learning curve: the test score at each number of training pairs, and a power law that goes on
from it.

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
from ..experiments.figures import CONFIDENCE, errors_and_cautions, figures, squared
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
        level: [d].
        slope: [d].
        exponent: [d].

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
        """Fit each resample by least squares, with the exponent that leaves the least.

        Args:
            sizes: [k], ascending.
            scores: [d, k].
        """
        x = growth(sizes / sizes[-1], EXPONENTS[:, None])  # [e, k]
        centred = x - x.mean(1, keepdims=True)
        slope = np.maximum(
            0.0, centred @ scores.T / np.square(centred).sum(1, keepdims=True)
        )  # [e, d]
        level = scores.mean(1) - slope * x.mean(1, keepdims=True)
        errors = np.square(scores - level[..., None] - slope[..., None] * x[:, None]).sum(
            2
        )  # [e, d]
        best = errors.argmin(0), np.arange(len(scores))
        return cls(float(sizes[-1]), level[best], slope[best], EXPONENTS[best[0]])

    @classmethod
    def of_resamples(cls, sizes: Floats, scores: Floats, seed: int = 0) -> PowerLaw:
        """Fit each resample to a random number of the largest sizes, at least three, because small
        ones may follow another law."""
        first = np.random.default_rng(seed).integers(0, len(sizes) - LEAST_SIZES + 1, len(scores))
        laws = [
            cls.fit(sizes[i:], scores[first == i][:, i:])
            for i in range(len(sizes) - LEAST_SIZES + 1)
        ]
        return cls(
            float(sizes[-1]),
            *(
                np.concatenate([getattr(law, name) for law in laws])
                for name in ("level", "slope", "exponent")
            ),
        )

    def at(self, size: float) -> Floats:
        """Return the score at a size, [d]; it is from 0 to 1, as every metric is, which a law alone
        would leave."""
        scores: Floats = np.clip(
            self.level + self.slope * growth(np.full(1, size / self.last), self.exponent), 0, 1
        )
        return scores


def growth(x: Floats, exponent: Floats) -> Floats:
    """Return (1 - x^-c) / c, and log x for c = 0."""
    safe = np.where(exponent == 0, 1.0, exponent)
    values: Floats = np.where(exponent == 0, np.log(x), (1 - x**-safe) / safe)
    return values


def resampled_scores(scores: Sequence[Floats], draws: int = _DRAWS, seed: int = 0) -> Floats:
    """Return the mean score at each size, [d, k]: first as it is, then of resamples of queries and,
    at each size, of seeds.

    All sizes are asked the same queries, so that a resample of queries is the same for all. Seeds
    are drawn for each size alone; their deviations are enlarged by sqrt(s / (s - 1)), by which a
    resample of few seeds is too narrow.

    Args:
        scores: of each size, [s, q].
    """
    generator, columns = np.random.default_rng(seed), []
    for each in scores:
        totals = resampled(each.T, draws=draws, seed=seed)
        means = np.concatenate([each.mean(1)[None], totals / each.shape[1]])  # [1 + d, s]
        count = len(each)
        drawn = (
            generator.integers(0, count, (draws, count))
            if count > 1
            else np.zeros((draws, 1), np.int64)
        )
        picked = np.concatenate([np.arange(count)[None], drawn])
        middle = means.mean(1)
        off = np.take_along_axis(means, picked, 1).mean(1) - middle
        columns.append(
            np.clip(middle + off * np.sqrt(count / max(1, count - 1)), 0, 1)
        )  # as every metric is
    return np.stack(columns, 1)


@dataclass(frozen=True)
class LearningCurve:
    """A finished learning curve. `str` is its table and what more pairs would bring.

    Args:
        folder: of its files.
        metric: the score.
        seeds: of weights and the order of the rows, at each size.
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
        """Return the sizes of which a run has finished, ascending, each with its runs."""
        return sorted(
            ((pairs_of(point), point) for point in self.points if point.done),
            key=lambda each: each[0],
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of which a run has finished."""
        return tuple(size for size, _ in self.measured)

    @property
    def records(self) -> list[Record]:
        """Return all runs."""
        return [record for point in self.points for record in point.records]

    @cached_property
    def scores(self) -> Floats:
        """Return the mean score at each size, [1 + d, k]: as measured, then of each resample."""
        return resampled_scores(
            [np.array([run.per_query for run in point.done]) for _, point in self.measured]
        )

    @property
    def _by_query(self) -> list[Floats]:
        """Return the mean score of each query over the seeds, [q], at each size."""
        return [
            np.array([run.per_query for run in point.done]).mean(0) for _, point in self.measured
        ]

    @cached_property
    def intervals(self) -> list[Difference]:
        """Return the mean score at each size with its interval over queries and seeds."""
        return [
            widened(_interval(column), queries)
            for column, queries in zip(self.scores.T, self._by_query, strict=True)
        ]

    @cached_property
    def law(self) -> PowerLaw | None:
        """Return the power laws of all resamples; None with fewer than three sizes."""
        sizes = np.array(self.sizes, np.float64)
        return PowerLaw.of_resamples(sizes, self.scores[1:]) if len(sizes) >= LEAST_SIZES else None

    def gain_at(self, size: float) -> Difference | None:
        """Return what the law expects from the largest measured size to another, with its interval;
        None without a law."""
        return None if self.law is None else spread(self.law.at(size) - self.law.at(self.law.last))

    @property
    def gain(self) -> Difference | None:
        """Return what `more` pairs are expected to bring; None with fewer than three sizes."""
        return self.gain_at(self.sizes[-1] + self.more)

    @property
    def sentence(self) -> str:
        """Return what the last step has brought, as measured, and what more pairs would bring."""
        lines, sizes = [], self.sizes
        if len(sizes) > 1:
            before, after = self._by_query[-2:]
            step = _interval(self.scores[:, -1] - self.scores[:, -2])
            step = widened(step, after - before, bounds=GAPS)
            lines.append(f"measured: {self._gained(sizes[-2], sizes[-1], step)}")
        gain, end = self.gain, sizes[-1] + self.more
        lines.append(
            f"{len(sizes)} size{'s' * (len(sizes) > 1)} cannot be extrapolated: a power law has three parameters; give at least "
            f"{LEAST_SIZES} with --sizes"
            if gain is None
            else f"by extrapolation: {self._gained(sizes[-1], end, gain)}"
        )
        return "\n".join(lines)

    def _gained(self, start: int, end: int, gain: Difference) -> str:
        values = f"{gain.mean:+z.3f} {label(self.metric)} [{gain.low:+z.3f}, {gain.high:+z.3f}]"
        return f"{quantity(end - start, 'more pairs')} ({start:,} -> {end:,}): {values}"

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """Return a row for each size, None where there is no number."""
        return squared(
            [
                {
                    "pairs": size,
                    "runs": len(point.done),
                    "failed": point.failed,
                    **{
                        self.metric: score.mean,
                        f"{self.metric} low": score.low,
                        f"{self.metric} high": score.high,
                    },
                    **{
                        name: value
                        for name, value in figures(point.done).items()
                        if name != self.metric
                    },
                }
                for (size, point), score in zip(self.measured, self.intervals, strict=True)
            ]
        )

    def __str__(self) -> str:
        lines = [["pairs", label(self.metric), f"{CONFIDENCE:.0%}", "seconds"]]
        for row, score in zip(self.table, self.intervals, strict=True):
            ends = f"{number(score.low)} to {number(score.high)}"
            lines.append(
                [f"{row['pairs']:,}", number(score.mean), ends, f"{row['seconds'] or 0.0:.1f}"]
            )
        return "\n".join([aligned(lines), *errors_and_cautions(self.records), self.sentence])

    def json(self) -> dict[str, Any]:
        """Return the curve as a JSON object; `gain` is null without an extrapolation."""
        gain = self.gain
        return {
            "output": str(self.folder.absolute()),
            "metric": self.metric,
            "seeds": list(self.seeds),
            "points": self.table,
            "more": self.more,
            "gain": gain and {"mean": gain.mean, "low": gain.low, "high": gain.high},
            "sentence": self.sentence,
        }


def pairs_of(point: Point) -> int:
    """Return the number of training pairs of a point."""
    return int(point.over["train.max_pairs"])


def spread(draws: Floats) -> Difference:
    """Return the mean of resamples with their percentile interval."""
    return interval(float(draws.mean()), draws, CONFIDENCE)


def _interval(values: Floats) -> Difference:
    """Return the first value with the percentile interval of the others, which are its
    resamples."""
    return interval(float(values[0]), values[1:], CONFIDENCE)
