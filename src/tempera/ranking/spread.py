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
    """Cosines of true pairs and of random pairs, and their separation."""

    pairs: Floats  # [n]
    random: Floats  # [n]
    sides: tuple[Floats, ...] = ()  # vectors, [n, D] each, to search for a collapse

    @cached_property
    def rank(self) -> float:
        """The lowest effective rank of the sides."""
        return min(map(effective_rank, self.sides), default=np.inf)

    @property
    def collapsed(self) -> str | None:
        """The sign of a collapse, or None: 95 % of the random pairs have a cosine above 0.99, or
        the rank is near 1."""
        if len(self.random) > 1:
            low = float(np.quantile(self.random, 0.05))
            if low > ALIKE:
                return f"95 % of the random pairs have a cosine above {low:.4f}"
        most = min((min(side.shape) for side in self.sides), default=1)
        flat = 1 + FLAT * (most - 1)
        may_be_flat = any(least_rank(side) < flat for side in self.sides)  # cheaper than the rank
        if may_be_flat and self.rank < flat:
            zero = "" if self.rank else ": all are zero"
            return f"their effective rank is {self.rank:.2f} of {most}{zero}"
        return None

    @property
    def auc(self) -> float:
        """The probability that a pair is more similar than a random pair (Mann and Whitney 1947);
        ties count half."""
        n = len(self.pairs)
        ranks_of_pairs = ranks(np.concatenate([self.pairs, self.random]))[:n]
        u = ranks_of_pairs.sum() - n * (n + 1) / 2
        return float(u / (n * len(self.random)))

    def summary(self) -> dict[str, float]:
        """Return quantiles of the cosines, the area under the curve, and the effective rank if the
        vectors are known."""
        summary = {}
        for name, cosines in (("pairs", self.pairs), ("random", self.random)):
            for q in (5, 50, 95):
                summary[f"{name}_{q}%"] = float(np.quantile(cosines, q / 100))
        summary["auc"] = self.auc
        if np.isfinite(self.rank):
            summary["effective_rank"] = self.rank
        return summary


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return ranks from 1, [n]; equal values share the mean of their ranks.

    >>> ranks(np.array([0.5, 0.1, 0.5])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return shared


def spread(queries: Floats, docs: Floats, seed: int = 0) -> Spread:
    """Return the spread of pairs of unit vectors, [n, D] each; each query is also paired with one
    random other document."""
    n = len(queries)
    shift = np.random.default_rng(seed).integers(1, max(2, n), n)
    other = (np.arange(n) + shift) % n
    pairs = (queries * docs).sum(1)
    random = (queries * docs[other]).sum(1)
    return Spread(pairs, random, (queries, docs))


def normalised(vectors: Floats) -> Floats:
    """Return vectors with length 1, [n, D]; vectors of zeros stay zeros.

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

    The rank is from 1, all on one line, to min(n, D), or 0 if all vectors are zero (Roy and
    Vetterli 2007, eq. 3 and 4).

    >>> [round(effective_rank(np.float32(x)), 4) for x in (np.eye(3), np.ones((3, 2)), np.zeros((2, 2)))]
    [3.0, 1.0, 0.0]
    """
    sigma = np.sqrt(np.linalg.eigvalsh(_gram(vectors)).clip(0))
    p = sigma[sigma > 0] / max(sigma.sum(), np.finfo(np.float64).tiny)
    if not len(p):
        return 0.0
    return float(np.exp(-(p * np.log(p)).sum()))


def least_rank(vectors: Floats) -> float:
    """Return a lower bound of the effective rank, at a fifth of its cost: sum(sigma_k^2)^2 /
    sum(sigma_k^4).

    Entropy is not below the entropy of order 2, whose rank is sum(sigma)^2 / sum(sigma^2), and
    sum(sigma) is at least sum(sigma^2)^(3/2) / sum(sigma^4)^(1/2) (Hoelder).

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
