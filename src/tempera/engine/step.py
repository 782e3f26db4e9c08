"""One training step: towers, objective, gradients. The objective does not know how the step is run.

The graph is always cut at the embeddings:

    embed -> score -> through the towers

The objective leaves a gradient on every embedding in one pass over the scores; the towers take it from there.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Role
from ..core.ragged import Ragged
from ..core.temperature import Temperature


class Towers(Protocol):
    """The tower of each role."""

    def of(self, role: Role) -> nn.Module:
        """The tower that embeds a role."""


class Loss(Protocol):
    """What the step asks of an objective, or of a wrapper around one; an `nn.Module` as well."""

    @property
    def temperature(self) -> Temperature:
        """The dial."""

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Losses, [b], and the gradients of sum(shares * losses) on the embeddings."""

    def recall(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """The batch with what is remembered of past ones."""

    def remember(self, batch: Batch[Tensor]) -> None:
        """Keep what later batches need."""


def step(towers: Towers, objective: Loss, batch: Batch[Ragged], scale: float = 1.0) -> Tensor:
    """Add the gradient of the batch's weighted mean loss to every parameter; return that loss.

    Args:
        scale: multiplies the gradient (accumulation of several batches, or a gradient scaler).
    """
    graphs = {role: towers.of(role)(side.rows) for role, side in batch.sides().items()}  # each [n, D]
    leaves = {role: graph.detach().requires_grad_() for role, graph in graphs.items()}
    embedded = batch.of(leaves)
    shares = embedded.shares()
    losses = objective.propagate(objective.recall(embedded), shares * scale)
    objective.remember(embedded)
    reached = [(graphs[role], leaf.grad) for role, leaf in leaves.items() if leaf.grad is not None]
    torch.autograd.backward([graph for graph, _ in reached], [grad for _, grad in reached])
    return (losses * shares).sum()
