"""What must hold for every batch and every choice of parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import examples
import pytest
import torch
from examples import CHOICES, Parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tempera.arithmetic.ragged import Ragged
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness, LogQ, Margin
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.pools import POOLS, back_queries
from tempera.core.similarity import cosine, dot
from tempera.core.temperature import Temperature

fixed = settings(max_examples=20, deadline=None, derandomize=True)

APART = ("negatives", "sampled", "memory")  # candidates that are no rows of the batch
seeds = st.integers(0, 10**6)


def joint_if_needed(parts: Parts) -> Parts:
    return parts if parts.allowed else replace(parts, partition="joint")


choices = st.builds(
    Parts, **{name: st.sampled_from(values) for name, values in CHOICES.items()}
).map(joint_if_needed)


@st.composite
def batches(draw: Callable, smallest: int = 2) -> Batch[Tensor]:
    return examples.batch_of(examples.made(draw(seeds), n=draw(st.integers(smallest, 9))))


def same(got: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def with_leaves(batch: Batch[Tensor]) -> Batch[Tensor]:
    """The same numbers as new leaves of autograd."""
    return examples.with_sides(
        batch, lambda side: replace(side, rows=side.rows.detach().clone().requires_grad_())
    )


def gradients(objective: Objective, batch: Batch[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Losses, and the gradients of all sides."""
    fresh = with_leaves(batch)
    losses = objective.propagate(fresh, fresh.shares())
    leaves = [side.rows for side in fresh.sides().values()]
    return losses, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


@fixed
@given(choices, batches(), st.randoms(use_true_random=False))
def test_permuting_rows_permutes_losses(parts: Parts, batch: Batch[Tensor], draw: object) -> None:
    order = torch.tensor(draw.sample(range(len(batch)), len(batch)))
    owner = torch.empty_like(order)
    owner[order] = torch.arange(len(batch))  # where each row went
    moved = replace(
        batch,
        query=batch.query[order],
        doc=batch.doc[order],
        negatives=replace(batch.negatives, owner=owner[batch.negatives.owner]),
        weight=batch.weight[order],
        known=batch.known[order],
    )
    objective = examples.objective_of(parts)
    same(objective(moved), objective(batch)[order])
    same(moved.shares(), batch.shares()[order])


@fixed
@given(choices, batches(), st.sampled_from(APART), st.randoms(use_true_random=False))
def test_permuting_the_candidates_of_a_pool_changes_nothing(
    parts: Parts, batch: Batch[Tensor], role: str, draw: object
) -> None:
    count = len(batch.sides()[role])
    shuffled = batch.sides()[role][
        torch.tensor(draw.sample(range(count), count), dtype=torch.int64)
    ]
    objective = examples.objective_of(parts)
    same(objective(replace(batch, **{role: shuffled})), objective(batch))


@fixed
@given(choices, batches())
def test_the_order_of_pools_corrections_and_masks_changes_nothing(
    parts: Parts, batch: Batch[Tensor]
) -> None:
    """But for docs and back_queries: the first of them gives the numerator."""
    first = [name for name in parts.pools if name in ("docs", "back_queries")]
    rest = [name for name in parts.pools if name not in first]
    plain, other = (
        examples.objective_of(replace(parts, pools=p)) for p in (parts.pools, (*rest[::-1], *first))
    )
    other.corrections, other.masks = other.corrections[::-1], other.masks[::-1]
    same(other(batch), plain(batch))


@fixed
@given(choices, batches())
def test_losses_are_not_negative(parts: Parts, batch: Batch[Tensor]) -> None:
    assert float(examples.objective_of(parts)(batch).detach().min()) > -1e-12


@fixed
@given(choices, batches(), st.sampled_from(APART), seeds)
def test_adding_a_candidate_that_is_left_out_of_every_row_changes_nothing(
    parts: Parts, batch: Batch[Tensor], role: str, seed: int
) -> None:
    """Known to answer every query, in whichever pool it stands."""
    new = 999
    everyone = Ragged.of([[*batch.known[[i]].values.tolist(), new] for i in range(len(batch))])
    batch = replace(batch, known=everyone)
    side, objective = batch.sides()[role], examples.objective_of(replace(parts, known=True))
    torch.manual_seed(seed)
    more = Side(
        torch.cat([side.rows, 3 * torch.randn(2, side.rows.shape[1], dtype=torch.float64)]),
        torch.cat([side.ids, torch.tensor([new, new])]),
        torch.cat([side.logq, torch.randn(2, dtype=torch.float64)]),
        torch.cat(
            [
                side.guide,
                side.guide[:1].expand(2, -1)
                if len(side)
                else torch.ones(2, 3, dtype=torch.float64),
            ]
        ),
        None if side.owner is None else torch.cat([side.owner, torch.tensor([0, -1])]),
        torch.cat([side.teacher, torch.eye(4, dtype=torch.float64)[:2]]),
    )
    longer = replace(batch, **{role: more})
    losses, grads = gradients(objective, batch)
    new_losses, new_grads = gradients(objective, longer)
    same(new_losses, losses)
    for name, grad, new_grad in zip(batch.sides(), grads, new_grads, strict=True):
        same(new_grad[: len(grad)], grad)
        assert name == role or len(new_grad) == len(grad)
        assert not new_grad[len(grad) :].any()


@fixed
@given(
    batches(),
    st.sampled_from(APART),
    st.sampled_from(["id", "known", "absolute", "relative", "self"]),
    seeds,
)
def test_a_candidate_left_out_of_one_row_changes_that_row_only_where_unmasked(
    batch: Batch[Tensor], role: str, mask: str, seed: int
) -> None:
    """A second copy of a row's own document, for each mask by itself."""
    i = seed % len(batch)
    batch = replace(batch, known=Ragged.of([[int(number)] for number in batch.doc.ids]))
    twin = replace(batch.doc[[i]], owner=torch.tensor([i]))
    side = batch.sides()[role]
    # A twin's cosine is that of the pair, so that only a positive margin of the guide leaves it
    # out.
    wide = torch.cat([side.rows, twin.rows])
    longer = replace(
        batch,
        **{
            role: Side(
                wide,
                torch.cat([side.ids, twin.ids]),
                guide=torch.cat([side.guide, twin.guide]),
                owner=None if side.owner is None else torch.cat([side.owner, twin.owner]),
            )
        },
    )
    one = {
        "id": SameId(),
        "known": KnownPositives(),
        "absolute": Guided(0.1),
        "relative": Guided(0.1, "relative"),
        "self": Guided(0.1, by="self"),
    }[mask]
    pools = [pool for pool in POOLS if pool.name in ("docs", role)]
    memory = Memory(3) if role == "memory" else None
    masked, plain = (
        Objective(dot, 1.0, pools, masks=masks, memory=memory) for masks in ((one,), ())
    )
    same(masked(longer)[i], masked(batch)[i])
    assert float(plain(longer)[i]) > float(plain(batch)[i])


@fixed
@given(choices, batches(), st.integers(1, 300))
def test_tiles_change_nothing(parts: Parts, batch: Batch[Tensor], tile: int) -> None:
    whole = gradients(examples.objective_of(replace(parts, tile=None)), batch)
    parted = gradients(examples.objective_of(replace(parts, tile=tile)), batch)
    same(parted[0], whole[0])
    for a, b in zip(parted[1], whole[1], strict=True):
        same(a, b)


@fixed
@given(choices, batches(), st.floats(0.1, 10))
def test_the_temperature_scales_logits_only(parts: Parts, batch: Batch[Tensor], a: float) -> None:
    """Embeddings times a at temperature times a^2 are the same logits, and what is added to them is
    not divided."""
    longer = examples.with_sides(batch, lambda side: replace(side, rows=a * side.rows))
    parts = replace(parts, similarity="dot", hardness=None, teacher=None)
    same(
        examples.objective_of(parts, examples.T * a * a)(longer),
        examples.objective_of(parts)(batch),
        1e-9,
    )
    parts = replace(parts, similarity="cosine", hardness="others")
    same(examples.objective_of(parts)(longer), examples.objective_of(parts)(batch), 1e-9)


@fixed
@given(batches(), st.floats(0.05, 5), st.floats(0.1, 3))
def test_hardness_is_not_divided_by_the_temperature(
    batch: Batch[Tensor], t: float, strength: float
) -> None:
    """Strength on every negative of the forward direction is another temperature for them."""
    s = cosine(batch.query.rows) @ cosine(batch.doc.rows).T
    logits = s / t + strength * s
    logits.fill_diagonal_(0)
    logits += torch.diag((s / t).diagonal())
    got = Objective(cosine, t, corrections=(Hardness(strength, "all"),))(
        replace(batch, negatives=None, sampled=None)
    )
    same(got, logits.logsumexp(1) - logits.diagonal())


@fixed
@given(batches(), st.floats(0.05, 5), st.floats(0.1, 3), st.floats(0.1, 3))
def test_corrections_by_similarity_add_up(
    batch: Batch[Tensor], t: float, one: float, other: float
) -> None:
    """Each is a function of the similarities, whatever another has added to them."""
    two = Objective(cosine, t, corrections=(Hardness(one, "all"), Hardness(other, "all")))
    same(two(batch), Objective(cosine, t, corrections=(Hardness(one + other, "all"),))(batch))


@fixed
@given(choices, batches(), st.sampled_from(["known", "guided"]), st.sampled_from([1e-3, 0.05, 1e3]))
def test_without_any_negative_the_loss_and_its_gradients_are_0(
    parts: Parts, batch: Batch[Tensor], mask: str, t: float
) -> None:
    every = torch.arange(20)
    batch = replace(batch, known=Ragged.of([every.tolist()] * len(batch)))
    # Both directions in one softmax hold two positives of a row.
    joint = parts.partition == "joint" and {"docs", "back_queries"} <= set(parts.pools)
    chosen = [
        pool for pool in POOLS if pool.name in parts.pools and not (joint and pool is back_queries)
    ]
    objective = Objective(
        {"cosine": cosine, "dot": dot}[parts.similarity],
        Temperature(t, learnable=True, floor=1e-4, ceiling=1e4),
        chosen,
        examples.objective_of(parts).corrections,
        (KnownPositives(),) if mask == "known" else (Guided(10.0),),
        parts.partition,
        "one",
        parts.hardest,
        Memory(3) if "memory" in parts.pools else None,
    )
    losses, grads = gradients(objective, batch)
    assert losses.tolist() == [0.0] * len(batch)
    assert not any(bool(grad.any()) for grad in grads)
    assert float(objective.temperature.log_scale.grad) == 0.0


SCALES = st.sampled_from([0.0, 1e-8, 1e-4, 1.0, 100.0, 1e4])


@fixed
@given(
    choices,
    seeds,
    st.sampled_from([1e-3, 0.05, 1.0, 1e3]),
    st.lists(SCALES, min_size=7, max_size=7),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_extreme_scales_and_zero_vectors_stay_finite(
    parts: Parts, seed: int, t: float, scales: list[float], dtype: torch.dtype
) -> None:
    batch = examples.batch_of(examples.made(seed), dtype)

    def stretched(side: Side[Tensor]) -> Side[Tensor]:
        return replace(
            side, rows=side.rows * torch.tensor(scales).repeat(2)[: len(side), None].to(dtype)
        )

    objective = examples.objective_of(
        parts, Temperature(t, learnable=True, floor=1e-4, ceiling=1e4)
    )
    losses, grads = gradients(objective, examples.with_sides(batch, stretched))
    assert bool(losses.isfinite().all())
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert math.isfinite(float(objective.temperature.log_scale.grad))


@fixed
@given(choices, batches(smallest=3), st.data())
def test_devices_together_are_the_whole(
    parts: Parts, batch: Batch[Tensor], data: st.DataObject
) -> None:
    """Each device answers for a span of the rows: losses lie side by side, gradients add up."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(batch) - 1), min_size=1, max_size=3)))
    objective = examples.objective_of(parts, Temperature(examples.T, learnable=True))
    dial = objective.temperature.log_scale
    whole, grads = gradients(objective, batch)
    dial_grad, dial.grad = dial.grad, None
    spans = [range(a, b) for a, b in itertools.pairwise((0, *cuts, len(batch)))]
    found = [gradients(objective, replace(batch, span=span)) for span in spans]
    same(torch.cat([losses for losses, _ in found]), whole)
    same(
        torch.cat([replace(batch, span=span).shares() for span in spans]).sum(),
        torch.tensor(1.0, dtype=torch.float64),
    )
    for role, grad in enumerate(grads):
        same(sum(parts[role] for _, parts in found), grad, 1e-11)
    same(dial.grad, dial_grad, 1e-11)


@fixed
@given(batches(), st.floats(-3, 3), st.floats(-3, 3))
def test_constants_of_logq_and_margins(batch: Batch[Tensor], shift: float, margin: float) -> None:
    """A factor of all q cancels in classic; a margin on the positive is a factor of its odds."""
    classic = Objective(dot, 1.0, corrections=(LogQ(),))
    same(
        classic(examples.with_sides(batch, lambda side: replace(side, logq=side.logq + shift))),
        classic(batch),
        1e-9,
    )
    # Refined differs from classic by the positive's own q.
    refined, raised = (
        Objective(dot, 1.0, corrections=(LogQ("refined"),)),
        classic(batch).expm1().log(),
    )
    same(refined(batch).expm1().log(), raised - batch.doc.logq, 1e-7)
    margin = round(margin * 8) / 8
    plain, taken = (
        Objective(dot, 1.0, corrections=c)(batch).expm1().log() for c in ((), (Margin(margin),))
    )
    same(taken, plain + margin, 1e-7)


@fixed
@given(batches())
def test_the_hardest_of_all_are_all_and_fewer_are_less(batch: Batch[Tensor]) -> None:
    losses = [Objective(dot, 0.5, hardest=k)(batch) for k in (1, 2, 4, 1000, None)]
    same(losses[-1], losses[-2])
    for fewer, more in itertools.pairwise(losses):
        assert bool((fewer <= more + 1e-12).all())


@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_a_guide_that_finds_a_candidate_exactly_as_close_keeps_it(kind: str) -> None:
    """With numbers that are exact: a copy of the pair's document is not above the pair, and with a
    margin it is."""
    axes = torch.eye(4, dtype=torch.float64).repeat(2, 1)  # rows i and i + 4 are alike
    batch = examples.batch_of(examples.made(3, n=8, bare=True))
    batch = examples.with_sides(batch, lambda side: replace(side, guide=axes[: len(side)]))
    plain, tied, strict = (
        Objective(dot, 1.0, masks=masks)(batch)
        for masks in ((), (Guided(0.0, kind),), (Guided(1e-6, kind),))
    )
    assert tied.equal(plain)
    logits = batch.query.rows @ batch.doc.rows.T
    copies = logits.masked_fill(axes @ axes.T > 0, -torch.inf)
    copies.diagonal().copy_(logits.diagonal())
    same(strict, copies.logsumexp(1) - copies.diagonal())


def test_a_guide_that_finds_a_duplicate_exactly_as_close_decides_alike_in_every_tile() -> None:
    """Every document stands in the batch twice: with a margin of 0 its copy is not above the
    pair."""
    torch.manual_seed(0)
    query, doc = torch.randn(32, 384), torch.randn(32, 384)
    guide = cosine(query), cosine(query + doc)
    batch = Batch(Side(query, guide=guide[0]), Side(doc, guide=guide[1]))
    twice = torch.arange(32).repeat(2)
    batch = replace(batch, query=batch.query[twice], doc=batch.doc[twice])
    tiles = [
        Objective(masks=(Guided(0.0),), tile_elements=size)(batch) for size in (1 << 20, 7 * 64, 64)
    ]
    spans = [
        Objective(masks=(Guided(0.0),))(replace(batch, span=range(i, i + 1))) for i in range(64)
    ]
    for other in (*tiles[1:], torch.cat(spans)):
        same(other, tiles[0], 1e-5)
    copy = Objective(masks=(Guided(1e-4),))(batch)
    assert bool((copy < tiles[0] - 1e-4).all())  # left out by a margin
