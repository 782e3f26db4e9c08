"""Maps from a similarity to the probability of relevance: a logistic curve, or any increasing
function.

Letters in shapes: n pairs, u distinct scores, b blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_STEPS = 100  # limit of Newton's method, which takes about ten


@dataclass(frozen=True)
class Logistic:
    """P = 1 / (1 + exp(-(slope * score + intercept))).

    A similarity that rises by 1 / slope multiplies the odds by e.
    """

    slope: float
    intercept: float

    def __call__(self, scores: Floats) -> Floats:
        """Return the probabilities of scores."""
        return _sigmoid(self.slope * np.asarray(scores, np.float64) + self.intercept)

    @classmethod
    def fit(cls, scores: Floats, relevant: Mask) -> Logistic:
        """Fit the curve of the lowest log loss with Platt's targets, [n] each.

        The targets are (r + 1) / (r + 2) for the r relevant pairs and 1 / (w + 2) for the w others
        instead of 1 and 0, so that separable pairs have a finite curve (Platt 1999). Newton's
        method halves a step that does not descend (Lin, Lin and Weng 2007).

        >>> curve = Logistic.fit(np.array([0.1, 0.2, 0.7, 0.9]), np.array([False, False, True, True]))
        >>> curve(np.array([0.1, 0.5, 0.9])).round(2).tolist()
        [0.23, 0.52, 0.8]
        """
        right = int(relevant.sum())
        wrong = len(relevant) - right
        target = np.where(relevant, (right + 1) / (right + 2), 1 / (wrong + 2))
        middle = float(scores.mean())
        width = float(scores.std()) or 1.0
        x = np.stack([(scores - middle) / width, np.ones(len(scores))])  # [2, n]
        at = np.array([0.0, np.log((right + 1) / (wrong + 1))])  # slope and intercept for x

        def loss(place: Floats) -> float:
            z = place @ x
            return float((np.logaddexp(0, z) - target * z).sum())

        for _ in range(_STEPS):
            p = _sigmoid(at @ x)
            gradient = x @ (p - target)
            hessian = (x * (p * (1 - p))) @ x.T + 1e-12 * np.eye(2)
            step = np.linalg.solve(hessian, gradient)
            descent = 1e-4 * float(gradient @ step)
            before = loss(at)
            share = 1.0
            while share > 1e-10 and loss(at - share * step) > before - share * descent:
                share /= 2
            at = at - share * step
            if np.abs(gradient).max() < 1e-9 * len(scores) or share <= 1e-10:
                break
        return cls(float(at[0]) / width, float(at[1] - at[0] * middle / width))


@dataclass(frozen=True)
class Isotonic:
    """Probabilities that rise with the score: linear between the knots, and level beyond the first
    and the last."""

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __call__(self, scores: Floats) -> Floats:
        """Return the probabilities of scores."""
        probabilities: Floats = np.interp(scores, self.scores, self.probabilities)
        return probabilities

    @classmethod
    def fit(cls, scores: Floats, relevant: Mask) -> Isotonic:
        """Fit the increasing function with the least squared error, [n] each (Zadrozny and Elkan
        2002).

        The lowest score gets an extra relevant pair and the highest an extra irrelevant one, so
        that no probability is 0 or 1: a block of m equal pairs at an end gets 1 / (m + 1) or m / (m
        + 1).
        """
        distinct, at = np.unique(scores, return_inverse=True)
        weight = np.bincount(at).astype(np.float64)
        right = np.bincount(at, relevant)
        right[0] += 1
        np.add.at(weight, [0, -1], 1)  # both ends may be the same score
        first, value = rising(right / weight, weight)
        last = np.append(first[1:], len(distinct)) - 1
        knots, place = np.unique(np.concatenate([first, last]), return_index=True)
        probabilities = np.concatenate([value, value])[place]
        return cls(tuple(distinct[knots].tolist()), tuple(probabilities.tolist()))


Map = Logistic | Isotonic
MAPS: dict[str, Callable[[Floats, Mask], Map]] = {
    "logistic": Logistic.fit,
    "isotonic": Isotonic.fit,
}


def constant(scores: Floats, relevant: Mask) -> Logistic:
    """Return the map of every score to the share of relevant pairs: the baseline of a map."""
    right = int(relevant.sum())
    wrong = len(relevant) - right
    return Logistic(0.0, float(np.log((right + 1) / (wrong + 1))))


def rising(values: Floats, weight: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the nearest increasing values by weighted squares, as the starts and values of blocks
    of equal values, [b] each.

    Decreasing neighbours are replaced by their mean until all values increase (Ayer et al. 1955).

    >>> [part.tolist() for part in rising(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4))]
    [[0, 1, 3], [1.0, 2.5, 4.0]]
    """
    from scipy.optimize import isotonic_regression  # takes a second, which other commands need not

    fit = isotonic_regression(values, weights=weight)
    return fit.blocks[:-1], fit.x[fit.blocks[:-1]]


def _sigmoid(z: Floats) -> Floats:
    p: Floats = np.exp(-np.logaddexp(0, -z))  # neither overflows nor rounds small values to 0
    return p
