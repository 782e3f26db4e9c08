"""Texts are read in bf16: linear layers multiply in it, and what they add up, norms and attention
stay in float32.

In float32 a CPU reads them by oneDNN where that takes less time.

Letters in shapes: n rows, h heads, q queries, k keys, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..arithmetic.products import LastRows, filled, linear, onednn_pays, onednn_takes, unfilled

# On CPUs torch attends to few keys faster in float32 than in bf16 (by 1.1 to 2.3x below 128). Its
# kernel takes 16 at once: with more than 4 beyond a multiple, those and zeros up to the next one
# are faster, by 1.05 to 2.6x.
_LONG, _LANES, _BEYOND = 128, 16, 4


def lower(module: nn.Module, dtype: torch.dtype) -> list[tuple[nn.Parameter, Tensor]]:
    """Cast the weights that linear layers alone have from float32 to another precision, and return
    what they were."""
    own: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for layer in module.modules():
        own[isinstance(layer, nn.Linear)] += layer.parameters(recurse=False)
    shared = set(map(id, own[False]))  # as a table that is a linear layer, too
    weights = [
        (each, each.data)
        for each in own[True]
        if id(each) not in shared and dtype != each.dtype == torch.float32
    ]
    for each, data in weights:
        each.data = data.to(dtype)
    return weights


@contextmanager
def lowered(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let a module multiply in another precision, with weights that are cast once; in float32 by
    the faster library."""
    if dtype == torch.float32:
        on_cpu = next(module.parameters()).device.type == "cpu"
        with _Reading(dtype) if on_cpu and onednn_pays() else nullcontext():
            yield
        return
    weights = lower(module, dtype)
    try:
        with multiplied_in(dtype, next(module.parameters()).device.type):
            yield
    finally:
        for each, data in weights:
            each.data = data


@contextmanager
def multiplied_in(dtype: torch.dtype, device: str = "cpu") -> Iterator[None]:
    """Multiply in a precision as autocast does, but attend to few keys in float32 on a CPU.

    Texts are read in this context, without gradients. What linear layers are added to is float32
    there, unlike in a model that is cast as a whole, so that the vectors are nearer to those of
    float32: a third of its error in cosine.
    """
    with torch.autocast(device, dtype), _Reading(dtype):
        yield


class _Reading(TorchFunctionMode):
    """Attention to few keys on a CPU in float32, and rows that are cast once for all linear layers
    that read them.

    What is read in float32 changes in nothing but who multiplies.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        in_float32 = dtype == torch.float32
        self.last = LastRows(
            lambda rows: filled(rows.flatten(0, -2)) if in_float32 else rows.to(dtype)
        )

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is F.scaled_dot_product_attention and self.dtype != torch.float32:
            function = attention
        elif (
            function is F.linear
            and len(args) == 3
            and args[0].dtype == args[1].dtype == torch.float32
        ):
            return self._filled(*args)
        elif function is F.linear and len(args) == 3 and args[1].dtype == self.dtype:
            rows, weight, bias = args
            args = rows if rows.dtype == self.dtype else self.last.of(rows), weight, bias
            function = linear
        return function(*args, **(kwargs or {}))

    def _filled(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows times weights in float32, by oneDNN with rows of zeros up to a number that
        recurs."""
        if self.dtype != torch.float32 or rows.dim() < 2 or not onednn_takes(rows, len(weight)):
            return F.linear(rows, weight, bias)
        return unfilled(linear(self.last.of(rows), weight, bias), rows.shape)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Return what `scaled_dot_product_attention` does; of few keys on a CPU, in float32, with
    masked ones up to a multiple of 16.

    Args:
        query: [n, h, q, d].
        key: [n, h, k, d]; `value` likewise.
        attn_mask: where a query attends to a key, or what is added to their score; can be expanded
            to [n, h, q, k].

    >>> x = torch.ones(1, 1, 3, 2, dtype=torch.bfloat16)
    >>> attention(x, x, x).tolist() == x.tolist()
    True
    """
    dtype, keys = query.dtype, key.shape[-2]
    if query.device.type != "cpu" or keys >= _LONG:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )
    mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.float()
    if keys % _LANES > _BEYOND and not is_causal:
        more = -keys % _LANES
        key, value = _filled(key, more), _filled(value, more)
        mask = (
            torch.ones(1, keys, dtype=torch.bool)
            if mask is None
            else mask.expand(*mask.shape[:-1], keys)
        )
        mask = F.pad(mask, (0, more), value=0.0 if mask.dtype == torch.bool else -torch.inf)
    with torch.autocast("cpu", enabled=False):
        attended = F.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), mask, dropout_p, is_causal, **options
        )
    return attended.to(dtype)


def _filled(keys: Tensor, more: int) -> Tensor:
    """Return keys or values in float32 with zeros after them, laid out by row: [n, h, k, d] -> [n,
    h, k + more, d]."""
    n, h, k, d = keys.shape
    filled = torch.empty(n, k + more, h, d, dtype=torch.float32, device=keys.device).transpose(1, 2)
    filled[:, :, :k] = keys
    filled[:, :, k:] = 0
    return filled
