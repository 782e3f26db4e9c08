"""Gradients of embedding tables in place: a lookup adds to its own rows, and to nothing else.

For every micro-batch autograd makes a gradient as large as the table and sums the gradients. With
the vocabulary of a language model a gradient is 47 MB of zeros for a few hundred tokens, half of
the time of a short micro-batch on a CPU. Memory of a step's gradient serves the next step, too:
`clear` writes zeros to the changed rows.

Letters in shapes: m tokens of n bags, k distinct rows read, r rows of the table, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..arithmetic.table import Table, lengths_of, weighted_means
from ..parallel.shards import is_compiled, is_divided

_BLOCK = 256  # rows of vectors


@dataclass
class _Memory:
    """The gradient of a table, and the rows added to since all were 0."""

    grad: Tensor
    rows: list[Tensor] = field(default_factory=list)
    sorted: bool = False  # one tensor of rows, each once
    # As torch counts them; other code's writes may have reached every row.
    writes: int = field(init=False)

    def __post_init__(self) -> None:
        self.writes = self.grad._version

    @property
    def ours(self) -> bool:
        """True if nothing else has written to the gradient."""
        return self.grad._version == self.writes

    def serves(self, weight: Tensor) -> bool:
        """Return True if the gradient is 0 and suits a weight; the weight may have been moved or
        replaced since."""
        suits = (
            self.grad.shape == weight.shape
            and self.grad.dtype == weight.dtype
            and self.grad.device == weight.device
        )
        return suits and self.ours and not self.rows

    @torch.no_grad()
    def add(self, rows: Tensor, values: Tensor) -> None:
        """Add vectors, [k, D], to rows."""
        ours = self.ours
        self.grad.index_add_(0, rows, values)
        if ours:
            self.rows.append(rows)
            self.sorted = False
            self.writes = self.grad._version

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """Multiply the rows added to, and nothing else, by a number."""
        rows = self.distinct()
        self.grad.index_copy_(0, rows, self.grad[rows].mul_(factor))
        self.writes = self.grad._version

    def distinct(self) -> Tensor:
        """Return the rows added to, each once."""
        if len(self.rows) > 1 or not self.sorted:
            self.rows = [torch.cat(self.rows).unique()]  # type: ignore[no-untyped-call]
            self.sorted = True
        return self.rows[0]

    @torch.no_grad()
    def clear(self) -> None:
        """Write zeros where something was written."""
        if self.ours:
            for rows in self.rows:
                self.grad.index_fill_(0, rows, 0)
        else:
            self.grad.zero_()
        self.rows = []
        self.writes = self.grad._version


_memories: MutableMapping[Tensor, _Memory] = WeakTensorKeyDictionary()


def clear(parameters: Iterable[Tensor]) -> None:
    """Let go of gradients, as `zero_grad` does; memory filled by lookups stays for the next
    lookups."""
    for p in parameters:
        memory = _memories.get(p)
        if memory is not None and p.grad is memory.grad:
            memory.clear()
        p.grad = None


def rows_of(weight: Tensor) -> Tensor | None:
    """Return the rows of a table that lookups alone have added gradients to, each once; None if other
    code may have added to the gradient."""
    memory = _own(weight)
    return None if memory is None else memory.distinct()


def scale(weight: Tensor, factor: float) -> bool:
    """Multiply the gradient of a table that lookups alone have added to; return False, and do
    nothing, if other code may have added to the gradient."""
    memory = _own(weight)
    if memory is not None:
        memory.scale(factor)
    return memory is not None


def _own(weight: Tensor) -> _Memory | None:
    """Return the memory of a gradient that lookups alone have added to, in few rows."""
    memory = None if weight.grad is None else _memories.get(weight)
    if memory is None or memory.grad is not weight.grad or not memory.ours or not memory.rows:
        return None
    if sum(map(len, memory.rows)) > len(weight) // 4:  # sorting more takes longer than it saves
        return None
    return memory


def _add(weight: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add vectors, [k, D], to rows of a table's gradient."""
    memory = _memories.get(weight)
    if weight.grad is None:
        if memory is None or not memory.serves(weight):
            memory = _memories[weight] = _Memory(torch.zeros_like(weight))
        weight.grad = memory.grad
    if memory is not None and weight.grad is memory.grad:
        memory.add(rows, values)
    else:
        weight.grad.index_add_(0, rows, values)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, padding_idx: int | None) -> Tensor:
        ctx.weight = weight
        ctx.padding_idx = padding_idx
        ctx.save_for_backward(indices)
        return F.embedding(indices, weight)  # the same as weight[indices], in a fourth of its time

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (indices,) = ctx.saved_tensors
        weight = ctx.weight
        if ctx.padding_idx is not None:
            grad = grad.masked_fill((indices == ctx.padding_idx).unsqueeze(-1), 0)
        rows = indices.flatten().clone()  # whoever has made the batch may write to it again
        _add(weight, rows, grad.flatten(0, -2).to(weight.dtype))
        return None, None, None


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, rows: Tensor, starts: Tensor, weights: Tensor | None
    ) -> Tensor:
        ctx.weight = weight
        ctx.save_for_backward(rows, starts, weights, None if weights is None else weight)
        return weighted_means(weight, rows, starts, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, Tensor | None]:
        rows, starts, weights, table = ctx.saved_tensors  # [m], [n], [r], [r, D]
        lengths = lengths_of(rows, starts)
        bag = torch.arange(len(starts)).repeat_interleave(lengths, output_size=len(rows))
        order, distinct, counts = _by_row(rows, len(ctx.weight))
        shares = grad.to(ctx.weight.dtype) / lengths.clamp(min=1)[:, None]
        # Of the rows times their weights, [k, D].
        values = F.embedding_bag(bag[order], shares, counts.cumsum(0) - counts, mode="sum")
        of_weights = None
        if weights is not None:
            dots = _dots(values, table, distinct)
            of_weights = torch.zeros_like(weights).index_copy_(0, distinct, dots)
            values *= weights[distinct][:, None]
        _add(ctx.weight, distinct, values)
        return None, None, None, of_weights


def _dots(values: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Return the inner products of vectors with rows of a table, [k, D], [r, D] and [k] to [k].

    Blocks that a processor keeps near take a ninth of the time of all at once.
    """
    dots = values.new_empty(len(rows))
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        torch.sum(F.embedding(rows[block], table) * values[block], 1, out=dots[block])
    return dots


def _by_row(rows: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the stable order of rising rows, [m], the distinct rows, [k], and their numbers, [k].

    Where two bytes hold a row of the table, rows are sorted by their digits, in a fourth of the
    time.
    """
    if size > 1 << 16:
        rising, order = rows.sort(stable=True)
        distinct_rows, numbers = rising.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
        return order, distinct_rows, numbers
    short = rows.numpy().astype(np.uint16)
    counts = np.bincount(short, minlength=size)
    distinct = np.flatnonzero(counts)
    return (
        torch.from_numpy(short.argsort(kind="stable")),
        torch.from_numpy(distinct),
        torch.from_numpy(counts[distinct]),
    )


@contextmanager
def computing_by(
    methods: Mapping[nn.Module, Mapping[str, Callable[..., Tensor]]],
) -> Iterator[None]:
    """Replace methods of modules, by name, in the block. A hook would come after the module's own
    method had computed in vain."""
    for module, own in methods.items():
        vars(module).update(own)
    try:
        yield
    finally:
        for module, own in methods.items():
            for name in own:
                del vars(module)[name]


def adding_in_place(
    modules: Sequence[nn.Module], device: torch.device
) -> AbstractContextManager[None]:
    """Return a context in which graphs add the gradients of a tower's `nn.Embedding` tables, bags
    too, to `.grad` in place.

    For CPUs: GPUs fill memory faster than they add rows one by one. Tables that are sparse, divided
    over processes, compiled, or scaled by frequency are left to autograd, and so are tables with
    hooks on the weights: hooks would not see the gradient.
    """
    methods: dict[nn.Module, dict[str, Callable[..., Tensor]]] = {}
    if device.type == "cpu" and torch.is_grad_enabled() and not is_compiled(modules):
        for m in modules:
            if isinstance(m, nn.Embedding) and _is_plain_table(m):
                methods[m] = {"forward": partial(_look_up, m), "mean_of": partial(_mean_of, m)}
    return computing_by(methods)


def is_transformed() -> bool:
    """Return True within a transform of `torch.func`, which looks into each computation."""
    return torch._C._functorch.maybe_current_level() is not None


def _adds(weight: Tensor) -> bool:
    """Return False for a weight whose gradient goes elsewhere.

    The weight stands in for the table's, as in `functional_call`, has hooks, or is looked up in a
    transform of `torch.func`.
    """
    return (
        type(weight) in (nn.Parameter, FakeTensor)
        and not weight._backward_hooks
        and not is_transformed()
    )


def _is_plain_table(table: nn.Embedding) -> bool:
    """Return True for a table that learns and whose lookup is torch's own."""
    whole = table.weight.requires_grad and _adds(table.weight)
    usual = (
        type(table) in (nn.Embedding, Table)
        and "forward" not in vars(table)
        and not table.sparse
        and table.max_norm is None
        and getattr(table, "lookup", None) is None
    )
    return whole and usual and not table.scale_grad_by_freq


def _look_up(table: nn.Embedding, indices: Tensor) -> Tensor:
    if not _adds(table.weight):
        return type(table).forward(table, indices)
    rows: Tensor = _Lookup.apply(table.weight, indices, table.padding_idx)  # type: ignore[no-untyped-call]
    return rows


def _mean_of(table: Any, rows: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    if not _adds(table.weight):
        return Table.mean_of(table, rows, starts, weights)
    means: Tensor = _Means.apply(table.weight, rows, starts, weights)  # type: ignore[no-untyped-call]
    return means


def merge(parameters: Iterable[nn.Parameter]) -> None:
    """Sum repeated rows of sparse gradients, so that the gradients do not grow with every
    micro-batch; in order of rows.

    The gradients of divided tables hold each row once already.
    """
    for p in parameters:
        if p.grad is not None and p.grad.is_sparse and not is_divided(p):
            p.grad = p.grad.coalesce()
