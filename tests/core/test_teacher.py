"""A teacher beside the pairs or in their place: what it does, apart from what every combination
shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import examples
import pytest
import torch
from torch import Tensor

from tempera.core import pools
from tempera.core.batch import Batch, Side
from tempera.core.corrections import LogQ
from tempera.core.definition import defined_losses
from tempera.core.masks import SameId
from tempera.core.matryoshka import Matryoshka
from tempera.core.objective import Objective
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature

BATCH = examples.made(4)
ALONE = Teacher(weight=1.0)


def copied(batch: Batch[Tensor]) -> Batch[Tensor]:
    """A batch whose teacher is the student itself."""
    return examples.with_sides(
        batch, lambda side: replace(side, teacher=torch.nn.functional.normalize(side.rows, dim=1))
    )


@pytest.mark.parametrize("over", [None, "own"])
def test_a_student_with_the_teachers_similarities_has_no_loss_and_no_gradient(over: Any) -> None:
    batch = examples.batch_of(copied(BATCH), grad=True)
    losses = Objective(teacher=replace(ALONE, over=over))(batch)
    losses.sum().backward()
    assert float(losses.detach().abs().max()) < 1e-12
    assert all(
        side.rows.grad is None or float(side.rows.grad.abs().max()) < 1e-10
        for side in batch.sides().values()
    )
    warmer = Objective(teacher=replace(ALONE, student_temperature=0.1))(copied(BATCH))
    assert float(warmer.min()) > 1e-3


def test_no_pair_matters_to_a_teacher_alone() -> None:
    """Rows may be any two texts: documents in another order are other rows of the same
    comparisons."""
    order = torch.arange(len(BATCH)).roll(1)
    moved = replace(BATCH, doc=BATCH.doc[order], negatives=None)
    here = Objective(teacher=ALONE)(replace(BATCH, negatives=None))
    torch.testing.assert_close(
        Objective(teacher=ALONE)(moved).sum(), here.sum(), rtol=1e-12, atol=1e-12
    )


def test_an_anchor_without_candidates_has_no_loss() -> None:
    """All rows are one query, so that nothing is left to compare it with."""
    same = replace(
        BATCH, query=replace(BATCH.query, ids=torch.zeros(len(BATCH), dtype=torch.int64))
    )
    objective = Objective(masks=[SameId()], teacher=replace(ALONE, pools=(pools.queries,)))
    for dtype in (torch.float64, torch.float32):
        batch = examples.batch_of(same, dtype, grad=True)
        losses = objective.propagate(batch, batch.shares())
        assert not losses.any() and not batch.query.rows.grad.any()
    one = Batch(
        *(Side(side.rows[:1], teacher=side.teacher[:1]) for side in (BATCH.query, BATCH.doc))
    )
    assert Objective(teacher=replace(ALONE, pools=(pools.queries,)))(one).tolist() == [0.0]


@pytest.mark.parametrize("far", [1.0, 0.003])
def test_what_the_student_finds_impossible_counts_in_full(far: float) -> None:
    """Far below what float32 can hold as a probability."""
    query = torch.eye(4, dtype=torch.float64)
    teacher = query.roll(1, 0)
    batch = Batch(Side(query, teacher=teacher), Side(query, teacher=query))
    objective = Objective(
        teacher=replace(
            ALONE, pools=(pools.docs,), temperature=0.01, student_temperature=0.01 * far
        )
    )
    expected = defined_losses(objective, batch)
    torch.testing.assert_close(objective(batch), expected, rtol=1e-12, atol=1e-12)
    single = objective(examples.batch_of(batch, torch.float32))
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-4)
    assert float(expected.min()) > 99 / far


def test_the_weight_follows_the_training() -> None:
    teacher = Teacher(weight=0.8, final=0.2)
    assert [round(teacher.share(p), 6) for p in (0, 0.5, 1)] == [0.8, 0.5, 0.2]
    staged = replace(teacher, turn=0.5)
    assert [staged.share(p) for p in (0, 0.49, 0.5, 1)] == [0.8, 0.8, 0.2, 0.2]
    objective = Objective(temperature=Temperature(0.1, final=0.05), teacher=staged)
    before = objective(BATCH)
    objective.advance(1.0)
    assert objective.temperature.value == pytest.approx(0.05)
    after = objective(BATCH)
    torch.testing.assert_close(after, defined_losses(objective, BATCH), rtol=1e-10, atol=1e-10)
    assert not after.allclose(before)
    wrapped = Matryoshka(objective, (2, 5))
    wrapped.advance(0.0)
    assert objective.progress == 0.0


def test_pairs_alone_and_a_teacher_alone_are_the_ends_of_the_weight() -> None:
    plain, taught = Objective(), Objective(teacher=ALONE)
    both = Objective(teacher=Teacher(weight=0.25))(BATCH)
    torch.testing.assert_close(
        both, 0.75 * plain(BATCH) + 0.25 * taught(BATCH), rtol=1e-12, atol=1e-12
    )
    assert Objective(teacher=Teacher(weight=0.0))(BATCH).equal(plain(BATCH))


def test_a_learned_temperature_is_that_of_the_pairs_alone() -> None:
    grads = []
    for teacher in (None, Teacher(weight=0.5), ALONE):
        dial = Temperature(0.2, learnable=True)
        Objective(temperature=dial, teacher=teacher).propagate(
            batch := examples.batch_of(BATCH), batch.shares()
        )
        grads.append(0.0 if dial.log_scale.grad is None else float(dial.log_scale.grad))
    assert grads[1] == pytest.approx(grads[0] / 2, rel=1e-12) and grads[2] == 0.0


def test_a_list_is_softened_without_what_is_masked() -> None:
    """The teacher's softmax over a row's own list is renormalised; corrections for sampling are no
    matter of it, and neither is what belongs to nobody or to others."""
    eye, said = torch.eye(2, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    batch = Batch(
        Side(eye, teacher=said[[0, 1]]),
        Side(
            eye,
            ids=torch.tensor([7, 8]),
            logq=torch.tensor([-1.0, -2.0], dtype=torch.float64),
            teacher=said[[0, 1]],
        ),
        Side(
            eye[[1, 0, 0]],
            ids=torch.tensor([1, 7, 2]),
            logq=torch.tensor([-3.0, -4.0, -5.0], dtype=torch.float64),
            owner=torch.tensor([0, 0, -1]),
            teacher=said[[2, 0, 0]],
        ),
    )
    teacher = Teacher(1.0, over="own", temperature=0.5, student_temperature=1.0)
    losses = Objective(teacher=teacher, masks=[SameId()], corrections=[LogQ()])(batch)
    p, q = (
        torch.tensor([2.0, 0.0]).double().softmax(0),
        torch.tensor([1.0, 0.0]).double().softmax(0),
    )
    torch.testing.assert_close(
        losses, torch.stack([(p * (p / q).log()).sum(), 0 * p[0]]), rtol=1e-12, atol=1e-12
    )
    assert Objective(teacher=teacher)(replace(batch, negatives=None)).tolist() == [0.0, 0.0]


def test_similarities_far_apart_have_a_loss() -> None:
    """The teacher's probability of the second candidate is 0 in float64."""
    eye = torch.eye(2, dtype=torch.float64)
    side = Side(eye, teacher=eye)
    objective = Objective(teacher=Teacher(1.0, temperature=0.001, student_temperature=1.0))
    batch = Batch(side, side)
    losses = objective(batch)
    want = defined_losses(objective, batch)
    assert bool(losses.isfinite().all()) and float(want.min()) > 0
    torch.testing.assert_close(losses, want, rtol=1e-12, atol=1e-12)


def test_vectors_in_single_precision_are_compared_in_that_of_the_embeddings() -> None:
    batch = examples.with_sides(
        copied(BATCH), lambda side: replace(side, teacher=side.teacher.float())
    )
    objective = Objective(teacher=Teacher(0.5))
    torch.testing.assert_close(
        objective(batch), defined_losses(objective, batch), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("name", ["own", "beside"])
def test_numerical_differences(name: str) -> None:
    plain = examples.batch_of(examples.made(40, n=4, width=3))
    parts = examples.Parts(pools=("docs", "negatives"), same_id=True, teacher=name, tile=9)
    objective = examples.objective_of(parts)
    leaves = ("query", "doc", "negatives")

    def losses(*rows: Tensor) -> Tensor:
        sides = {role: replace(plain.sides()[role], rows=each) for role, each in zip(leaves, rows)}
        return objective(replace(plain, **sides))

    inputs = [plain.sides()[role].rows.clone().requires_grad_() for role in leaves]
    learned = [p for p in objective.parameters() if p.requires_grad]
    assert torch.autograd.gradcheck(losses, (*inputs, *learned), atol=1e-6, rtol=1e-5)


def test_documents_that_rows_share_are_their_own_each() -> None:
    """A batch in which documents stand once has the losses of one in which each row has its own
    copy."""
    shared = examples.made(2, shared=True)
    copies = replace(shared, doc=shared.doc[shared.answers], answer=None)
    parts = examples.Parts(pools=("docs",), teacher="own")
    teacher = replace(examples.TEACHERS["own"], weight=1.0)
    one, other = (
        replace_teacher(examples.objective_of(parts), teacher)(batch) for batch in (shared, copies)
    )
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def replace_teacher(objective: Objective, teacher: Teacher) -> Objective:
    objective.teacher = teacher
    return objective
