"""Tables with sparse gradients: those of dense ones, however rows are cut, accumulated, clipped or
divided among processes.

Row-wise Adagrad is what a loop over rows and numbers finds, and rows that no batch reads stay as
they are.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from table_towers import (
    OPTIONS,
    STEPS,
    UNREAD,
    Pair,
    batch,
    begun,
    gradients,
    made,
    processes_find,
    taken,
    weights,
)
from torch import Tensor, nn
from worlds import WIDTH, WORDS

from tempera.arithmetic.table import Table
from tempera.engine import loop
from tempera.engine.cache import Cache, Mode
from tempera.engine.devices import Devices
from tempera.engine.optim import AdamWWithAdagrad, adagrad_rows, adam, clip, total_norm
from tempera.engine.outlook import memory
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.errors import ConfigError
from tempera.parallel.distributed import ALONE, Group


@cache
def dense(seeds: tuple[int, ...]) -> dict[str, Tensor]:
    """Gradients of whole batches, by autograd through everything at once."""
    towers, objective = made(False)
    for seed in seeds:
        given = batch(seed)
        embedded = given.of(
            {role: towers.of(role)(side.rows) for role, side in given.sides().items()}
        )
        (embedded.shares() * objective(embedded)).sum().backward()
    assert all(grad.layout == torch.strided for grad in worlds.gradients(towers).values())
    return gradients(towers, objective)


def off(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert got.keys() == want.keys() and len(want) == 7
    return max(float((got[name] - want[name]).abs().max()) for name in want)


@pytest.mark.parametrize("tokens", [1, 5, None])
@pytest.mark.parametrize("mode", ["always", "auto", "never"])
def test_sparse_gradients_are_the_dense_ones(mode: Mode, tokens: int | None) -> None:
    """Words come several times in a row, in a batch, and in both towers; the rows of a gradient,
    once."""
    for seeds in ((0,), (0, 1)):
        towers, objective = made(True)
        for seed in seeds:
            step(towers, objective, batch(seed), Cache(mode, memory=2000.0, tokens=tokens))
        assert off(gradients(towers, objective), dense(seeds)) <= 1e-12
        for table in (towers.query.first.weight, towers.query.words.weight):
            assert (
                table.grad.is_sparse
                and table.grad.is_coalesced()
                and 0 < table.grad._nnz() < WORDS + 1
            )


def test_replayed_is_kept_to_the_bit() -> None:
    found = []
    for mode in ("always", "never"):
        towers, objective = made(True, torch.float32, dropout=0.3)
        torch.manual_seed(5)
        loss = step(towers, objective, batch(0, torch.float32), Cache(mode, tokens=5))  # type: ignore[arg-type]
        found.append((loss, gradients(towers, objective)))
    (loss, kept), (other, replayed) = found
    assert loss == other and all(torch.equal(kept[name], replayed[name]) for name in kept)


@pytest.mark.parametrize("most", [0.01, 0.1, 1e6])
def test_clipping_counts_sparse_gradients(most: float) -> None:
    found = []
    for sparse in (False, True):
        towers, objective = made(sparse)
        step(towers, objective, batch())
        parameters = [*towers.parameters(), *objective.parameters()]
        norm = total_norm(parameters, ALONE)
        clip(parameters, norm, most)
        found.append((norm, gradients(towers, objective)))
    (norm, want), (sparse_norm, got) = found
    by_hand = sum(float(grad.double().square().sum()) for grad in dense((0,)).values()) ** 0.5
    assert float(norm) == pytest.approx(by_hand, rel=1e-12) and float(sparse_norm) == pytest.approx(
        by_hand, rel=1e-12
    )
    assert off(got, want) <= 1e-15
    after = sum(float(grad.square().sum()) for grad in got.values()) ** 0.5
    assert after == pytest.approx(min(most, by_hand), rel=1e-4)


# Row-wise Adagrad
# ----------------------------------------------------------------------------------------------------


def by_loops(
    table: list[list[float]], grads: list[list[list[float]]], rates: list[float]
) -> list[list[float]]:
    """The definition, number by number."""
    sums = [0.0] * len(table)
    for grad, rate in zip(grads, rates, strict=True):
        for r, row in enumerate(grad):
            sums[r] += sum(g * g for g in row) / len(row)
            for d, g in enumerate(row):
                table[r][d] -= rate * g / (sums[r] ** 0.5 + 1e-10)
    return table


def test_it_is_its_definition() -> None:
    """Some rows are read in every step, some in one, some never."""
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    read = torch.tensor(
        [[1, 1, 0, 1, 0, 0], [1, 0, 0, 1, 1, 0], [1, 0, 0, 0, 1, 0]], dtype=torch.float64
    )
    grads = [
        torch.randn(6, 4, generator=draw, dtype=torch.float64) * rows[:, None] for rows in read
    ]
    rates = [0.5, 0.3, 0.1]
    want = by_loops(table.tolist(), [grad.tolist() for grad in grads], rates)
    got, sums = table.clone(), table.new_zeros(6)
    for grad, rate in zip(grads, rates, strict=True):
        twice = torch.cat(
            [(grad / 4).to_sparse(1), (grad * 3 / 4).to_sparse(1)]
        ).coalesce()  # each row in two parts
        rows = twice.indices()[0] % 6
        adagrad_rows(
            got,
            torch.sparse_coo_tensor(rows[None], twice.values(), (6, 4), check_invariants=True),
            sums,
            rate,
        )
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-13, atol=1e-13)
    assert torch.equal(got[[2, 5]], table[[2, 5]]) and not sums[[2, 5]].any()


def test_of_one_number_a_row_it_is_torch_s_adagrad() -> None:
    peer, got, sums = (
        nn.Parameter(torch.ones(5, 1).double()),
        torch.ones(5, 1).double(),
        torch.zeros(5).double(),
    )
    optimizer = torch.optim.Adagrad([peer], lr=0.3)
    for seed in range(4):
        read = torch.tensor([[1], [seed < 2], [seed == 3], [seed % 2], [0]])
        peer.grad = (
            torch.randn(5, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            * read
        )
        optimizer.step()
        adagrad_rows(got, peer.grad.to_sparse(1), sums, 0.3)
    torch.testing.assert_close(got, peer.detach(), rtol=1e-12, atol=1e-12)
    assert (sums > 0).tolist() == [True] * 4 + [False]


def test_the_schedule_of_the_rate_is_followed() -> None:
    modules = nn.ModuleDict({"table": Table(3, 2), "layer": nn.Linear(2, 1)}).double()
    optimizer, table = (
        adam(modules, 0.01, 0.02, 0.0, "rowwise_adagrad", 0.5),
        modules["table"].weight,
    )
    grad = torch.tensor([[1.0, 2.0], [0.0, 0.0], [-3.0, 0.5]], dtype=torch.float64)
    want = by_loops(table.tolist(), [grad.tolist()] * 3, [0.5, 0.25, 0.05])  # type: ignore[operator]
    for share in (1.0, 0.5, 0.1):
        for each in optimizer.param_groups:
            each["lr"] = each["initial_lr"] * share
        table.grad = grad.to_sparse(1)  # type: ignore[assignment]
        optimizer.step()
    torch.testing.assert_close(
        table.detach(), torch.tensor(want, dtype=torch.float64), rtol=1e-13, atol=1e-13
    )  # type: ignore[operator]


def test_training_moves_what_was_read() -> None:
    """To the bit; and everything but tables is moved as AdamW moves it."""
    state, other = (
        begun(dropout=0),
        begun(Training(**{**vars(OPTIONS), "table_optimizer": "adamw"}), dropout=0),
    )
    before = weights(state)
    taken(state, 1), taken(other, 1)
    after, adamw = weights(state), weights(other)
    for name in after:
        if "first" in name or "words" in name:
            moved = (after[name] != before[name]).any(1)
            assert 5 < int(moved.sum()) <= WORDS and not moved[WORDS:].any()
            assert not torch.equal(
                adamw[name][WORDS:], before[name][WORDS:]
            )  # its decay reaches every row
        else:
            torch.testing.assert_close(after[name], adamw[name], rtol=1e-6, atol=1e-7)
    assert state.modules["towers"].query.words.weight is state.modules["towers"].doc.first.weight
    assert isinstance(state.optimizer, AdamWWithAdagrad) and len(state.optimizer.tables) == 2


@pytest.mark.parametrize("stop", [1, 3])
def test_resumed_is_uninterrupted(tmp_path: Path, stop: int) -> None:
    through, first, second = begun(), begun(), begun()
    norms = taken(through, STEPS)
    before = taken(first, stop)
    first.save(tmp_path / "checkpoint")
    torch.manual_seed(99)
    second.load(tmp_path / "checkpoint")
    sums = [state["sum"] for state in second.optimizer.state.values() if "sum" in state]
    assert [len(each) for each in sums] == [WORDS + UNREAD] * 2 and all(
        bool(each.any()) for each in sums
    )
    assert before + taken(second, STEPS) == norms
    assert all(
        torch.equal(weights(second)[name], value) for name, value in weights(through).items()
    )


def test_accumulators_are_needed(tmp_path: Path) -> None:
    """Otherwise the test before this one would pass without them."""
    through, first = begun(), begun()
    taken(through, STEPS)
    taken(first, 3)
    for state in first.optimizer.state.values():
        if "sum" in state:
            state["sum"].zero_()
    taken(first, STEPS)
    assert any(
        not torch.equal(weights(first)[name], value) for name, value in weights(through).items()
    )


# Several processes
# ---------------------------------------------------------------------------------------------------


def test_processes_train_as_one() -> None:
    first, second = worlds.world(2, processes_find)
    for process in (first, second):
        assert off(process["added"], dense((0,))) <= 1e-12 and process["merged"]
        assert process["one has it"].tolist() == [[0, 0], [1, 2], [0, 0], [3, 4]]
        assert (process["rows"], process["nothing"]) == (2, 0)
    alone = begun(dropout=0)
    assert first["norms"] == second["norms"] and first["norms"] == pytest.approx(
        taken(alone, STEPS), rel=1e-5
    )
    for name, value in weights(alone).items():
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        torch.testing.assert_close(first["weights"][name], value, rtol=1e-4, atol=1e-5)


# Options
# -------------------------------------------------------------------------------------------------------------


def test_a_scaler_leaves_out_the_whole_step() -> None:
    """An overflow of either kind of gradient; otherwise what it has scaled is scaled back."""
    modules = nn.ModuleDict({"table": Table(4, 2), "layer": nn.Linear(2, 1)})
    optimizer = adam(modules, 0.1, 0.1, 0.0, "rowwise_adagrad", 0.1)
    table: Any = modules["table"]
    layer: Any = modules["layer"]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for bad in (table.weight, layer.weight, None):
        before = [p.clone() for p in modules.parameters()]
        optimizer.zero_grad()
        scaler.scale(layer(table(torch.tensor([1, 1, 2]))).sum()).backward()
        if bad is not None:
            (bad.grad._values() if bad.grad.is_sparse else bad.grad).fill_(torch.inf)
        scaler.unscale_(optimizer)
        want = layer.weight.detach().expand(2, -1) * torch.tensor([[2.0], [1.0]])
        if bad is None:
            torch.testing.assert_close(table.weight.grad.to_dense()[1:3], want)
        scaler.step(optimizer)
        scaler.update()
        same = [torch.equal(p, q) for p, q in zip(modules.parameters(), before, strict=True)]
        assert same == ([True] * 3 if bad is not None else [False] * 3)


def test_rates_of_tables() -> None:
    towers, objective = made(False)
    modules = nn.ModuleDict({"towers": towers, "objective": objective})
    rates = {}
    for kind, rate in (
        ("adamw", None),
        ("adamw", 0.3),
        ("rowwise_adagrad", None),
        ("rowwise_adagrad", 0.3),
    ):
        optimizer = adam(modules, 0.01, 0.02, 0.5, kind, rate)  # type: ignore[arg-type]
        found = {
            p: (each["initial_lr"], each["weight_decay"])
            for each in optimizer.param_groups
            for p in each["params"]
        }
        assert len(found) == 7 and found[towers.doc.layer.weight] == (0.01, 0.5)
        assert towers.doc.words.sparse == (kind == "rowwise_adagrad")
        rates[kind, rate] = found[towers.doc.words.weight]
    assert list(rates.values()) == [(0.01, 0.5), (0.3, 0.5), (0.05, 0.0), (0.3, 0.0)]


def test_dense_tables_after_sparse_ones() -> None:
    """The optimiser says how gradients are; a tower that another run has trained is no
    exception."""
    towers = Pair()
    for options in (OPTIONS, Training()):
        state = loop.begin(towers, worlds.OBJECTIVES["mnr"](), options)  # type: ignore[arg-type]
        taken(state, 1, options=options)
    assert (
        towers.query.words.weight.grad is not None and not towers.query.words.weight.grad.is_sparse
    )


def test_frozen_tables_stay() -> None:
    towers = Pair()
    towers.query.first.requires_grad_(False)
    state = loop.begin(towers, worlds.OBJECTIVES["mnr"](), OPTIONS)  # type: ignore[arg-type]
    before = weights(state)
    taken(state, 2)
    assert torch.equal(
        weights(state)["towers.query.first.weight"], before["towers.query.first.weight"]
    )
    assert not torch.equal(
        weights(state)["towers.query.words.weight"], before["towers.query.words.weight"]
    )


def test_expected_memory_of_a_step() -> None:
    sizes = []
    for sparse in (False, True):
        towers, objective = made(sparse, torch.float32)
        plan = Cache().plan(towers, batch())
        sizes.append(memory(plan, [towers, objective], 1, WIDTH)["weights and optimiser"])
    tables = 4 * 2 * (WORDS + UNREAD) * 5
    assert sizes[0] - sizes[1] == 3 * tables and sizes[1] > tables
    towers.requires_grad_(False)
    assert memory(plan, [towers], 1, WIDTH)["weights and optimiser"] == sum(
        4 * p.numel() for p in towers.parameters()
    )


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^train\.fsdp needs dense gradients.*use table_optimizer adamw$"
    ):
        Training(fsdp=True, table_optimizer="rowwise_adagrad").check(Devices(Group(0, 2)))
    towers = worlds.Pair()  # of nn.EmbeddingBag
    with pytest.raises(
        ConfigError, match=r"^table_optimizer is rowwise_adagrad, but the towers have no table"
    ):
        loop.begin(towers, worlds.OBJECTIVES["mnr"](), OPTIONS)  # type: ignore[arg-type]


def test_a_rate_for_tables_without_a_table() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^table_learning_rate is given, but the towers have no table of their own",
    ):
        adam(nn.Linear(2, 2), 0.1, 0.1, 0.0, table_learning_rate=0.9)
