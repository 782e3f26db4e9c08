"""Frozen linear layers, as of a model with adapters: their weights are cast to another precision once, not in every micro-batch.

autocast keeps the casts of weights that are trained. Those of others it makes again in every call, and each graph holds its own.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from .lookup import computing_by
from .shards import is_compiled, is_divided

_casts: MutableMapping[Tensor, tuple[int, StorageWeakRef, Tensor]] = WeakTensorKeyDictionary()


def frozen_layers(tower: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a tower whose weights stay as they are; none of one that is compiled."""
    layers = [] if is_compiled(tower) else [each for each in tower.modules() if type(each) is nn.Linear]
    return [each for each in layers if not any(p.requires_grad or is_divided(p) for p in each.parameters())]


def cast_once(layers: Sequence[nn.Linear], device: torch.device) -> AbstractContextManager[None]:
    """Let frozen layers multiply by weights that are cast as autocast would cast them, in every such block the same ones."""
    lowers = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)  # not on paper
    cast = [each for each in layers if "forward" not in vars(each)] if lowers else []
    return computing_by(
        {each: {"forward": partial(_multiply, each, torch.get_autocast_dtype(device.type))} for each in cast}
    )


def _multiply(layer: nn.Linear, dtype: torch.dtype, rows: Tensor) -> Tensor:
    if not torch.is_autocast_enabled(rows.device.type):  # a part of the model that keeps its precision
        return F.linear(rows, layer.weight, layer.bias)
    return F.linear(rows, _cast(layer.weight, dtype), None if layer.bias is None else _cast(layer.bias, dtype))


def _cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight in another precision, which is kept until the weight is written to or has other memory."""
    memory, known = StorageWeakRef(weight.untyped_storage()), _casts.get(weight)  # type: ignore[no-untyped-call]
    if known is None or known[:2] != (weight._version, memory) or known[2].dtype != dtype:
        known = _casts[weight] = weight._version, memory, weight.detach().to(dtype)
    return known[2]
