"""Towers with parameters divided among the processes (FSDP2), where towers and optimiser are too
large for a single device.

A divided parameter is a DTensor. Every process keeps a part of the parameter, with the gradient and
moments of the part; a layer is put together while it runs. So all processes do the same work with a
divided tower, equally often and in one order.
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
    as in `all_reduce_gradients`.

    Args:
        towers: modules that are called with features; common parts of towers are divided once.
        dtype: the precision of parameters on their way and in computations; None is the parameters'
            own. Gradients are summed in the parameters' own precision in any case.

    Raises:
        ConfigError: there is only one process, or a tower is compiled.
    """
    if group.size == 1:
        raise ConfigError(ONE_PROCESS.format("fsdp"))
    modules = list(towers)
    refuse_compiled(modules)
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    # The result of `forward` may be a view. FSDP2 warns of changes to it in place: there are none.
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
        tower.to(group.device)  # parameters of a tower outside of the parts that towers share


def mesh_of(group: Group) -> Any:
    """Return the mesh of all processes."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(group.device.type, (group.size,))
    # The mesh finds processes by name. The registry would keep gloo's threads when processes part.
    getattr(mesh, "_pg_registry", {}).clear()
    return mesh


def add_up(towers: Any) -> None:
    """Let modules divided by FSDP2 sum gradients over the processes, in place of the mean."""
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
    """Return True if towers can begin again after an unfinished pass: with FSDP2, since torch
    2.13."""
    return all(hasattr(module, "reset_iter_state") for module in _divided_modules(towers))


def restart(towers: Any) -> None:
    """Make towers forget an unfinished pass; each process has to call."""
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
    """Raise ConfigError for a tower with a compiled module."""
    if any(is_compiled(tower.modules()) for tower in towers):
        raise ConfigError(
            f"{option} does not divide compiled towers: drop torch_compile or {option}"
        )


def is_compiled(modules: Iterable[nn.Module]) -> bool:
    """Return True if torch compiles a module of a tower."""
    return any(
        each._compiled_call_impl is not None or type(each).__name__ == "OptimizedModule"
        for each in modules
    )


def is_left_alone(modules: Sequence[nn.Module]) -> bool:
    """Return True if no operation of a tower may be replaced: torch compiles the tower, or computes
    parts again on the way back."""
    if is_compiled(modules):
        return True
    return any(getattr(each, "gradient_checkpointing", False) for each in modules)


def is_divided(tensor: Tensor) -> TypeGuard[Any]:
    """Return True if this process has only a part of a tensor."""
    if not dist.is_initialized():  # importing the class takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


@torch.no_grad()  # with gradient, sparse tensors have no part
def part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, in place; an undivided tensor as a whole."""
    mine: Tensor = tensor.to_local() if is_divided(tensor) else tensor
    return mine


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor, from all processes; each process has to call."""
    everything: Tensor = tensor.full_tensor() if is_divided(tensor) else tensor
    return everything


def at_main(tensor: Tensor, group: Group) -> Tensor | None:
    """Return the whole of a tensor in the main process, on the CPU if divided; each process has to
    call."""
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
        if rank == 0:
            rows.copy_(mine)
            continue
        received = torch.empty_like(rows, device=mine.device)
        with group.together("the gather of a divided tensor"):
            dist.recv(received, rank)
        rows.copy_(received)
    return everything


def divided_as(tensor: Tensor, other: Tensor) -> Tensor:
    """Divide a tensor, whole on every process, in the same way as another tensor with as many
    rows."""
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
        everyone: on all processes; else on the main process only.
    """
    divided = [*towers.parameters(), *towers.buffers()]
    undivided = [*into.parameters(), *into.buffers()]
    for tensor, own in zip(divided, undivided, strict=True):
        with group.together("the gather of weights"):
            everything = whole(tensor) if everyone else at_main(tensor, group)
        if everything is None:
            continue
        if own.shape == everything.shape:
            own.copy_(everything)
        else:  # the tensor has been released
            own.data = everything.to(own.device)


def _units(towers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the modules of towers that are put together at once, inner modules first.

    A module within a member of a list is divided with the member: the number of runs depends on the
    rows (groups of like length), and all processes have to call each unit equally often.
    """
    within: set[nn.Module] = set()
    for tower in towers:
        for member in _members(tower):
            within.update(member.modules())
    units = []
    for root in _apart(towers):
        if root not in within:
            units += _layers(root)
        units.append(root)
    return units


def _apart(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return modules that share no parameters, and no lists: a list, or the largest of modules that
    share parameters, is replaced by its children until none is left."""
    distinct = [each for each in dict.fromkeys(modules) if list(each.parameters())]
    uses = Counter(p for module in distinct for p in module.parameters())
    split: nn.Module | None = None
    largest = 0
    for module in distinct:
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            split = module
            break
        size = len(list(module.modules()))
        if size > largest and any(uses[p] > 1 for p in module.parameters()):
            split = module
            largest = size
    if split is None:
        return distinct
    if not list(split.children()):
        raise ConfigError(
            f"fsdp cannot shard a parameter that several {type(split).__name__} share: drop fsdp"
        )
    smaller: list[nn.Module] = []
    for module in distinct:
        smaller += module.children() if module is split else [module]
    return _apart(smaller)


def _layers(root: nn.Module) -> list[nn.Module]:
    """Return the members of the outermost lists that share no parameters; modules within a layer
    are divided with the layer."""
    layers = list(dict.fromkeys(_members(root)))
    uses = Counter(p for layer in layers for p in layer.parameters())
    return [layer for layer in layers if all(uses[p] == 1 for p in layer.parameters())]


def _members(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of the outermost lists of a module."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _members(child)
