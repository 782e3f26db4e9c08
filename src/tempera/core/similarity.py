"""Similarities of two embeddings: a similarity maps each embedding to a vector, and is the inner
product of two vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Lengths between which the squares of an embedding's numbers neither overflow in float32 nor vanish
# so that it would show in their sum.
_SHORT, _LONG = 2.0**-50, 2.0**60
_SHORTEST = torch.finfo(torch.float32).tiny  # length in place of 0


@dataclass(frozen=True)
class Similarity:
    """A similarity of all pairs that is an inner product of vectors, each made of one embedding.

    >>> cosine(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """

    name: str
    vectors: Callable[[Tensor], Tensor]  # embeddings [n, D] -> vectors [n, D], float32 or float64
    # (embeddings, vectors, gradient of vectors) -> gradient of embeddings
    pullback: Callable[[Tensor, Tensor, Tensor], Tensor]

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Vectors of embeddings, [n, D] -> [n, D]."""
        return self.vectors(embeddings)


def exact(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _exact_pullback(embeddings: Tensor, vectors: Tensor, grad: Tensor) -> Tensor:
    return grad.to(embeddings.dtype)


def lengths(embeddings: Tensor) -> Tensor:
    """Return the lengths of embeddings, [n, 1], even if their squares overflow or vanish.

    >>> round(float(lengths(torch.tensor([[3e30, 4e30]]))) / 1e30, 3)
    5.0
    """
    x, _, powers = scaled(embeddings)
    sizes: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return sizes if powers is None else sizes * powers


def scaled(embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return embeddings over powers of 2, [n, D], so that their squares can be added; their lengths
    after the division, infinity in place of 0, [n, 1]; and the powers, [n, 1], or None if all are 1.

    A division by a power of 2 rounds nothing: the direction of an embedding of an ordinary length
    has the same bits with the division and without. The division is left out where all lengths are
    ordinary, and on other devices than a CPU, where it would double the launches of the loss.
    """
    x = exact(embeddings)
    sizes: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if x.device.type != "cpu":  # where each further operation costs a launch
        return x, sizes.masked_fill(sizes == 0, math.inf), None
    if _are_ordinary(sizes):
        return x, sizes, None
    with torch.no_grad():
        limits = torch.finfo(x.dtype)
        largest = torch.linalg.vector_norm(x, math.inf, dim=1, keepdim=True)
        exponents = largest.clamp_min_(limits.tiny).log2_().floor_()
        powers = exponents.clamp_max_(math.frexp(limits.max)[1] - 1).exp2_()
    x = x / powers
    sizes = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x, sizes.masked_fill(sizes == 0, math.inf), powers


def _are_ordinary(sizes: Tensor) -> bool:
    """Return True if the lengths of all embeddings, on a CPU, are ordinary."""
    sizes = sizes.detach()
    if not len(sizes) or type(sizes) is not Tensor:  # the tensors of a plan have no numbers
        return True
    shortest, longest = sizes.aminmax()
    return shortest.item() > _SHORT and longest.item() < _LONG


def _unit(embeddings: Tensor) -> Tensor:
    if embeddings.device.type != "cpu":  # where a comparison with 0 costs a launch
        x = exact(embeddings)
        sizes: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / sizes.clamp_min_(_SHORTEST)
    x, sizes, _ = scaled(embeddings)
    return x / sizes


def _unit_pullback(embeddings: Tensor, vectors: Tensor, grad: Tensor) -> Tensor:
    """(g - u (u . g)) / |e|, in place of g; 0 where the embedding has no direction."""
    along = torch.linalg.vecdot(vectors, grad)[:, None]  # [n, 1]
    _, sizes, powers = scaled(embeddings)
    inverse = sizes.reciprocal()
    if powers is not None:
        inverse /= powers
    return grad.addcmul_(vectors, along, value=-1).mul_(inverse).to(embeddings.dtype)


# The inner product of embeddings as they are.
dot = Similarity("dot", exact, _exact_pullback)
# The inner product of embeddings scaled to length 1, however long they are; a zero embedding stays
# zero and gets no gradient.
cosine = Similarity("cosine", _unit, _unit_pullback)
