"""Dropout on a CPU in half of torch's time.

torch draws a number of 32 bits for each feature in turn, in a tenth to a fifth of a transformer's
step; 16 bits suffice. Torch's attention is slowest with dropout, or backward in half precision;
three products and a softmax are faster where texts are short.

Letters in shapes: n rows, w tokens of the longest row, d features, h heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..arithmetic.abilities import placed
from ..parallel.shards import is_left_alone

# tokens up to which products are faster in bf16 than torch's attention, which holds no scores
_SHORT = 256
_LEVELS = 1 << 16  # chances are multiples of one over this


class Dropout(TorchFunctionMode):
    """Draw dropout, in attention too, 16 bits a feature, from torch's generator of the CPU.

    >>> with Dropout():
    ...     rows = F.dropout(torch.ones(1000, 100), 0.5)
    >>> rows.unique().tolist(), round(float(rows.mean()), 1)
    ([0.0, 2.0], 1.0)
    """

    has_drawn = False  # whether a layer has drawn, or attended, in the block

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.dropout, torch.dropout):
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self.has_drawn = True
            query = args[0] if args else kwargs["query"]
            if kwargs.get("dropout_p", 0.0) > 0 or _is_slow(query):
                return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Tensor:
        if not (training if train is None else train) or p == 0:
            return input
        self.has_drawn = True
        if not 0 < p <= 1:
            raise ValueError(f"dropout is {p}, which is no chance: give a number from 0 to 1")
        kept, scale = self.kept(input.shape, p)
        if inplace:
            return input.mul_(_numbers(kept, input).mul_(scale))
        scaled: Tensor = _Dropped.apply(input, kept, scale)  # type: ignore[no-untyped-call]
        return scaled

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return softmax(q k^T scale + mask) v with dropout on the softmax, [n, h, w, d]; 0 where
        all is masked."""
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        if scale is None:
            scale = 1 / math.sqrt(query.shape[-1])
        scores = (query * scale) @ key.mT
        if is_causal and attn_mask is not None:
            raise ValueError("attention is causal and has a mask: give one of them")
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is None:
            return self._dropout(scores.softmax(-1), dropout_p) @ value
        if attn_mask.dtype == torch.bool:
            addend = torch.zeros_like(attn_mask, dtype=scores.dtype)
            attn_mask = addend.masked_fill_(~attn_mask, -torch.inf)
        attn_mask = attn_mask.to(scores.dtype)
        hidden = (attn_mask == -torch.inf).all(-1, keepdim=True)
        scores = scores + attn_mask.masked_fill(hidden, 0.0)
        return self._dropout(scores.softmax(-1).masked_fill(hidden, 0.0), dropout_p) @ value

    def kept(self, shape: Sequence[int], p: float) -> tuple[Tensor, float]:
        """Return True for each kept number of a tensor, with chance 1 - p, and the factor of kept
        numbers, 1 / (1 - p)."""
        dropped = round(p * _LEVELS)
        count = math.prod(shape)
        bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
        words = bits.view(torch.int16)[:count].view(tuple(shape))
        if dropped == _LEVELS:
            return torch.zeros_like(words, dtype=torch.bool), 0.0
        return words >= dropped - _LEVELS // 2, _LEVELS / (_LEVELS - dropped)


def dropout_on(device: torch.device, modules: Sequence[nn.Module]) -> AbstractContextManager[Any]:
    """Return a context in which the modules of a tower draw dropout on a device.

    Accelerators have kernels for dropout. A compiled tower, or a tower with recomputation in the
    backward pass, draws by torch.
    """
    if device.type != "cpu" or is_left_alone(modules):
        return nullcontext()
    return Dropout()


class _Dropped(torch.autograd.Function):
    """Scales the kept numbers of a tensor; its graph holds a byte for each."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return _numbers(kept, input).mul_(scale).mul_(input)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return _numbers(kept, grad).mul_(ctx.scale).mul_(grad), None, None


def _numbers(kept: Tensor, like: Tensor) -> Tensor:
    """Return 0 and 1 in the dtype of another tensor; bytes are converted in a fourth of the time of
    truth values."""
    return placed(kept.view(torch.uint8), like)


def _is_slow(query: Tensor) -> bool:
    """Return True if torch's attention goes backward 2 to 10 times as slowly; with or without a
    graph, so that replays repeat."""
    is_short = query.shape[-2] <= _SHORT
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and is_short
