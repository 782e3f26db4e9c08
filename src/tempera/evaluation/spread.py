"""How similarities are spread: pairs against random pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Spread:
    """Cosines of true pairs and of random pairs, and how well they separate."""

    pairs: Floats  # [n]
    random: Floats  # [n]

    @property
    def auc(self) -> float:
        """The chance that a pair is more similar than a random pair (Mann and Whitney 1947); ties count half."""
        values = np.concatenate([self.pairs, self.random])
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
        n = len(self.pairs)
        return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * len(self.random)))

    def summary(self) -> dict[str, float]:
        """Quantiles of both and the area under the curve."""
        named = {"pairs": self.pairs, "random": self.random}
        quantiles = {f"{name}_{q}%": float(np.quantile(v, q / 100)) for name, v in named.items() for q in (5, 50, 95)}
        return {**quantiles, "auc": self.auc}


def spread(queries: Floats, docs: Floats, seed: int = 0) -> Spread:
    """Spread of unit vectors, row i of both being a pair, [n, D] each; each query is also given one random other row."""
    n = len(queries)
    other = (np.arange(n) + np.random.default_rng(seed).integers(1, max(2, n), n)) % n
    return Spread((queries * docs).sum(1), (queries * docs[other]).sum(1))
