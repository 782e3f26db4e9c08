"""Towers whose parameters are divided among the processes (FSDP2), where one device cannot hold
them with their optimiser.

A divided parameter is a DTensor. Every process keeps a part of it, with that part's gradient and
moments; the whole of a layer is put together while it runs. So whatever is done with a divided
tower, all processes do it, equally often and in one order.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import ConfigError
from .distributed import Group

ONE_PROCESS = "{} divides towers over processes, but there is only one: launch several with torchrun, or drop it"


def shard(towers: Iterable[nn.Module], group: Group, dtype: torch.dtype | None = None) -> None:
    """Divide the parameters of towers, in place, among the processes: FSDP2. Make the optimiser
    afterwards.

    Each layer of an `nn.ModuleList` (the layers of a transformer) is put together when it runs, and
    the rest of a tower, embedding tables above all, at once. Gradients are sums over the processes,
    as in `all_reduce_gradients`. Needs torch 2.8.

    Args:
        towers: what is called with features; they may have parts in common, which are divided once.
        dtype: in which parameters travel and are computed with; None is their own. Gradients are
            summed in theirs in any case.

    Raises:
        ConfigError: there is only one process, or a tower is compiled.
    """
    if group.size == 1:
        raise ConfigError(ONE_PROCESS.format("fsdp"))
    modules = list(towers)
    refuse_compiled(modules)
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    # What `forward` returns may be a view; FSDP2 warns in case it would be changed in place, and
    # nobody does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    mesh = mesh_of(group)
    policy = MixedPrecisionPolicy(
        dtype, torch.float32 if dtype else None, cast_forward_inputs=False
    )
    for module in _units(modules):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
        assert isinstance(module, FSDPModule)
        add_up(module)
        if can_restart(module):
            module.set_custom_all_gather(_Paced(group, dist.all_gather_single))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(_Paced(group, dist.reduce_scatter_single))  # type: ignore[arg-type]
    for tower in modules:
        tower.to(group.device)  # what two towers own apart from the parts that they share


def mesh_of(group: Group) -> Any:
    """Return the mesh of all processes, which finds them by name: it would hold on to gloo's
    threads when they part."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(group.device.type, (group.size,))
    getattr(mesh, "_pg_registry", {}).clear()
    return mesh


def add_up(towers: Any) -> None:
    """Let the modules that FSDP2 divides add up their gradients over the processes, where it would
    take the mean."""
    for module in towers.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has sums only


@dataclass(frozen=True)
class _Paced:
    """An exchange of FSDP2 that begins when no process has run out of memory."""

    group: Group
    exchange: Callable[..., Any]

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, *options: Any, **named: Any
    ) -> Any:
        self.group.keep_pace()
        with self.group.together("the exchange of a divided layer"):
            return self.exchange(output_tensor, input_tensor, *options, **named)


def can_restart(towers: Any) -> bool:
    """Return True if towers can begin again after a pass that has not come to its end: FSDP2's can
    since torch 2.13."""
    return all(hasattr(module, "reset_iter_state") for module in _divided_modules(towers))


def restart(towers: Any) -> None:
    """Make towers forget a pass that has not come to its end; each process has to call."""
    for module in _divided_modules(towers):
        module.zero_grad()  # of layers that are whole now
        module.reset_iter_state()


def _divided_modules(towers: Any) -> Iterator[Any]:
    """Yield the outermost modules that `shard` has divided."""
    inner: set[nn.Module] = set()
    for module in towers.modules():
        if hasattr(module, "set_requires_gradient_sync") and module not in inner:
            inner.update(module.modules())
            yield module


def refuse_compiled(towers: Iterable[nn.Module], option: str = "fsdp") -> None:
    """Raise ConfigError for a tower that is compiled, or has parts that are."""
    if any(is_compiled(tower.modules()) for tower in towers):
        raise ConfigError(
            f"{option} does not divide compiled towers: drop torch_compile or {option}"
        )


def is_compiled(modules: Iterable[nn.Module]) -> bool:
    """Return True if torch compiles one of the modules of a tower."""
    return any(
        each._compiled_call_impl is not None or type(each).__name__ == "OptimizedModule"
        for each in modules
    )


def is_left_alone(modules: Sequence[nn.Module]) -> bool:
    """Return True if no operation of a tower may be replaced: torch compiles it, or computes parts
    again on the way back."""
    return is_compiled(modules) or any(
        getattr(each, "gradient_checkpointing", False) for each in modules
    )


def is_divided(tensor: Tensor) -> TypeGuard[Any]:
    """Return True if this process has only a part of a tensor."""
    if not dist.is_initialized():  # importing the class takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


@torch.no_grad()  # with gradient, sparse ones have no part
def part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, in place; the tensor itself if that is all."""
    mine: Tensor = tensor.to_local() if is_divided(tensor) else tensor
    return mine


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor, from all processes; each of them has to call."""
    everything: Tensor = tensor.full_tensor() if is_divided(tensor) else tensor
    return everything


def at_main(tensor: Tensor, group: Group) -> Tensor | None:
    """Return the whole of a tensor in the main process, on its CPU where it was divided; each
    process has to call."""
    if not is_divided(tensor):
        return tensor if group.main else None
    mine = part(tensor)
    if not group.main:
        if len(mine):
            with group.together("the gather of a divided tensor"):
                dist.send(mine.contiguous(), 0)
        return None
    everything = torch.empty(tensor.shape, dtype=tensor.dtype)
    for rank, rows in enumerate(torch.split(everything, len(mine))):
        sent = torch.empty_like(rows, device=mine.device) if rank else mine
        if rank:
            with group.together("the gather of a divided tensor"):
                dist.recv(sent, rank)
        rows.copy_(sent)
    return everything


def divided_as(tensor: Tensor, other: Tensor) -> Tensor:
    """Divide a tensor, whole on every process, in the same way as another one of its shape, or of
    as many rows."""
    if not is_divided(other) or tensor.shape[:1] != other.shape[:1]:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None
    )


@torch.no_grad()
def gather(towers: nn.Module, into: nn.Module, group: Group, everyone: bool = True) -> None:
    """Copy the weights of divided towers into the same towers undivided, one tensor at a time; each
    process has to call.

    Args:
        everyone: on all processes; else on the main one only.
    """
    divided, undivided = ([*module.parameters(), *module.buffers()] for module in (towers, into))
    for tensor, own in zip(divided, undivided, strict=True):
        with group.together("the gather of weights"):
            everything = whole(tensor) if everyone else at_main(tensor, group)
        if everything is not None:
            if own.shape == everything.shape:
                own.copy_(everything)
            else:  # it has been released
                own.data = everything.to(own.device)


def _units(towers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the modules of towers that are put together at once, inner ones before those that hold
    them.

    What is within a member of a list is divided with it: how often it runs depends on the rows
    (groups of like length), and all processes have to call each unit equally often.
    """
    within = {part for tower in towers for member in _members(tower) for part in member.modules()}
    roots = _apart(towers)
    return [
        module
        for root in roots
        for module in ([root] if root in within else [*_layers(root), root])
    ]


def _apart(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return modules, the largest of those that share parameters replaced by its children until
    none do, and no lists."""
    distinct = [
        module for module in dict.fromkeys(modules) if next(module.parameters(), None) is not None
    ]
    uses = Counter(p for module in distinct for p in module.parameters())
    sharing = [module for module in distinct if any(uses[p] > 1 for p in module.parameters())]
    lists = [module for module in distinct if isinstance(module, nn.ModuleList | nn.ModuleDict)]
    split = [*lists, *sorted(sharing, key=lambda module: -len(list(module.modules())))][:1]
    if not split:
        return distinct
    if not list(split[0].children()):
        raise ConfigError(
            f"fsdp cannot shard a parameter that several {type(split[0]).__name__} share: drop fsdp"
        )
    return _apart(
        child
        for module in distinct
        for child in (module.children() if module in split else [module])
    )


def _layers(root: nn.Module) -> list[nn.Module]:
    """Return members of the outermost lists that share no parameters; what is within a layer is
    divided with it."""
    layers = list(dict.fromkeys(_members(root)))
    uses = Counter(p for layer in layers for p in layer.parameters())
    return [layer for layer in layers if all(uses[p] == 1 for p in layer.parameters())]


def _members(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _members(child)
