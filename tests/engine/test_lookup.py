"""Gradients of tables that are added in place are autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tempera.engine.lookup import adding_in_place


class Net(nn.Module):
    """A table with padding that is used twice, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fixed = nn.Embedding(7, 4, padding_idx=0), nn.Embedding(7, 4)
        self.fixed.requires_grad_(False)

    def forward(self, indices: Tensor) -> Tensor:
        return torch.tanh(self.words(indices) * self.fixed(indices) + self.words(indices.flip(1)))


def gradient(in_place: bool, times: int) -> Tensor:
    torch.manual_seed(0)
    net = Net().double()
    for seed in range(times):
        indices = torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(seed))
        if in_place:
            with adding_in_place(net):
                loss = net(indices).square().sum()
        else:
            loss = net(indices).square().sum()
        loss.backward()
    assert net.fixed.weight.grad is None and net.words.weight.grad is not None
    return net.words.weight.grad


@pytest.mark.parametrize("times", [1, 3])
def test_the_gradient_is_that_of_autograd(times: int) -> None:
    want, got = gradient(False, times), gradient(True, times)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
    assert float(want.abs().max()) > 0.01 and not got[0].any()


def test_what_is_added_to_is_what_was_there() -> None:
    net = Net()
    net.words.weight.grad = torch.zeros_like(net.words.weight)
    before = net.words.weight.grad
    with adding_in_place(net):
        loss = net(torch.ones(2, 3, dtype=torch.int64)).sum()
    loss.backward()
    assert net.words.weight.grad is before and float(before.abs().max()) > 0


def test_the_tables_are_left_as_they_were() -> None:
    net = Net()
    with adding_in_place(net):
        assert "forward" in vars(net.words) and "forward" not in vars(net.fixed)
    with torch.no_grad(), adding_in_place(net):
        assert "forward" not in vars(net.words)
    assert "forward" not in vars(net.words)
