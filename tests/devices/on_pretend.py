"""The pretend accelerator finds what it is for: waits, copies and mixed devices, with their lines,
in backward passes too."""

from __future__ import annotations

import pytest
import torch
from pretend import Accelerator
from torch import Tensor, nn

from tempera.arithmetic.abilities import sent


class Tower(nn.Linear):
    """A tower of one layer, in which something may be planted."""

    padded = False

    def __init__(self, plant: str = "") -> None:
        super().__init__(4, 4)
        self.plant = plant

    def of(self, role: str) -> Tower:
        return self

    def forward(self, features: Tensor) -> Tensor:
        y = super().forward(features.float())
        if self.plant == "tower":
            y.sum().item()  # planted in the tower
        return _Backward.apply(y, self.plant)  # type: ignore[no-untyped-call, no-any-return]


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, y: Tensor, plant: str) -> Tensor:
        ctx.plant = plant  # type: ignore[attr-defined]
        return y.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.plant == "backward":  # type: ignore[attr-defined]
            grad.sum().item()  # planted in the backward
        return grad, None


def test_a_value_that_is_read_in_a_tower_or_a_backward_pass_is_a_wait_of_its_line() -> None:
    for plant in ("tower", "backward"):
        with Accelerator() as used:
            tower = Tower(plant).to(used.device)
            tower(torch.ones(2, 4, device=used.device)).sum().backward()
        with pytest.raises(
            AssertionError,
            match=rf"1 waits, tests/devices/on_pretend.py:\d+ .*# planted in the {plant}",
        ):
            used.within(waits={}, copies={"tests/devices/on_pretend.py *": 9}, launches=99)


def test_what_autograd_computes_counts_for_the_line_whose_gradient_it_is() -> None:
    with Accelerator() as used:
        x = torch.ones(3, device=used.device, requires_grad=True)
        y = x.exp() * 2
        used.clear()
        y.sum().backward()
    (exp,) = {str(where) for _, where in used.counts if where.backward and "exp()" in str(where)}
    assert "gradient of test_what_autograd" in exp


def test_tensors_of_two_devices_are_an_error_with_its_line() -> None:
    with Accelerator() as used, pytest.raises(RuntimeError, match=r"on_pretend.py:\d+ .*planted"):
        torch.ones(2, device=used.device) + torch.ones(2)  # planted


def test_a_mistake_in_a_backward_pass_is_an_error_with_its_line() -> None:
    class Mixed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return grad * torch.ones(2)  # planted

    with Accelerator() as used:
        loss = Mixed.apply(torch.ones(2, device=used.device, requires_grad=True)).sum()  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match=r"on_pretend.py:\d+ .*planted"):
            loss.backward()


def test_float64_on_a_device_without_it_is_an_error_with_its_line() -> None:
    with (
        Accelerator(float64=False) as used,
        pytest.raises(TypeError, match=r"no float64, at .*planted"),
    ):
        torch.ones(2, device=used.device).double()  # planted


def test_copies_from_the_host_wait_unless_they_are_pinned() -> None:
    rows = torch.arange(6.0)
    with Accelerator() as used:
        for each in (rows, rows.view(2, 3).T, rows[:1].expand(4), rows[:0]):
            assert torch.equal(sent(each, used.device).raw, each)
        assert used.total("copies") == 4 and used.total("waits") == 0
        rows.to(used.device)
        rows.pin_memory().to(used.device)
        assert used.total("copies") == 6 and used.total("waits") == 2
