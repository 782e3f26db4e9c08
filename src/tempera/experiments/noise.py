"""The noise of seeds and queries, and the differences between points of a sweep that exceed it.

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
    """Return the mean over seeds with Student's interval; one seed has no interval, and nan for
    both ends.

    >>> difference = interval([0.4, 0.5, 0.6])
    >>> round(difference.mean, 3), round(difference.low, 3), round(difference.high, 3)
    (0.5, 0.252, 0.748)
    """
    scores = np.asarray(values, np.float64)
    mean, half = float(scores.mean()), math.nan
    if len(scores) > 1:
        error = float(scores.std(ddof=1)) / math.sqrt(len(scores))
        half = float(stdtrit(len(scores) - 1, (1 + confidence) / 2)) * error
    return Difference(mean, mean - half, mean + half, confidence)


@dataclass(frozen=True)
class Noise:
    """A mean difference of two points, its standard error, and the degrees of freedom of that."""

    mean: float
    error: float
    freedom: float

    def exceeds_chance(self, p: float) -> bool:
        """Tell if the difference is above 0 by more than chance, at the one-sided level p."""
        if self.freedom <= 0 or self.mean <= 0:
            return False
        return self.error == 0 or self.mean > float(stdtrit(self.freedom, 1 - p)) * self.error


def difference(a: Scores, b: Scores, same_queries: bool) -> Noise:
    """Return the mean of a - b over the seeds that both have, and over queries if these are the
    same.

    The variance of the mean is that of its seeds' means over the number of seeds, plus that of its
    queries' means over the number of queries: those who train again get other seeds, those who use
    the model ask other queries. Noise of neither alone is counted in both, so that the sum is
    rather too large. Degrees of freedom are Satterthwaite's (1946). Without seeds in common, or
    with one seed and other queries, there are none.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return Noise(math.nan, math.nan, 0.0)
    if same_queries:
        table = np.stack([a[seed] - b[seed] for seed in seeds])  # [s, q]
        parts = [table.mean(1), table.mean(0)]
    else:
        parts = [np.array([a[seed].mean() - b[seed].mean() for seed in seeds])]
    shares = [
        (float(means.var(ddof=1)) / len(means), len(means) - 1) for means in parts if len(means) > 1
    ]
    variance = sum(share for share, _ in shares)
    squares = sum(share**2 / freedom for share, freedom in shares)
    most = sum(freedom for _, freedom in shares)
    return Noise(
        float(parts[0].mean()), math.sqrt(variance), variance**2 / squares if squares > 0 else most
    )


def best_region(
    points: Sequence[Scores], queries: Sequence[object], confidence: float = 0.95
) -> list[int]:
    """Return the points of which none is shown to be worse than another: they hold the best one
    with the stated confidence.

    A point is left out if some other point exceeds it at the one-sided level (1 - confidence) /
    (points - 1). The best point is then left out with a chance of at most 1 - confidence, however
    many points there are (Bonferroni; Gupta 1965 is the same idea for independent points), and no
    point has to be taken for the best one beforehand.

    Args:
        points: scores of each, [p].
        queries: what each point was asked, [p]: equal objects are the same queries in the same
            order.

    >>> good, bad = {0: np.array([0.9, 0.8, 0.7, 0.9])}, {0: np.array([0.1, 0.2, 0.1, 0.2])}
    >>> best_region([good, bad], ["q", "q"])
    [0]
    """
    tried = [i for i, scores in enumerate(points) if scores]
    level = (1 - confidence) / max(1, len(tried) - 1)

    def worse(i: int) -> bool:
        return any(
            difference(points[j], points[i], queries[i] == queries[j]).exceeds_chance(level)
            for j in tried
            if j != i
        )

    return [i for i in tried if not worse(i)]
