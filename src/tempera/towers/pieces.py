"""Vectors to begin with: a model's vectors of single tokens (Model2Vec, Tulkens and van Dongen
2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WEIGHT = 1e-3  # a of a / (a + p): tokens of a higher frequency p count less (Arora et al. 2017)


@dataclass(frozen=True)
class Trained:
    """Vectors of v tokens of a static model, to go on with."""

    table: Tensor  # [v, D]

    def vectors(self, dimensions: int) -> Tensor:
        """Return a copy of the vectors; no other width is possible."""
        assert dimensions == self.table.shape[1]
        return self.table.clone()


@dataclass(frozen=True)
class Pieces:
    """Vectors of v tokens by a model, and how often each token stands in the texts.

    >>> pieces = Pieces(torch.tensor([[1.0, 2.0], [3.0, 2.0], [2.0, 5.0]]), torch.tensor([900, 50, 50]))
    >>> [round(length, 2) for length in pieces.vectors(2).norm(dim=1).tolist()]
    [0.06, 1.0, 1.41]
    """

    read: Tensor  # [v, T]
    counts: Tensor  # [v]

    def vectors(self, dimensions: int) -> Tensor:
        """Return vectors of the tokens, [v, D], of mean square length 1.

        The vectors are the D principal components of the model's vectors less the mean, times a /
        (a + p) with p the token's frequency.
        """
        centred = (self.read - self.read.mean(0)).double()
        _, axes = torch.linalg.eigh(centred.T @ centred)
        p = self.counts / self.counts.sum()
        vectors: Tensor = centred @ axes[:, -dimensions:].flip(1) * (WEIGHT / (WEIGHT + p))[:, None]
        vectors /= vectors.square().sum(1).mean().sqrt()
        return vectors.float()
