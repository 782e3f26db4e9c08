"""Products by oneDNN are torch's, forward and backward, and are taken only where they may be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tempera.core import products
from tempera.core.products import add_product, gain, multiplying, product

pytestmark = pytest.mark.skipif(gain() == 1, reason="torch was built without oneDNN")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A machine on which oneDNN is the faster one; the shapes of what it multiplies."""
    shapes, times = list[tuple[int, ...]](), products._times

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append((*x.shape, len(weight)))
        return times(x, weight, bias)

    monkeypatch.setattr(products, "gain", lambda: products.WORTH)
    monkeypatch.setattr(products, "_LEAST", 1)
    monkeypatch.setattr(products, "_times", counted)
    return shapes


def close(got: Tensor | None, want: Tensor | None) -> None:
    assert got is not None and want is not None
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-5)


def test_products_of_any_strides(faster: list[tuple[int, ...]]) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b, wide = (torch.randn(*shape, generator=draw) for shape in ((7, 5), (5, 9), (9, 16)))
    one = torch.ones(1, 1)
    sides = [
        (a, b),
        (a.T, a),
        (a, wide[:5, :3]),
        (wide[:, 2:7], b),
        (a[1:], b[:, ::2]),
        (a[:1], b),
        (one.expand(3, 5), b),
    ]
    sides += [(a, one.expand(5, 4)), (a, b[:, 3:4]), (a[::2], b[:, :1].expand(5, 2)), (wide[::3, 1:15:3], b)]
    for left, right in sides:
        close(product(left, right), left.double() @ right.double())
        total = torch.ones(len(left), right.shape[1])
        add_product(total, left, right)
        close(total, 1 + left.double() @ right.double())
    assert len(faster) == 2 * len(sides)


def test_a_layer_has_the_gradients_of_autograd(faster: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    first = nn.Linear(6, 4)
    net = nn.Sequential(first, nn.Tanh(), nn.Linear(4, 3, bias=False))
    net[2].weight.requires_grad_(False)
    x = torch.randn(2, 5, 6, requires_grad=True)
    oracle = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)).double()
    oracle.load_state_dict(net.state_dict())
    other = x.detach().double().requires_grad_()
    with multiplying(net):
        y = net(x)
    want = oracle(other)
    close(y, want)
    torch.autograd.backward([y.square().sum(), want.square().sum()])
    close(x.grad, other.grad)
    for name in ("weight", "bias"):
        close(getattr(net[0], name).grad, getattr(oracle[0], name).grad)
    assert net[2].weight.grad is None and len(faster) == 2 + 3  # of two layers, and of one weight
    assert first.weight.grad is not None and first.weight.grad.is_contiguous()


def test_what_it_does_not_multiply_goes_the_other_way(faster: list[tuple[int, ...]]) -> None:
    a = torch.randn(3, 3, requires_grad=True)
    torch.autograd.backward(product(a, a).sum())  # what is differentiated
    assert a.grad is not None
    product(torch.ones(2, 2).double(), torch.ones(2, 2).double())
    product(torch.ones(0, 2), torch.ones(2, 2))
    net = nn.Linear(3, 3).double()
    with multiplying(net):
        net(torch.ones(1, 3).double())
        assert "forward" not in vars(net)
    net = nn.Linear(3, 3)
    with multiplying(net), torch.autocast("cpu", torch.bfloat16):
        assert net(torch.ones(1, 3)).dtype == torch.bfloat16
    assert "forward" not in vars(net) and not faster


def test_gradients_of_gradients_are_refused(faster: list[tuple[int, ...]]) -> None:
    net, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    with multiplying(net):
        (grad,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        torch.autograd.backward(grad.sum())


def test_torch_multiplies_where_it_is_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "gain", lambda: 1.4)
    monkeypatch.setattr(products, "_times", lambda *_: pytest.fail("oneDNN has multiplied"))
    square, out, net = torch.ones(256, 256), torch.empty(256, 256), nn.Linear(256, 256)
    assert product(square, square, out) is out
    with multiplying(net):
        assert "forward" not in vars(net)
