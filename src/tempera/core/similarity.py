"""Similarities of two embeddings: each one maps an embedding, and the inner products of the mapped
ones are the similarity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SHORTEST = 1e-12  # an embedding shorter than this has no direction


@dataclass(frozen=True)
class Similarity:
    """A similarity of all pairs that is an inner product of vectors, each made of one embedding.

    >>> cosine(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """

    name: str
    vectors: Callable[[Tensor], Tensor]  # embeddings [n, D] -> vectors [n, D], float32 or float64
    pullback: Callable[
        [Tensor, Tensor, Tensor], Tensor
    ]  # (embeddings, vectors, gradient of vectors) -> of embeddings

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Vectors of embeddings, [n, D] -> [n, D]."""
        return self.vectors(embeddings)


def exact(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _exact_pullback(embeddings: Tensor, vectors: Tensor, grad: Tensor) -> Tensor:
    return grad.to(embeddings.dtype)


def _lengths(embeddings: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(exact(embeddings), dim=1, keepdim=True)
    return lengths


def _unit(embeddings: Tensor) -> Tensor:
    unit: Tensor = exact(embeddings) / _lengths(embeddings).clamp_min_(SHORTEST)
    return unit


def _unit_pullback(embeddings: Tensor, vectors: Tensor, grad: Tensor) -> Tensor:
    """(g - u (u . g)) / |e|, in place of g; 0 where the embedding has no direction."""
    along = torch.linalg.vecdot(vectors, grad)[:, None]  # [n, 1]
    lengths = _lengths(embeddings)
    inverse = lengths.reciprocal().masked_fill_(lengths <= SHORTEST, 0)
    return grad.addcmul_(vectors, along, value=-1).mul_(inverse).to(embeddings.dtype)


# The inner product of embeddings as they are.
dot = Similarity("dot", exact, _exact_pullback)
# The inner product of embeddings scaled to length 1; a zero embedding stays zero and gets no
# gradient.
cosine = Similarity("cosine", _unit, _unit_pullback)
