"""The gradient does not depend on how a batch is cut, kept or replayed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import worlds
from torch import Tensor, nn
from worlds import LAYOUTS, Pair

from tempera import mnr
from tempera.arithmetic.ragged import Ragged
from tempera.core.batch import Batch, Side
from tempera.core.masks import SameId
from tempera.core.temperature import Temperature
from tempera.engine.cache import Cache, Mode
from tempera.engine.step import step
from tempera.errors import ConfigError, DataError, TemperaError

KEPT = {"nothing": "always", "some": "auto", "all": "never"}


class Attention(nn.Module):
    """A padded transformer layer with dropout and a table of words."""

    padded = True

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(worlds.WORDS, 8, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.top = nn.Linear(8, worlds.WIDTH)
        self.calls: list[tuple[int, int]] = []  # rows and width of each call with and without graph

    def forward(self, features: Ragged) -> Tensor:
        width = int(features.lengths.max())
        there = torch.arange(width) < features.lengths[:, None]
        self.calls.append((len(features), width))
        words = torch.zeros(there.shape, dtype=torch.int64)
        words[there] = features.values
        hidden = self.layer(self.words(words), src_key_padding_mask=~there)
        weight = there[..., None].to(hidden.dtype)
        rows: Tensor = self.top((hidden * weight).sum(1) / weight.sum(1))
        return rows


class Shared(nn.Module):
    """One tower for queries and documents."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def of(self, role: str) -> nn.Module:
        return self.tower


def towers(shared: bool, dropout: float, dtype: torch.dtype) -> Any:
    torch.manual_seed(1)
    if shared:
        return Shared(Attention(dropout)).to(dtype).train()
    pair = Pair()
    pair.query, pair.doc = Attention(dropout), Attention(dropout)  # type: ignore[assignment]
    return pair.to(dtype).train()


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch[Ragged]:
    return worlds.whole(LAYOUTS[2], seed, dtype)


def of(modules: Any, objective: Any) -> dict[str, Tensor]:
    named = [*modules.named_parameters(), *objective.named_parameters()]
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def row_by_row(
    modules: Any, objective: Any, given: Batch[Ragged]
) -> tuple[float, dict[str, Tensor]]:
    """Every row embedded by itself, and autograd through everything at once."""
    rows = {
        role: torch.cat([modules.of(role)(side.rows[[i]]) for i in range(len(side.rows))])
        for role, side in given.sides().items()
    }
    embedded = given.of(rows)
    loss = (embedded.shares() * objective(objective.recall(embedded))).sum()
    loss.backward()
    return float(loss.detach()), of(modules, objective)


def stepped(
    modules: Any, objective: Any, given: Batch[Ragged], cache: Cache
) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(5)
    return step(modules, objective, given, cache), of(modules, objective)


def off(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """The largest difference of a gradient, relative to its largest element or to 1 in all."""
    assert got.keys() == want.keys() and "log_scale" in str(want.keys())
    largest = max(float(w.abs().max()) for w in want.values())
    return max(float((got[name] - want[name]).abs().max()) for name in want) / largest


@pytest.mark.parametrize(
    "sizes", [(3,), pytest.param((1, 2, 5, 8, 13, 40, 10**6), marks=pytest.mark.long)]
)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", worlds.OBJECTIVES)
def test_every_micro_batch_size_gives_the_gradient_of_the_whole(
    name: str, shared: bool, sizes: tuple[int, ...]
) -> None:
    modules, objective = towers(shared, 0.0, torch.float64), worlds.OBJECTIVES[name]()
    loss, want = row_by_row(modules, objective, batch())
    for tokens in sizes:
        for kept in KEPT.values():
            modules, objective = towers(shared, 0.0, torch.float64), worlds.OBJECTIVES[name]()
            cache = Cache(kept, memory=6000.0, tokens=tokens)  # type: ignore[arg-type]
            found, got = stepped(modules, objective, batch(), cache)
            assert abs(found - loss) <= 1e-12 * max(1, abs(loss)) and off(got, want) <= 1e-12, (
                tokens,
                kept,
            )


def test_some_are_kept_and_some_replayed() -> None:
    """Otherwise the tests around this one compare a thing with itself."""
    modules, objective = towers(True, 0.0, torch.float64), worlds.OBJECTIVES["gte"]()
    cache = Cache("auto", memory=6000.0, tokens=5)
    step(modules, objective, batch(), cache)
    calls = len(modules.tower.calls) - 3  # the footprint was measured by three
    plan = cache.plan(modules, batch())
    kept = sum(micro.kept for micro in plan.micros)
    assert 0 < kept < len(plan.micros) and calls == 2 * len(plan.micros) - kept
    assert (
        not any(micro.kept for micro in plan.micros[:-kept])
        and plan.kept_bytes <= 6000 < plan.kept_bytes + 6000
    )
    assert 0 < plan.replayed < 1 and cache.replaying.seconds() > 0


FEW = {("mnr", 1), ("gte", 5), ("matryoshka", None)}


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        pytest.param(*case, marks=() if case in FEW else pytest.mark.long)
        for case in itertools.product(["mnr", "gte", "matryoshka"], [1, 5, None])
    ],
)
def test_dropout_is_replayed(name: str, tokens: int | None) -> None:
    """Bitwise between everything kept and everything replayed; of mixtures only the order of the
    sums differs."""
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        found = {}
        for kept, mode in KEPT.items():
            modules, objective = towers(True, 0.3, dtype), worlds.OBJECTIVES[name]()
            found[kept] = stepped(
                modules, objective, batch(0, dtype), Cache(mode, memory=6000.0, tokens=tokens)
            )  # type: ignore[arg-type]
        (loss, nothing), (_, some), (other, everything) = found.values()
        assert loss == other and off(some, everything) <= tolerance
        assert all(torch.equal(nothing[key], everything[key]) for key in everything)
        modules, objective = towers(True, 0.3, dtype), worlds.OBJECTIVES[name]()
        torch.manual_seed(6)
        step(modules, objective, batch(0, dtype), Cache("always", tokens=tokens))
        assert off(of(modules, objective), everything) > 0.01  # another seed, another dropout


@pytest.mark.parametrize("mode", KEPT.values(), ids=KEPT)
def test_each_micro_batch_draws_its_own_dropout(mode: Mode) -> None:
    """Equal rows, of which as many stand in each micro-batch, would lose the same numbers."""

    class Dropping(nn.Module):
        padded = False

        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.ones(50))

        def forward(self, features: Ragged) -> Tensor:
            return nn.functional.dropout(self.row.expand(len(features), -1), 0.5)

    alike = Batch(*(Side(Ragged.of([[1, 2]] * 8)) for _ in range(2)))
    embedded = Cache(mode, tokens=4, memory=1e5).embed(Dropping(), alike)
    assert len(embedded.plan.micros) == 8
    assert len(torch.cat([embedded.batch.query.rows, embedded.batch.doc.rows]).unique(dim=0)) == 16


def test_gradients_are_those_of_the_dropout_that_was_drawn() -> None:
    """By finite differences along a direction, the random numbers held fast."""
    modules, objective = towers(True, 0.3, torch.float64), worlds.OBJECTIVES["gte"]()
    _, grads = stepped(modules, objective, batch(), Cache("always", tokens=5))
    direction = {name: torch.randn_like(p) for name, p in modules.named_parameters()}
    direction["tower.words.weight"][0] = 0  # padding has no gradient
    losses = []
    for sign in (1, -1):
        moved, other = towers(True, 0.3, torch.float64), worlds.OBJECTIVES["gte"]()
        with torch.no_grad():
            for name, p in moved.named_parameters():
                p += sign * 1e-6 * direction[name]
        losses.append(stepped(moved, other, batch(), Cache("always", tokens=5))[0])
    along = sum(
        float((grads[name] * way).sum()) for name, way in direction.items() if name in grads
    )
    assert along == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-6)


def test_scale_multiplies_and_accumulation_adds() -> None:
    modules, objective = towers(True, 0.0, torch.float64), worlds.OBJECTIVES["gte"]()
    wants = [
        row_by_row(modules, objective, batch(0))[1],
        row_by_row(modules, objective, batch(1))[1],
    ]  # the second adds
    modules, objective = towers(True, 0.0, torch.float64), worlds.OBJECTIVES["gte"]()
    for seed in range(2):
        step(modules, objective, batch(seed), Cache(tokens=5), scale=0.5)
    assert off({name: 2 * grad for name, grad in of(modules, objective).items()}, wants[1]) <= 1e-12


class Listed:
    """Towers that are no module, and list the parameters of one tower for each side."""

    def __init__(self, tower: nn.Module) -> None:
        self.tower = tower

    def of(self, role: str) -> nn.Module:
        return self.tower

    def parameters(self) -> Iterator[nn.Parameter]:
        return itertools.chain(self.tower.parameters(), self.tower.parameters())


def test_weights_that_are_listed_twice_are_added_once() -> None:
    """Of accumulated batches, and of an objective that is a part of the towers."""
    wants = {}
    for shape in ("as usual", "listed", "within"):
        modules = towers(True, 0.0, torch.float64)
        objective = mnr(Temperature(0.1, learnable=True))
        if shape == "within":
            modules.objective = objective
        for seed in range(3):
            step(Listed(modules.tower) if shape == "listed" else modules, objective, batch(seed))
        wants[shape] = of(modules.tower, objective)
    for shape in ("listed", "within"):
        assert off(wants[shape], wants["as usual"]) == 0


def test_a_batch_that_fails_leaves_the_gradients_of_those_before() -> None:
    modules, objective = towers(True, 0.0, torch.float64), mnr(Temperature(0.1, learnable=True))
    step(modules, objective, batch())
    want = {name: grad.clone() for name, grad in of(modules, objective).items()}
    failing = mnr(masks=[SameId()])
    failing.temperature = objective.temperature
    with pytest.raises(DataError, match="ids"):
        step(modules, failing, replace(batch(1), doc=replace(batch(1).doc, ids=None)))
    assert off(of(modules, objective), want) == 0


def test_a_frozen_tower_is_left_alone() -> None:
    modules, objective = towers(False, 0.0, torch.float64), worlds.OBJECTIVES["mnr"]()
    _, want = row_by_row(modules, objective, batch())
    modules.query.requires_grad_(False)
    modules.zero_grad()
    objective.zero_grad()
    for mode in KEPT.values():
        modules.zero_grad()
        objective.zero_grad()
        _, got = stepped(modules, objective, batch(), Cache(mode, tokens=5))  # type: ignore[arg-type]
        assert (
            off(got, {name: grad for name, grad in want.items() if not name.startswith("query")})
            <= 1e-12
        )


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_out_of_memory_halves_the_micro_batch_and_goes_on(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    modules, objective = towers(True, 0.0, torch.float64), worlds.OBJECTIVES["gte"]()
    _, want = row_by_row(modules, objective, batch())

    class Small(Attention):
        def forward(self, features: Ragged) -> Tensor:
            rows = super().forward(features)
            graph = torch.is_grad_enabled()
            if (
                len(features) * int(features.lengths.max()) > 7
                and graph == (where == "backward")
                and len(self.calls) > 3
            ):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return rows

    modules.tower.__class__ = Small
    modules.tower.calls.clear()  # three will measure the footprint
    modules.zero_grad()
    objective.zero_grad()
    cache = Cache("always", tokens=30)
    _, got = stepped(modules, objective, batch(), cache)
    assert "micro-batches are halved" in caplog.text
    assert cache.tokens == 7 and off(got, want) <= 1e-12


def test_out_of_memory_without_end_ends(caplog: pytest.LogCaptureFixture) -> None:
    class Never(Attention):
        def forward(self, features: Ragged) -> Tensor:
            if len(self.calls) >= 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(features)

    modules = Shared(Never().double())
    with pytest.raises(TemperaError, match="one row at a time"):
        step(modules, worlds.OBJECTIVES["mnr"](), batch())  # type: ignore[arg-type]
    assert "halved" in caplog.text


def test_layers_that_look_at_the_whole_batch_are_refused() -> None:
    class Normed(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

    with pytest.raises(ConfigError, match=r"norm is a BatchNorm1d.*use LayerNorm"):
        step(Shared(Normed().double()), worlds.OBJECTIVES["mnr"](), batch())  # type: ignore[arg-type]


def test_layers_with_statistics_that_they_have_learned_are_cut() -> None:
    """In eval() each row is embedded by itself, unless the layer has learned none."""

    class Normed(nn.Module):
        padded = False

        def __init__(self, kept: bool) -> None:
            super().__init__()
            self.words = nn.Embedding(worlds.WORDS, worlds.WIDTH)
            self.norm = nn.BatchNorm1d(worlds.WIDTH, track_running_stats=kept)

        def forward(self, features: Ragged) -> Tensor:
            return self.norm(
                torch.stack(
                    [
                        self.words(row).sum(0)
                        for row in features.values.split(features.lengths.tolist())
                    ]
                )
            )

    torch.manual_seed(1)
    modules = Shared(Normed(True).double().eval())
    modules.tower.norm.running_mean.normal_()
    results = []
    for cache in (Cache("never"), Cache("always", tokens=5)):
        modules.zero_grad()
        objective = worlds.OBJECTIVES["mnr"]()
        results.append(stepped(modules, objective, batch(), cache))
    assert abs(results[0][0] - results[1][0]) < 1e-12 and off(results[1][1], results[0][1]) < 1e-12
    for tower in (
        Normed(False).double().eval(),
        modules.tower.train(),
    ):  # the cache has measured the latter in eval()
        with pytest.raises(ConfigError, match=r"norm is a BatchNorm1d.*use LayerNorm"):
            step(Shared(tower), worlds.OBJECTIVES["mnr"](), batch(), cache)  # type: ignore[arg-type]


def test_random_numbers_outside_go_on_undisturbed() -> None:
    """A step draws its seeds, and nothing else: how it is cut does not change what is drawn
    next."""
    drawn = []
    for mode in KEPT.values():
        modules, objective = towers(True, 0.3, torch.float64), worlds.OBJECTIVES["mnr"]()
        torch.manual_seed(3)
        step(modules, objective, batch(), Cache(mode, tokens=5))  # type: ignore[arg-type]
        drawn.append(float(torch.rand(())))
    assert len(set(drawn)) == 1


def test_precision_of_towers_under_autocast() -> None:
    """bf16 towers give gradients near the float32 ones, also where some are replayed and some kept
    in one plan."""
    grads = {}
    for precision in (False, True):
        for kept, mode in KEPT.items():
            modules, objective = towers(True, 0.0, torch.float32), worlds.OBJECTIVES["mnr"]()
            cache = Cache(
                mode,
                2500.0,
                5,
                autocast=lambda on=precision: torch.autocast("cpu", torch.bfloat16, enabled=on),
            )  # type: ignore[arg-type,misc]
            grads[precision, kept] = stepped(modules, objective, batch(0, torch.float32), cache)[1]
    for kept in KEPT:
        assert 1e-5 < off(grads[True, kept], grads[False, kept]) < 0.1
        assert off(grads[True, kept], grads[True, "all"]) < 1e-6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "sometimes"}, "cache: mode is auto or never or always, not 'sometimes'"),
        ({"memory": 0}, "cache: memory is above 0, .* not 0"),
        ({"memory": -1.0}, "cache: memory is above 0"),
        ({"memory": "lots"}, "cache: memory is bytes, or a text such as 2GiB, not 'lots'"),
        ({"tokens": 0}, "cache: tokens of a micro-batch are 1 or more, not 0"),
    ],
)
def test_a_cache_refuses_what_it_cannot_follow(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        Cache(**wrong)


def test_a_cache_reads_sizes() -> None:
    assert Cache(memory="2GiB").bytes == 2 << 30  # type: ignore[arg-type]
    assert Cache(device="cpu").device == torch.device("cpu")  # type: ignore[arg-type]
