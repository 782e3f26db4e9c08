"""Precisions of embeddings: the loss sees the numbers that an index keeps, while gradients pass
straight through the rounding.

Letters in shapes: n rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .similarity import exact, lengths

FLOAT32 = "float32"


def _int8(rows: Tensor) -> Tensor:
    steps = rows.abs().amax(1, keepdim=True) / 127
    return (rows / steps.clamp_min(torch.finfo(rows.dtype).tiny)).round() * steps


def _binary(rows: Tensor) -> Tensor:
    sizes = lengths(rows) / math.sqrt(rows.shape[1])
    return torch.where(rows > 0, sizes, -sizes)


ROUNDED: Mapping[str, Callable[[Tensor], Tensor]] = {"int8": _int8, "binary": _binary}


def at_precision(rows: Tensor, precision: str) -> Tensor:
    """Return embeddings rounded to a precision, [n, D], with the gradient of the embeddings
    themselves.

    float32: as they are. int8: whole multiples, from -127 to 127, of a 127th of the row's largest
    absolute number: nothing is calibrated or clipped, and a row's numbers depend on that row alone.
    binary: signs, in a vector of the same length. The gradient of the rounding is taken for 1 (the
    straight-through estimator: Bengio et al. 2013, section 4).

    Args:
        rows: embeddings, [n, D].
        precision: "float32", "int8" or "binary".

    >>> rows = torch.tensor([[3.0, -4.0, 0.015]], requires_grad=True)
    >>> [round(number, 4) for number in at_precision(rows, "int8")[0].tolist()]
    [2.9921, -4.0, 0.0]
    >>> (at_precision(rows, "binary") ** 2).sum().backward()  # of 25 / 3 each: the length stays
    >>> [round(grad, 4) for grad in rows.grad[0].tolist()]
    [5.7735, -5.7735, 5.7735]
    """
    if precision == FLOAT32:
        return rows
    rows = exact(rows)
    return ROUNDED[precision](rows.detach()) + (rows - rows.detach())
