"""Vectors to begin with: tokens with common character n-grams begin near each other (Bojanowski et
al. 2017)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arithmetic.ragged import Ragged

SIZES = (3, 4, 5, 6)  # letters of an n-gram, with a mark at each end of the token
# The part of a token's vector that its n-grams decide. On validation, 0.3 is below 0.5, and 0.5 to
# 0.9 are alike.
SHARE = 0.7
_COLUMNS = 64  # columns of all n-grams' vectors that are in memory at once


@dataclass(frozen=True)
class Subwords:
    """The character n-grams of at least two of v tokens.

    Args:
        grams: number of each n-gram, token by token; v rows.
        weights: of each n-gram by its number: log((v + 1) / (tokens that hold it + 0.5)).

    >>> tokens = ["cell", "cells", "date"]
    >>> vectors = Subwords.of(tokens).vectors(400)
    >>> nearness = vectors @ vectors.T
    >>> bool(nearness[0, 1] > 0.4 > 0.2 > nearness[0, 2])
    True
    """

    grams: Ragged
    weights: Tensor
    _drawn: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, tokens: Sequence[str]) -> Subwords:
        """Find the n-grams of tokens."""
        grams_of_tokens = [ngrams(token) for token in tokens]
        holders = Counter[str]()
        for grams in grams_of_tokens:
            holders.update(grams.keys())
        shared = [gram for gram, tokens_with_gram in holders.items() if tokens_with_gram > 1]
        numbers = {gram: number for number, gram in enumerate(shared)}
        rows = [[numbers[gram] for gram in grams if gram in numbers] for grams in grams_of_tokens]
        counts = torch.tensor([holders[gram] for gram in shared], dtype=torch.float32)
        weights = ((len(tokens) + 1) / (counts + 0.5)).log()
        return cls(Ragged.of(rows), weights)

    def vectors(self, dimensions: int) -> Tensor:
        """Draw a unit vector for each token, [v, D]: sqrt(0.3) times a random unit vector, plus
        sqrt(0.7) times the sum of the vectors of the token's n-grams."""
        vectors = torch.randn(len(self.grams), dimensions)
        F.normalize(vectors, out=vectors)
        vectors.mul_(math.sqrt(1 - SHARE)).add_(self._sums(dimensions), alpha=math.sqrt(SHARE))
        return F.normalize(vectors, out=vectors)

    def _sums(self, dimensions: int) -> Tensor:
        """Return the vectors that `_draw` returns, drawn once for the towers of a run."""
        if dimensions not in self._drawn:
            self._drawn.clear()
            self._drawn[dimensions] = self._draw(dimensions)
        return self._drawn[dimensions]

    def _draw(self, dimensions: int) -> Tensor:
        """Return unit vectors of the weighted sums of the n-grams' vectors, [v, D].

        The n-grams' vectors are the same under every seed.
        """
        if not len(self.weights):
            return torch.zeros(len(self.grams), dimensions)
        generator = torch.Generator().manual_seed(0)
        starts = self.grams.offsets[:-1]
        parts = []
        for first in range(0, dimensions, _COLUMNS):
            columns = min(_COLUMNS, dimensions - first)
            table = torch.randn(len(self.weights), columns, generator=generator)
            table *= self.weights[:, None]
            parts.append(F.embedding_bag(self.grams.values, table, starts, mode="sum"))
        return F.normalize(torch.cat(parts, 1))


def ngrams(token: str) -> dict[str, None]:
    """Return the distinct n-grams of a token, in order.

    >>> list(ngrams("cat"))
    ['<ca', 'cat', 'at>', '<cat', 'cat>', '<cat>']
    """
    marked = f"<{token}>"
    grams: dict[str, None] = {}
    for size in SIZES:
        for first in range(len(marked) - size + 1):
            grams[marked[first : first + size]] = None
    return grams
