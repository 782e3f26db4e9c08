"""Semantic textual similarity: correlation of similarities with the grades of people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ranking.compare import Comparison, Difference, interval
from ...ranking.spread import ranks

Floats = NDArray[np.float64]
METRICS = ("spearman", "pearson")


def pearson(a: Floats, b: Floats) -> float:
    """Return Pearson's correlation; 0 where one side does not vary."""
    x = a - a.mean()
    y = b - b.mean()
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / size if size > 0 else 0.0


def spearman(a: Floats, b: Floats) -> float:
    """Return Spearman's correlation, which is Pearson's of the ranks.

    >>> spearman(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.2, 0.3]))
    1.0
    """
    return pearson(ranks(a), ranks(b))


_DRAWS = 1000  # of the bootstrap, and of the permutation test
_MEASURES: dict[str, Callable[[Floats, Floats], float]] = {"spearman": spearman, "pearson": pearson}


@dataclass(frozen=True)
class Agreement:
    """Similarities of pairs, [n], and people's grades of these pairs, [n].

    Args:
        called: name of the similarity.
    """

    similarities: Floats
    grades: Floats
    called: str = "cosine"

    @property
    def per_query(self) -> dict[str, Floats]:
        """The similarity of each pair."""
        return {self.called: self.similarities}

    @property
    def metrics(self) -> dict[str, float]:
        """Spearman's and Pearson's correlation."""
        return {
            name: measure(self.similarities, self.grades) for name, measure in _MEASURES.items()
        }

    def intervals(self) -> dict[str, Difference]:
        """Return intervals by percentile bootstrap over pairs."""
        return {
            name: interval(measure(self.similarities, self.grades), self._draws(measure, _DRAWS))
            for name, measure in _MEASURES.items()
        }

    def against(self, other: Agreement, draws: int = _DRAWS) -> dict[str, Comparison]:
        """Return the differences between the correlations and another system's correlations on the
        same pairs."""
        comparisons = {}
        for name, measure in _MEASURES.items():
            mine = measure(self.similarities, self.grades)
            theirs = measure(other.similarities, other.grades)
            # Both systems are drawn on the same resamples.
            deltas = self._draws(measure, draws) - other._draws(measure, draws)
            p = _p_value(
                _scaled(self.similarities, name),
                _scaled(other.similarities, name),
                _scaled(self.grades, name),
                draws,
            )
            comparisons[name] = Comparison(interval(mine - theirs, deltas), p, len(self.grades))
        return comparisons

    def _draws(self, measure: Callable[[Floats, Floats], float], draws: int) -> Floats:
        """Return the correlation of each bootstrap resample of the pairs."""
        generator = np.random.default_rng(0)
        n = len(self.grades)
        values = np.empty(draws)
        for draw in range(draws):
            rows = generator.integers(0, n, n)
            values[draw] = measure(self.similarities[rows], self.grades[rows])
        return values


def _scaled(side: Floats, name: str) -> Floats:
    """Return similarities or grades, or for Spearman their ranks, with mean 0 and deviation 1, so
    that two systems may exchange their similarities."""
    if name == "spearman":
        side = ranks(side)
    scaled: Floats = (side - side.mean()) / (side.std() or 1.0)
    return scaled


def _p_value(a: Floats, b: Floats, grades: Floats, draws: int) -> float:
    """Return the two-sided p-value of the difference in correlation, by a permutation test that
    exchanges the systems at random, pair by pair."""
    generator = np.random.default_rng(0)
    least = abs(pearson(a, grades) - pearson(b, grades)) * (1 - 1e-9)
    extreme = 0
    for _ in range(draws):
        swap = generator.integers(0, 2, len(a)).astype(bool)
        x = np.where(swap, b, a)
        y = np.where(swap, a, b)
        extreme += abs(pearson(x, grades) - pearson(y, grades)) >= least
    return (1 + extreme) / (1 + draws)
