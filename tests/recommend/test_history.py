"""What a row looks back on is its own history and nothing else, however histories are packed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tempera.core.frame import Events
from tempera.recommend.train.history import History, Past
from tempera.recommend.train.pooling import Ages, Attention, Causal, Gru, Max, Mean, Pooling

ITEMS, D = 11, 6
POOLS: dict[str, tuple[Pooling, ...]] = {
    "mean": (Mean(50),),
    "latest": (Mean(1),),
    "decaying": (Mean(3, 0.8),),
    "windows": (Mean(1), Mean(3, 0.8), Mean(10, 0.9), Mean(50)),
    "max": (Max(4),),
    "ages": (Ages(4, 0.7),),
    "attention": (Attention(4),),
    "gru": (Gru(4),),
    "transformer": (Causal(5, layers=2, heads=2, dropout=0.0),),
    "all": (Max(3), Mean(2, 0.5), Ages(3), Attention(3), Gru(3), Causal(3, 1, 3, 0.0), Mean(4)),
}
# Starts and stops of rows over a timeline of 30 events: shared starts, starts of their own, empty
# and single ones.
PACKINGS = {
    "shared": ([0, 0, 0, 12, 12], [3, 4, 5, 12, 17]),
    "own": ([0, 1, 2, 8, 20], [5, 5, 5, 9, 29]),
    "mixed": ([4, 0, 9, 0, 4, 22, 9, 9, 4], [9, 2, 9, 0, 4, 23, 21, 10, 6]),
    "far apart": ([0, 5, 0, 0, 5, 0, 5], [3, 5, 27, 0, 29, 25, 30]),
    "one event": ([3], [4]),
    "empty": ([3], [3]),
    "all empty": ([3, 7, 3], [3, 7, 3]),
    "no rows": ([], []),
}


class Table(nn.Module):
    """Items to vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ITEMS, D))

    def forward(self, codes: Tensor) -> Tensor:
        return self.weight[codes]


def past(pools: tuple[Pooling, ...]) -> Past:
    torch.manual_seed(0)
    made = Past(History(pools), Table(), D)
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made.double().eval()


def timeline() -> Tensor:
    return torch.randint(ITEMS, (30,), generator=torch.Generator().manual_seed(1))


def events(packing: str) -> Events:
    start, stop = (torch.tensor(ends, dtype=torch.int64) for ends in PACKINGS[packing])
    return Events.of(timeline(), start, stop)


# The pools by definition, of one history as a list of vectors, the earliest first
# -----------------------------------


def mean(pool: Mean, _: nn.Module, history: list[Tensor]) -> Tensor:
    latest = history[::-1][: pool.last]
    weights = [pool.decay**age for age in range(len(latest))]
    return sum((w * x for w, x in zip(weights, latest)), torch.zeros(D).double()) / sum(weights)


def largest(pool: Max, _: nn.Module, history: list[Tensor]) -> Tensor:
    return torch.stack(
        [torch.stack([x[d] for x in history[-pool.last :]]).amax() for d in range(D)]
    )


def ages(pool: Ages, module: nn.Module, history: list[Tensor]) -> Tensor:
    weights = [module.age[age].exp() for age in range(min(pool.last, len(history)))]
    return sum((w * x for w, x in zip(weights, history[::-1])), torch.zeros(D).double()) / sum(
        weights
    )


def attention(pool: Attention, module: nn.Module, history: list[Tensor]) -> Tensor:
    hidden, _, out = module.score
    logits = [
        out.weight[0] @ torch.tanh(hidden.weight @ x + hidden.bias) + module.age[age]
        for age, x in enumerate(history[::-1][: pool.last])
    ]
    weights = [logit.exp() for logit in logits]
    return sum((w * x for w, x in zip(weights, history[::-1])), torch.zeros(D).double()) / sum(
        weights
    )


def gru(_: Gru, module: nn.Module, history: list[Tensor]) -> Tensor:
    unit = module.unit
    state = torch.zeros(D).double()
    for x in history:
        (r, z, n), (hr, hz, hn) = (
            (weight @ value + bias).chunk(3)
            for weight, value, bias in (
                (unit.weight_ih_l0, x, unit.bias_ih_l0),
                (unit.weight_hh_l0, state, unit.bias_hh_l0),
            )
        )
        keep = torch.sigmoid(z + hz)
        state = (1 - keep) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + keep * state
    return state


def normed(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + layer.eps).sqrt() * layer.weight + layer.bias


def transformer(_: Causal, module: nn.Module, history: list[Tensor]) -> Tensor:
    rows, many = list(history), module.age.shape[1]
    for block in module.blocks:
        mixed = [block.mix.weight @ normed(block.before, x) + block.mix.bias for x in rows]
        heads, size = block.heads, D // block.heads
        after = []
        for i, x in enumerate(rows):
            found = []
            for h in range(heads):
                q = mixed[i].view(3, heads, size)[0, h]
                keys = [mixed[j].view(3, heads, size)[1:, h] for j in range(i + 1)]
                weights = [
                    ((q @ key) / math.sqrt(size) + module.age[h, min(i - j, many - 1)]).exp()
                    for j, (key, _) in enumerate(keys)
                ]
                found.append(sum(w * value for w, (_, value) in zip(weights, keys)) / sum(weights))
            x = x + block.out.weight @ torch.cat(found) + block.out.bias
            wide, _, narrow = block.feed
            inner = wide.weight @ normed(block.between, x) + wide.bias
            inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
            after.append(x + narrow.weight @ inner + narrow.bias)
        rows = after
    return normed(module.norm, rows[-1])


DEFINED: dict[type, Callable[..., Tensor]] = {
    Mean: mean,
    Max: largest,
    Ages: ages,
    Attention: attention,
    Gru: gru,
    Causal: transformer,
}


def by_definition(made: Past, pools: tuple[Pooling, ...], packing: str) -> Tensor:
    """Row by row, each from its own events; means stand before the others."""
    means = [pool for pool in pools if isinstance(pool, Mean)]
    others = [pool for pool in pools if not isinstance(pool, Mean)]
    modules = [None] * len(means) + list(made.pools)[bool(means) :]
    rows = []
    for start, stop in zip(*PACKINGS[packing]):
        history = [made.items.weight[item] for item in timeline()[start:stop].tolist()]
        rows += [
            DEFINED[type(pool)](pool, module, history) if history else torch.zeros(D).double()
            for pool, module in zip(means + others, modules)
        ]
    return (
        torch.stack(rows).view(-1, len(pools) * D)
        if rows
        else torch.zeros(0, len(pools) * D).double()
    )


def gradients(made: Past, found: Tensor) -> dict[str, Tensor]:
    """Of a sum in which every number has a weight of its own."""
    made.zero_grad()
    weights = torch.randn(
        found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    if found.requires_grad:
        (found * weights).sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in made.named_parameters()
    }


def near(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and torch.allclose(
        a, b, rtol=0, atol=1e-12 * max([1.0, *b.abs().flatten().tolist()])
    )


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", POOLS)
def test_packed_rows_are_each_their_own_history(name: str, packing: str) -> None:
    made = past(POOLS[name])
    found, wanted = made(events(packing)), by_definition(made, POOLS[name], packing)
    assert found.shape == wanted.shape and near(found, wanted)
    got, want = gradients(made, found), gradients(made, wanted)
    assert all(near(got[key], want[key]) for key in want), name


@pytest.mark.parametrize("name", POOLS)
def test_rows_in_any_order_and_any_part(name: str) -> None:
    made, whole = past(POOLS[name]), events("mixed")
    found = made(whole)
    order = torch.tensor([5, 0, 8, 3, 3, 1])
    assert near(made(whole[order]), found[order])
    assert near(torch.cat([made(whole[:4]), made(whole[4:])]), found)
    assert near(made(Events.cat([whole[4:], whole[:4]])), torch.cat([found[4:], found[:4]]))


@pytest.mark.parametrize("name", POOLS)
def test_what_comes_at_or_after_the_stop_has_no_influence(name: str) -> None:
    """Else a query would know its answer: neither the target's item nor a later one moves any row,
    nor gets a gradient."""
    made = past(POOLS[name])
    line, start = timeline(), torch.tensor([2, 2, 2, 2])
    stop = torch.tensor([5, 9, 7, 12])
    found = made(Events.of(line, start, stop))
    for i, at in enumerate(stop.tolist()):
        later = line.clone()
        later[at:] = (later[at:] + 1) % ITEMS
        changed = made(Events.of(later, start, stop))
        unmoved = [j for j in range(4) if stop[j] <= at]
        assert torch.equal(changed[unmoved], found[unmoved]) and i in unmoved
    before = line.clone()
    before[:2] = (before[:2] + 1) % ITEMS
    assert torch.equal(made(Events.of(before, start, stop)), found)


@pytest.mark.parametrize("name", POOLS)
def test_every_event_of_a_window_counts(name: str) -> None:
    """Else the test above would hold for a pool that reads nothing."""
    made, line = past(POOLS[name]), timeline()
    found = made(Events.of(line, torch.tensor([2]), torch.tensor([12])))
    windows = [12 - 2 if isinstance(pool, Gru | Causal) else pool.last for pool in POOLS[name]]
    for place in range(2, 12):
        moved = line.clone()
        with torch.no_grad():
            made.items.weight[ITEMS - 1] += 5.0  # no other number is as large
        moved[place] = ITEMS - 1
        with_one = made(Events.of(moved, torch.tensor([2]), torch.tensor([12])))
        with torch.no_grad():
            made.items.weight[ITEMS - 1] -= 5.0
        assert torch.equal(with_one, found) == (12 - place > max(windows)), place


def test_a_history_is_zeros_where_it_is_empty() -> None:
    made = past(POOLS["all"])
    assert made(events("all empty")).tolist() == [[0.0] * made.width] * 3
    assert made(events("empty")).abs().sum() == 0 and made(events("one event")).abs().min() > 0


def test_dropout_draws_in_training_only() -> None:
    made = past((Causal(5, dropout=0.5),))
    assert torch.equal(made(events("mixed")), made(events("mixed")))
    made.train()
    assert not torch.equal(made(events("mixed")), made(events("mixed")))


def test_the_weights_of_ages_begin_as_a_decaying_mean() -> None:
    torch.manual_seed(0)
    table, packed = Table(), events("mixed")
    ages, mean = (Past(History([pool]), table, D) for pool in (Ages(6, 0.7), Mean(6, 0.7)))
    assert torch.allclose(ages(packed), mean(packed), atol=1e-6)


def test_numbers_of_a_history_are_dropped_in_training_only() -> None:
    torch.manual_seed(0)
    made = Past(History([Mean(1)], dropout=0.4), Table(), D)
    vectors = made.eval()(events("far apart"))[[0, 2, 4, 5, 6]]
    dropped = torch.stack([made.train()(events("far apart"))[[0, 2, 4, 5, 6]] for _ in range(400)])
    assert torch.equal(
        (dropped == 0) | torch.isclose(dropped, vectors / 0.6),
        torch.ones_like(dropped, dtype=torch.bool),
    )
    assert 0.37 < float((dropped == 0).float().mean()) < 0.43
