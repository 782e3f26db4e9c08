"""Cosines of pairs beside those of random pairs, and signs of collapsed embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ALIKE = 0.99  # vectors with a higher cosine cannot be told apart by a search
# share of the dimensions below which the vectors lie on a line or two; healthy runs were above 0.5
FLAT = 0.02


@dataclass(frozen=True)
class Spread:
    """Cosines of true pairs and of random pairs, and how well they separate."""

    pairs: Floats  # [n]
    random: Floats  # [n]
    sides: tuple[Floats, ...] = ()  # vectors whose rank tells of a collapse, [n, D] each

    @cached_property
    def rank(self) -> float:
        """The lowest effective rank of the sides."""
        return min(map(effective_rank, self.sides), default=np.inf)

    @property
    def collapsed(self) -> str | None:
        """Return the sign of a collapse, or None: 95 % of the random pairs have a cosine above
        0.99, or the rank is near 1."""
        if len(self.random) > 1 and (low := float(np.quantile(self.random, 0.05))) > ALIKE:
            return f"95 % of the random pairs have a cosine above {low:.4f}"
        most = min((min(side.shape) for side in self.sides), default=1)
        flat = 1 + FLAT * (most - 1)
        if any(least_rank(side) < flat for side in self.sides) and self.rank < flat:
            return f"their effective rank is {self.rank:.2f} of {most}" + (
                "" if self.rank else ": all are zero"
            )
        return None

    @property
    def auc(self) -> float:
        """Return the probability that a pair is more similar than a random pair (Mann and Whitney
        1947); ties count half."""
        n = len(self.pairs)
        return float(
            (ranks(np.concatenate([self.pairs, self.random]))[:n].sum() - n * (n + 1) / 2)
            / (n * len(self.random))
        )

    def summary(self) -> dict[str, float]:
        """Return quantiles of both, the area under the curve, and the effective rank if it is
        known."""
        named = {"pairs": self.pairs, "random": self.random}
        quantiles = {
            f"{name}_{q}%": float(np.quantile(v, q / 100))
            for name, v in named.items()
            for q in (5, 50, 95)
        }
        rank = {"effective_rank": self.rank} if np.isfinite(self.rank) else {}
        return {**quantiles, "auc": self.auc, **rank}


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return ranks from 1, equal values sharing the mean of theirs, [n].

    >>> ranks(np.array([0.5, 0.1, 0.5])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return shared


def spread(queries: Floats, docs: Floats, seed: int = 0) -> Spread:
    """Return the spread of unit vectors, [n, D] each, of which row i is a pair; each query also
    gets one random other document."""
    n = len(queries)
    other = (np.arange(n) + np.random.default_rng(seed).integers(1, max(2, n), n)) % n
    return Spread((queries * docs).sum(1), (queries * docs[other]).sum(1), (queries, docs))


def normalised(vectors: Floats) -> Floats:
    """Return vectors with length 1, [n, D]; 0 for those that are 0.

    >>> normalised(np.array([[3.0, 4.0], [0.0, 0.0]])).round(2).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
    unit: Floats = vectors / np.maximum(lengths, 1e-12)
    return unit


def effective_rank(vectors: Floats) -> float:
    """Return exp of the entropy of the singular values' shares: the number of dimensions that
    vectors, [n, D], occupy.

        p_k = sigma_k / sum(sigma),    rank = exp(-sum p_k log p_k)

    It is from 1, all on one line, to min(n, D), or 0 if all vectors are zero (Roy and Vetterli
    2007, eq. 3 and 4).

    >>> [round(effective_rank(np.float32(x)), 4) for x in (np.eye(3), np.ones((3, 2)), np.zeros((2, 2)))]
    [3.0, 1.0, 0.0]
    """
    sigma = np.sqrt(np.linalg.eigvalsh(_gram(vectors)).clip(0))
    p = sigma[sigma > 0] / max(sigma.sum(), np.finfo(np.float64).tiny)
    return float(np.exp(-(p * np.log(p)).sum())) if len(p) else 0.0


def least_rank(vectors: Floats) -> float:
    """Return a bound that the effective rank is not below, at a fifth of its cost: sum(sigma_k^2)^2
    / sum(sigma_k^4).

    Entropy is not below that of order 2, whose rank is sum(sigma)^2 / sum(sigma^2), and sum(sigma)
    is at least sum(sigma^2)^(3/2) / sum(sigma^4)^(1/2) (Hoelder).

    >>> [round(least_rank(np.float32(x)), 4) for x in (np.eye(3), np.ones((3, 2)), np.zeros((2, 2)))]
    [3.0, 1.0, 0.0]
    """
    gram = _gram(vectors)
    return float(gram.trace() ** 2 / max(float(np.square(gram).sum()), np.finfo(np.float64).tiny))


def _gram(vectors: Floats) -> NDArray[np.float64]:
    """Return the smaller matrix of products, whose eigenvalues are the squares of the singular
    values."""
    x = vectors.astype(np.float64)
    gram: NDArray[np.float64] = x.T @ x if len(x) > x.shape[1] else x @ x.T
    return gram
