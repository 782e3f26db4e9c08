"""One training step: towers, objective, gradients. The objective does not know how the step is run.

The graph is always cut at the embeddings:

    embed -> all-gather -> score -> reduce-scatter of gradients -> backward through the towers

The objective leaves a gradient on every embedding in one pass over the scores, and the towers go
backward from these gradients. The cache decides how the towers embed: in one piece or in
micro-batches, kept or replayed. The gradient does not depend on the decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

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
from .cache import Cache, Embedded

X = TypeVar("X")


class TowerLike(Protocol):
    """An `nn.Module` from features to embeddings.

    A tower that pads rows to the longest row of the same call has the attribute `padded = True`.
    """

    def __call__(self, features: Any) -> Tensor:
        """Return the embeddings of n rows, [n, D], with gradient."""


class TowersLike(Protocol):
    """The tower of each role, and the parameters of all towers; an `nn.Module`."""

    def of(self, role: Role) -> TowerLike:
        """Return the tower that embeds a role."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Loss(Protocol):
    """An objective, or a wrapper around an objective, for a step; an `nn.Module`."""

    @property
    def temperature(self) -> Temperature:
        """The temperature, fixed or learnable."""

    def advance(self, progress: float) -> None:
        """Set the schedules to a share of the training, from 0 to 1."""

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Return the losses, [b], and leave the gradients of sum(shares * losses) on the
        embeddings."""

    def recall(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """Return the batch with the documents remembered from past batches."""

    def remember(self, batch: Batch[Tensor]) -> None:
        """Remember the documents of a batch for later batches."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


def step(
    towers: TowersLike | nn.Module,
    objective: Loss,
    batch: Batch[Any],
    cache: Cache | None = None,
    group: Group = ALONE,
    scale: float = 1.0,
) -> float:
    """Add the gradient of the batch's weighted mean loss to every parameter; return the loss: the
    program waits for the device.

    On several processes `batch` holds the rows of this process, and the loss is the loss of all
    rows. The gradient is the part of this process's rows: `group.all_reduce_gradients` adds the
    parts up, once for any number of batches. Gradients of a tower that FSDP2 divides are already
    sums over the processes.

    A device that runs out of memory in the towers does not end the run: the micro-batches are
    halved on all processes, with a warning, and the batch is embedded again. Where the processes
    call a divided tower together, all learn of the failure before the next exchange.

    Args:
        towers: the tower of each role, or one `nn.Module` for all roles. The features of a batch
            may be tensors, [n, ...].
        cache: the gradient cache that embeds; None makes a new cache.
        scale: multiplies the gradient (accumulation of several batches).

    Raises:
        ConfigError: a tower that is no `nn.Module`, or does not make one vector for each row; or
            trainable weights that no gradient reaches, since the embeddings have no graph.
        TemperaError: no micro-batch is small enough for the device, or the device runs out of
            memory within towers that `shard` divided and torch, before 2.13, cannot interrupt.

    >>> from tempera import Batch, Side, mnr, step
    >>> tower, queries, documents = nn.Linear(3, 2), torch.eye(3), torch.eye(3)
    >>> loss = step(tower, mnr(0.05), Batch(Side(queries), Side(documents)))
    >>> tower.weight.grad.shape
    torch.Size([2, 3])
    """
    mine, everyone = add_gradients(towers, objective, batch, cache, group, scale)
    loss = group.all_reduce_sum(float(mine))
    objective.temperature.collect()
    if math.isfinite(loss):  # embeddings that are not finite would spoil later batches
        objective.remember(everyone)
    return loss


def add_gradients(
    towers: TowersLike | nn.Module,
    objective: Loss,
    batch: Batch[Any],
    cache: Cache | None = None,
    group: Group = ALONE,
    scale: float = 1.0,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[Tensor, Batch[Tensor]]:
    """Add the gradient of a batch as `step` does, without waiting for the device.

    The loss stays on the device, and the gradient of a learned temperature is left in `owed`.

    Args:
        scaler: multiplies the gradient as well, on the device.

    Returns:
        This process's part of the loss, a scalar, and the embedded batch of all processes, for the
        objective to remember.
    """
    if not isinstance(batch, Batch):
        raise DataError(
            f"a step takes a Batch, such as Batch(Side(queries), Side(documents)), not {article(type(batch).__name__)}"
        )
    if not hasattr(objective, "propagate"):
        raise ConfigError(
            f"a step takes an objective of tempera, such as mnr(0.05), not {article(type(objective).__name__)}"
        )
    if cache is None:
        cache = Cache()
    if group.size > 1:
        add_up(towers)
    parameters = _trained_parameters(towers, objective)
    # The gradients of batches that are accumulated.
    earlier = [(parameter, parameter.grad) for parameter in parameters]
    owed = objective.temperature.owed

    def propagate_batch() -> tuple[Tensor, Batch[Tensor]]:
        for parameter in parameters:
            parameter.grad = None
        objective.temperature.owed = owed
        embedded = _run_together(lambda: cache.embed(towers, batch, group), towers, group)
        everyone = group.gather(embedded.batch)
        shares = everyone.shares()
        scaled = shares * scale
        if scaler is not None and scaler.is_enabled():
            scaled = scaler.scale(placed(scaled, exact(everyone.doc.rows)))
        losses = objective.propagate(objective.recall(everyone), scaled)
        grads = group.reduce_scatter(everyone)
        _run_together(lambda: embedded.backward(grads), towers, group)
        return (losses * placed(shares, losses)).sum(), everyone

    try:
        result = _retry_with_half(propagate_batch, towers, cache)
    except BaseException:  # a program may leave the batch out and go on
        for parameter, grad in earlier:
            parameter.grad = grad
        objective.temperature.owed = owed
        raise
    for parameter, grad in earlier:
        if grad is None:
            continue
        parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
        merge([parameter])  # CUDA appends the rows of one sparse gradient to those of the other
    return result


def _trained_parameters(towers: TowersLike | nn.Module, objective: Loss) -> list[nn.Parameter]:
    """Return the trained parameters, each once: towers may share weights, or hold the objective."""
    trained: dict[nn.Parameter, None] = {}
    for module in (towers, objective):
        for parameter in module.parameters():
            if parameter.requires_grad:
                trained[parameter] = None
    return list(trained)


def embed_once(
    towers: TowersLike | nn.Module, batch: Batch[Any], cache: Cache, group: Group = ALONE
) -> Batch[Tensor]:
    """Return the embedded batch of all processes, for no backward pass; micro-batches are halved as
    by `step`."""

    def embed() -> Embedded:
        return _run_together(lambda: cache.embed(towers, batch, group), towers, group)

    return group.gather(_retry_with_half(embed, towers, cache).batch)


class _NoMemory(Exception):
    """The memory of one process has run out; all processes know, and can embed the batch again."""


def _retry_with_half(work: Callable[[], X], towers: TowersLike | nn.Module, cache: Cache) -> X:
    """Return the result of `work`; as long as memory runs out, halve the micro-batches and do the
    work again."""
    while True:
        try:
            return work()
        except _NoMemory:
            pass  # the exception ends here, and frees the graphs that its frames have kept
        restart(towers)
        cache.halve()


def _run_together(work: Callable[[], X], towers: TowersLike | nn.Module, group: Group) -> X:
    """Return the result of `work`, which all processes do at the same time.

    Raises:
        _NoMemory: on all processes, if memory has run out on one, and the step can begin again.
        TemperaError: memory has run out within a divided tower, and the step cannot begin again.
    """
    results = []
    try:
        results.append(work())
    except LeftBehind:
        raise _NoMemory from None
    except torch.OutOfMemoryError:
        if not can_restart(towers):
            raise TemperaError(
                "out of memory within a divided tower, for which the other ranks wait: lower "
                "train.micro_batch_tokens or train.cache_memory, or install torch 2.13"
            ) from None
    if group.any(not results):
        raise _NoMemory
    return results[0]
