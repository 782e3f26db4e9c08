"""Gradients written by hand: of functions without a second derivative, and on the way to leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

_ONCE = b"this gradient was written by hand, and has none of its own: differentiate once, or write the loss in torch's operations"


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the backward pass of a `torch.autograd.Function` of which a second derivative is an
    error.

    torch's own `once_differentiable` raises only where the incoming gradient has a graph. The
    gradient of a mean has no graph, and the second derivative would be 0 without a word.
    """

    @wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        with torch.no_grad():
            gradients = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # as without create_graph
            return gradients
        # Whoever asks for the derivatives of these tensors comes here by way of the empty sums.
        tensors = [each for each in (*ctx.saved_tensors, *grads) if isinstance(each, Tensor)]
        nothing = [each.flatten()[:0].sum() for each in tensors if each.requires_grad]
        bound = []
        for gradient in gradients:
            if gradient is not None:
                gradient = sum((zero.to(gradient) for zero in nothing), gradient.detach())
            bound.append(gradient)
        fails: Any = torch._C._functions.DelayedError(_ONCE, len(gradients))
        return fails(*bound)

    return once


def backward(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Add the gradients of leaves, given the gradients of outputs, as `torch.autograd.backward`
    does.

    torch compares the shapes of given gradients by its symbolic shapes, whose import takes 0.4 s
    and 34 MiB. The gradient of a scalar is not given.

    >>> leaf = torch.ones(2, requires_grad=True)
    >>> backward([3 * leaf], [torch.tensor([1.0, 2.0])])
    >>> leaf.grad.tolist()
    [3.0, 6.0]
    """
    if not outputs:
        return
    with torch.enable_grad():
        _Gradients.apply(tuple(gradients), *outputs).backward()  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    """A scalar whose gradient is that of its outputs."""

    @staticmethod
    def forward(ctx: Any, gradients: tuple[Tensor, ...], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (None, *ctx.gradients)
