"""Linear layers in another precision than their weights, which are cast once a step; and by oneDNN
on a CPU, where that pays.

autocast casts the weights of frozen layers, as of a model with adapters, again in every call, and
each graph holds its own; those that are trained it casts in every context. What multiplies on a
CPU, oneDNN, prepares for some 3 ms whenever a product has a shape that it has not seen of late,
which nearly every micro-batch of texts has: a tenth of a step. So rows are filled up with zeros to
one of sixteen numbers an octave.

Letters in shapes: m rows, r rows with those that fill them up, k inputs, o outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from ..arithmetic.derivatives import differentiable_once
from ..arithmetic.products import LastRows, filled, linear, mm, onednn_pays, onednn_takes, unfilled
from ..parallel.shards import is_divided, is_left_alone
from .lookup import computing_by, is_transformed


def in_half(device: torch.device) -> bool:
    """Return True if autocast multiplies in half precision on a device; on paper, which it does not
    know, it is False."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


class LinearLayers:
    """The linear layers among the modules of a tower while it embeds a batch, and what their
    weights are in another precision."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.casts: dict[Tensor, Tensor] = {}

    @cached_property
    def layers(self) -> list[nn.Linear]:
        """Those whose products may be made in another way."""
        layers = (
            []
            if is_left_alone(self.modules)
            else [each for each in self.modules if type(each) is nn.Linear]
        )
        return [each for each in layers if not any(map(is_divided, each.parameters()))]

    def cast_once(self, device: torch.device) -> AbstractContextManager[None]:
        """Let layers multiply by weights that are cast as autocast would cast them, in every such
        block the same ones.

        Weights that are trained are left to autocast on an accelerator, whose graph needs them. In
        float32 on a CPU, layers multiply by oneDNN where it takes less time.
        """
        half, on_cpu = in_half(device), device.type == "cpu"
        if not half and not (on_cpu and onednn_pays()):
            return computing_by({})
        dtype = torch.get_autocast_dtype(device.type) if half else torch.float32
        last = (
            LastRows(lambda rows: filled(rows.detach().flatten(0, -2), dtype)) if on_cpu else None
        )
        layers = [
            each for each in self.layers if "forward" not in vars(each) and _is_plain(each.weight)
        ]
        chosen = [
            each for each in layers if on_cpu or not any(p.requires_grad for p in each.parameters())
        ]
        return computing_by(
            {each: {"forward": partial(self._multiply, each, dtype, last)} for each in chosen}
        )

    def _multiply(
        self, layer: nn.Linear, dtype: torch.dtype, last: LastRows | None, rows: Tensor
    ) -> Tensor:
        with (
            torch._C.DisableTorchFunction()
        ):  # else modes are asked about every shape that is looked at
            if not _is_ours(rows, dtype) or (
                dtype == torch.float32 and not onednn_takes(rows, len(layer.weight))
            ):
                return F.linear(rows, layer.weight, layer.bias)
            return self._product(layer, dtype, last, rows)

    def _product(
        self, layer: nn.Linear, dtype: torch.dtype, last: LastRows | None, rows: Tensor
    ) -> Tensor:
        weight, bias = layer.weight, layer.bias
        lowered = self._cast(weight, dtype), None if bias is None else self._cast(bias, dtype)
        if last is None:
            return F.linear(rows, *lowered)
        products: Tensor = _Product.apply(rows, weight, bias, last.of(rows), *lowered)  # type: ignore[no-untyped-call]
        return unfilled(products, rows.shape)

    def _cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        if weight.dtype == dtype:
            return weight.detach()
        if (
            weight not in self.casts
        ):  # for this batch only: an optimiser may write to it so that torch does not count
            self.casts[weight] = weight.detach().to(dtype)
        return self.casts[weight]


def _is_plain(weight: Tensor) -> bool:
    """Return True for a weight in float32 that is nothing but its numbers, as a quantised one is
    not."""
    return (
        type(weight) in (Tensor, nn.Parameter, FakeTensor)
        and weight.dtype == torch.float32
        and not weight.is_inference()
    )


def _is_ours(rows: Tensor, dtype: torch.dtype) -> bool:
    """Return False for rows that torch alone multiplies.

    They are no matrix, a part of the model keeps its precision, a checkpoint will compute them
    again outside of the block, or `torch.func` transforms what multiplies them.
    """
    same = (
        torch.is_autocast_enabled(rows.device.type) == (dtype != torch.float32)
        and rows.dtype != torch.float64
    )
    unsaved = (
        torch.is_grad_enabled() and rows.is_inference()
    )  # as where a footprint is measured in inference mode
    if not same or unsaved or rows.dim() < 2 or not rows.numel() or is_transformed():
        return False
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is None or hooks[0].__module__ != "torch.utils.checkpoint"


class _Product(torch.autograd.Function):
    """Filled rows times weights in a precision, [r, o], with gradients of rows and weights in their
    own."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        low: Tensor,
        lowered: Tensor,
        lowered_bias: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(low, lowered)
        ctx.shape, ctx.dtypes = (
            rows.shape,
            (rows.dtype, weight.dtype, None if bias is None else bias.dtype),
        )
        return linear(low, lowered, lowered_bias)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low, lowered = ctx.saved_tensors  # [r, k], [o, k]
        (of_rows, of_weight, of_bias), (needs_rows, needs_weight, needs_bias, *_) = (
            ctx.dtypes,
            ctx.needs_input_grad,
        )
        return (
            unfilled(mm(grad, lowered), ctx.shape).to(of_rows) if needs_rows else None,
            mm(grad.mT, low).to(of_weight) if needs_weight else None,
            grad.sum(0).to(of_bias) if needs_bias else None,
            None,
            None,
            None,
        )
