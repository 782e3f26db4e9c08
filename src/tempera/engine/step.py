"""One training step: towers, objective, gradients. The objective does not know how the step is run.

The graph is always cut at the embeddings:

    embed -> gather -> score -> bring the gradients home -> through the towers

The objective leaves a gradient on every embedding in one pass over the scores; the towers take it from there. How they embed
(in one piece, in micro-batches, kept or replayed) is the cache's affair, and the gradient does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Role
from ..core.temperature import Temperature
from ..errors import TemperaError
from .cache import Cache
from .distributed import ALONE, Group
from .shards import is_divided

X = TypeVar("X")
P = ParamSpec("P")


class Tower(Protocol):
    """Features in, embeddings out; an `nn.Module` as well."""

    padded: bool  # whether rows are padded to the longest of those that are embedded together

    def __call__(self, features: Any) -> Tensor:
        """Embeddings of n rows, [n, D], with gradient."""


class Towers(Protocol):
    """The tower of each role; an `nn.Module` as well."""

    def of(self, role: Role) -> Tower:
        """The tower that embeds a role."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


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

    def parameters(self) -> Iterator[nn.Parameter]: ...


def step(
    towers: Towers,
    objective: Loss,
    batch: Batch[Any],
    cache: Cache | None = None,
    group: Group = ALONE,
    scale: float = 1.0,
) -> float:
    """Add the gradient of the batch's weighted mean loss to every parameter; return that loss.

    On several processes `batch` holds the rows of this one, the loss is that of all rows, and the gradient what this
    process's rows add to it: `group.add_up` makes it whole, once for any number of batches.

    A device that runs out of memory in the towers does not end the run: the micro-batches are halved, with a warning, and
    the batch is embedded again. With parameters that `shard` divided it does, for the others wait within the tower.

    Args:
        cache: how the towers embed; None in micro-batches chosen anew.
        scale: multiplies the gradient (accumulation of several batches, or a gradient scaler).

    Raises:
        TemperaError: no micro-batch is small enough for the device, or it runs out of memory within a divided tower.
    """
    cache = Cache() if cache is None else cache
    parameters = [p for module in (towers, objective) for p in module.parameters() if p.requires_grad]
    earlier = [p.grad for p in parameters]  # of batches that are accumulated
    divided = any(map(is_divided, parameters))
    while True:
        for p in parameters:
            p.grad = None
        there = _fitting(divided, cache.embed, towers, batch, group)
        if not group.any(not there):
            everyone = group.gather(there[0].batch)
            shares = everyone.shares()
            losses = objective.propagate(objective.recall(everyone), shares * scale)
            grads = group.bring_home(everyone)
            back = _fitting(divided, there[0].backward, grads)
            if not group.any(not back):
                break
        cache.halve()
    for p, grad in zip(parameters, earlier, strict=True):
        if grad is not None:
            p.grad = grad if p.grad is None else p.grad.add_(grad)
    loss = group.total(float((losses * shares.to(losses)).sum()))
    if math.isfinite(loss):  # else what is remembered would spoil the batches to come
        objective.remember(everyone)
    return loss


def _fitting(divided: bool, work: Callable[P, X], *given: P.args, **named: P.kwargs) -> list[X]:
    """What `work` returns, alone in a list; an empty one if the device has run out of memory and the step can begin again."""
    try:
        return [work(*given, **named)]
    except torch.OutOfMemoryError:
        if divided:
            raise TemperaError(
                "out of memory within a divided tower, where the other processes wait: lower train.micro_batch_tokens "
                "or train.cache_memory"
            ) from None
        return []
