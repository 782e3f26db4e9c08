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
    # Blocks of resamples, so that memory stays small however many there are.
    blocks = np.array_split(np.empty(draws), max(1, draws * len(deltas) // 1_000_000))
    means = [deltas[generator.integers(0, len(deltas), (len(block), len(deltas)))].mean(1) for block in blocks]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Difference(float(deltas.mean()), float(low), float(high), confidence)
