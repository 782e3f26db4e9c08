"""Tables of vectors that are looked up by number: of ids, categories, words."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Table(nn.Embedding):
    """Vectors of which a batch reads few, [rows, D].

    With `sparse`, which training sets for an optimiser that wants it, gradients hold the rows that were read instead of all.

    >>> table = Table(1_000_000, 2, sparse=True)
    >>> table.mean_of(torch.tensor([7, 7, 5]), torch.tensor([0, 2])).sum().backward()
    >>> grad = table.weight.grad.coalesce()
    >>> grad.indices().tolist(), grad.values().tolist()
    ([[5, 7]], [[1.0, 1.0], [1.0, 1.0]])
    """

    lookup: Callable[[Tensor], Tensor] | None = (
        None  # takes the place of its own where rows are divided among processes
    )

    def forward(self, rows: Tensor) -> Tensor:
        """Return vectors of rows, [..., D]."""
        return super().forward(rows) if self.lookup is None else self.lookup(rows)

    def mean_of(self, rows: Tensor, starts: Tensor) -> Tensor:
        """The means of bags of vectors, [n, D]; 0 for an empty bag.

        Args:
            rows: of all bags, one after the other.
            starts: where each bag begins among them, [n].
        """
        if not self.sparse and self.lookup is None:
            return F.embedding_bag(rows, self.weight, starts, mode="mean")
        # Each row once: a gradient has one vector for what was read, not one for each time.
        distinct, which = torch.unique(rows, return_inverse=True)
        return F.embedding_bag(which, self(distinct), starts, mode="mean")
