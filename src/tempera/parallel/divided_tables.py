"""Tables with rows divided among the processes, where table and optimiser are too large for a
single process.

A divided table is a DTensor. Every process keeps some rows, with gradients and accumulators. A
lookup asks the processes of the rows, and gradients go back the same way, summed over the
processes: one all-to-all each for row numbers, vectors and gradients. So all processes look up
equally often and in the same order; the gradient cache keeps the processes in pace.

Letters in shapes: k rows read by a process, m rows requested from a process by all, D width, p
    processes.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..arithmetic.table import Table
from ..errors import ConfigError
from .distributed import Group
from .shards import mesh_of, part

# Rows of a table that is worth dividing: with fewer, exchanges cost more than the table.
LEAST = 1024
Towers = TypeVar("Towers", bound=nn.Module)


def divided(towers: Towers, group: Group, least: int = LEAST) -> Towers:
    """Return a copy of towers on this process's device, with tables divided by rows. Make the
    optimiser afterwards.

    Gradients of divided tables are sums over the processes, as in `all_reduce_gradients`.

    Args:
        least: rows of the tables to divide; smaller tables stay whole on every process.

    Raises:
        ConfigError: no table is so large.
    """
    from torch.distributed.tensor import Shard, distribute_tensor

    weights = divisible(towers, least)
    mesh = mesh_of(group)
    parts: dict[int, nn.Parameter] = {}
    for w in weights:
        shards = distribute_tensor(w.detach(), mesh, [Shard(0)], src_data_rank=None)
        parts[id(w)] = nn.Parameter(shards)
    copies: dict[int, Any] = dict(parts)  # a buffer is not copied
    for buffer in towers.buffers():
        copies[id(buffer)] = buffer
    replica = copy.deepcopy(towers, copies)
    for table in _tables(replica):
        if any(table.weight is each for each in parts.values()):
            table.lookup = partial(look_up, table, group)
    return replica.to(group.device)


def divisible(towers: nn.Module, least: int = LEAST) -> set[Tensor]:
    """Return the tables to divide.

    Raises:
        ConfigError: no table has so many rows.
    """
    large = set()
    for table in _tables(towers):
        if table.weight.requires_grad and len(table.weight) >= least:
            large.add(table.weight)
    if not large:
        raise ConfigError(
            f"train.divide_tables: the towers train no table of {least:,} rows or more: drop it"
        )
    return large


def release(towers: nn.Module, divided: nn.Module) -> None:
    """Free the tables of towers after a copy has divided the tables; `shards.gather` brings the
    tables back."""
    for table, other in zip(_tables(towers), _tables(divided), strict=True):
        if other.lookup is not None:
            table.weight.data = table.weight.data.new_empty(0, table.embedding_dim)


def look_up(table: Table, group: Group, rows: Tensor) -> Tensor:
    """Return vectors of a divided table, [..., D], each distinct row asked for once; all processes
    have to call."""
    distinct, which = torch.unique(rows, return_inverse=True)
    vectors: Tensor = _Rows.apply(table.weight, group, distinct, table.sparse)  # type: ignore[no-untyped-call]
    return F.embedding(which, vectors)


class _Rows(torch.autograd.Function):
    """Rows of a divided table in rising order, [k], as vectors, [k, D]; adds to the gradient of the
    table in place."""

    @staticmethod
    def forward(ctx: Any, weight: Any, group: Group, rows: Tensor, sparse: bool) -> Tensor:
        processes = weight.device_mesh.size()
        height = -(-len(weight) // processes)  # rows of each process but the last ones
        counts = torch.bincount(rows // height, minlength=processes)
        single = [1] * processes
        ctx.sends = counts.tolist()
        ctx.receives = _exchanged(group, counts, single, single).tolist()
        # Of this process's part, [m].
        ctx.rows = _exchanged(group, rows % height, ctx.sends, ctx.receives)
        ctx.weight = weight
        ctx.group = group
        ctx.sparse = sparse
        return _exchanged(group, part(weight)[ctx.rows], ctx.receives, ctx.sends)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        grad = _exchanged(ctx.group, grad.to(ctx.weight.dtype), ctx.sends, ctx.receives)  # [m, D]
        _add(ctx.weight, ctx.rows, grad, ctx.sparse)
        return None, None, None, None


def _exchanged(group: Group, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Return the rows from each process to this process, in the order of the processes.

    Args:
        rows: sent to the processes, in the same order.
        sent: number of rows for each process.
        received: number of rows from each process.
    """
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    rows = rows.contiguous()
    group.keep_pace()
    with group.together("the exchange of rows of tables"):
        dist.all_to_all_single(arrived, rows, received, sent)
    return arrived


@torch.no_grad()
def _add(weight: Any, rows: Tensor, grad: Tensor, sparse: bool) -> None:
    """Add to the gradient of this process's part of a table; a sparse gradient holds each row
    once."""
    from torch.distributed.tensor import DTensor

    mine = part(weight)
    if sparse:
        rows = rows[None]
        added = torch.sparse_coo_tensor(rows, grad, mine.shape, check_invariants=False).coalesce()
        if weight.grad is not None:
            added = (part(weight.grad) + added).coalesce()
        made: Any = DTensor  # its constructor, since `from_local` takes no sparse tensor
        weight.grad = made(added, weight._spec, requires_grad=False)
    else:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        part(weight.grad).index_add_(0, rows, grad)


def _tables(towers: nn.Module) -> list[Table]:
    return [module for module in towers.modules() if isinstance(module, Table)]
