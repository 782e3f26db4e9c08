"""What a mean and a difference between two systems are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over queries, and the interval that holds it with the stated confidence."""

    mean: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Comparison:
    """A difference between two systems, and the chance `p` of one as large if their names were given at random."""

    difference: Difference
    p: float
    queries: int

    @property
    def real(self) -> bool:
        """Whether the interval excludes 0 and the test rejects chance at the same level."""
        found = self.difference
        return not found.low <= 0 <= found.high and self.p < 1 - found.confidence + 1e-12

    def sentence(self, ours: str, theirs: str, metric: str) -> str:
        """The verdict in plain words.

        >>> Comparison(Difference(0.02, 0.01, 0.03, 0.95), 0.002, 300).sentence("a", "b", "ndcg@10")
        'a is better than b in ndcg@10 by 0.0200 (95 % interval 0.0100 to 0.0300, p = 0.0020, 300 queries)'
        """
        found = self.difference
        worse = self.real and found.mean < 0
        low, high = (-found.high, -found.low) if worse else (found.low, found.high)  # of what the sentence says
        facts = f"{100 * found.confidence:g} % interval {low:.4f} to {high:.4f}"
        facts += f", p = {self.p:.4f}, {self.queries:,} queries"
        if not self.real:
            return f"{ours} and {theirs} are not shown to differ in {metric}: {found.mean:+.4f} may be chance ({facts})"
        return (
            f"{ours} is {'worse' if worse else 'better'} than {theirs} in {metric} by {abs(found.mean):.4f} ({facts})"
        )

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self.difference), "p": self.p, "queries": self.queries, "real": self.real}


def bootstrap(
    a: Floats, b: Floats | None = None, confidence: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Difference:
    """Percentile bootstrap of the mean paired difference, or of a mean (Efron and Tibshirani 1993, chapter 13).

    >>> difference = bootstrap(np.array([1.0, 0.5, 0.75]), np.array([0.0, 0.0, 0.25]))
    >>> round(difference.mean, 3), difference.low > 0
    (0.667, True)
    """
    deltas = a if b is None else a - b
    generator = np.random.default_rng(seed)
    means = [
        deltas[generator.integers(0, len(deltas), (size, len(deltas)))].mean(1) for size in _blocks(draws, len(deltas))
    ]
    return interval(float(deltas.mean()), np.concatenate(means), confidence)


def bootstrap_columns(
    values: Floats, groups: NDArray[np.int64] | None = None, confidence: float = 0.95, draws: int = 1000, seed: int = 0
) -> list[Difference]:
    """Percentile bootstrap of the mean of each column, [n, m], from the same resamples of rows.

    Rows of one group, [n], such as the queries of one user, are drawn together: they are not independent, and drawn one by
    one they would seem to say more than they do (Davison and Hinkley 1997, section 3.8).

    >>> [found] = bootstrap_columns(np.array([[1.0], [1.0], [0.0]]), np.array([7, 7, 4]))
    >>> round(found.mean, 3), found.low, found.high
    (0.667, 0.0, 1.0)
    """
    totals = resampled(np.column_stack([values, np.ones(len(values))]), groups, draws, seed)
    means = totals[:, :-1] / totals[:, -1:]
    return [interval(mean, column, confidence) for mean, column in zip(values.mean(0).tolist(), means.T)]


def resampled(values: Floats, groups: NDArray[np.int64] | None = None, draws: int = 1000, seed: int = 0) -> Floats:
    """Sums of the columns of `draws` resamples of the rows, [n, m] -> [draws, m]; rows of one group, [n], come together.

    >>> resampled(np.ones((3, 1)), draws=2).tolist()
    [[3.0], [3.0]]
    """
    at = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(at.max()) + 1
    sums = np.stack([np.bincount(at, column, count) for column in values.T], 1)  # [g, m]
    generator, totals = np.random.default_rng(seed), []
    for size in _blocks(draws, count):
        drawn = generator.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
        totals.append(times @ sums)
    return np.concatenate(totals)


def interval(value: float, draws: Floats, confidence: float) -> Difference:
    """A value with the percentile interval of its resamples."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Difference(value, float(low), float(high), confidence)


def sign_flip(a: Floats, b: Floats, draws: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value of the mean paired difference when each query's two systems change places at random.

    p = (1 + draws with |mean| as large) / (1 + draws): Fisher's randomisation test (Smucker et al. 2007), which needs
    no distribution of the differences.

    >>> sign_flip(np.ones(20), np.zeros(20)) < 0.001, sign_flip(np.ones(20), np.ones(20))
    (True, 1.0)
    """
    deltas = (a - b)[a != b]  # equal scores stay equal
    generator = np.random.default_rng(seed)
    least = abs(deltas.sum()) * (1 - 1e-9)  # sums of the same numbers differ by rounding
    extreme = 0
    for size in _blocks(draws, len(deltas)):
        signs = generator.integers(0, 2, (size, len(deltas)), np.int8) * np.int8(2) - np.int8(1)
        extreme += int((np.abs(signs @ deltas) >= least).sum())
    return (1 + extreme) / (1 + draws)


def compare(a: Mapping[str, Floats], b: Mapping[str, Floats], draws: int = 10_000) -> dict[str, Comparison]:
    """Two systems' scores of the same queries, metric by metric."""
    return {
        name: Comparison(bootstrap(x, b[name], draws=draws), sign_flip(x, b[name], draws), len(x))
        for name, x in a.items()
    }


def _blocks(draws: int, width: int) -> list[int]:
    """Sizes of blocks of draws, so that memory stays small however many there are."""
    parts = np.array_split(np.empty(draws), max(1, draws * width // 1_000_000))
    return [len(part) for part in parts if len(part)]
