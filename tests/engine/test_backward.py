"""A sample of the rows goes backward: its expectation is the exact gradient, with the dropout that
rows were scored with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import worlds
from test_step import Shared
from torch import Tensor, nn
from worlds import LAYOUTS

from tempera.core.batch import Batch, Role
from tempera.core.definition import defined_losses
from tempera.core.ragged import Ragged
from tempera.engine.backward import added, chances, draw, draws
from tempera.engine.cache import Cache
from tempera.engine.dropout import RowDropout
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.errors import ConfigError, TemperaError


class Attention(nn.Module):
    """A padded layer of attention with dropout on tokens, in attention and on rows, as transformers
    of Hugging Face have it."""

    padded = True

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.drop, self.p = nn.Embedding(worlds.WORDS, 8), nn.Dropout(dropout), dropout
        self.top = nn.Linear(8, worlds.WIDTH)

    def forward(self, features: Ragged) -> Tensor:
        there = torch.arange(features.longest) < features.lengths[:, None]
        words = torch.zeros(there.shape, dtype=torch.int64).masked_scatter(there, features.values)
        x = self.drop(self.words(words))[:, None]
        hidden = F.scaled_dot_product_attention(
            x, x, x, attn_mask=there[:, None, None], dropout_p=self.p
        )[:, 0]
        rows: Tensor = self.top(
            self.drop((hidden * there[..., None]).sum(1) / features.lengths[:, None])
        )
        return rows


def towers(shared: bool, dropout: float, dtype: torch.dtype) -> Any:
    torch.manual_seed(1)
    if shared:
        return Shared(Attention(dropout)).to(dtype).train()
    pair = worlds.Pair()
    pair.query, pair.doc = Attention(dropout), Attention(dropout)  # type: ignore[assignment]
    return pair.to(dtype).train()


NORMS = torch.tensor([3.0, 0.5, 0.0, 1.0, 2.0, 0.01, 1e-9], dtype=torch.float64)
COST = torch.tensor([4, 9, 3, 1, 20, 5, 2])


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_chances_cost_what_they_are_to_cost(share: float) -> None:
    pi = chances(NORMS, COST, share)
    assert float(pi @ COST.double()) == pytest.approx(share * COST.sum())
    assert pi[2] == 0 and float(pi[NORMS > 0].min()) >= 0.1 * share and float(pi.max()) <= 1


def test_chances_of_equal_cost_add_the_least_variance() -> None:
    """No exchange of cost between two rows, whose chances are free, adds less."""
    pi = chances(NORMS, COST, 0.5)
    free = [i for i in range(len(pi)) if 0.06 < pi[i] < 0.99]
    assert len(free) >= 2
    for i, j in ((i, j) for i in free for j in free if i != j):
        moved = pi.clone()
        moved[i] += 1e-4 / COST[i]
        moved[j] -= 1e-4 / COST[j]
        assert added(moved, NORMS) > added(pi, NORMS)


def test_auto_adds_a_tenth_of_the_noise_between_batches() -> None:
    pi = chances(NORMS, COST, "auto")
    assert float(added(pi, NORMS)) == pytest.approx(0.1 * float(NORMS.square().sum()), rel=1e-6)
    even = chances(torch.ones(6, dtype=torch.float64), torch.ones(6), "auto")
    torch.testing.assert_close(even, torch.full((6,), 1 / 1.1, dtype=torch.float64))
    nothing = torch.zeros(3, dtype=torch.float64)
    assert (
        not chances(nothing, torch.ones(3), "auto").any()
        and not chances(nothing, torch.ones(3), 0.5).any()
    )


def test_draws_are_as_frequent_as_their_chances_and_add_what_is_said() -> None:
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    grads *= torch.rand(200, 1, generator=generator, dtype=torch.float64) ** 4
    norms, cost = grads.norm(dim=1), torch.randint(1, 30, (200,), generator=generator)
    pi, order = chances(norms, cost, 0.3), cost.argsort(stable=True)
    counts, independent, systematic = torch.zeros_like(pi), [], []
    for _ in range(2000):
        rows = draw(pi, order, float(torch.rand((), generator=generator, dtype=torch.float64)))
        counts[rows] += 1
        systematic.append((grads[rows] / pi[rows, None]).sum(0))
        coin = torch.rand(len(pi), generator=generator, dtype=torch.float64) < pi
        independent.append((grads[coin] / pi[coin, None]).sum(0))
    assert float((counts / 2000 - pi).abs().max()) < 0.05
    for sample in (independent, systematic):
        variance = torch.stack(sample).sub(grads.sum(0)).square().sum(1).mean()
        assert float(variance) == pytest.approx(float(added(pi, norms)), rel=0.15)


def exact(
    modules: Any, objective: Any, batch: Batch[Ragged], seeds: list[Tensor]
) -> dict[str, Tensor]:
    """Return the gradients by the definition; each row is embedded alone, with a seed of its
    own."""
    roles: dict[int, list[Role]] = {}
    for role in batch.sides():
        roles.setdefault(id(modules.of(role)), []).append(role)
    rows: dict[Role, Tensor] = {}
    for same, seed in zip(roles.values(), seeds, strict=True):
        tower, first = modules.of(same[0]), 0
        for role in same:
            side, own = batch.sides()[role].rows, []
            for i in range(len(side)):
                with RowDropout(seed[[first + i]]):
                    own.append(tower(side[[i]]))
            rows[role], first = torch.cat(own), first + len(side)
    embedded = batch.of(rows)
    (embedded.shares() * defined_losses(objective, embedded)).sum().backward()
    return {name: p.grad for name, p in modules.named_parameters()}


@pytest.mark.parametrize(("shared", "dropout"), [(True, 0.0), (True, 0.3), (False, 0.3)])
@pytest.mark.parametrize("share", [0.4, "auto"])
@pytest.mark.parametrize("mode", ["always", "auto"])
def test_the_mean_over_all_draws_is_the_exact_gradient(
    shared: bool, dropout: float, share: Any, mode: Any
) -> None:
    """All draws of rows in 4 roles, each with its chance; and of micro-batches that keep their
    graph, where some fit."""
    batch = worlds.whole(LAYOUTS[2], 0)
    seeds: list[Tensor] = []

    def gradients(start: float) -> tuple[dict[str, Tensor], Cache]:
        modules, objective = towers(shared, dropout, torch.float64), worlds.OBJECTIVES["gte"]()
        torch.manual_seed(5)
        cache = Cache(mode, memory=6_000, tokens=12, backward=share, start=start)
        plan = cache.plan(modules, batch)
        assert len({micro.kept for micro in plan.micros}) == (1 if mode == "always" else 2)
        if not seeds:
            torch.randint(2**62, (len(plan.micros),))
            seeds.extend(torch.randint(2**62, (len(work.features),)) for work in plan.works)
            torch.manual_seed(5)
        step(modules, objective, batch, cache)
        assert cache.drawn is not None and 0 < cache.drawn.share < 1
        named = modules.named_parameters()
        return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named}, cache

    mean: dict[str, Tensor] = {}
    chances_and_order = gradients(0.5)[1].chances
    assert chances_and_order is not None and len(draws(*chances_and_order)) > 4
    for start, chance in draws(*chances_and_order):
        for name, grad in gradients(start)[0].items():
            mean[name] = mean.get(name, 0) + chance * grad
    for name, grad in exact(
        towers(shared, dropout, torch.float64), worlds.OBJECTIVES["gte"](), batch, seeds
    ).items():
        torch.testing.assert_close(mean[name], grad, rtol=1e-10, atol=1e-12, msg=name)


def test_everything_goes_backward_at_a_share_of_1() -> None:
    """The same bits as without the option."""
    batch, found = worlds.whole(LAYOUTS[2], 0), []
    for cache in (Cache(tokens=12), Cache(tokens=12, backward=1.0)):
        modules = towers(True, 0.3, torch.float32)
        torch.manual_seed(5)
        step(modules, worlds.OBJECTIVES["gte"](), batch, cache)
        found.append([p.grad for p in modules.parameters()])
        assert cache.drawn is None
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


LENGTHS = torch.tensor([5, 2, 4])


class Heads(nn.Module):
    """Dropout on tokens and in attention, causal or with a mask."""

    def forward(self, rows: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        x = F.dropout(rows, 0.4)[:, None]
        return F.scaled_dot_product_attention(
            x, x, x, attn_mask=mask, dropout_p=0.3, is_causal=causal
        )[:, 0]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_draws_the_same_in_whatever_company(left: bool, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    own = [torch.randn(int(n), 4, generator=generator, dtype=torch.float64) for n in LENGTHS]
    seeds = torch.tensor([11, 12, 13])

    def embedded(which: list[int], width: int) -> list[Tensor]:
        rows = torch.zeros(len(which), width, 4, dtype=torch.float64)
        there = torch.zeros(len(which), width, dtype=torch.bool)
        spans = [
            slice(width - len(own[i]), width) if left else slice(0, len(own[i])) for i in which
        ]
        for row, (i, span) in enumerate(zip(which, spans, strict=True)):
            rows[row, span], there[row, span] = own[i], True
        mask = None if causal else there[:, None, None]
        with RowDropout(seeds[which], left):
            out = Heads()(rows, mask, causal and not left)
        return [out[row, span] for row, span in enumerate(spans)]

    if causal and left:
        return  # what lies before a row would have to be masked, too
    together = embedded([2, 0, 1], 6)
    for i, row in zip([2, 0, 1], together, strict=True):
        torch.testing.assert_close(row, embedded([i], len(own[i]))[0], rtol=1e-12, atol=1e-12)
    assert not together[1].isnan().any()


def test_dropout_keeps_the_mean_and_its_share() -> None:
    rows = torch.ones(2, 4000, 8)
    with RowDropout(torch.tensor([1, 2])):
        out = F.dropout(rows, 0.25)
        assert F.dropout(rows, 0.25, training=False) is rows
    assert {round(v, 4) for v in out.unique().tolist()} == {0.0, round(4 / 3, 4)}
    assert float((out == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert not out[0].equal(out[1])


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: torch.rand(3), "of another kind than dropout"),
        (
            lambda: nn.MultiheadAttention(4, 2, 0.5)(*[torch.ones(2, 3, 4)] * 3),
            "of another kind than dropout",
        ),
        (lambda: F.dropout(torch.ones(5, 3), 0.5), "cannot be told apart"),
        (lambda: F.dropout(torch.ones(2), 0.5), "cannot be told apart"),
    ],
)
def test_what_cannot_be_repeated_is_refused(work: Callable[[], Any], said: str) -> None:
    with pytest.raises(TemperaError, match=said), RowDropout(torch.tensor([1, 2])):
        work()


def test_options_that_rule_each_other_out() -> None:
    with pytest.raises(ConfigError, match="cache=never rules out"):
        Training(backward=0.5, cache="never")


@pytest.mark.parametrize("share", [0.25, "auto"])
def test_a_gradient_next_to_nothing_changes_no_other_chance(share: Any) -> None:
    norms, cost = (
        torch.tensor([4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1e-25], dtype=torch.float64),
        torch.ones(7),
    )
    every, rest = chances(norms, cost, share), chances(norms[:-1], cost[:-1], share)
    if share == "auto":
        torch.testing.assert_close(every[:-1], rest)
    else:
        assert float(every.sum()) == pytest.approx(0.25 * 7)
