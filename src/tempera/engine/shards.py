"""Towers whose parameters are divided among the processes (FSDP2), where one device cannot hold them with their optimiser.

A divided parameter is a DTensor. Every process keeps a part of it, with that part's gradient and moments; the whole of a layer
is put together while it runs. So whatever is done with a divided tower, all processes do it, equally often and in one order.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import ConfigError
from .distributed import Group


def shard(towers: Iterable[nn.Module], group: Group, dtype: torch.dtype | None = None) -> None:
    """Divide the parameters of towers, in place, among the processes: FSDP2. Make the optimiser afterwards.

    Each layer of an `nn.ModuleList` (the layers of a transformer) is put together when it runs, and the rest of a tower,
    embedding tables above all, at once. Gradients are sums over the processes, as in `Group.add_up`. Needs torch 2.8.

    Args:
        towers: what is called with features; they may have parts in common, which are divided once.
        dtype: in which parameters travel and are computed with; None is their own. Gradients are summed in theirs in any case.

    Raises:
        ConfigError: one process, which has nobody to share with.
    """
    if group.size == 1:
        raise ConfigError(
            "fsdp divides towers among processes, and there is one: launch several with torchrun or drop it"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    # What `forward` returns may be a view; FSDP2 warns in case it would be changed in place, and nobody does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    mesh = init_device_mesh(group.device.type, (group.size,))
    policy = MixedPrecisionPolicy(dtype, torch.float32 if dtype else None, cast_forward_inputs=False)
    for root in _apart(towers):
        for module in [*_layers(root), root]:
            fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has sums only


def is_divided(tensor: Tensor) -> TypeGuard[Any]:
    """Whether this process has only a part of a tensor."""
    if not dist.is_initialized():  # importing the class takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor, in place; the tensor itself if that is all."""
    mine: Tensor = tensor.to_local() if is_divided(tensor) else tensor
    return mine


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, from all processes: each of them has to call."""
    everything: Tensor = tensor.full_tensor() if is_divided(tensor) else tensor
    return everything


def divided_as(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, given on every process, divided as another one of its shape is."""
    if not is_divided(other) or tensor.shape != other.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def _apart(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules, or their children where two of them share parameters, until none do."""
    distinct = list(dict.fromkeys(modules))
    uses = Counter(p for module in distinct for p in module.parameters())
    sharing = {module for module in distinct if any(uses[p] > 1 for p in module.parameters())}
    if not sharing:
        return distinct
    return _apart(child for module in distinct for child in (module.children() if module in sharing else [module]))


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Members of the outermost lists; what is within a layer is divided with it."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)
