"""One training step: towers, objective, gradients. The objective does not know how the step is run.

The graph is always cut at the embeddings:

    embed -> score -> through the towers

The objective leaves a gradient on every embedding in one pass over the scores; the towers take it from there.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Role, Side
from ..core.objective import Objective
from ..core.ragged import Ragged


class Towers(Protocol):
    """The tower of each role."""

    def of(self, role: Role) -> nn.Module:
        """The tower that embeds a role."""


def step(towers: Towers, objective: Objective, batch: Batch[Ragged], scale: float = 1.0) -> Tensor:
    """Add the gradient of the batch's weighted mean loss to every parameter; return that loss.

    Args:
        scale: multiplies the loss (accumulation of several batches, or a gradient scaler).
    """
    graphs = {role: towers.of(role)(side.rows) for role, side in batch.sides().items()}  # each [n, D]
    leaves = {role: graph.detach().requires_grad_() for role, graph in graphs.items()}
    embedded = _with(batch, leaves)
    shares = embedded.shares()
    losses = objective.propagate(embedded, shares * scale)
    reached = [(graphs[role], leaf.grad) for role, leaf in leaves.items() if leaf.grad is not None]
    torch.autograd.backward([graph for graph, _ in reached], [grad for _, grad in reached])
    return (losses * shares).sum()


def _with(batch: Batch[Ragged], embeddings: dict[Role, Tensor]) -> Batch[Tensor]:
    """The batch with embeddings in place of features."""
    by_side = {id(side): embeddings[role] for role, side in batch.sides().items()}

    def swap(side: Side[Ragged]) -> Side[Tensor]:
        return side.of(by_side[id(side)])

    return batch.map(swap)
