"""The noise of seeds and queries, and the differences between points of a sweep beyond the noise.

Letters in shapes: s seeds, q queries, p points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from ..ranking.compare import Difference

Floats = NDArray[np.float64]
Scores = Mapping[int, Floats]  # by seed: of each query, [q]


def interval(values: Sequence[float], confidence: float = 0.95) -> Difference:
    """Return the mean over seeds with Student's interval; of one seed both ends are nan.

    >>> difference = interval([0.4, 0.5, 0.6])
    >>> round(difference.mean, 3), round(difference.low, 3), round(difference.high, 3)
    (0.5, 0.252, 0.748)
    """
    scores = np.asarray(values, np.float64)
    mean = float(scores.mean())
    if len(scores) < 2:
        return Difference(mean, math.nan, math.nan, confidence)
    error = float(scores.std(ddof=1)) / math.sqrt(len(scores))
    half = float(stdtrit(len(scores) - 1, (1 + confidence) / 2)) * error
    return Difference(mean, mean - half, mean + half, confidence)


@dataclass(frozen=True)
class Noise:
    """A mean difference of two points, the standard error, and the error's degrees of freedom."""

    mean: float
    error: float
    freedom: float

    def exceeds_chance(self, p: float) -> bool:
        """Return True if the difference is above 0 by more than chance, at the one-sided level p."""
        if self.freedom <= 0 or self.mean <= 0:
            return False
        if self.error == 0:
            return True
        return self.mean > float(stdtrit(self.freedom, 1 - p)) * self.error


def difference(a: Scores, b: Scores, same_queries: bool) -> Noise:
    """Return the mean of a - b over the seeds of both points, and over queries if both points were
    asked the same queries.

    The variance of the mean is the variance of the seeds' means over the number of seeds, plus the
    variance of the queries' means over the number of queries: a user who trains again gets new
    seeds, and a user of the model asks new queries. Noise of seeds and queries together is in both
    terms, so the sum is rather too large. Degrees of freedom are Satterthwaite's (1946). Without
    seeds in common, or with one seed and other queries, there are none.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return Noise(math.nan, math.nan, 0.0)
    if same_queries:
        table = np.stack([a[seed] - b[seed] for seed in seeds])  # [s, q]
        parts = [table.mean(1), table.mean(0)]
    else:
        parts = [np.array([a[seed].mean() - b[seed].mean() for seed in seeds])]
    mean = float(parts[0].mean())
    # Satterthwaite: freedom = (sum_i v_i)^2 / sum_i (v_i^2 / f_i), of variances v_i with f_i degrees.
    variance = 0.0
    squares = 0.0
    degrees = 0
    for means in parts:
        if len(means) > 1:
            share = float(means.var(ddof=1)) / len(means)
            variance += share
            squares += share**2 / (len(means) - 1)
            degrees += len(means) - 1
    freedom = variance**2 / squares if squares > 0 else degrees
    return Noise(mean, math.sqrt(variance), freedom)


def best_region(
    points: Sequence[Scores], queries: Sequence[object], confidence: float = 0.95
) -> list[int]:
    """Return the indices of the points that are not shown to be worse than another point.

    The region holds the best point with the stated confidence.

    A point is left out if a better point exceeds the point at the one-sided level (1 - confidence)
    / (points - 1). The best point is then left out with a chance of at most 1 - confidence, however
    many points there are (Bonferroni; Gupta 1965 is the same idea for independent points), and no
    point has to be taken for the best one beforehand.

    Args:
        points: the scores of each point, [p]; a point without scores is left out.
        queries: the queries of each point, [p]: equal objects are the same queries in the same
            order.

    >>> good, bad = {0: np.array([0.9, 0.8, 0.7, 0.9])}, {0: np.array([0.1, 0.2, 0.1, 0.2])}
    >>> best_region([good, bad], ["q", "q"])
    [0]
    """
    tried = [i for i, scores in enumerate(points) if scores]
    level = (1 - confidence) / max(1, len(tried) - 1)
    region = []
    for i in tried:
        rivals = [j for j in tried if j != i]
        worse = any(
            difference(points[j], points[i], queries[i] == queries[j]).exceeds_chance(level)
            for j in rivals
        )
        if not worse:
            region.append(i)
    return region
