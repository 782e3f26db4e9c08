"""Products of matrices by MKL or oneDNN: alike, where it pays, and without a trace of the
switch."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tempera import Objective, gte, mnr
from tempera.arithmetic import products
from tempera.arithmetic.products import by_onednn, linear, mm, onednn_gain
from tempera.core.batch import Batch, Side
from tempera.engine.cache import Cache

switched = pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"), reason="torch before 2.9 has no switch"
)


def laid_out(rows: int, columns: int, by_row: bool) -> Tensor:
    return torch.randn(rows, columns) if by_row else torch.randn(columns, rows).T


@pytest.mark.parametrize("by_row", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(
    "shape", [(128, 128, 128), (257, 33, 1001), (1, 4096, 600), (2000, 1100, 1)]
)
def test_products_are_those_of_float64_however_their_factors_are_laid_out(
    shape: tuple[int, int, int], by_row: tuple[bool, bool], onednn: list[str]
) -> None:
    torch.manual_seed(0)
    (m, k, o), (first, second) = shape, by_row
    x, y, bias = laid_out(m, k, first), laid_out(k, o, second), torch.randn(o)
    want, room = x.double() @ y.double(), torch.empty(m, o + 7)[:, :o]
    got = [mm(x, y), mm(x, y, room), linear(x, y.T, None), linear(x, y.T, bias) - bias]
    with by_onednn(x, y):
        got.append(torch.ones(m, o).addmm_(x, y) - 1)
    assert len(onednn) == 5 and got[1].data_ptr() == room.data_ptr()
    for each in got:
        assert (
            each.double() - want
        ).abs().max() < 1e-5 * k**0.5 * 4 and each.dtype == torch.float32


def test_small_products_and_other_precisions_stay_with_torch(onednn: list[str]) -> None:
    mm(torch.ones(127, 128), torch.ones(128, 128))
    for dtype in (torch.float64, torch.bfloat16):
        large = torch.ones(200, 200, dtype=dtype)
        assert linear(large, large, large[0]).dtype == mm(large, large).dtype == dtype
    linear(torch.ones(200, 200, device="meta"), torch.ones(200, 200, device="meta"), None)
    assert onednn == []


@switched
def test_the_switch_is_back_after_an_error_and_keeps_what_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matmul = torch.backends.mkldnn.matmul
    monkeypatch.setattr(products, "onednn_gain", lambda: 2.0)
    x = torch.ones(200, 200)
    with by_onednn(x, x):
        assert matmul.fp32_precision == "bf16"
    for own in ("none", "ieee"):
        matmul.fp32_precision = own
        try:
            with pytest.raises(RuntimeError, match="shape"), by_onednn(x, x):
                torch.mm(x, x[:7])
            assert matmul.fp32_precision == own
        finally:
            matmul.fp32_precision = "none"


@switched
def test_a_library_that_rounds_or_is_locked_or_has_been_chosen_by_the_user_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gain() -> float:
        onednn_gain.cache_clear()
        return onednn_gain()

    try:
        began = time.perf_counter()
        assert (
            gain() >= 0 and onednn_gain() == onednn_gain() and onednn_gain.cache_info().misses == 1
        )
        assert time.perf_counter() - began < 1
        with monkeypatch.context() as patch:
            patch.setattr(products, "_is_exact", lambda shape: shape[0] != 256)
            assert gain() == 0
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
            assert gain() == 0
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"
        assert gain() == 0
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        with monkeypatch.context() as patch:  # 3 seconds by torch, and 2 by oneDNN
            patch.setattr(products, "_is_exact", lambda shape: True)
            patch.setattr(
                products,
                "_seconds",
                lambda x, y: 3.0 if torch.backends.mkldnn.matmul.fp32_precision == "none" else 2.0,
            )
            assert gain() == 1.5 == products.WORTH and products.onednn_pays()
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        onednn_gain.cache_clear()


@switched
def test_the_switch_is_off_when_the_last_thread_has_left() -> None:
    x, matmul = torch.ones(256, 384), torch.backends.mkldnn.matmul
    onednn_gain()

    def multiply(_: int) -> str:
        with products._switched():
            mm(x, x.T)
            return str(matmul.fp32_precision)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            assert (
                set(pool.map(multiply, range(40))) == {"bf16"} and matmul.fp32_precision == "none"
            )


def test_several_threads_measure_once() -> None:
    want = onednn_gain() > 0
    for _ in range(3):
        onednn_gain.cache_clear()
        with ThreadPoolExecutor(4) as pool:
            assert {gain > 0 for gain in pool.map(lambda _: onednn_gain(), range(4))} == {want}


def test_what_a_run_began_with_is_kept_where_it_is_exact(
    onednn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(200, 200)
    for gain, choice, takes in ((1.0, True, True), (2.0, False, False), (0.0, True, False)):
        monkeypatch.setattr(products, "onednn_gain", lambda gain=gain: gain)
        cache = Cache()
        cache.resume({**cache.sizes(), "onednn": choice})
        onednn.clear()
        mm(x, x)
        assert bool(onednn) == takes == cache.sizes()["onednn"]


@pytest.mark.parametrize("changes", [lambda: torch.device("meta"), lambda: torch.inference_mode()])
def test_the_gain_is_that_of_numbers_of_the_cpu(changes: Callable[[], Any]) -> None:
    want = onednn_gain() > 0
    onednn_gain.cache_clear()
    with changes():
        assert (onednn_gain() > 0) == want
    onednn_gain.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        assert (onednn_gain() >= 1.5) == (onednn_gain() > 0 and products.onednn_pays()) and (
            onednn_gain() > 0
        ) == want
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_gain_is_measured_alike_on_paper_and_in_half_precision() -> None:
    onednn_gain.cache_clear()
    want = onednn_gain() > 0
    onednn_gain.cache_clear()
    half = torch.autocast("cpu", torch.bfloat16)
    with FakeTensorMode(), FlopCounterMode(display=False) as counted, half:
        assert (onednn_gain() > 0) == want
    assert counted.get_total_flops() == 0


@pytest.mark.parametrize("shape", products._SHAPES)
def test_integers_tell_float32_from_rounded_factors(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert products._is_exact(shape)
    own: Callable[[Tensor, Tensor], Tensor] = Tensor.__matmul__
    rounded = lambda x, y: own(*(each.bfloat16().to(each.dtype) for each in (x, y)))  # noqa: E731
    exactly = lambda x, y: (rounded if x.dtype == torch.float32 else own)(x, y)  # noqa: E731
    monkeypatch.setattr(Tensor, "__matmul__", exactly)
    assert not products._is_exact(shape)


@pytest.mark.parametrize("make", [mnr, gte])
def test_losses_and_gradients_by_onednn_are_those_of_float64(
    make: Callable[[float], Objective], onednn: list[str]
) -> None:
    """Of two tiles or three, whose candidates are filled up with zeros: 1,200 to 1,216."""
    torch.manual_seed(0)
    objective = make(0.1)
    anchors, docs = (F.normalize(torch.randn(1200, 64), dim=1) for _ in range(2))
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [each.to(dtype).detach().requires_grad_() for each in (anchors, docs)]
        losses = objective.propagate(
            Batch(*map(Side, leaves)), torch.full((1200,), 1 / 1200, dtype=dtype)
        )
        found.append([losses, *(leaf.grad for leaf in leaves)])
    assert len(onednn) >= 6 and found[0][1].shape == found[0][2].shape == (1200, 64)
    for got, want in zip(*found, strict=True):
        assert (got.double() - want).norm() < 1e-5 * want.norm()
