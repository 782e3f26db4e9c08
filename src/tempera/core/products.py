"""Products of rows and weights in half precision, as linear layers make them.

Letters in shapes: m rows, k inputs, o outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows times weights, and a bias: [m, k], [o, k] and [o] to [m, o].

    On a CPU oneDNN adds the bias as it multiplies. torch copies it to every row first, by which a layer of MiniLM takes 1.1 to 1.2
    times as long.

    >>> linear(torch.ones(1, 2), torch.ones(3, 2), torch.ones(3)).tolist()
    [[3.0, 3.0, 3.0]]
    """
    return (F.linear if bias is None or rows.device.type != "cpu" else _adding())(rows, weight, bias)


@lru_cache
def _adding() -> Callable[..., Tensor]:
    """Return oneDNN's linear layer, which torch's compiler takes, too; or torch's, where there is no other."""
    try:
        adding: Any = torch.ops.mkldnn._linear_pointwise
        one = torch.ones(1, 1, dtype=torch.bfloat16)
        if adding(one, one, one[0], "none", [], "").item() == 2:
            return lambda rows, weight, bias: adding(rows, weight, bias, "none", [], "")
    except (AttributeError, RuntimeError):  # another version of torch, or a build without oneDNN
        pass
    return F.linear


class LastRows:
    """Keeps what was made of the rows that came last, for the next layer that reads the same ones: queries, keys and values do.

    >>> last, rows = LastRows(lambda rows: rows + 1), torch.zeros(2)
    >>> last.of(rows) is last.of(rows)
    True
    >>> _ = rows.add_(1)
    >>> last.of(rows).tolist()
    [2.0, 2.0]
    """

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self.make = make
        self.rows: Tensor | None = None
        self.made: Tensor | None = None
        self.version = -1

    def of(self, rows: Tensor) -> Tensor:
        """Return what is made of rows, by now."""
        if rows.is_inference():  # whose changes are not counted
            return self.make(rows)
        if self.made is None or rows is not self.rows or rows._version != self.version:
            self.rows, self.version, self.made = rows, rows._version, self.make(rows)
        return self.made
