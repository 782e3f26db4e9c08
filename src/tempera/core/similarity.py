"""How two embeddings are compared: a map of each embedding whose inner products are the similarity."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Similarity = Callable[[Tensor], Tensor]


def exact(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def dot(emb: Tensor) -> Tensor:
    """Inner product: embeddings as they are, [n, D] -> [n, D]."""
    return exact(emb)


def cosine(emb: Tensor) -> Tensor:
    """Cosine: embeddings scaled to length 1, [n, D] -> [n, D]; a zero embedding stays zero.

    >>> cosine(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    return F.normalize(exact(emb), dim=-1)
