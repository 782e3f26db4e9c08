"""Dropout on a CPU in half of torch's time, and dropout that belongs to a row whichever rows it is
embedded with.

torch draws a number of 32 bits for each feature, one after the other, which is a tenth to a fifth
of a transformer's step; 16 bits do. Its attention with dropout, or backward in half precision, is
the slowest of its ways; three products and a softmax are faster where texts are short.

Letters in shapes: n rows, w tokens of the longest of them, d features, h heads.
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

from ..core.abilities import placed
from ..errors import TemperaError
from .shards import is_left_alone

# tokens up to which products are faster in bf16 than torch's attention, which holds no scores
_SHORT = 256
_LEVELS = 1 << 16  # chances are multiples of one over this
_GOLDEN = -0x61C8864680B583EB  # 2^64 over the golden ratio, by which SplitMix64 counts


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
        self.has_drawn |= func is F.scaled_dot_product_attention
        if func is F.scaled_dot_product_attention and (
            kwargs.get("dropout_p", 0.0) > 0 or _slow(*args, **kwargs)
        ):
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
            key, value = (
                each.repeat_interleave(query.shape[-3] // each.shape[-3], -3)
                for each in (key, value)
            )
        scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.mT
        if is_causal and attn_mask is not None:
            raise ValueError("attention is causal and has a mask: give one of them")
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is None:
            return self._dropout(scores.softmax(-1), dropout_p) @ value
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill_(
                ~attn_mask, -torch.inf
            )
        attn_mask = attn_mask.to(scores.dtype)
        hidden = (attn_mask == -torch.inf).all(-1, keepdim=True)
        scores = scores + attn_mask.masked_fill(hidden, 0.0)
        return self._dropout(scores.softmax(-1).masked_fill(hidden, 0.0), dropout_p) @ value

    def kept(self, shape: Sequence[int], p: float) -> tuple[Tensor, float]:
        """Return what dropout keeps, with chance 1 - p, of a tensor, and by what it is multiplied:
        one over that chance."""
        dropped = round(p * _LEVELS)
        words = self.words(shape)
        if dropped == _LEVELS:
            return torch.zeros_like(words, dtype=torch.bool), 0.0
        return words >= dropped - _LEVELS // 2, _LEVELS / (_LEVELS - dropped)

    def words(self, shape: Sequence[int]) -> Tensor:
        """Return words of 16 bits, as many as the tensor has numbers."""
        count = math.prod(shape)
        bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
        return bits.view(torch.int16)[:count].view(tuple(shape))


class RowDropout(Dropout):
    """Draw the dropout of each row from a seed of its own, in the order of the tower's layers.

    Dropout is drawn on [n, d], on [n, w, d], and in attention on [n, h, w, w]. A number is a hash
    (SplitMix64, Steele et al. 2014) of the row's seed, of how many layers have drawn before, and of
    its place, tokens being counted from where rows are aligned.

    Args:
        seeds: of the rows, [n].
        left: whether rows are padded at their beginning.

    Raises:
        TemperaError: other random numbers, which rows cannot be told apart in.

    >>> rows, seeds = torch.ones(2, 3, 4), torch.tensor([7, 8])
    >>> with RowDropout(seeds):
    ...     together = F.dropout(rows, 0.5)
    >>> with RowDropout(seeds[1:]):
    ...     alone = F.dropout(rows[1:, :2], 0.5)
    >>> torch.equal(together[1, :2], alone[0])
    True
    """

    def __init__(self, seeds: Tensor, left: bool = False) -> None:
        super().__init__()
        self.seeds, self.left, self.draws = seeds, left, 0

    def __enter__(self) -> RowDropout:
        self.before = torch.get_rng_state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if error is None and not torch.equal(self.before, torch.get_rng_state()):
            raise TemperaError(
                "a tower draws random numbers of another kind than dropout, which cannot be repeated row by row: set "
                "train.backward to 1"
            )

    def words(self, shape: Sequence[int]) -> Tensor:
        """Return words of 16 bits for each row by its seed, as many as the tensor has numbers."""
        if shape[0] != len(self.seeds) or not 2 <= len(shape) <= 4:
            raise TemperaError(
                f"a tower draws dropout on {list(shape)} for {len(self.seeds)} rows, which cannot be told apart in it: "
                "set train.backward to 1, or the dropout to 0"
            )
        self.draws += 1
        bits = _mixed(self.seeds + torch.tensor(self.draws) * _GOLDEN)
        for size in (*shape[1:-1], -(-shape[-1] // 4)):
            bits = _mixed(bits[..., None] + torch.arange(1, size + 1) * _GOLDEN)
        words = bits.view(torch.int16)[..., : shape[-1]]
        return words.flip({2: (), 3: (1,), 4: (2, 3)}[len(shape)]) if self.left else words


def _mixed(bits: Tensor) -> Tensor:
    """Return a hash of words of 64 bits."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = ((bits >> shift).bitwise_and_((1 << 64 - shift) - 1).bitwise_xor_(bits)).mul_(factor)
    return (bits >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(bits)


def dropout_on(device: torch.device, modules: Sequence[nn.Module]) -> AbstractContextManager[Any]:
    """Return a context in which the modules of a tower draw dropout on a device.

    Accelerators have kernels for it. A tower that is compiled, or that computes parts again on the
    way back, draws by torch.
    """
    return nullcontext() if device.type != "cpu" or is_left_alone(modules) else Dropout()


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


def _slow(query: Tensor, *_: Any, **__: Any) -> bool:
    """Return whether torch's attention goes backward 2 to 10 times as slowly; with or without a
    graph, so that replays repeat."""
    return (
        query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.shape[-2] <= _SHORT
    )
