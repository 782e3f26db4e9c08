"""Products of matrices in float32 on a CPU, by oneDNN where that multiplies faster than what torch takes.

On x86 torch multiplies float32 by MKL, which uses half of what a processor of AMD can do (Zen 5: 110 of 250 GFLOP/s a core).
oneDNN, which torch brings along and multiplies bf16 with, uses all of it. Which is faster is measured once in a process.

Letters in shapes: n rows, i and o inputs and outputs of a layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .abilities import is_compiled

WORTH = (
    1.5  # times as fast, from which oneDNN multiplies; measuring is too exact to take another one in the next process
)
_LEAST = 1 << 22  # multiplications of a product that are worth the way to it
_SIDE, _ROUNDS = 256, 5  # of the matrices that are measured


@cache
def gain() -> float:
    """Return how many times as fast oneDNN multiplies float32 as torch does by itself; 1 where torch was built without it."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return 1.0
    square = torch.ones(_SIDE, _SIDE)
    with torch.no_grad():
        return _fastest(lambda: square @ square) / _fastest(lambda: _times(square, square))


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a @ b; in `out`, if it is given and torch multiplies.

    >>> product(torch.ones(2, 3), torch.ones(3, 1)).tolist()
    [[3.0], [3.0]]
    """
    return _times(a, b.T) if _suits(a, b) else torch.mm(a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`."""
    if _suits(a, b):
        total.add_(_times(a, b.T))
    else:
        total.addmm_(a, b)


@contextmanager
def multiplying(module: nn.Module) -> Iterator[None]:
    """Lend the linear layers of a module such products, forward and backward, if they are faster here."""
    layers = []
    if gain() >= WORTH and not is_compiled(module):
        layers = [each for each in module.modules() if type(each) is nn.Linear and _plain(each)]
    for layer in layers:
        vars(layer)["forward"] = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _times(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors  # [.., i], [o, i]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)  # [n, o]
        return (
            _times(grad, weight.T) if of_x else None,
            _times(rows.T, x.flatten(0, -2).T) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    rows = x.numel() // max(1, x.shape[-1])
    if x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or rows * layer.weight.numel() < _LEAST:
        return F.linear(x, layer.weight, layer.bias)
    y: Tensor = _Linear.apply(x, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return y


def _times(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias by oneDNN, without a graph."""
    if 1 not in weight.stride() or 0 in weight.stride():  # oneDNN reads rows or columns
        weight = weight.contiguous()
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _suits(a: Tensor, b: Tensor) -> bool:
    """Return True for large products in float32 on a CPU, of which nothing is differentiated."""
    large = a.shape[0] * a.shape[1] * b.shape[1] >= _LEAST
    plain = a.device.type == b.device.type == "cpu" and a.dtype == b.dtype == torch.float32
    differentiated = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return large and plain and not differentiated and gain() >= WORTH


def _plain(layer: nn.Linear) -> bool:
    weight, bias = layer.weight, layer.bias
    whole = all(type(each) is nn.Parameter and each.device.type == "cpu" for each in (weight, bias) if each is not None)
    return whole and weight.dtype == torch.float32 and "forward" not in vars(layer)


def _fastest(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few runs, after one that warms up."""
    run()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
