"""AdamW that passes over rows of tables which no batch has read is AdamW; norms and clipping
likewise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tempera import mnr
from tempera.arithmetic.table import Table
from tempera.core.temperature import Temperature
from tempera.engine import optim
from tempera.engine.optim import AdamWByRow, adam, clip, total_norm
from tempera.layers.lookup import adding_in_place, clear, rows_of
from tempera.parallel.distributed import ALONE, CPU

ROWS, WIDTH = 4000, 16


class Net(nn.Module):
    """A large table with padding, a table of bags, a small table, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bags = nn.Embedding(ROWS, WIDTH, padding_idx=0), Table(ROWS, WIDTH)
        self.few, self.layer = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, indices: Tensor) -> Tensor:
        bags = self.bags.mean_of(
            indices.flatten(), torch.arange(0, indices.numel(), indices.shape[1])
        )
        return self.layer(self.words(indices).sum(1) + self.few(indices % 5).sum(1)) * bags


def trained(
    steps: int,
    in_place: bool,
    most: float | None,
    wide: int = 60,
    parts: int = 2,
    between: Any = None,
    **options: Any,
) -> tuple[Net, list[float], AdamWByRow]:
    """Train on rows drawn anew, clipped to a norm; return the weights and the norms."""
    torch.manual_seed(0)
    net = Net()
    optimizer: Any = adam(net, 0.01, 0.0, options.pop("weight_decay", 0.0))
    draw, norms = torch.Generator().manual_seed(1), []
    parameters = list(net.parameters())
    for step in range(steps):
        clear(parameters)
        for _ in range(parts):  # micro-batches
            indices = torch.randint(0, wide, (8, 6), generator=draw)
            if in_place:
                with adding_in_place(list(net.modules()), CPU):
                    out = net(indices)
            else:
                out = net(indices)
            (out - 1).square().mean().backward()
        norm = total_norm(parameters, ALONE)
        norms.append(float(norm))
        if most is not None:
            clip(parameters, norm, most)
        if between is not None:
            between(net, optimizer, step)
        optimizer.step()
    return net, norms, optimizer


def same(one: Net, other: Net) -> None:
    for mine, plain in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most", [None, 0.001, 1e9])
@pytest.mark.parametrize(("wide", "parts"), [(60, 2), (60, 1), (ROWS, 2)])
def test_weights_norms_and_moments_are_those_of_adamw(
    wide: int, parts: int, most: float | None, monkeypatch: Any
) -> None:
    """All rows are read in time when they are drawn from the whole table, so that they are no
    longer few."""
    monkeypatch.setattr(optim, "_FEW", 0.1)
    net, norms, optimizer = trained(12, True, most, wide, parts)
    plain, exact, other = trained(12, False, most, wide, parts)
    assert norms == pytest.approx(exact, rel=1e-5)
    same(net, plain)
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert float(optimizer.state[mine]["step"]) == float(other.state[theirs]["step"]) == 12
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                optimizer.state[mine][name], other.state[theirs][name], rtol=1e-4, atol=1e-9
            )
    masks = {
        name: optimizer.read[p].mask for name, p in net.named_parameters() if p in optimizer.read
    }
    assert set(masks) == {"words.weight", "bags.weight"}
    for mask in masks.values():
        assert mask is None if wide == ROWS else 30 < int(mask.sum()) <= 60  # type: ignore[union-attr]


def test_a_checkpoint_goes_on_with_the_same_bits() -> None:
    def reloaded(net: Net, optimizer: Any, step: int) -> None:
        if step == 3:
            saved = {
                k: {n: x.clone() for n, x in v.items()}
                for k, v in optimizer.state_dict()["state"].items()
            }
            optimizer.load_state_dict({**optimizer.state_dict(), "state": saved})

    whole, again = trained(8, True, 0.01)[0], trained(8, True, 0.01, between=reloaded)[0]
    assert all(map(torch.equal, whole.parameters(), again.parameters()))


def test_gradients_of_others_reach_every_row() -> None:
    """Rows that only somebody else has given a gradient are stepped, in that step and, by their
    moments, in the next ones."""

    def added(net: Net, optimizer: Any, step: int) -> None:
        _added_alone(net, optimizer, step)
        assert (rows_of(net.words.weight) is None) == (
            rows_of(net.bags.weight) is None or step == 4
        )

    net, plain = (
        trained(8, True, 0.01, between=added)[0],
        trained(8, False, 0.01, between=_added_alone)[0],
    )
    same(net, plain)
    start = trained(0, False, None)[0].words.weight
    assert not torch.allclose(net.words.weight[ROWS - 1], start[ROWS - 1], atol=1e-3)
    assert torch.equal(net.words.weight[ROWS - 2], start[ROWS - 2])


def _added_alone(net: Net, _: Any, step: int) -> None:
    if step == 4:
        net.words.weight.grad[ROWS - 1] += 1  # type: ignore[index]


def test_weight_decay_spares_the_temperature() -> None:
    objective = mnr(Temperature(0.05, learnable=True))
    optimizer = adam(nn.ModuleList([nn.Linear(2, 2), objective]), 0.1, 0.1, 0.5)
    objective.temperature.log_scale.grad = torch.zeros((), dtype=torch.float64)
    optimizer.step()
    assert objective.temperature.value == pytest.approx(0.05, abs=1e-15)


def test_weight_decay_reaches_every_row() -> None:
    net, plain = (
        trained(3, True, None, weight_decay=0.1)[0],
        trained(3, False, None, weight_decay=0.1)[0],
    )
    same(net, plain)
    assert not torch.equal(
        net.words.weight[ROWS - 1], trained(0, False, None)[0].words.weight[ROWS - 1]
    )
