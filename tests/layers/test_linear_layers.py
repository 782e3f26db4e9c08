"""Linear layers under autocast on a CPU: the products and gradients of torch, of rows that are
filled up to numbers that recur."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tempera.arithmetic import products
from tempera.layers import linear_layers
from tempera.layers.linear_layers import LinearLayers, filled
from tempera.layers.lookup import computing_by
from tempera.parallel.distributed import CPU


class Block(nn.Module):
    """Three layers that read the same rows, as attention does, and one that reads what they
    make."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(24, 16, bias=bias) for _ in range(3))
        self.last = nn.Linear(16, 24, bias=bias)

    def forward(self, rows: Tensor) -> Tensor:
        made = self.queries(rows)
        made += self.keys(rows).sigmoid() * self.values(rows)  # in place
        return rows + self.last(F.gelu(made))


def passed(
    block: Block, rows: Tensor, layers: LinearLayers | None, half: bool = True
) -> list[Tensor]:
    """Return the outputs and the gradients of rows, weights and biases, with layers of ours or with
    those of torch."""
    block.zero_grad()
    rows = rows.detach().requires_grad_()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=half)
    with autocast, layers.cast_once(CPU) if layers else computing_by({}):
        out = block(rows)
    (out.float() * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    assert rows.grad is not None
    return [
        out.detach(),
        rows.grad,
        *(p.grad.clone() for p in block.parameters() if p.grad is not None),
    ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [(1, 1), (5, 7), (4, 8), (23, 24)])
def test_products_and_gradients_are_those_of_autocast(count: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    block = Block(bias)
    rows = torch.randn(*count, 24)
    got, want = passed(block, rows, LinearLayers(list(block.modules()))), passed(block, rows, None)
    with torch.autocast("cpu", enabled=False):
        exact = [each.double() for each in passed_exactly(block, rows)]
    assert torch.equal(got[0], want[0]) and len(got) == len(want) == len(exact) == (
        10 if bias else 6
    )
    for ours, theirs, true in zip(got, want, exact, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32 and ours.shape == theirs.shape
        size = true.norm()
        assert (ours.double() - true).norm() <= 1.2 * (theirs.double() - true).norm() + 1e-3 * size
        assert (ours.double() - true).norm() <= 0.03 * size


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [(1, 1), (5, 7), (90, 70)])
def test_products_and_gradients_in_float32_are_exact(
    count: tuple[int, int], bias: bool, onednn: list[str]
) -> None:
    """Rows are filled up there, too, and small products stay with torch."""
    torch.manual_seed(0)
    block, rows = Block(bias), torch.randn(*count, 24)
    got = passed(block, rows, LinearLayers(list(block.modules())), half=False)
    assert len(onednn) == (12 if count[0] == 90 else 0)  # four layers, forward and twice backward
    for ours, true in zip(
        got, (each.double() for each in passed_exactly(block, rows)), strict=True
    ):
        assert ours.dtype == torch.float32 and (ours.double() - true).norm() <= 1e-4 * true.norm()


def test_where_onednn_gains_nothing_torch_multiplies(
    onednn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "onednn_gain", lambda: 1.4)
    block, rows = Block(), torch.randn(90, 70, 24)
    got, want = (
        passed(block, rows, layers, half=False)
        for layers in (LinearLayers(list(block.modules())), None)
    )
    assert onednn == [] and all(map(torch.equal, got, want))


@pytest.mark.parametrize("half", [False, True])
def test_a_checkpoint_of_torch_computes_again_what_it_has_computed(
    half: bool, onednn: list[str]
) -> None:
    """Its rows are no number that recurs, and it computes them again when the layers are
    torch's."""
    torch.manual_seed(0)
    block, rows = Block(), torch.randn(70, 71, 24, requires_grad=True)
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=half),
        LinearLayers(list(block.modules())).cast_once(CPU),
    ):
        out: Any = checkpoint(block, rows, use_reentrant=False)
    out.float().sum().backward()
    assert rows.grad is not None and not onednn


def test_weights_that_are_more_than_their_numbers_and_transforms_are_left_to_torch(
    onednn: list[str],
) -> None:
    class Doubled(Tensor):
        """A weight of a format of its own."""

    layer, rows = nn.Linear(200, 200), torch.randn(3, 200, 200)
    with LinearLayers(list(layer.modules())).cast_once(CPU):
        want = layer(rows)
        assert onednn == ["oneDNN"]
        torch.testing.assert_close(torch.vmap(layer)(rows), want)
    layer.weight = nn.Parameter(layer.weight.data.as_subclass(Doubled), requires_grad=False)  # type: ignore[arg-type]
    with torch.inference_mode():
        frozen = nn.Linear(200, 200)
    with (
        LinearLayers(list(nn.ModuleList([layer, frozen]).modules())).cast_once(CPU),
        torch.no_grad(),
    ):
        assert layer(rows).shape == frozen(rows).shape == want.shape
    assert onednn == ["oneDNN"]


def test_rows_that_no_graph_can_save_are_left_to_torch(onednn: list[str]) -> None:
    """As where a footprint is measured, with gradients, in inference mode."""
    layer = nn.Linear(200, 200)
    with torch.inference_mode(), LinearLayers([layer]).cast_once(CPU), torch.enable_grad():
        assert layer(torch.randn(600, 200)).shape == (600, 200) and not onednn


def passed_exactly(block: Block, rows: Tensor) -> list[Tensor]:
    """Return the same in float64."""
    double = Block(block.last.bias is not None).double()
    double.load_state_dict(block.state_dict())
    rows = rows.double().requires_grad_()
    out = double(rows)
    (out * torch.linspace(-1, 1, out.numel()).double().view(out.shape)).sum().backward()
    assert rows.grad is not None
    return [out.detach(), rows.grad, *(p.grad for p in double.parameters() if p.grad is not None)]


def test_rows_are_filled_to_few_numbers_and_weights_are_cast_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block, shapes, own, weights = Block(), [], [], []

    def noted(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        shapes.append(len(rows))
        own.append(rows.data_ptr())
        weights.append(weight)
        return products.linear(rows, weight, bias)

    monkeypatch.setattr(linear_layers, "linear", noted)
    for count in range(1, 130):
        passed(block, torch.randn(count, 3, 24), LinearLayers(list(block.modules())))
        assert len(set(own[-4:-1])) == 1  # queries, keys and values read the same rows
    assert set(shapes) == {*range(32, 417, 32)}
    layers = LinearLayers(list(block.modules()))
    for _ in range(2):  # micro-batches of a batch
        passed(block, torch.randn(9, 24), layers)
    assert all(map(operator.is_, weights[-8:-4], weights[-4:]))
    for count in (511, 512, 513, 1023, 1025, 5000):
        rows = filled(torch.ones(count, 2), torch.bfloat16)
        assert count <= len(rows) <= count * 17 / 16 + 1 and len(rows) % 32 == 0
        assert rows.sum(dtype=torch.float32) == 2 * count


def test_what_is_not_a_matrix_of_rows_in_float32_is_left_to_torch() -> None:
    layer = nn.Linear(3, 2)
    double = nn.Linear(3, 2).double()
    with (
        torch.autocast("cpu", torch.bfloat16),
        LinearLayers(list(nn.ModuleList([layer, double]).modules())).cast_once(CPU),
    ):
        assert layer(torch.ones(3)).dtype == torch.bfloat16
        assert layer(torch.ones(0, 3)).shape == (0, 2)
        assert double(torch.ones(4, 3).double()).dtype == torch.float64
        with pytest.raises(RuntimeError, match="dtype"):  # as torch does, which casts no float64
            layer(torch.ones(4, 3).double())
        with torch.autocast("cpu", enabled=False):
            assert layer(torch.ones(4, 3)).dtype == torch.float32
    assert "forward" not in vars(layer)
    with LinearLayers(list(layer.modules())).cast_once(CPU):  # no autocast
        assert layer(torch.ones(4, 3)).dtype == torch.float32
    layer.gradient_checkpointing = True  # type: ignore[assignment]
    assert not LinearLayers(list(layer.modules())).layers


def test_rows_that_were_written_to_are_read_again() -> None:
    layer, rows = nn.Linear(3, 2), torch.ones(4, 3)
    with torch.autocast("cpu", torch.bfloat16), LinearLayers(list(layer.modules())).cast_once(CPU):
        before = layer(rows)
        rows *= 2
        assert torch.allclose(
            layer(rows).float(), F.linear(rows, layer.weight, layer.bias).float(), atol=0.05
        )
        assert not torch.equal(layer(rows), before)


@pytest.mark.parametrize(
    "write",
    [
        lambda p: p.data.mul_(-3),
        lambda p: setattr(p, "data", p.data * -3),
        lambda p: p.detach().mul_(-3),
    ],
    ids=["uncounted", "replaced", "counted"],
)
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_the_next_batch_reads_weights_however_an_optimiser_wrote_to_them(
    write: Callable[[nn.Parameter], Any], frozen: bool
) -> None:
    """Also of a tower that is frozen for a while, or follows another one by its moving average."""
    torch.manual_seed(0)
    block, rows = Block().requires_grad_(not frozen), torch.randn(5, 24)
    before = passed(block, rows, LinearLayers(list(block.modules())))
    for p in block.parameters():
        write(p)
    after = passed(block, rows, LinearLayers(list(block.modules())))
    assert torch.equal(after[0], passed(block, rows, None)[0]) and not torch.allclose(
        after[0], before[0], atol=0.1
    )
