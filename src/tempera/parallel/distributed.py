"""One batch on several processes: all-gather of rows, reduce-scatter of their gradients, all-reduce
of the parameters'.

Nothing here is differentiable. Embeddings arrive as leaves, so a step has a handful of exchanges,
none inside a backward pass: of sizes, of rows with their columns, of the rows' gradients on the way
back, and of the parameters' gradients.

Letters in shapes: p processes, f columns of a batch, n rows of all processes, D width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.batch import Batch, Role
from ..errors import TemperaError
from .exchange import (
    FLOATS,
    ROLES,
    Columns,
    Gathered,
    check,
    column_offsets,
    columns_of,
    header_of,
    join,
    leaf,
    pack,
    unpack,
)

CPU = torch.device("cpu")
# Gradients that are summed at once: above this, starting an exchange costs nothing more.
BUCKET_BYTES = 1 << 26


class LeftBehind(torch.OutOfMemoryError):
    """Another process has run out of memory, in joint work of all processes."""


@dataclass(frozen=True)
class Group:
    """The processes of a training. `Group()` is a single process: nothing is exchanged, nothing
    copied.

    Args:
        rank: the place of this process, from 0.
        size: the number of processes; above 1, torch.distributed is to be initialised.
        device: the device of this process.
        hosts: the group of torch.distributed, on CPUs, to agree on numbers without waiting for
            devices; None is the default group.

    >>> from tempera.core.batch import Side
    >>> eye, alone = torch.eye(2), Group()
    >>> gathered = alone.gather(Batch(Side(eye), Side(eye)))
    >>> (2 * gathered.query.rows).sum().backward()
    >>> alone.reduce_scatter(gathered)["query"].tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    hosts: Any = None

    @property
    def main(self) -> bool:
        """Return True in the process that writes files and prints."""
        return self.rank == 0

    def gather(self, batch: Batch[Tensor]) -> Gathered:
        """Return the batch of all processes from the embedded rows of each; `span` are the positions
        of this process's rows.

        Embeddings are leaves with `requires_grad`, cut off from the graph. Processes may have
        different numbers of rows, also none: a side of None counts as a side without rows, and a
        side without rows everywhere is left out. `owner` counts rows of the whole batch afterwards.
        `memory` is passed on and has to be the same everywhere.

        Raises:
            DataError: on all processes, if the columns of rows, a dtype or a width differ between
                processes, or no process has a row.
        """
        if self.size == 1:
            columns: dict[str, Any] = {
                each.name: getattr(batch, each.name) for each in fields(Batch)
            }
            counts: dict[Role, tuple[int, ...]] = {}
            for role, side in batch.sides().items():
                if role in ROLES:
                    columns[role] = replace(side, rows=leaf(side.rows))
                    counts[role] = (len(side),)
            columns["span"] = range(len(batch))
            return Gathered(**columns, counts=counts)
        return join(self._exchange(columns_of(batch)), self.rank, batch.memory)

    def reduce_scatter(self, gathered: Gathered) -> dict[Role, Tensor]:
        """Return the gradients of this process's rows, [own rows, D] for every role of the batch,
        summed over all processes.

        Gradients travel in the dtype of the embeddings, in one reduce-scatter a dtype; a role
        without gradient counts as 0.
        """
        grads: dict[Role, Tensor] = {}
        for role, side in gathered.sides().items():
            if role in gathered.counts:
                grad = side.rows.grad
                grads[role] = torch.zeros_like(side.rows) if grad is None else grad
        if self.size == 1:
            return grads
        own: dict[Role, Tensor] = {}
        for dtype in FLOATS:
            parts = {}  # by process
            for role, grad in grads.items():
                if grad.dtype == dtype:
                    parts[role] = grad.split_with_sizes(gathered.counts[role])
            if parts:
                own |= self._scatter(parts)
        return own

    def all_gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, in the order of the processes, [n, D]; one process at
        least has rows."""
        if self.size == 1:
            return rows
        columns = self._exchange({"query.rows": rows})
        parts = [each["query.rows"] for each in columns if "query.rows" in each]
        return torch.cat(parts).to(rows.device)

    def part(self, count: int, unit: int = 1) -> slice:
        """Return this process's part of `count` rows: parts follow one another in the order of the
        processes, and begin at multiples of `unit` rows.

        >>> [Group(rank, 2).part(7, unit=2) for rank in range(2)]
        [slice(0, 4, None), slice(4, 7, None)]
        """
        units = -(-count // unit)
        start = self.rank * units // self.size * unit
        stop = (self.rank + 1) * units // self.size * unit
        return slice(min(start, count), min(stop, count))

    def all_gather_array(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of all processes' arrays, in the order of the processes; the arrays have
        one dtype and differ in their first dimension alone. They travel between the hosts' CPUs."""
        if self.size == 1:
            return rows
        mine = torch.from_numpy(np.require(rows, requirements=["C", "W"]))
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = len(mine)
        with self.together("the all-gather of an array"):
            dist.all_reduce(counts, group=self.hosts)
            if not mine.new_empty(int(counts.max()), *mine.shape[1:]).numel():
                return np.empty((int(counts.sum()), *mine.shape[1:]), rows.dtype)
            return _all_of(mine, counts, self.hosts).numpy()

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of parameters over all processes, in place; once a step, after the
        backward passes.

        Every process gives the same parameters in the same order. A gradient of None counts as 0,
        and stays None where all processes have none. Parameters divided by `shard` are skipped: the
        gradients are sums already. Sparse gradients stay sparse: only the rows of some process
        travel.
        """
        if self.size == 1:
            return
        from torch.distributed.tensor import DTensor

        whole = [p for p in parameters if p.requires_grad and not isinstance(p, DTensor)]
        kinds = [_gradient_kind(p) for p in whole]
        codes = torch.tensor(kinds, dtype=torch.uint8, device=self.device)
        with self.together("the all-reduce of gradients"):
            dist.all_reduce(codes, dist.ReduceOp.MAX)
            dense = []
            for parameter, kind in zip(whole, codes.tolist(), strict=True):
                if kind == _SPARSE:
                    parameter.grad = self._joined(parameter)
                elif kind == _DENSE:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    dense.append(parameter.grad)
            for grads in buckets(dense):
                # A temperature lies on the host.
                flat = torch.cat([grad.flatten().to(self.device) for grad in grads])
                dist.all_reduce(flat)
                parts = flat.split_with_sizes([grad.numel() for grad in grads])
                for grad, part in zip(grads, parts, strict=True):
                    grad.copy_(part.view_as(grad))

    def _joined(self, table: nn.Parameter) -> Tensor:
        """Return the sum of all processes' sparse gradients of a table, from the rows of each."""
        rows = torch.empty(0, dtype=torch.int64, device=self.device)  # [k]
        values = table.detach()[:0]  # [k, D]
        if table.grad is not None:
            grad = table.grad.coalesce()
            rows = grad.indices()[0]
            values = grad.values()
        counts = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        counts[self.rank] = len(rows)
        dist.all_reduce(counts)
        rows = _all_of(rows, counts)
        values = _all_of(values, counts)
        total = torch.sparse_coo_tensor(rows[None], values, table.shape, check_invariants=False)
        return total.coalesce()

    def any(self, flag: bool) -> bool:
        """Return True if `flag` is true on any process."""
        return bool(self._agree(flag, dist.ReduceOp.MAX)) if self.size > 1 else flag

    def all_reduce_sum(self, value: float) -> float:
        """Return the sum of a number over all processes."""
        return self._agree(value, dist.ReduceOp.SUM) if self.size > 1 else value

    def all_reduce_sums(self, values: Tensor) -> Tensor:
        """Sum a tensor on the group's device over all processes, in place, and return the tensor;
        no device is waited for."""
        if self.size > 1:
            with self.together("an all-reduce"):
                dist.all_reduce(values)
        return values

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the values of the first process, in place."""
        if self.size == 1:
            return
        for tensor in tensors:
            # A temperature lies on the host.
            values = tensor.detach().to(self.device, copy=True).contiguous()
            with self.together("the broadcast of weights"):
                dist.broadcast(values, 0)
            tensor.detach().copy_(values)

    def all_reduce_max(self, count: int) -> int:
        """Return the largest of all processes' counts."""
        return int(self._agree(count, dist.ReduceOp.MAX)) if self.size > 1 else count

    def all_equal(self, number: int) -> bool:
        """Return True if all processes give the same number, of up to 53 bits."""
        return self.all_reduce_max(number) == -self.all_reduce_max(-number)

    def keep_pace(self) -> None:
        """Meet the other processes before an exchange, within joint work with a risk of running out
        of memory.

        A process that runs out of memory calls `any(True)` instead and leaves; the remaining
        processes learn of the failure here, and leave as well.

        Raises:
            LeftBehind: another process has left.
        """
        if self.any(False):
            raise LeftBehind(f"rank {self.rank} of {self.size}: another rank has run out of memory")

    def wait(self) -> None:
        """Return when all processes have arrived."""
        self.all_reduce_sum(0.0)

    def _agree(self, value: float, how: Any) -> float:
        device = self.device if self.hosts is None else CPU
        number = torch.tensor(float(value), dtype=torch.float64, device=device)
        with self.together("an all-reduce"):
            dist.all_reduce(number, how, self.hosts)
            return float(number)

    def _exchange(self, mine: Columns) -> list[Columns]:
        """Return the columns of every process, in two exchanges: sizes first, then bytes."""
        header = torch.tensor(header_of(mine), device=self.device)  # [f, 3]
        headers = header.new_empty(self.size, *header.shape)
        with self.together("the exchange of sizes"):
            dist.all_gather(list(headers), header)
            sizes = headers.tolist()
        check(sizes)
        longest = max(column_offsets(each)[-1] for each in sizes)
        room = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        packed = pack(mine, sizes[self.rank], room)
        everything = packed.new_empty(self.size, longest)
        with self.together("the all-gather of rows"):
            dist.all_gather(list(everything), packed)
        return [unpack(each, size) for each, size in zip(everything, sizes, strict=True)]

    def _scatter(self, grads: Mapping[Role, Sequence[Tensor]]) -> dict[Role, Tensor]:
        """Return the sums over all processes of the gradients of this process's rows, of one
        dtype."""
        one = next(iter(grads.values()))[0]
        # Of each process, the rows of every role.
        counts = [[len(parts[process]) for parts in grads.values()] for process in range(self.size)]
        sums = one.new_zeros(self.size, max(map(sum, counts)), one.shape[1])
        for process, rows in enumerate(sums):
            mine = [parts[process] for parts in grads.values()]
            torch.cat(mine, out=rows[: sum(counts[process])])
        own = torch.empty_like(sums[0])
        with self.together("the reduce-scatter of gradients"):
            dist.reduce_scatter(own, list(sums))
        here = counts[self.rank]
        return dict(zip(grads, own[: sum(here)].split_with_sizes(here), strict=True))

    @contextmanager
    def together(self, exchange: str) -> Iterator[None]:
        """Raise one line for a failed exchange in the block: other processes are lost.

        Raises:
            TemperaError: an exchange has failed.
        """
        try:
            yield
        except torch.OutOfMemoryError:  # a RuntimeError, too, of this process
            raise
        except RuntimeError as error:
            first_line = str(error).strip().splitlines()[0]
            reason = re.sub(r"^\[\S+\] ", "", first_line)  # without a line of gloo's source
            raise TemperaError(
                f"rank {self.rank} of {self.size} lost the other ranks during {exchange} "
                f"({reason}); see the log of the rank that failed first"
            ) from error


ALONE = Group()

# Kinds of a gradient; of several processes the highest counts.
_NO_GRADIENT = 0
_DENSE = 1
_SPARSE = 2


def _gradient_kind(parameter: nn.Parameter) -> int:
    if parameter.grad is None:
        return _NO_GRADIENT
    return _SPARSE if parameter.grad.is_sparse else _DENSE


def _all_of(mine: Tensor, counts: Tensor, hosts: Any = None) -> Tensor:
    """Return the rows of all processes, from each process's number of rows."""
    padded = mine.new_zeros(int(counts.max()), *mine.shape[1:])
    padded[: len(mine)] = mine
    everyone = padded.new_empty(len(counts), *padded.shape)
    dist.all_gather(list(everyone), padded, hosts)
    parts = [each[:count] for each, count in zip(everyone, counts.tolist(), strict=True)]
    return torch.cat(parts)


def buckets(grads: Iterable[Tensor], limit: int = BUCKET_BYTES) -> list[list[Tensor]]:
    """Return lists of tensors of one dtype, in order, of up to `limit` bytes each; a larger tensor
    has a list of its own.

    >>> small, large = torch.zeros(2), torch.zeros(5)
    >>> [len(bucket) for bucket in buckets([small, small, large, small.double(), small], limit=24)]
    [2, 1, 1, 1]
    """
    lists: list[list[Tensor]] = []
    filling: dict[torch.dtype, list[Tensor]] = {}
    for grad in grads:
        bucket = filling.get(grad.dtype, [])
        if not bucket or sum(other.nbytes for other in bucket) + grad.nbytes > limit:
            bucket = filling[grad.dtype] = []
            lists.append(bucket)
        bucket.append(grad)
    return lists
