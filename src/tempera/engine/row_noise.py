"""Dropout that belongs to a row: the same numbers, whichever rows it is embedded with.

Letters in shapes: n rows, w tokens of the longest of them, l of one row, d features, h heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import TemperaError


class RowNoise(TorchFunctionMode):
    """Draw the dropout of each row from a generator of its own, in the order of the tower's layers.

    Dropout is drawn on [n, d], on [n, w, d] up to each row's length, and in attention on [n, h, w, w] up to its length both ways.

    Args:
        seeds: of the rows, [n].
        lengths: tokens of the rows, [n].
        left: whether rows are padded at their beginning.

    Raises:
        TemperaError: other random numbers, which rows cannot be told apart in.

    >>> rows, seeds, lengths = torch.ones(2, 3, 4), torch.tensor([7, 8]), torch.tensor([3, 2])
    >>> with RowNoise(seeds, lengths):
    ...     together = F.dropout(rows, 0.5)
    >>> with RowNoise(seeds[1:], lengths[1:]):
    ...     alone = F.dropout(rows[1:, :2], 0.5)
    >>> torch.equal(together[1, :2], alone[0])
    True
    """

    def __init__(self, seeds: Tensor, lengths: Tensor, left: bool = False) -> None:
        super().__init__()
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]
        self.lengths: list[int] = lengths.tolist()
        self.left = left

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.dropout, torch.dropout):
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p", 0.0) > 0:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def __enter__(self) -> RowNoise:
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

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool | None = None
    ) -> Tensor:
        if not (training if train is None else train) or p == 0:
            return input
        scaled = self.kept(input.shape, p).to(input.dtype).to(input.device)
        return input.mul_(scaled) if inplace else input * scaled

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
        """Return softmax(q k^T scale + mask) v with dropout on the softmax, [n, h, w, d]."""
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
        scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self._dropout(scores.softmax(-1), dropout_p) @ value

    def kept(self, shape: Sequence[int], p: float) -> Tensor:
        """Return what a tensor is multiplied by: 0 with chance p, else 1 / (1 - p); 0 where rows have no tokens."""
        if shape[0] != len(self.lengths) or not 2 <= len(shape) <= 4:
            raise TemperaError(
                f"a tower draws dropout on {list(shape)} for {len(self.lengths)} rows, which cannot be told apart in it: "
                "set train.backward to 1, or the dropout to 0"
            )
        noise = torch.zeros(tuple(shape))
        for row, (length, generator) in enumerate(zip(self.lengths, self.generators, strict=True)):
            own = noise[row][self._tokens(shape, length)]
            own.copy_(torch.rand(own.shape, generator=generator) >= p)
        return noise.mul_(1 / (1 - p))

    def _tokens(self, shape: Sequence[int], length: int) -> tuple[slice, ...]:
        """Return the part of a row's dropout that belongs to its tokens."""
        tokens = slice(shape[-2] - length, None) if self.left else slice(0, length)
        return {2: (), 3: (tokens,), 4: (slice(None), tokens, tokens)}[len(shape)]
