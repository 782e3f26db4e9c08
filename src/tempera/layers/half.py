"""Reading of texts in bf16: linear layers multiply in bf16, and sums, norms and attention stay in
float32.

In float32 a CPU reads texts by oneDNN where oneDNN takes less time.

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

# On CPUs torch attends to few keys faster in float32 than in bf16 (by 1.1 to 2.3x below 128).
_LONG = 128
# The kernel takes 16 keys at once: with more than 4 beyond a multiple of 16, zeros up to the next
# multiple make it faster, by 1.05 to 2.6x.
_LANES = 16
_BEYOND = 4


def lower(module: nn.Module, dtype: torch.dtype) -> list[tuple[nn.Parameter, Tensor]]:
    """Cast the weights that linear layers alone have from float32 to another precision; return the
    weights with the numbers in float32."""
    linear_weights: list[nn.Parameter] = []
    shared: set[int] = set()  # such as a table that is a linear layer, too
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            linear_weights += layer.parameters(recurse=False)
        else:
            shared.update(map(id, layer.parameters(recurse=False)))
    own = [each for each in linear_weights if id(each) not in shared]
    weights = [(each, each.data) for each in own if dtype != each.dtype == torch.float32]
    for each, data in weights:
        each.data = data.to(dtype)
    return weights


@contextmanager
def lowered(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let a module multiply in another precision, with weights cast once; in float32 by the faster
    library."""
    if dtype == torch.float32:
        on_cpu = next(module.parameters()).device.type == "cpu"
        by_onednn = on_cpu and onednn_pays()
        with _Reading(dtype) if by_onednn else nullcontext():
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

    Texts are read in this context, without gradients. Sums of linear layers' results are float32,
    unlike in a model cast as a whole: the vectors have a third of the error in cosine.
    """
    with torch.autocast(device, dtype), _Reading(dtype):
        yield


class _Reading(TorchFunctionMode):
    """Attention to few keys on a CPU in float32, and rows cast once for all linear layers.

    In float32, only the library of the products changes.
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
            return attention(*args, **(kwargs or {}))
        if function is F.linear and len(args) == 3:
            rows, weight, bias = args
            if rows.dtype == weight.dtype == torch.float32:
                return self._filled(rows, weight, bias)
            if weight.dtype == self.dtype:
                if rows.dtype != self.dtype:
                    rows = self.last.of(rows)
                return linear(rows, weight, bias)
        return function(*args, **(kwargs or {}))

    def _filled(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows times weights in float32, by oneDNN with rows of zeros up to a recurring
        number."""
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
    """Return the result of `scaled_dot_product_attention`; few keys on a CPU are attended to in
    float32, with masked keys up to a multiple of 16.

    Args:
        query: [n, h, q, d].
        key: [n, h, k, d]; `value` likewise.
        attn_mask: True where a query attends to a key, or an addend of the score; can be expanded
            to [n, h, q, k].

    >>> x = torch.ones(1, 1, 3, 2, dtype=torch.bfloat16)
    >>> attention(x, x, x).tolist() == x.tolist()
    True
    """
    keys = key.shape[-2]
    if query.device.type != "cpu" or keys >= _LONG:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )
    mask = attn_mask
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.float()
    if keys % _LANES > _BEYOND and not is_causal:
        more = -keys % _LANES
        key = _filled(key, more)
        value = _filled(value, more)
        if mask is None:
            mask = torch.ones(1, keys, dtype=torch.bool)
        mask = mask.expand(*mask.shape[:-1], keys)
        masked = 0.0 if mask.dtype == torch.bool else -torch.inf
        mask = F.pad(mask, (0, more), value=masked)
    with torch.autocast("cpu", enabled=False):
        attended = F.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), mask, dropout_p, is_causal, **options
        )
    return attended.to(query.dtype)


def _filled(keys: Tensor, more: int) -> Tensor:
    """Return keys or values in float32 with zeros at the end, laid out by row: [n, h, k, d] -> [n,
    h, k + more, d]."""
    n, h, k, d = keys.shape
    filled = torch.empty(n, k + more, h, d, dtype=torch.float32, device=keys.device).transpose(1, 2)
    filled[:, :, :k] = keys
    filled[:, :, k:] = 0
    return filled
