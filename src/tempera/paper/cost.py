"""The cost of a step on paper: the launches, bytes and FLOPs of its operations, without numbers.

The engine's own code runs on tensors with shapes and without numbers, so the counts are the counts
of the step itself. The tensors are torch's meta tensors for an accelerator and its fake tensors for
a CPU, and a dispatch mode notes the operations. A step waits for the device only at the end, so
nothing before needs a number.

    ledger = Ledger(torch.device("meta"))
    with ledger("loss stage"):
        objective.propagate(batch, shares)
    ledger.stages["loss stage"].launches

Bytes are estimated as each operand read once and each result written once; a cache may save some
bytes. Letters in shapes: b rows of this device, n rows of all, D width.
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
# Operations that write to their first argument and do not read it.
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
    flops: int  # of products; other operations have few beside their bytes
    bytes: int  # read and written
    sent: int = 0  # bytes to other devices

    @property
    def work(self) -> int:
        """The measure by which the time of the operation grows: FLOPs, or else bytes."""
        return self.flops or self.bytes or 1

    @property
    def kind(self) -> Kind:
        """The kind of operations of like cost: name, precision, and work to a factor of 2."""
        return self.name, self.dtype, self.work.bit_length()


@dataclass
class Stage:
    """The operations of one part of a step.

    Args:
        operations: the number of runs of each operation.
        times: factor of the work, as for accumulated batches; for a sample of micro-batches by the
            tokens.
        calls: factor of the starts; for a sample of micro-batches by the number of micro-batches.
        host_once: seconds of computations with numbers by the program itself.
    """

    operations: Counter[Operation] = field(default_factory=Counter)
    times: float = 1.0
    calls: float = 1.0
    host_once: float = 0.0

    @property
    def launches(self) -> float:
        """The number of starts of operations."""
        return self.calls * self.operations.total()

    @property
    def host(self) -> float:
        """The seconds of computations with numbers by the program itself."""
        return self.times * self.host_once

    def repeat(self, times: float, calls: float | None = None) -> None:
        """Repeat all operations so many times; `calls` is the factor of the starts if different."""
        self.times *= times
        self.calls *= times if calls is None else calls

    def total(self, kind: str) -> float:
        """Return the sum of `flops`, `bytes` or `sent`."""
        once = sum(count * getattr(each, kind) for each, count in self.operations.items())
        return float(self.times * once)


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a device, stage by stage.

    Args:
        device: "meta" stands for an accelerator; on a CPU, operations of fake tensors are counted.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.stages: dict[str, Stage] = {}
        self.stage = ""
        self.examples: dict[Kind, tuple[Operation, Call]] = {}  # one call of each kind, to be timed

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count what runs in the block as a part of a stage."""
        self.stage = stage
        self.stages.setdefault(stage, Stage())
        with self:
            yield

    def note(self, operation: Operation) -> None:
        """Count an operation of another library than torch as a part of the stage."""
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
            if all(x.layout == torch.strided for x in _tensors((args, kwargs))):
                self.examples.setdefault(each.kind, (each, (op, args, kwargs)))
        elif not any(map(self._here, tree_leaves((args, kwargs, out)))):
            self.stages[self.stage].host_once += seconds
        return out

    def _asked(self, number: Tensor) -> bool:
        """Return the answer for a tower that reads a truth value: a tower gets a mask only if a row
        is padded, so not all are true."""
        if number.dtype != torch.bool:
            raise UnreadableError(
                "the towers read a number of their device within a step, which cannot be known on paper"
            )
        return False

    def _launches(self, op: Any, args: Any, kwargs: Any) -> bool:
        """Return True if an operation starts something on the device."""
        name = op.overloadpacket.__name__
        present = [self._here(x) for x in tree_leaves((args, kwargs))]
        if name in _FREE or op.is_view:
            return False
        if name == "_to_copy":
            return present[0]
        if name == "copy_":
            return present[0] and (present[1] or not args[1].dim())
        made_here = self.device.type != "cpu" and _is(kwargs.get("device"), self.device)
        return any(present) or made_here

    def _here(self, x: Any) -> bool:
        """Return True for a tensor without numbers on the device."""
        if not isinstance(x, Tensor):
            return False
        if self.device.type == "cpu":
            return isinstance(x, FakeTensor)
        return x.device.type == self.device.type


def _is(device: Any, other: torch.device) -> bool:
    return device is not None and torch.device(device).type == other.type


def operation(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> Operation:
    """Return the cost of one call of an operation of torch."""
    dtype = torch.int64
    for x in _tensors((args, kwargs, out)):
        if x.dtype.is_floating_point:
            dtype = x.dtype
            break
    flops = _flops(op, args, kwargs, out)
    return Operation(op.overloadpacket.__name__, dtype, flops, moved(op, args, kwargs, out))


def moved(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the bytes read and written by an operation; lookups read only their rows."""
    name = op.overloadpacket.__name__
    if name in _BAGS:  # their other arguments and results stay within the kernel
        args = args[:3]
        out = out[0] if isinstance(out, tuple) else out
    written = [
        value
        for argument, value in zip(op._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    rest = {key: value for key, value in kwargs.items() if key != "out"}
    results = _sizes(written or out)
    reads = _sizes((args, rest))
    if name in _FILLS:
        reads -= _sizes(args[0])
    elif name in _READS_ROWS:
        reads += results - _sizes(args[0])
    elif name in _BAGS and "backward" not in name:
        reads += args[1].numel() * args[0].shape[1] * args[0].dtype.itemsize - _sizes(args[0])
    elif name in _WRITES_ROWS:
        values = max(map(_size, _tensors(args[1:])), default=0)
        reads += values - _sizes(args[0])
        results = values
    return reads + results


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested values, in order."""
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _sizes(values: Any) -> int:
    """Return the bytes of all tensors in nested values."""
    return sum(_size(x) for x in _tensors(values))


def _size(x: Tensor) -> int:
    """Return the bytes of a tensor in memory; an expanded tensor has fewer than its numbers."""
    if x.layout != torch.strided:
        return 0
    return min(x.numel() * x.dtype.itemsize, x.untyped_storage().nbytes())


def _flops(op: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the FLOPs of an operation's products."""
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
    """Let meta tensors behave as tensors of accelerators: one kernel for a dropout, and products in
    half precision.

    As in torch.autocast, weights are cast once.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.cast: dict[int, Tensor] = {}

    def __exit__(self, *error: Any) -> None:
        self.cast.clear()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.dropout:
            return _dropout(*args, **kwargs)
        if func in _PRODUCTS and self.dtype != torch.float32:
            args = tuple(map(self._lower, args))
            kwargs = {key: self._lower(x) for key, x in kwargs.items()}
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
    if training and p:
        return torch.native_dropout(x, p, True)[0]
    return x


@cache
def fakes() -> FakeTensorMode:
    """Return the mode of all tensors without numbers of a CPU."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def on_paper(module: nn.Module, device: torch.device) -> Any:
    """Return a copy of a module, with parameters without numbers, on a device: META, or the CPU."""
    if device.type != "cpu":
        return copy.deepcopy(module).to(device)
    with FakeCopyMode(fakes()):
        copied = copy.deepcopy(module)
    for place, part in copied.named_modules():
        for name, buffer in module.get_submodule(place).named_buffers(recurse=False):
            if not buffer.dtype.is_floating_point:  # its numbers decide which rows are read
                part.register_buffer(name, buffer, persistent=False)
    return copied


def blank(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor without numbers."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    with fakes():
        return torch.empty(shape, dtype=dtype)


def real(x: Any, device: torch.device) -> Any:
    """Return a tensor with numbers, of the shape and strides of a tensor without numbers; any
    further value unchanged, but the device META as `device`."""
    if not isinstance(x, Tensor) or not (isinstance(x, FakeTensor) or x.device.type == "meta"):
        return device if x == META else x
    extent = 0
    if x.numel():
        extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    value = 0.5 if x.dtype.is_floating_point else 0
    flat = torch.full((extent,), value, dtype=x.dtype, device=device)
    return flat.as_strided(x.shape, x.stride())
