"""Gradients of every embedding and of the temperature against autograd through the definition;
precision of the inputs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import examples
import pytest
import torch
from examples import Parts
from torch import Tensor

from tempera.core import tiles
from tempera.core.batch import Batch, Side
from tempera.core.corrections import LogQ, Margin
from tempera.core.definition import defined_losses
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.pools import (
    POOLS,
    back_docs,
    back_queries,
    docs,
    memory,
    negatives,
    queries,
    sampled,
)
from tempera.core.similarity import cosine, dot
from tempera.core.temperature import Temperature

WHOLE = [*(examples.made(seed) for seed in range(2)), examples.made(2, shared=True)]
LEAVES = ("query", "doc", "negatives", "sampled")
Gradients = dict[str, Tensor]


def gradients(batch: Batch[Tensor], dial: Tensor) -> Gradients:
    """What has been left in `.grad`; zeros where nothing was."""
    leaves = {role: side.rows for role, side in batch.sides().items()} | {"temperature": dial}
    assert all(leaf.grad is None for role, leaf in leaves.items() if role == "memory")
    return {
        role: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for role, leaf in leaves.items()
        if role != "memory"
    }


def reference(batch: Batch[Tensor], parts: Parts) -> Gradients:
    """By autograd through the definition, for the rows of the batch's span."""
    dial = torch.tensor(1 / examples.T, dtype=torch.float64).log().requires_grad_()
    objective = examples.objective_of(parts)
    losses = defined_losses(objective, replace(batch, span=None), dial.exp())
    (batch.shares() * losses[batch.local]).sum().backward()
    return gradients(batch, dial)


def by_propagate(batch: Batch[Tensor], parts: Parts) -> Gradients:
    objective = examples.objective_of(parts, Temperature(examples.T, learnable=True))
    objective.propagate(batch, batch.shares())
    return gradients(batch, objective.temperature.log_scale)


def by_autograd(batch: Batch[Tensor], parts: Parts) -> Gradients:
    objective = examples.objective_of(parts, Temperature(examples.T, learnable=True))
    (batch.shares() * objective(batch)).sum().backward()
    return gradients(batch, objective.temperature.log_scale)


def off(got: Gradients, want: Gradients, tolerance: float) -> list[str]:
    """The leaves whose gradients differ by more than a share of their largest number."""
    assert list(got) == list(want) and all(
        bool(g.isfinite().all()) for g in (*got.values(), *want.values())
    )
    largest = {role: float(w.abs().max()) if w.numel() else 0.0 for role, w in want.items()}
    error = {
        role: float((got[role].double() - w).abs().max()) if w.numel() else 0.0
        for role, w in want.items()
    }
    return [
        f"{role}: {error[role]}"
        for role in want
        if error[role] > tolerance * max(1.0, largest[role])
    ]


@pytest.mark.parametrize("seed", examples.SEEDS)
@pytest.mark.parametrize("fills", [False, True])
def test_gradients_of_a_sample_of_all_combinations(
    seed: int, fills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of vectors that are filled up with zeros, as oneDNN takes large ones."""
    monkeypatch.setattr(tiles, "onednn_takes", lambda *_: fills)
    spans = itertools.cycle((None, None, range(0, 3), range(2, 6), range(6, 7)))
    for parts, data, span in zip(examples.sampled(100 + seed, 65), itertools.cycle(WHOLE), spans):
        want = reference(examples.batch_of(data, span=span, grad=True), parts)
        for run in (by_propagate, by_autograd):
            assert (
                off(run(examples.batch_of(data, span=span, grad=True), parts), want, 1e-10) == []
            ), (run, parts, span)


@pytest.mark.parametrize("seed", range(3))
def test_embeddings_of_length_0_are_alike_to_nothing_and_have_no_gradient(seed: int) -> None:
    """As those of users without a history."""
    for parts in examples.sampled(200 + seed, 40):
        if parts.similarity == "cosine":
            data = examples.made(seed)
            data.query.rows[2], data.doc.rows[3] = 0, 0
            want = reference(examples.batch_of(data, grad=True), parts)
            assert not want["query"][2].any() and not want["doc"][3].any() and want["query"].any()
            for run in (by_propagate, by_autograd):
                assert off(run(examples.batch_of(data, grad=True), parts), want, 1e-10) == [], (
                    run,
                    parts,
                )


def test_every_leaf_has_a_gradient_to_compare() -> None:
    want = reference(
        examples.batch_of(WHOLE[0], grad=True), Parts(pools=examples.POOLS, similarity="dot")
    )
    assert all(float(grad.abs().max()) > 1e-3 for grad in want.values()) and set(want) == {
        *LEAVES,
        "temperature",
    }


def test_propagate_gives_the_losses_and_adds_to_what_is_there() -> None:
    parts = Parts(pools=("docs", "negatives"))
    batch = examples.batch_of(WHOLE[0], grad=True)
    objective = examples.objective_of(parts, Temperature(examples.T, learnable=True))
    losses = objective.propagate(batch, batch.shares())
    assert not losses.requires_grad
    torch.testing.assert_close(losses, objective(batch).detach(), rtol=1e-14, atol=1e-14)
    once = {
        role: grad.clone()
        for role, grad in gradients(batch, objective.temperature.log_scale).items()
    }
    objective.propagate(batch, batch.shares())
    twice = gradients(batch, objective.temperature.log_scale)
    assert off(twice, {role: 2 * grad for role, grad in once.items()}, 1e-12) == []


def test_a_fixed_temperature_has_no_gradient() -> None:
    batch = examples.batch_of(WHOLE[0], grad=True)
    objective = examples.objective_of(Parts())
    objective.propagate(batch, batch.shares())
    assert objective.temperature.log_scale.grad is None and batch.query.rows.grad is not None


def test_embeddings_of_a_tower_are_reached_through_their_graph() -> None:
    """Propagation goes on into what made the embeddings."""
    torch.manual_seed(0)
    tower, features = torch.nn.Linear(5, 4).double(), torch.randn(6, 5, dtype=torch.float64)
    found = []
    for run in ("propagate", "autograd"):
        tower.zero_grad()
        query, doc = tower(features).chunk(2)
        batch, objective = Batch(Side(query), Side(doc)), Objective(temperature=0.2)
        if run == "propagate":
            objective.propagate(batch, batch.shares())
        else:
            objective(batch).mean().backward()
        found.append(tower.weight.grad.clone())
    assert float(found[0].abs().max()) > 1e-3
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("similarity", "numerator"),
    [
        (dot, "mean"),
        *(pytest.param(cosine, numerator, marks=pytest.mark.long) for numerator in ("one", "sum")),
    ],
)
def test_gradcheck(similarity: object, numerator: str) -> None:
    """Numerical differences, without the parts that are held constant."""
    plain = examples.batch_of(examples.made(40, n=4, width=2))
    objective = Objective(
        similarity,
        Temperature(0.4, learnable=True),
        (docs, negatives, sampled, memory, queries, back_queries, back_docs),
        (LogQ("refined", 0.7), Margin(0.5)),
        (SameId(), KnownPositives(), Guided(0.1)),
        numerator=numerator,
        memory=Memory(3),
        tile_elements=60,
    )

    def losses(query: Tensor, doc: Tensor, hard: Tensor, drawn: Tensor, dial: Tensor) -> Tensor:
        assert dial is objective.temperature.log_scale
        sides = {"query": query, "doc": doc, "negatives": hard, "sampled": drawn}
        return objective(
            replace(
                plain,
                **{role: replace(plain.sides()[role], rows=rows) for role, rows in sides.items()},
            )
        )

    inputs = [plain.sides()[role].rows.clone().requires_grad_() for role in LEAVES]
    assert torch.autograd.gradcheck(
        losses, (*inputs, objective.temperature.log_scale), atol=1e-6, rtol=1e-5
    )


def double(rows: Tensor) -> Tensor:
    return rows.detach().double().requires_grad_(rows.requires_grad)


HALVES = [(torch.float32, 2e-5, 2e-5), (torch.bfloat16, 2e-5, 1e-2), (torch.float16, 2e-5, 2e-3)]


@pytest.mark.parametrize(("dtype", "tolerance", "gradient_tolerance"), HALVES)
def test_logits_are_float32_whatever_the_precision_of_the_embeddings(
    dtype: torch.dtype, tolerance: float, gradient_tolerance: float
) -> None:
    """Close to the float64 result of the same rounded numbers; gradients come back in the
    embeddings' precision."""
    for parts, data in zip(examples.sampled(200, 35), itertools.cycle(WHOLE)):
        low = examples.batch_of(data, dtype, grad=True)
        exact = examples.with_sides(low, lambda side: replace(side, rows=double(side.rows)))
        want, gradient = examples.defined(exact, parts).detach(), reference(exact, parts)
        objective = examples.objective_of(parts, Temperature(examples.T, learnable=True))
        got = objective.propagate(low, low.shares())
        assert got.dtype == torch.float32
        torch.testing.assert_close(
            got.double(), want, rtol=tolerance, atol=tolerance, msg=str(parts)
        )
        reached = gradients(low, objective.temperature.log_scale)
        assert all(reached[role].dtype == dtype for role in LEAVES if role in reached)
        assert off(reached, gradient, gradient_tolerance) == [], parts


def test_precisions_can_be_mixed() -> None:
    """Towers in half precision beside a memory and negatives in float32."""
    batch = examples.batch_of(WHOLE[0], torch.bfloat16)
    float32 = examples.with_sides(batch, lambda side: replace(side, rows=side.rows.float()))
    mixed = replace(batch, memory=float32.memory, negatives=float32.negatives)
    objective = examples.objective_of(Parts(pools=("docs", "negatives", "memory")))
    assert objective(mixed).equal(objective(float32))


@pytest.mark.parametrize("similarity", [cosine, dot])
@pytest.mark.parametrize("t", [1e-3, 1.0, 1e3])
def test_no_nan_where_everything_is_left_out(similarity: object, t: float) -> None:
    """All ids equal: every row's loss is exactly 0 and so is every gradient."""
    data = examples.made(5)
    batch = examples.batch_of(data, grad=True)
    same = examples.with_sides(
        batch, lambda side: replace(side, ids=torch.zeros(len(side), dtype=torch.int64))
    )
    dial = Temperature(t, learnable=True, floor=1e-4, ceiling=1e4)
    chosen = [pool for pool in POOLS if pool.name != "back_queries"]
    objective = Objective(
        similarity, dial, chosen, (LogQ(),), (SameId(),), memory=Memory(3), tile_elements=90
    )
    assert objective.propagate(same, same.shares()).tolist() == [0.0] * len(same)
    found = gradients(same, dial.log_scale)
    assert set(found) == {*LEAVES, "temperature"} and all(
        not bool(grad.any()) for grad in found.values()
    )


def test_autocast_does_not_lower_the_precision_of_the_loss() -> None:
    """A tower runs under autocast; the loss may stand in the same block."""
    parts = Parts(pools=("docs", "negatives", "queries"), guided="absolute", hardness="others")
    found = []
    for autocast in (False, True):
        batch = examples.batch_of(WHOLE[0], torch.float32, grad=True)
        objective = examples.objective_of(parts, Temperature(examples.T, learnable=True))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = [objective(batch).detach(), objective.propagate(batch, batch.shares())]
        found.append([*losses, *gradients(batch, objective.temperature.log_scale).values()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_autocast_does_not_reach_the_backward_pass() -> None:
    found = []
    for autocast in (False, True):
        batch = examples.batch_of(WHOLE[0], torch.float32, grad=True)
        objective = examples.objective_of(
            Parts(pools=("docs", "negatives")), Temperature(examples.T, learnable=True)
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            objective(batch).sum().backward()
        found.append(gradients(batch, objective.temperature.log_scale))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_a_second_derivative_is_an_error_and_not_0() -> None:
    queries, docs = (
        torch.randn(4, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(4, 3, dtype=torch.float64),
    )
    (slope,) = torch.autograd.grad(Objective()(queries, docs).mean(), queries, create_graph=True)
    with pytest.raises(
        RuntimeError, match="this gradient was written by hand, and has none of its own"
    ):
        slope.square().sum().backward()
    with pytest.raises(RuntimeError, match="differentiate once"):
        torch.autograd.functional.hvp(
            lambda rows: Objective()(rows, docs).mean(), queries.detach(), torch.ones(4, 3).double()
        )
