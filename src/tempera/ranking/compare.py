"""Intervals of means, and tests of differences between two systems."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import quantity

Floats = NDArray[np.float64]
Bounds = tuple[float, float]
SCORES: Bounds = (0.0, 1.0)  # of a metric of one query
GAPS: Bounds = (-1.0, 1.0)  # of the difference of two
_SQUARE = 0.5  # mean square of a coin's 0 or 1, and of the difference of two coins


@dataclass(frozen=True)
class Difference:
    """A mean over queries, of a metric or of a difference, with its interval at the stated
    confidence."""

    mean: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Comparison:
    """A difference between two systems, and the p-value of a randomisation test that swaps them at
    random."""

    difference: Difference
    p: float
    queries: int

    @property
    def real(self) -> bool:
        """True if the interval excludes 0 and the test rejects chance at the same level."""
        d = self.difference
        excludes_0 = not d.low <= 0 <= d.high
        return excludes_0 and self.p < 1 - d.confidence + 1e-12

    def sentence(self, ours: str, theirs: str, metric: str) -> str:
        """Return the verdict as a sentence: better, worse, or not shown to differ.

        >>> Comparison(Difference(0.02, 0.01, 0.03, 0.95), 0.002, 300).sentence("a", "b", "ndcg@10")
        'a is better than b in ndcg@10 by 0.0200 (95 % interval 0.0100 to 0.0300, p = 0.0020, 300 queries)'
        """
        d = self.difference
        low, high = d.low, d.high
        worse = self.real and d.mean < 0
        if worse:  # the sentence names the size of the difference
            low, high = -d.high, -d.low
        facts = f"{100 * d.confidence:g} % interval {low:.4f} to {high:.4f}"
        facts += f", p = {self.p:.4f}, {quantity(self.queries, 'queries')}"
        if not self.real:
            also_needed = ""
            if not d.low <= 0 <= d.high:
                also_needed = f"; a verdict also needs p < {1 - d.confidence:.2g}"
            return f"{ours} and {theirs} are not shown to differ in {metric}: {d.mean:+.4f} may be chance ({facts}{also_needed})"
        return f"{ours} is {'worse' if worse else 'better'} than {theirs} in {metric} by {abs(d.mean):.4f} ({facts})"

    def json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        fields = asdict(self.difference)
        fields.update(p=self.p, queries=self.queries, real=self.real)
        return fields


def bootstrap(
    a: Floats,
    b: Floats | None = None,
    confidence: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> Difference:
    """Return the percentile bootstrap of the mean paired difference, or of a mean (Efron and
    Tibshirani 1993, chapter 13).

    >>> difference = bootstrap(np.array([1.0, 0.5, 0.75]), np.array([0.0, 0.0, 0.25]))
    >>> round(difference.mean, 3), difference.low > 0
    (0.667, True)
    """
    deltas = a if b is None else a - b
    return bootstrap_columns(deltas[:, None], None, confidence, draws, seed, bounds)[0]


def bootstrap_metrics(
    a: Mapping[str, Floats], b: Mapping[str, Floats] | None = None, draws: int = 10_000
) -> dict[str, Difference]:
    """Return the bootstrap of each metric, with values from 0 to 1, by the same resamples of the
    queries.

    >>> scores = {"ndcg@10": np.array([1.0, 0.5, 0.75]), "mrr@10": np.array([1.0, 0.0, 0.5])}
    >>> bootstrap_metrics(scores)["mrr@10"] == bootstrap(scores["mrr@10"], bounds=SCORES)
    True
    """
    if b is not None:
        return bootstrap_differences({"": (a, b)}, draws)[""]
    columns = np.stack(list(a.values()), 1)
    means = bootstrap_columns(columns, draws=draws, bounds=SCORES)
    return dict(zip(a, means, strict=True))


def bootstrap_differences(
    pairs: Mapping[str, tuple[Mapping[str, Floats], Mapping[str, Floats]]], draws: int = 10_000
) -> dict[str, dict[str, Difference]]:
    """Return the bootstrap of each metric's difference between the systems of each pair, all by the
    same resamples of the queries.

    The resamples of many queries take far longer than the means, so that many pairs take the time of one.

    >>> ours, theirs = {"mrr@10": np.array([1.0, 0.5])}, {"mrr@10": np.array([0.5, 0.0])}
    >>> bootstrap_differences({"ours - theirs": (ours, theirs)})["ours - theirs"]["mrr@10"].mean
    0.5
    """
    if not pairs:
        return {}
    columns = []
    for ours, theirs in pairs.values():
        for name, values in ours.items():
            columns.append(values - theirs[name])
    differences = iter(bootstrap_columns(np.stack(columns, 1), draws=draws, bounds=GAPS))
    by_pair: dict[str, dict[str, Difference]] = {}
    for pair, (ours, _) in pairs.items():
        by_pair[pair] = {name: next(differences) for name in ours}
    return by_pair


def bootstrap_columns(
    values: Floats,
    groups: NDArray[np.int64] | None = None,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> list[Difference]:
    """Return the percentile bootstrap of the mean of each column, [n, m], from the same resamples
    of rows.

    Rows of one group, [n], as the queries of one user, are not independent, so they are drawn
    together: drawn one by one, they would make the intervals too narrow (Davison and Hinkley 1997,
    section 3.8).

    Args:
        bounds: of the values; with bounds, `widened` widens the intervals.

    >>> [mean] = bootstrap_columns(np.array([[1.0], [1.0], [0.0]]), np.array([7, 7, 4]))
    >>> round(mean.mean, 3), mean.low, mean.high
    (0.667, 0.0, 1.0)
    """
    totals = resampled(np.column_stack([values, np.ones(len(values))]), groups, draws, seed)
    means = totals[:, :-1] / totals[:, -1:]
    differences = []
    for column, resamples in zip(values.T, means.T, strict=True):
        difference = interval(float(column.mean()), resamples, confidence)
        if bounds is not None:
            difference = widened(difference, column, groups, bounds)
        differences.append(difference)
    return differences


def widened(
    difference: Difference,
    values: Floats,
    groups: NDArray[np.int64] | None = None,
    bounds: Bounds = SCORES,
) -> Difference:
    """Return the interval of a mean, widened for few values between bounds.

    Resamples of equal values do not vary, and resamples of few values vary too little: for 10
    queries that a system answers with a chance of 0.9, the interval of the resamples holds 0.9 in
    two cases of three. So the result also holds the interval of the mean with z^2 more values, on
    which each system scores 0 or 1 by the toss of a coin (Agresti and Coull 1998, and for
    differences in the manner of Agresti and Min 2005). With n values, the additional values move
    the ends by less than z^2 / n.

    Args:
        values: the values of the mean, [n].
        groups: groups of values that are not independent of each other, [n].
        bounds: of the values, `SCORES` or `GAPS`.

    >>> mean = widened(Difference(1.0, 1.0, 1.0, 0.95), np.ones(10))
    >>> round(mean.low, 2), mean.high
    (0.68, 1.0)
    """
    if groups is not None:
        at = np.unique(groups, return_inverse=True)[1]
        count, total = np.bincount(at), np.bincount(at, values)
        # One value a group: the ratio of sums, linearised, with the same mean and the variance
        # between groups.
        values = difference.mean + (total - difference.mean * count) * len(count) / len(values)
    coins = NormalDist().inv_cdf((1 + difference.confidence) / 2) ** 2
    number = len(values) + coins
    middle = (float(values.sum()) + coins * sum(bounds) / 2) / number
    variance = (float(np.square(values).sum()) + coins * _SQUARE) / number - middle**2
    half = math.sqrt(coins * variance / number)
    low, high = max(bounds[0], middle - half), min(bounds[1], middle + half)
    return replace(difference, low=min(difference.low, low), high=max(difference.high, high))


def resampled(
    values: Floats, groups: NDArray[np.int64] | None = None, draws: int = 1000, seed: int = 0
) -> Floats:
    """Return the column sums of `draws` resamples of the rows, [n, m] -> [draws, m]; rows of one
    group, [n], are drawn together.

    >>> resampled(np.ones((3, 1)), draws=2).tolist()
    [[3.0], [3.0]]
    """
    at = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(at.max()) + 1
    sums = np.stack([np.bincount(at, column, count) for column in values.T], 1)  # [g, m]
    generator = np.random.default_rng(seed)
    totals = []
    for size in _blocks(draws, count):
        drawn = generator.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        totals.append(times.astype(np.float64) @ sums)
    return np.concatenate(totals)


def interval(value: float, draws: Floats, confidence: float = 0.95) -> Difference:
    """Return a value with the percentile interval of its resamples."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Difference(value, float(low), float(high), confidence)


def sign_flip(a: Floats, b: Floats, draws: int = 10_000) -> float:
    """Return the two-sided p-value of the mean paired difference if each query's two systems are
    swapped at random.

    p = (1 + draws with |mean| as large) / (1 + draws): Fisher's randomisation test (Smucker et al.
    2007), which assumes no distribution of the differences.

    >>> sign_flip(np.ones(20), np.zeros(20)) < 0.001, sign_flip(np.ones(20), np.ones(20))
    (True, 1.0)
    """
    deltas = (a - b)[a != b]  # equal scores stay equal
    generator = np.random.default_rng(0)
    least = abs(deltas.sum()) * (1 - 1e-9)  # sums of the same numbers differ by rounding
    extreme = 0
    for size in _blocks(draws, len(deltas)):
        signs = generator.integers(0, 2, (size, len(deltas)), np.int8) * np.int8(2) - np.int8(1)
        extreme += int((np.abs(signs @ deltas) >= least).sum())
    return (1 + extreme) / (1 + draws)


def compare(
    a: Mapping[str, Floats], b: Mapping[str, Floats], draws: int = 10_000
) -> dict[str, Comparison]:
    """Compare two systems' scores of the same queries, metric by metric."""
    differences = bootstrap_metrics(a, b, draws)
    return {
        name: Comparison(differences[name], sign_flip(x, b[name], draws), len(x))
        for name, x in a.items()
    }


def _blocks(draws: int, width: int) -> list[int]:
    """Return sizes of blocks of draws that keep the memory small."""
    parts = np.array_split(np.empty(draws), max(1, draws * width // 1_000_000))
    return [len(part) for part in parts if len(part)]
