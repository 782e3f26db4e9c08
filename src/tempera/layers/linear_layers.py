"""Linear layers in another precision than the weights, by a cast once a step; and by oneDNN on a
CPU, where oneDNN pays.

autocast casts the weights of frozen layers, as of a model with adapters, again in every call, and
each graph holds a copy; trained weights are cast in every context. On a CPU, oneDNN prepares for
some 3 ms whenever a product has a new shape, as nearly every micro-batch of texts has: a tenth of a
step. So rows are filled up with zeros to one of sixteen numbers an octave.

Letters in shapes: m rows, r rows with filling rows, k inputs, o outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Return True if autocast multiplies in half precision on a device; False on paper, a device
    that autocast does not know."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


class LinearLayers:
    """The linear layers among the modules of a tower while it embeds a batch, and their weights in
    another precision."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.casts: dict[Tensor, Tensor] = {}

    @cached_property
    def layers(self) -> list[nn.Linear]:
        """The layers whose products may be made in another way."""
        if is_left_alone(self.modules):
            return []
        layers = [each for each in self.modules if type(each) is nn.Linear]
        return [each for each in layers if not any(map(is_divided, each.parameters()))]

    def cast_once(self, device: torch.device) -> AbstractContextManager[None]:
        """Let layers multiply by weights cast as by autocast, the same in every block of a batch.

        Trained weights are left to autocast on an accelerator: the graph needs the casts. In
        float32 on a CPU, layers multiply by oneDNN where oneDNN takes less time.
        """
        half = in_half(device)
        on_cpu = device.type == "cpu"
        if not half and not (on_cpu and onednn_pays()):
            return computing_by({})
        dtype = torch.get_autocast_dtype(device.type) if half else torch.float32
        last: LastRows | None = None
        if on_cpu:
            last = LastRows(lambda rows: filled(rows.detach().flatten(0, -2), dtype))
        methods: dict[nn.Module, dict[str, Callable[..., Tensor]]] = {}
        for layer in self.layers:
            if "forward" in vars(layer) or not _is_plain(layer.weight):
                continue
            if on_cpu or not any(p.requires_grad for p in layer.parameters()):
                methods[layer] = {"forward": partial(self._multiply, layer, dtype, last)}
        return computing_by(methods)

    def _multiply(
        self, layer: nn.Linear, dtype: torch.dtype, last: LastRows | None, rows: Tensor
    ) -> Tensor:
        # Else modes are asked about every shape that is looked at.
        with torch._C.DisableTorchFunction():
            ours = _is_ours(rows, dtype)
            if ours and dtype == torch.float32:
                ours = onednn_takes(rows, len(layer.weight))
            if ours:
                return self._product(layer, dtype, last, rows)
            return F.linear(rows, layer.weight, layer.bias)

    def _product(
        self, layer: nn.Linear, dtype: torch.dtype, last: LastRows | None, rows: Tensor
    ) -> Tensor:
        weight = layer.weight
        bias = layer.bias
        low_weight = self._cast(weight, dtype)
        low_bias = None if bias is None else self._cast(bias, dtype)
        if last is None:
            return F.linear(rows, low_weight, low_bias)
        low = last.of(rows)
        products: Tensor = _Product.apply(rows, weight, bias, low, low_weight, low_bias)  # type: ignore[no-untyped-call]
        return unfilled(products, rows.shape)

    def _cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        if weight.dtype == dtype:
            return weight.detach()
        # For this batch only: torch does not count each way in which an optimiser may write to it.
        if weight not in self.casts:
            self.casts[weight] = weight.detach().to(dtype)
        return self.casts[weight]


def _is_plain(weight: Tensor) -> bool:
    """Return True for a plain weight in float32, unlike a quantised weight."""
    return (
        type(weight) in (Tensor, nn.Parameter, FakeTensor)
        and weight.dtype == torch.float32
        and not weight.is_inference()
    )


def _is_ours(rows: Tensor, dtype: torch.dtype) -> bool:
    """Return False for rows that torch alone multiplies.

    The rows are no matrix, belong to a part of the model with a precision of its own, are computed
    again by a checkpoint outside of the block, or are multiplied in a transform of `torch.func`.
    """
    is_half = torch.is_autocast_enabled(rows.device.type)
    same = is_half == (dtype != torch.float32) and rows.dtype != torch.float64
    # As where a footprint is measured in inference mode.
    unsaved = torch.is_grad_enabled() and rows.is_inference()
    if not same or unsaved or rows.dim() < 2 or not rows.numel() or is_transformed():
        return False
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is None or hooks[0].__module__ != "torch.utils.checkpoint"


class _Product(torch.autograd.Function):
    """Filled rows times weights in a precision, [r, o], with gradients in the precisions of rows
    and weights."""

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
        ctx.shape = rows.shape
        ctx.rows_dtype = rows.dtype
        ctx.weight_dtype = weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return linear(low, lowered, lowered_bias)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low, lowered = ctx.saved_tensors  # [r, k], [o, k]
        of_rows = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_rows = unfilled(mm(grad, lowered), ctx.shape).to(ctx.rows_dtype)
        if ctx.needs_input_grad[1]:
            of_weight = mm(grad.mT, low).to(ctx.weight_dtype)
        if ctx.needs_input_grad[2]:
            of_bias = grad.sum(0).to(ctx.bias_dtype)
        return of_rows, of_weight, of_bias, None, None, None
