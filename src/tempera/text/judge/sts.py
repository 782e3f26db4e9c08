"""Semantic textual similarity: correlation of similarities with the grades that people gave."""

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
    x, y = a - a.mean(), b - b.mean()
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / size if size > 0 else 0.0


def spearman(a: Floats, b: Floats) -> float:
    """Return Spearman's correlation, which is Pearson's of the ranks.

    >>> spearman(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.2, 0.3]))
    1.0
    """
    return pearson(ranks(a), ranks(b))


_DRAWS = 1000  # of the bootstrap, and of the systems that change places
_MEASURES: dict[str, Callable[[Floats, Floats], float]] = {"spearman": spearman, "pearson": pearson}


@dataclass(frozen=True)
class Agreement:
    """Similarities of pairs, [n], and the grades that people gave them, [n].

    Args:
        called: the name of the similarity.
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
        """Return the correlations less those of another system on the same pairs."""
        comparisons = {}
        for name, measure in _MEASURES.items():
            mean = measure(self.similarities, self.grades) - measure(
                other.similarities, other.grades
            )
            deltas = self._draws(measure, draws) - other._draws(
                measure, draws
            )  # of the same resamples
            p = _swapped(*self._scaled(name), other._scaled(name)[0], draws)
            comparisons[name] = Comparison(interval(mean, deltas), p, len(self.grades))
        return comparisons

    def _draws(self, measure: Callable[[Floats, Floats], float], draws: int) -> Floats:
        generator, n = np.random.default_rng(0), len(self.grades)
        rows = (generator.integers(0, n, n) for _ in range(draws))
        return np.array([measure(self.similarities[row], self.grades[row]) for row in rows])

    def _scaled(self, name: str) -> tuple[Floats, Floats]:
        """Return similarities and grades, or their ranks, with mean 0 and deviation 1, so that two
        systems may exchange them."""
        sides = (
            ranks(side) if name == "spearman" else side for side in (self.similarities, self.grades)
        )
        similarities, grades = ((side - side.mean()) / (side.std() or 1.0) for side in sides)
        return similarities, grades


def _swapped(a: Floats, grades: Floats, b: Floats, draws: int) -> float:
    """Return the two-sided p-value of the difference in correlation when the systems change places,
    pair by pair, at random."""
    generator = np.random.default_rng(0)
    least = abs(pearson(a, grades) - pearson(b, grades)) * (1 - 1e-9)
    extreme = 0
    for _ in range(draws):
        swap = generator.integers(0, 2, len(a)).astype(bool)
        x, y = np.where(swap, b, a), np.where(swap, a, b)
        extreme += abs(pearson(x, grades) - pearson(y, grades)) >= least
    return (1 + extreme) / (1 + draws)
