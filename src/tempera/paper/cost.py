"""The cost of a step on paper: the launches, bytes and FLOPs of its operations, of which none
computes a number.

The engine's own code runs on tensors that have shapes and no numbers, so that every count is that
of the step itself: of an accelerator they are torch's meta tensors, of a CPU its fake ones, and a
dispatch mode notes what passes. A step waits for its device only at its end, so nothing before
needs a number.

    ledger = Ledger(torch.device("meta"))
    with ledger("loss stage"):
        objective.propagate(batch, shares)
    ledger.stages["loss stage"].launches

What moves is estimated as each operand read once and each result written once; what stays in a
cache between two operations is not known here. Letters in shapes: b rows of this device, n rows of
all, D width.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..errors import TemperaError

_aten = torch.ops.aten
META = torch.device("meta")
_COUNTED = {"aten", "mkldnn"}
# Operations that start nothing on a device: views, new memory, and copies from the host.
_FREE = {
    "_unsafe_view",
    "detach",
    "lift_fresh",
    "_values",
    "_indices",
    "_reshape_alias",
    "is_same_size",
}
_FREE |= {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
# Operations that read nothing of what they write.
_FILLS = {"fill_", "zero_", "copy_", "bernoulli_", "uniform_", "normal_", "random_", "exponential_"}
_READS_ROWS = {"index", "index_select", "embedding", "gather", "_unsafe_index"}
_BAGS = {"_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward"}
_WRITES_ROWS = {
    "index_put_",
    "_index_put_impl_",
    "index_add_",
    "index_copy_",
    "scatter_",
    "scatter_add_",
}
_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 10,
}


Kind = tuple[str, torch.dtype, int]
Call = tuple[Any, Any, Any]  # an operation of torch, its arguments and its options


class UnreadableError(TemperaError):
    """A step needs a number that only a device has."""


class Operation(NamedTuple):
    """One operation of a device."""

    name: str
    dtype: torch.dtype
    flops: int  # of products; those of anything else are few beside its bytes
    bytes: int  # read and written
    sent: int = 0  # bytes to other devices

    @property
    def work(self) -> int:
        """Return what its time grows with."""
        return self.flops or self.bytes or 1

    @property
    def kind(self) -> Kind:
        """Return what operations of like cost have in common: name, precision, and work to a factor
        of 2."""
        return self.name, self.dtype, self.work.bit_length()


@dataclass
class Stage:
    """The operations of one part of a step.

    Args:
        operations: how often each one runs.
        times: that all of them run, as for accumulated batches; a share where a sample of the rows
            goes backward.
        calls: how often each of them is started for that: some micro-batches stand for all by their
            tokens, and by their number.
        host_once: seconds of what the program itself has computed on the way, with numbers.
    """

    operations: Counter[Operation] = field(default_factory=Counter)
    times: float = 1.0
    calls: float = 1.0
    host_once: float = 0.0

    @property
    def launches(self) -> float:
        """Return the number of operations."""
        return self.calls * self.operations.total()

    @property
    def host(self) -> float:
        """Return the seconds of what the program itself computes, with numbers."""
        return self.times * self.host_once

    def repeat(self, times: float, calls: float | None = None) -> None:
        """Do all of it so many times; `calls` where the number of starts is another."""
        self.times, self.calls = (
            self.times * times,
            self.calls * (times if calls is None else calls),
        )

    def total(self, kind: str) -> float:
        """Return the sum of `flops`, `bytes` or `sent`."""
        return float(
            self.times * sum(count * getattr(each, kind) for each, count in self.operations.items())
        )


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a device, stage by stage.

    Args:
        device: "meta" stands for an accelerator; on a CPU those of fake tensors are counted.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.stages, self.stage = device, dict[str, Stage](), ""
        self.examples: dict[Kind, tuple[Operation, Call]] = {}  # one call of each kind, to be timed

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count what runs in the block as a part of a stage."""
        self.stage = stage
        self.stages.setdefault(stage, Stage())
        with self:
            yield

    def note(self, operation: Operation) -> None:
        """Count an operation that is none of torch's as a part of the stage."""
        self.stages[self.stage].operations[operation] += 1

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op.namespace not in _COUNTED:
            return op(*args, **kwargs)
        if op.overloadpacket is _aten._local_scalar_dense and self._here(args[0]):
            return self._asked(args[0])
        start = time.thread_time()
        try:
            out = op(*args, **kwargs)
        except NotImplementedError:
            raise UnreadableError(
                f"torch cannot tell what {op} makes of tensors without numbers"
            ) from None
        seconds = time.thread_time() - start
        if self._launches(op, args, kwargs):
            each = operation(op, args, kwargs, out)
            self.stages[self.stage].operations[each] += 1
            if all(
                x.layout == torch.strided
                for x in tree_leaves((args, kwargs))
                if isinstance(x, Tensor)
            ):
                self.examples.setdefault(each.kind, (each, (op, args, kwargs)))
        elif not any(map(self._here, tree_leaves((args, kwargs, out)))):
            self.stages[self.stage].host_once += seconds
        return out

    def _asked(self, number: Tensor) -> bool:
        """Answer a tower that waits for its device: masks are given to it only where a row is
        padded, so not all are true."""
        if number.dtype != torch.bool:
            raise UnreadableError(
                "the towers read a number of their device within a step, which cannot be known on paper"
            )
        return False

    def _launches(self, op: Any, args: Any, kwargs: Any) -> bool:
        name, present = (
            op.overloadpacket.__name__,
            [self._here(x) for x in tree_leaves((args, kwargs))],
        )
        if name in _FREE or op.is_view:
            return False
        if name == "_to_copy":
            return present[0]
        if name == "copy_":
            return present[0] and (present[1] or not args[1].dim())
        made_here = self.device.type != "cpu" and _is(kwargs.get("device"), self.device)
        return any(present) or made_here

    def _here(self, x: Any) -> bool:
        if not isinstance(x, Tensor):
            return False
        return (
            isinstance(x, FakeTensor)
            if self.device.type == "cpu"
            else x.device.type == self.device.type
        )


def _is(device: Any, other: torch.device) -> bool:
    return device is not None and torch.device(device).type == other.type


def operation(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> Operation:
    """Return what one call of an operation of torch does."""
    tensors = [
        x for x in (*tree_leaves((args, kwargs)), *tree_leaves(out)) if isinstance(x, Tensor)
    ]
    floats = [x.dtype for x in tensors if x.dtype.is_floating_point]
    return Operation(
        op.overloadpacket.__name__,
        (floats or [torch.int64])[0],
        _flops(op, args, kwargs, out),
        moved(op, args, kwargs, out),
    )


def moved(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the bytes that an operation reads and writes; of lookups those of the rows."""
    name = op.overloadpacket.__name__
    if name in _BAGS:  # what else they take and return is the kernel's own
        args, out = args[:3], out[0] if isinstance(out, tuple) else out
    written = [
        value
        for argument, value in zip(op._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    rest = {key: value for key, value in kwargs.items() if key != "out"}
    results, reads = _sizes(written if written else out), _sizes((args, rest))
    if name in _FILLS:
        reads -= _sizes(args[0])
    elif name in _READS_ROWS:
        reads += results - _sizes(args[0])
    elif name in _BAGS and "backward" not in name:
        reads += args[1].numel() * args[0].shape[1] * args[0].dtype.itemsize - _sizes(args[0])
    elif name in _WRITES_ROWS:
        values = max(
            map(_size, (x for x in tree_leaves(args[1:]) if isinstance(x, Tensor))), default=0
        )
        reads, results = reads - _sizes(args[0]) + values, values
    return reads + results


def _sizes(values: Any) -> int:
    return sum(_size(x) for x in tree_leaves(values) if isinstance(x, Tensor))


def _size(x: Tensor) -> int:
    """Return the bytes of a tensor, of one that is expanded those that are there."""
    if x.layout != torch.strided:
        return 0
    return min(x.numel() * x.dtype.itemsize, x.untyped_storage().nbytes())


def _flops(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
    name = op.overloadpacket.__name__
    if name in _ATTENTION:
        query, key = args[1:3] if "backward" in name else args[:2]
        return int(_ATTENTION[name] * query.numel() * key.shape[-2])
    if name == "_linear_pointwise":  # of oneDNN: rows and a weight, [o, k]
        return int(2 * args[0].numel() * len(args[1]))
    count = flop_registry.get(op.overloadpacket) or flop_registry.get(
        getattr(_aten, name.rstrip("_"), None)
    )
    return 0 if count is None else int(count(*args, **kwargs, out_val=out))


_PRODUCTS = {
    nn.functional.linear,
    torch.matmul,
    torch.mm,
    torch.bmm,
    torch.addmm,
    torch.baddbmm,
    Tensor.matmul,
}
_PRODUCTS |= {Tensor.__matmul__, nn.functional.scaled_dot_product_attention}


class AsAccelerator(TorchFunctionMode):
    """Do what torch does on accelerators and not on meta tensors: one kernel for a dropout, and
    products in half precision.

    As in torch.autocast, weights are cast once.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.cast = dtype, dict[int, Tensor]()

    def __exit__(self, *error: Any) -> None:
        self.cast.clear()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.dropout:
            return _dropout(*args, **kwargs)
        if func in _PRODUCTS and self.dtype != torch.float32:
            args, kwargs = (
                tuple(map(self._lower, args)),
                {key: self._lower(x) for key, x in kwargs.items()},
            )
        return func(*args, **kwargs)

    def _lower(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype != torch.float32:
            return x
        if not isinstance(x, nn.Parameter):
            return x.to(self.dtype)
        if id(x) not in self.cast:
            self.cast[id(x)] = x.to(self.dtype)
        return self.cast[id(x)]


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x


@cache
def fakes() -> FakeTensorMode:
    """Return the mode of all tensors of a CPU that have no numbers."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def on_paper(module: nn.Module, device: torch.device) -> Any:
    """Return a copy of a module whose parameters have no numbers, on a device: META, or the CPU."""
    if device.type != "cpu":
        return copy.deepcopy(module).to(device)
    with FakeCopyMode(fakes()):
        copied = copy.deepcopy(module)
    for place, part in copied.named_modules():
        for name, buffer in module.get_submodule(place).named_buffers(recurse=False):
            if (
                not buffer.dtype.is_floating_point
            ):  # which rows are read follows from the numbers of these
                part.register_buffer(name, buffer, persistent=False)
    return copied


def blank(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor without numbers."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    with fakes():
        return torch.empty(shape, dtype=dtype)


def real(x: Any, device: torch.device) -> Any:
    """Return a tensor of the same shape and strides with numbers, to be computed with; anything
    else as it is."""
    if not isinstance(x, Tensor) or not (isinstance(x, FakeTensor) or x.device.type == "meta"):
        return device if x == META else x
    extent = (
        1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        if x.numel()
        else 0
    )
    value = 0.5 if x.dtype.is_floating_point else 0
    return torch.full((extent,), value, dtype=x.dtype, device=device).as_strided(
        x.shape, x.stride()
    )
