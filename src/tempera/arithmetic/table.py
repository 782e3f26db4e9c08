"""Tables of vectors that are looked up by number: of ids, categories, words."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Table(nn.Embedding):
    """Vectors, [rows, D], of which a batch reads few.

    With `sparse`, which training sets for an optimiser of sparse gradients, gradients hold the rows
    that were read instead of all.

    >>> table = Table(1_000_000, 2, sparse=True)
    >>> table.mean_of(torch.tensor([7, 7, 5]), torch.tensor([0, 2])).sum().backward()
    >>> grad = table.weight.grad.coalesce()
    >>> grad.indices().tolist(), grad.values().tolist()
    ([[5, 7]], [[1.0, 1.0], [1.0, 1.0]])
    """

    # Takes the place of the table's own lookup where rows are divided among processes.
    lookup: Callable[[Tensor], Tensor] | None = None

    def forward(self, rows: Tensor) -> Tensor:
        """Return vectors of rows, [..., D]."""
        if self.lookup is not None:
            return self.lookup(rows)
        return super().forward(rows)

    def mean_of(self, rows: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the means of bags of vectors, [n, D]; 0 for an empty bag.

        Args:
            rows: of all bags, one after the other.
            starts: the position of each bag's first row in `rows`, [n].
            weights: the factor of each vector of the table, [rows of the table]; None is 1.

        >>> table = Table(2, 1, _weight=torch.tensor([[1.0], [3.0]]))
        >>> table.mean_of(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([5.0, 1.0])).tolist()
        [[4.0]]
        """
        if not self.sparse and self.lookup is None:
            return weighted_means(self.weight, rows, starts, weights)
        # Each row once: a gradient has one vector for what was read, not one for each time.
        distinct, which = torch.unique(rows, return_inverse=True)
        vectors = self(distinct)
        if weights is not None:
            vectors = vectors * weights[distinct][:, None]
        return F.embedding_bag(which, vectors, starts, mode="mean")


def weighted_means(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    """Return the means of bags of rows of a table, each times its weight: [r, D], [m], [n] and [r]
    to [n, D]."""
    if weights is None:
        return F.embedding_bag(rows, table, starts, mode="mean")
    sums = F.embedding_bag(rows, table, starts, mode="sum", per_sample_weights=weights[rows])
    return sums / lengths_of(rows, starts).clamp(min=1)[:, None]


def lengths_of(rows: Tensor, starts: Tensor) -> Tensor:
    """Return the number of rows of each bag, [n]."""
    end = starts.new_full((1,), len(rows))  # made on the device, without a wait
    return starts.diff(append=end)
