"""Gradients of tables that are added in place are autograd's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from tempera.arithmetic.table import Table
from tempera.layers.lookup import _by_row, adding_in_place, clear
from tempera.parallel.distributed import CPU


class Net(nn.Module):
    """A table with padding that is used twice, one that is frozen, and one of bags of which the
    last is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fixed, self.bags = (
            nn.Embedding(7, 4, padding_idx=0),
            nn.Embedding(7, 4),
            Table(7, 4),
        )
        self.fixed.requires_grad_(False)

    def forward(self, indices: Tensor) -> Tensor:
        of_words = torch.tanh(
            self.words(indices) * self.fixed(indices) + self.words(indices.flip(1))
        )
        bags = self.bags.mean_of(indices.flatten(), torch.tensor([0, 1, 1, indices.numel()]))
        return torch.cat([of_words.flatten(0, 1), torch.sin(bags) * self.bags(indices[:, 0])[:1]])


def indices(seed: int) -> Tensor:
    return torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(seed))


def backward(net: nn.Module, seed: int, in_place: bool) -> None:
    with adding_in_place(list(net.modules()), CPU) if in_place else nullcontext():
        loss = net(indices(seed)).square().sum()
    loss.backward()


def gradients(in_place: bool, times: int) -> list[Tensor]:
    torch.manual_seed(0)
    net = Net().double()
    for seed in range(times):
        backward(net, seed, in_place)
    assert (
        net.fixed.weight.grad is None
        and net.words.weight.grad is not None
        and net.bags.weight.grad is not None
    )
    return [net.words.weight.grad, net.bags.weight.grad]


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_a_table_see_its_gradient(when: str) -> None:
    """As of one that trains some of the rows alone."""
    rows, wants = torch.tensor([[0.0]] * 3 + [[1.0]] * 4, dtype=torch.float64), []

    def erase(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(rows)

    for in_place in (False, True):
        torch.manual_seed(0)
        net = Net().double()
        for weight in (net.words.weight, net.bags.weight):
            if when == "before":
                weight.register_hook(lambda grad: grad * rows)  # type: ignore[no-untyped-call]
            else:
                weight.register_post_accumulate_grad_hook(erase)
        backward(net, 0, in_place)
        wants.append([net.words.weight.grad, net.bags.weight.grad])
    for want, got in zip(*wants, strict=True):
        assert want is not None and got is not None and want[3:].any() and not got[:3].any()
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("times", [1, 3])
def test_the_gradient_is_that_of_autograd(times: int) -> None:
    for want, got in zip(gradients(False, times), gradients(True, times), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
        assert float(want.abs().max()) > 0.01
    assert not gradients(True, times)[0][0].any()


@pytest.mark.parametrize("how", ["dense", "sparse", "in place"])
def test_weighted_means_are_those_by_hand(how: str) -> None:
    draw = torch.Generator().manual_seed(3)
    table = Table(700, 3, sparse=how == "sparse", dtype=torch.float64)
    logs = torch.randn(700, dtype=torch.float64, generator=draw).requires_grad_()
    rows, starts = torch.randint(0, 650, (2000,), generator=draw), torch.tensor([0, 5, 5, 900])
    outer = torch.randn(4, 3, dtype=torch.float64, generator=draw)
    table.weight.data.normal_(generator=draw)
    vectors, exponents = (
        table.weight.detach().clone().requires_grad_(),
        logs.detach().clone().requires_grad_(),
    )
    bags = [rows[:5], rows[5:5], rows[5:900], rows[900:]]
    by_hand = torch.stack(
        [
            sum((vectors[i] * exponents[i].exp() for i in bag), torch.zeros(3)) / max(1, len(bag))
            for bag in bags
        ]
    )
    with adding_in_place(list(table.modules()), CPU) if how == "in place" else nullcontext():
        means = table.mean_of(rows, starts, logs.exp())
    torch.testing.assert_close(means, by_hand, rtol=0, atol=1e-12)
    for each in (means, by_hand):
        (each.sin() * outer).sum().backward()
    grad = table.weight.grad
    assert grad is not None and grad.is_sparse == (how == "sparse")
    torch.testing.assert_close(grad.to_dense(), vectors.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(logs.grad, exponents.grad, rtol=0, atol=1e-12)
    assert (
        exponents.grad is not None and exponents.grad[:600].any() and not exponents.grad[650:].any()
    )


def test_weighted_bags_of_nothing_are_zero_and_teach_nothing() -> None:
    table, weights = Table(4, 2), torch.ones(4, requires_grad=True)
    with adding_in_place(list(table.modules()), CPU):
        means = table.mean_of(torch.tensor([], dtype=torch.int64), torch.tensor([0, 0]), weights)
    means.sum().backward()
    assert not means.any() and weights.grad is not None and not weights.grad.any()


@pytest.mark.parametrize("size", [40_000, 1 << 16, (1 << 16) + 1])
def test_bags_of_large_tables_have_the_bits_of_a_stable_sort(size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    rows = torch.cat(
        [torch.randint(0, size, (3000,), generator=draw), torch.tensor([size - 1, 0, size - 1])]
    )
    rows = rows[torch.randperm(len(rows), generator=draw)].repeat(2)
    order, distinct, counts = _by_row(rows, size)
    assert torch.equal(rows[order], rows.sort().values) and torch.equal(
        order, rows.argsort(stable=True)
    )
    assert torch.equal(distinct, rows.unique()) and torch.equal(
        counts, rows.unique(return_counts=True)[1]
    )
    assert [len(each) for each in _by_row(rows[:0], size)] == [0, 0, 0]
    table, starts = Table(size, 2, dtype=torch.float64), torch.tensor([0, 5, 5])
    expected = torch.zeros(size, 2, dtype=torch.float64)
    expected.index_add_(0, rows[:5], torch.full((5, 2), 0.2, dtype=torch.float64))
    expected.index_add_(
        0, rows[5:], torch.full((len(rows) - 5, 2), 1 / (len(rows) - 5), dtype=torch.float64)
    )
    with adding_in_place(list(table.modules()), CPU):
        table.mean_of(rows, starts)[[0, 2]].sum().backward()
    torch.testing.assert_close(table.weight.grad, expected, rtol=1e-12, atol=1e-12)


def nothing(grad: Tensor) -> None:
    """Leave a gradient as it is."""


@pytest.mark.parametrize(
    "write", [nothing, lambda grad: grad.add_(1), lambda grad: grad[2].fill_(torch.nan)]
)
def test_a_step_begins_at_zero_in_the_memory_of_the_one_before(
    write: Callable[[Tensor], object],
) -> None:
    nets = []
    for in_place in (False, True):
        torch.manual_seed(0)
        nets.append(net := Net().double())
        places = set()
        for seed in range(4):
            clear(net.parameters()) if in_place else net.zero_grad()
            assert all(p.grad is None for p in net.parameters())
            backward(net, seed, in_place)
            assert net.bags.weight.grad is not None
            places.add(net.bags.weight.grad.data_ptr())
            if seed < 3:
                write(net.bags.weight.grad)
        assert len(places) == 1 or not in_place
    plain, ours = nets
    for want, got in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-13, atol=1e-13)


def test_a_gradient_that_was_put_aside_is_not_written_to() -> None:
    torch.manual_seed(0)
    net = Net().double()
    backward(net, 0, in_place=True)
    aside = net.bags.weight.grad
    assert aside is not None
    before = aside.clone()
    net.bags.weight.grad = None
    backward(net, 1, in_place=True)
    torch.testing.assert_close(aside, before, rtol=0, atol=0)
    clear(net.parameters())
    backward(net, 1, in_place=True)
    torch.testing.assert_close(aside, before, rtol=0, atol=0)


def test_what_is_added_to_is_what_was_there() -> None:
    net = Net()
    net.words.weight.grad = torch.zeros_like(net.words.weight)
    before = net.words.weight.grad
    with adding_in_place(list(net.modules()), CPU):
        loss = net(torch.ones(2, 3, dtype=torch.int64)).sum()
    loss.backward()
    assert net.words.weight.grad is before and float(before.abs().max()) > 0


def test_the_tables_are_left_as_they_were() -> None:
    net = Net()
    with adding_in_place(list(net.modules()), CPU):
        assert "forward" in vars(net.words) and "forward" not in vars(net.fixed)
    with torch.no_grad(), adding_in_place(list(net.modules()), CPU):
        assert "forward" not in vars(net.words)
    assert "forward" not in vars(net.words)


def test_a_batch_whose_memory_is_written_to_again_leaves_nothing_behind() -> None:
    words, batch = nn.Embedding(9, 4), torch.zeros(2, dtype=torch.int64)
    for first in (1, 3, 5):
        batch.copy_(torch.tensor([first, first + 1]))
        clear(words.parameters())
        with adding_in_place(list(words.modules()), CPU):
            loss = words(batch).sum()
        loss.backward()
    assert words.weight.grad is not None and words.weight.grad[:, 0].tolist() == [
        0,
        0,
        0,
        0,
        0,
        1,
        1,
        0,
        0,
    ]


def test_a_table_that_changes_its_dtype_or_size_has_a_gradient_of_its_own() -> None:
    net = Net().double()
    backward(net, 0, in_place=True)
    clear(net.parameters())
    net.float()
    backward(net, 0, in_place=True)
    assert net.words.weight.grad is not None and net.words.weight.grad.dtype == torch.float32
    clear(net.parameters())
    net.bags.weight.data = torch.zeros(9, 4)
    backward(net, 0, in_place=True)
    assert net.bags.weight.grad is not None and len(net.bags.weight.grad) == 9
