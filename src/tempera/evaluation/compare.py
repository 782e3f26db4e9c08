"""What a difference between two systems is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over queries, and the interval that holds it with the stated confidence."""

    mean: float
    low: float
    high: float
    confidence: float


def bootstrap(
    a: NDArray[np.float64], b: NDArray[np.float64], confidence: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Difference:
    """Percentile bootstrap of the mean paired difference (Efron and Tibshirani 1993, chapter 13).

    >>> difference = bootstrap(np.array([1.0, 0.5, 0.75]), np.array([0.0, 0.0, 0.25]))
    >>> round(difference.mean, 3), difference.low > 0
    (0.667, True)
    """
    deltas = a - b
    generator = np.random.default_rng(seed)
    # A resample is how often each query is drawn; 100 resamples at a time keep memory small.
    counts = (generator.multinomial(len(deltas), np.full(len(deltas), 1 / len(deltas)), 100) for _ in range(draws // 100))
    means = np.concatenate([count @ deltas for count in counts]) / len(deltas)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Difference(float(deltas.mean()), float(low), float(high), confidence)
