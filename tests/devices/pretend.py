"""A pretend accelerator: numbers of the CPU behind a device of their own, so that a step can be
judged without a GPU.

Tensors of two devices in one operation are an error that names its line, as is float64 on a device
without it. What a GPU would wait for (values that the program reads, shapes that depend on values,
copies of memory that is not pinned), copies to it and launches on it are counted by line; what runs
in a backward pass counts for the line whose gradient it is. Views and new memory are no launches.

    with Accelerator() as used:
        objective.propagate(batch.to(used.device), shares)
    used.within(waits={"engine/loop.py take": 1}, copies={}, launches=60)

Importing this makes torch's PrivateUse1 the device `pretend`, which has to happen before the first
backward pass of a process.
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import pytest
import torch
import torch.utils._device
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import tempera
from tempera.arithmetic import abilities
from tempera.engine import clock
from tempera.paper import cost

PACKAGE = str(Path(tempera.__file__).parent) + "/"
TESTS = str(Path(__file__).parents[1]) + "/"
NAME = "pretend"
GIB = 1 << 30

_aten = torch.ops.aten
_READS = {_aten._local_scalar_dense, _aten.equal, _aten.is_nonzero}
_SHAPES = {
    _aten.nonzero,
    _aten._unique2,
    _aten.unique_dim,
    _aten.unique_consecutive,
    _aten.masked_select,
    _aten.bincount,
}
_SHAPES |= {_aten._coalesce}
_INDEXED = {
    _aten.index,
    _aten.index_put,
    _aten.index_put_,
    _aten._index_put_impl_,
    _aten._unsafe_index,
}
_FREE = {
    _aten.detach,
    _aten._unsafe_view,
    _aten.lift_fresh,
    _aten.empty,
    _aten.empty_strided,
    _aten.empty_like,
    _aten.new_empty,
}
_FREE |= {
    _aten.new_empty_strided,
    _aten._values,
    _aten._indices,
    _aten._reshape_alias,
    _aten.is_same_size,
}
_SPARSE = torch.sparse_coo_tensor
torch.utils._device._device_constructors()  # looked up once, before some of them are replaced
_running: list[Accelerator] = []  # the innermost one last


def _made(make: Any, sparse: bool, *data: Any, device: Any = None, **options: Any) -> Any:
    """Make a tensor by a function that would not be dispatched: on the CPU, and then on its
    device."""
    here = any(isinstance(x, Pretend) for x in data)
    if make is _SPARSE and here:
        if not sparse:
            raise NotImplementedError(f"the device has no sparse tensors, at {line()}")
        _count("launches")
        return Pretend(make(*map(_raw, data), **options))
    if not _is_here(device):
        return make(*data, device=device, **options)
    _count_copy()
    return _wrap(make(*data, **options))


def _new_tensor(like: torch.Tensor, data: Any, dtype: Any = None, device: Any = None) -> Any:
    return torch.tensor(
        data, dtype=dtype or like.dtype, device=like.device if device is None else device
    )


def _gru(own: Any, x: torch.Tensor, state: torch.Tensor, weights: Any, *options: Any) -> Any:
    """Run one layer as a CPU does it, where devices have a kernel of their own."""
    if not isinstance(x, Pretend):
        return own(x, state, weights, *options)
    inward, recurrent, *biases = weights
    of_input, h, states = (
        torch.nn.functional.linear(x.transpose(0, 1), inward, biases[0]),
        state[0],
        [],
    )
    for gates in of_input.unbind(0):
        (r, z, n), (hr, hz, hn) = (
            gates.chunk(3, 1),
            torch.nn.functional.linear(h, recurrent, biases[1]).chunk(3, 1),
        )
        reset, update = (hr + r).sigmoid(), (hz + z).sigmoid()
        new = (n + hn * reset).tanh()
        h = (h - new) * update + new
        states.append(h)
    return torch.stack(states).transpose(0, 1), h[None]


class Line(NamedTuple):
    """A line of the package, or of a test, and the function that it stands in."""

    file: str
    number: int
    function: str
    backward: bool = False

    @property
    def place(self) -> str:
        """Return the file and the function, by which budgets name it."""
        return f"{self.file} {self.function}"

    def __str__(self) -> str:
        root = TESTS if self.file.startswith("tests/") else PACKAGE
        text = linecache.getline(root + self.file.removeprefix("tests/"), self.number).strip()
        return f"{self.file}:{self.number} ({'gradient of ' if self.backward else ''}{self.function}): {text}"


class _Module(backend_registration._DummyBackendModule):  # type: ignore[misc]
    def is_available(self) -> bool:
        return bool(_running)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return _running[-1].half if _running else []

    def is_bf16_supported(self) -> bool:
        return torch.bfloat16 in self.get_amp_supported_dtype()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class _Hook(backend_registration._DummyPrivateUse1Hook):  # type: ignore[misc]
    def is_available(self) -> bool:
        return bool(_running)


backend_registration._setup_privateuseone_for_python_backend(
    NAME, backend_module=_Module(), hook=_Hook()
)


def _lowered(op: Any) -> Any:
    """Make a product that autocast runs in its half precision."""

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)
        lower = [
            x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x
            for x in args
        ]
        with torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        ):
            return op(*lower, **kwargs)

    return run


_fallback = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
_fallback.fallback(torch.library.fallthrough_kernel)
_products = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
for _name in ("linear", "mm", "addmm", "bmm", "baddbmm", "matmul"):
    _products.impl(_name, _lowered(getattr(_aten, _name).default))


class Pretend(torch.Tensor):
    """A tensor of the CPU that is on the device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Pretend:
        thick = raw.layout == torch.strided
        where = {"strides": raw.stride(), "storage_offset": raw.storage_offset()} if thick else {}
        tensor: Pretend = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.shape, **where, dtype=raw.dtype, device=torch.device(NAME, 0)
        )
        tensor.raw = raw
        return tensor

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    def __repr__(self, *_: Any) -> str:
        return f"pretend({self.raw})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(f"a tensor of the device is pickled, at {line()}")

    # What C++ asks of memory and layout without dispatching.
    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"a tensor of the device is no array of numpy, at {line()}: copy it to the CPU first"
        )

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    @property
    def is_sparse(self) -> bool:
        return self.raw.is_sparse

    def is_coalesced(self) -> bool:
        return self.raw.is_coalesced()

    def coalesce(self) -> Pretend:
        if not self.raw.is_coalesced():
            _count("waits")
        _count("launches")
        return Pretend(self.raw.coalesce())

    def indices(self) -> Pretend:
        return Pretend(self.raw.indices())

    def values(self) -> Pretend:
        return Pretend(self.raw.values())


class Accelerator(TorchDispatchMode):
    """An accelerator that is there inside the block; what the program asks of it is counted.

    Args:
        memory: of the device in bytes, all of it free; None is a device that cannot be asked.
        float64: whether it has it.
        half: half precisions that it has.
        sparse: whether it has sparse tensors.
        kept: bytes of the memory that torch has taken for its next tensors.
    """

    exact = True  # numbers are the CPU's

    def __init__(
        self,
        memory: int | None = 80 * GIB,
        float64: bool = True,
        half: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16),
        sparse: bool = True,
        kept: int = 0,
    ) -> None:
        super().__init__()
        self.kept = kept
        self.memory, self.float64, self.half, self.sparse = memory, float64, list(half), sparse
        self.device = torch.device(NAME, 0)
        self.counts: Counter[tuple[str, Line]] = Counter()
        self.bytes = 0  # read and written by launches
        self.lines: dict[int, Line] = {}  # that made each node of the graph, by its number
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        _running.append(self)
        self.patch.setattr(torch.accelerator, "get_memory_info", self._memory_info)
        self.patch.setattr(torch.accelerator, "memory_reserved", lambda device=None: self.kept)
        self.patch.setattr(torch.accelerator, "memory_allocated", lambda device=None: 0)
        self.patch.setattr(torch.accelerator, "synchronize", lambda device=None: _count("waits"))
        self.patch.setattr(abilities, "_CUDA", (NAME,))
        self.patch.setattr(torch.Tensor, "pin_memory", _pinned)
        for module in (abilities, clock):
            self.patch.setattr(module, "event", lambda device: None)
        for name, make in (
            ("tensor", torch.tensor),
            ("sparse_coo_tensor", torch.sparse_coo_tensor),
        ):
            self.patch.setattr(torch, name, partial(_made, make, self.sparse))
        self.patch.setattr(torch.Tensor, "new_tensor", _new_tensor)
        self.patch.setattr(torch._VF, "gru", partial(_gru, torch._VF.gru))  # type: ignore[attr-defined]
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.patch.undo()
        _running.remove(self)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    def _memory_info(self, device: Any = None) -> tuple[int, int]:
        if self.memory is None:
            raise RuntimeError("the device cannot be asked for its memory")
        return self.memory - self.kept, self.memory

    def clear(self) -> None:
        """Forget what has been counted."""
        self.counts.clear()
        self.bytes = 0

    def total(self, kind: str) -> int:
        """Return the number of waits, copies or launches."""
        return sum(count for (each, _), count in self.counts.items() if each == kind)

    def by_line(self, kind: str) -> Iterator[str]:
        """Yield the lines with the most of a kind, the most first."""
        for (each, where), count in self.counts.most_common():
            if each == kind:
                yield f"{count} {kind}, {where}"

    def within(self, waits: Mapping[str, int], copies: Mapping[str, int], launches: int) -> None:
        """Fail with the lines of what is above a budget: of waits and copies by file and function,
        of launches in all."""
        over = []
        for kind, budget in (("waits", waits), ("copies", copies)):
            spent: Counter[str] = Counter()
            for (each, where), count in self.counts.items():
                spent[where.place] += count if each == kind else 0
            late = {place for place, count in spent.items() if count > budget.get(place, 0)}
            over += [
                f"{n} {kind}, {at}"
                for (each, at), n in self.counts.items()
                if each == kind and at.place in late
            ]
        if self.total("launches") > launches:
            over += [
                f"{self.total('launches')} launches, not {launches}",
                *self.by_line("launches"),
            ]
        assert not over, "\n".join(["the budget is exceeded:", *over])


def line() -> Line:
    """Return the innermost line of the package or of a test that runs now; in a backward pass the
    one whose gradient runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if (where := _placed(frame)) is not None:
            return where
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    if (
        node is not None
        and _running
        and (forward := _running[-1].lines.get(node._sequence_nr())) is not None
    ):
        return forward._replace(backward=True)
    while frame is not None:  # of a backward pass in this thread
        if (where := _placed(frame)) is not None:
            return where
        frame = frame.f_back
    return Line("elsewhere", 0, "backward pass" if node is not None else "?")


def _placed(frame: FrameType) -> Line | None:
    file = frame.f_code.co_filename
    if (
        file.startswith(PACKAGE) and frame.f_code is not abilities.sent.__code__
    ):  # whoever calls it sends
        return Line(file[len(PACKAGE) :], frame.f_lineno, frame.f_code.co_qualname)
    if file.startswith(TESTS) and file != __file__:
        return Line("tests/" + file[len(TESTS) :], frame.f_lineno, frame.f_code.co_qualname)
    return None


def _count(kind: str) -> None:
    if _running:
        _running[-1].counts[kind, line()] += 1


def _count_copy(source: Any = None, non_blocking: bool = False) -> None:
    """Count a copy from the host, for which a GPU waits unless the memory is pinned and the program
    asks it not to."""
    _count("copies")
    if not (non_blocking and getattr(source, "pinned", False)):
        _count("waits")


def _pinned(tensor: torch.Tensor) -> Any:
    copy: Any = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(
        tensor
    )  # as torch's own
    copy.pinned = True
    return copy


def _add_bytes(op: Any, args: Any, kwargs: Any, out: Any) -> None:
    if _running:
        _running[-1].bytes += cost.moved(op, args, kwargs, out)


def _raw(x: Any) -> Any:
    return x.raw if isinstance(x, Pretend) else x


def _wrap(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or isinstance(x, Pretend):
        return x
    if x.dtype == torch.float64 and _running and not _running[-1].float64:
        raise TypeError(f"the device has no float64, at {line()}")
    return Pretend(x)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _is_here(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU's numbers; count it, or refuse it, where one of its tensors is on
    the device."""
    name, (flat, _) = op.overloadpacket, tree_flatten((args, kwargs))
    here = any(isinstance(x, Pretend) for x in flat)
    if not here and not _is_here(kwargs.get("device")):
        return op(*args, **kwargs)
    if _running and torch.is_grad_enabled() and torch._C._current_autograd_node() is None:
        _running[-1].lines.setdefault(torch._C._autograd._get_sequence_nr() - 1, line())
    if name in _READS:
        _count("waits")
        return op(*tree_map(_raw, args), **kwargs)
    if name is _aten._to_copy:
        return _copied(op, args, dict(kwargs), here)
    if name is _aten.copy_:
        to, source = args[:2]
        if not isinstance(to, Pretend):
            _count("waits")
        if isinstance(source, Pretend) or not source.dim():
            _count("launches")
        else:
            _count_copy(source, *args[2:], **kwargs)
        _raw(to).copy_(_raw(source))
        if isinstance(source, Pretend) or not source.dim():
            _add_bytes(op, (_raw(to), _raw(source)), {}, _raw(to))
        return to
    _refuse_strangers(name, op, args, flat)
    if name in _SHAPES or (name in _INDEXED and any(_is_mask(x) for x in args[1])):
        _count("waits")
    launched = name not in _FREE and not op.is_view
    if launched:
        _count("launches")
    device = kwargs.pop("device", None) if "device" in (kwargs := dict(kwargs)) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        raw = tree_map(_raw, (args, kwargs))
        out = (
            _appended(*raw[0])
            if op is _aten.add_.Tensor and raw[0][0].is_sparse
            else op(*raw[0], **raw[1])
        )
    if launched:
        _add_bytes(op, *raw, out)
    if op._schema.is_mutable:
        if op is _aten.add_.Tensor:
            args[0].raw = out
        if "out" in kwargs:
            return kwargs["out"]
        if args and isinstance(args[0], torch.Tensor) and op._schema.name.endswith("_"):
            return args[0]
    return tree_map(_wrap, out) if device is None or _is_here(device) else out


def _appended(rows: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """Add sparse rows as CUDA does: one behind the other, where a CPU merges them."""
    parts = [[each._indices(), each._values()] for each in (rows, more)]
    indices, values = (
        torch.cat(part, dim) for part, dim in zip(zip(*parts, strict=True), (1, 0), strict=True)
    )
    return _SPARSE(indices, values, rows.shape, check_invariants=False)  # type: ignore[no-any-return]


def _copied(op: Any, args: Any, kwargs: dict[str, Any], here: bool) -> Any:
    device = kwargs.pop("device", None)
    there = here if device is None else _is_here(device)
    out = op(*tree_map(_raw, args), **kwargs)
    if here and not there:
        _count("waits")
        return out
    if here:
        _count("launches")
        _add_bytes(op, tree_map(_raw, args), kwargs, out)
    else:
        _count_copy(args[0], kwargs.get("non_blocking", False))
    return _wrap(out)


def _refuse_strangers(name: Any, op: Any, args: Any, flat: list[Any]) -> None:
    """Refuse tensors of the CPU beside those of the device, but for single numbers; the indices of
    a lookup are copied."""
    strangers = [
        x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, Pretend) and x.dim()
    ]
    if strangers and any(isinstance(x, Pretend) for x in flat):
        indices = (
            {id(x) for x in tree_flatten(args[1])[0]}
            if name in _INDEXED and isinstance(args[0], Pretend)
            else set()
        )
        if any(id(x) not in indices for x in strangers):
            raise RuntimeError(f"{op} has tensors of two devices, at {line()}")
        for _ in strangers:
            _count_copy()


def assert_same(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> None:
    """Fail if a bit differs."""
    assert len(got) == len(want) and all(map(torch.equal, got, want))
