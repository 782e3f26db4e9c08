"""One training step: towers, objective, gradients. The objective does not know how the step is run.

The graph is always cut at the embeddings:

    embed -> all-gather -> score -> reduce-scatter of gradients -> backward through the towers

The objective leaves a gradient on every embedding in one pass over the scores; the towers take it
from there. How they embed (in one piece, in micro-batches, kept or replayed) is the cache's affair,
and the gradient does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..arithmetic.abilities import placed
from ..core.batch import Batch, Role
from ..core.similarity import exact
from ..core.temperature import Temperature
from ..errors import ConfigError, DataError, TemperaError, article
from ..layers.lookup import merge
from ..parallel.distributed import ALONE, Group, LeftBehind
from ..parallel.shards import add_up, can_restart, restart
from .cache import Cache

X = TypeVar("X")
P = ParamSpec("P")


class TowerLike(Protocol):
    """An `nn.Module` from features to embeddings.

    Where rows are padded to the longest of those that are embedded together, it says so by `padded
    = True`.
    """

    def __call__(self, features: Any) -> Tensor:
        """Return the embeddings of n rows, [n, D], with gradient."""


class TowersLike(Protocol):
    """The tower of each role, and the parameters of all, as an `nn.Module` has them."""

    def of(self, role: Role) -> TowerLike:
        """Return the tower that embeds a role."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Loss(Protocol):
    """The interface that the step needs of an objective, or of a wrapper around one; an `nn.Module`
    as well."""

    @property
    def temperature(self) -> Temperature:
        """The temperature, fixed or learnable."""

    def advance(self, progress: float) -> None:
        """Follow schedules to a share of the training, from 0 to 1."""

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Return the losses, [b], and leave the gradients of sum(shares * losses) on the
        embeddings."""

    def recall(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """Return the batch with the documents remembered from past ones."""

    def remember(self, batch: Batch[Tensor]) -> None:
        """Keep what later batches need."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


def step(
    towers: TowersLike,
    objective: Loss,
    batch: Batch[Any],
    cache: Cache | None = None,
    group: Group = ALONE,
    scale: float = 1.0,
) -> float:
    """Add the gradient of the batch's weighted mean loss to every parameter; return that loss, for
    which the program waits.

    On several processes `batch` holds the rows of this one, the loss is that of all rows, and the
    gradient what this process's rows add to it: `group.all_reduce_gradients` makes it whole, once
    for any number of batches. Gradients of a tower that FSDP2 divides are sums over the processes
    by then.

    A device that runs out of memory in the towers does not end the run: the micro-batches are
    halved on all processes, with a warning, and the batch is embedded again. Where the processes
    call a divided tower together, they learn of it before their next exchange.

    Args:
        towers: the tower of each role, or one `nn.Module` for all. The features of a batch may be
            tensors, [n, ...].
        cache: the gradient cache that embeds; None makes a new one.
        scale: multiplies the gradient (accumulation of several batches).

    Raises:
        ConfigError: a tower that is no `nn.Module`, or makes something else than one vector for
            each row; or weights to train that no gradient reaches, since the embeddings have no
            graph.
        TemperaError: no micro-batch is small enough for the device, or it runs out of memory within
            towers that `shard` divided and torch cannot interrupt them, as before 2.13.

    >>> from tempera import Batch, Side, mnr, step
    >>> tower, queries, documents = nn.Linear(3, 2), torch.eye(3), torch.eye(3)
    >>> loss = step(tower, mnr(0.05), Batch(Side(queries), Side(documents)))
    >>> tower.weight.grad.shape
    torch.Size([2, 3])
    """
    mine, everyone = add_gradients(towers, objective, batch, cache, group, scale)
    loss = group.all_reduce_sum(float(mine))
    objective.temperature.collect()
    if math.isfinite(loss):  # else what is remembered would spoil the batches to come
        objective.remember(everyone)
    return loss


def add_gradients(
    towers: TowersLike,
    objective: Loss,
    batch: Batch[Any],
    cache: Cache | None = None,
    group: Group = ALONE,
    scale: float = 1.0,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[Tensor, Batch[Tensor]]:
    """Do what `step` does, and wait for nothing: the loss stays on the device, and a learned
    temperature's gradient is owed.

    Args:
        scaler: multiplies the gradient as well, on the device.

    Returns:
        This process's part of the loss, a scalar, and the embedded batch of all processes, to be
        remembered.
    """
    if not isinstance(batch, Batch):
        raise DataError(
            f"a step takes a Batch, such as Batch(Side(queries), Side(documents)), not {article(type(batch).__name__)}"
        )
    if not hasattr(objective, "propagate"):
        raise ConfigError(
            f"a step takes an objective of tempera, such as mnr(0.05), not {article(type(objective).__name__)}"
        )
    cache = Cache() if cache is None else cache
    if group.size > 1:
        add_up(towers)
    listed = (p for module in (towers, objective) for p in module.parameters() if p.requires_grad)
    parameters = list(dict.fromkeys(listed))  # the towers may share weights, or hold the objective
    earlier, owed = (
        [p.grad for p in parameters],
        objective.temperature.owed,
    )  # of batches that are accumulated

    def once() -> tuple[Tensor, Batch[Tensor]]:
        for p in parameters:
            p.grad = None
        objective.temperature.owed = owed
        embedded = _attempt(towers, group, cache.embed, towers, batch, group)
        everyone = group.gather(embedded.batch)
        shares = everyone.shares()
        scaled = shares * scale
        if scaler is not None and scaler.is_enabled():
            scaled = scaler.scale(placed(scaled, exact(everyone.doc.rows)))
        losses = objective.propagate(objective.recall(everyone), scaled)
        _attempt(towers, group, embedded.backward, group.reduce_scatter(everyone))
        return (losses * placed(shares, losses)).sum(), everyone

    try:
        result = _halving(towers, cache, once)
    except BaseException:  # a program may leave the batch out and go on
        for p, grad in zip(parameters, earlier, strict=True):
            p.grad = grad
        objective.temperature.owed = owed
        raise
    for p, grad in zip(parameters, earlier, strict=True):
        if grad is not None:
            p.grad = grad if p.grad is None else p.grad.add_(grad)
            merge([p])  # CUDA puts the rows of one sparse gradient behind those of the other
    return result


def embed_once(
    towers: TowersLike, batch: Batch[Any], cache: Cache, group: Group = ALONE
) -> Batch[Tensor]:
    """Return the embedded batch of all processes, from which nothing goes backward; micro-batches
    are halved as by `step`."""
    embedded = _halving(
        towers, cache, lambda: _attempt(towers, group, cache.embed, towers, batch, group)
    )
    return group.gather(embedded.batch)


class _NoMemory(Exception):
    """The memory of a process has run out, which all of them know, and the batch can be embedded
    again."""


def _halving(towers: TowersLike, cache: Cache, work: Callable[[], X]) -> X:
    """Return the result of `work`, which is done again with micro-batches of half the size as long
    as memory runs out."""
    while True:
        try:
            return work()
        except _NoMemory:
            pass  # and with the exception, here, go the graphs that its frames have kept
        restart(towers)
        cache.halve()


def _attempt(
    towers: TowersLike, group: Group, work: Callable[P, X], *args: P.args, **named: P.kwargs
) -> X:
    """Return the result of `work`.

    Raises:
        _NoMemory: on all processes, if memory has run out on one, and the step can begin again.
    """
    done = []
    try:
        done.append(work(*args, **named))
    except LeftBehind:
        raise _NoMemory from None
    except torch.OutOfMemoryError:
        if not can_restart(towers):
            raise TemperaError(
                "out of memory within a divided tower, for which the other ranks wait: lower "
                "train.micro_batch_tokens or train.cache_memory, or install torch 2.13"
            ) from None
    if group.any(not done):
        raise _NoMemory
    return done[0]
