"""Numbers that are not ordinary: what a guide does not say, and embeddings whose squares overflow or
vanish in float32, against the definition in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import examples
import pytest
import torch
from examples import Parts
from torch import Tensor

from tempera.core import presets
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness, LogQ, Margin
from tempera.core.definition import defined_losses
from tempera.core.diagnose import diagnose
from tempera.core.masks import Guided
from tempera.core.matryoshka import Matryoshka
from tempera.core.objective import Objective
from tempera.core.precisions import at_precision
from tempera.core.similarity import cosine, lengths
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.errors import ConfigError, DataError

DATA = examples.made(0)
ROLES = ("query", "doc", "negatives", "sampled", "memory")


def unsaid(role: str, row: int, value: float) -> Batch[Tensor]:
    """The batch in which a guide's vector of one row is not finite."""
    side = DATA.sides()[role]  # type: ignore[index]
    assert side.guide is not None
    guide = side.guide.clone()
    guide[row, 1] = value
    changed: Any = {role: replace(side, guide=guide)}
    return replace(DATA, **changed)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("role", ROLES)
def test_a_guide_that_is_not_finite_makes_the_losses_that_need_it_nan(
    role: str, value: float
) -> None:
    """In whichever order masks stand, with other parts beside them, and by both ways to a loss."""
    batch = unsaid(role, 1, value)
    every = ("docs", "negatives", "sampled", "memory")
    choices = [
        Parts(pools=every, guided="absolute"),
        Parts(pools=every, guided="relative", same_id=True, known=True, hardest=2),
        Parts(pools=(*every, "back_docs"), guided="absolute", same_id=True, tile=20),
        Parts(pools=every, guided="absolute", teacher="beside", logq="classic"),
        Parts(pools=every, guided="absolute", teacher="own"),
    ]
    for parts in choices:
        objective = examples.objective_of(parts)
        want = defined_losses(objective, batch)
        assert want.isnan().any()
        if parts.teacher is None:  # else queries are candidates, too
            assert (role == "query") == bool(want.isfinite().any())
        objectives = [objective, examples.objective_of(parts)]
        objectives[1].masks = objectives[1].masks[::-1]
        for each in objectives:
            for losses in (each(batch), each.propagate(batch, batch.shares())):
                torch.testing.assert_close(
                    losses, want, rtol=1e-10, atol=1e-10, equal_nan=True, msg=str(parts)
                )


def test_a_teacher_hears_a_guide_only_of_what_it_compares() -> None:
    """A row's own list is filled up by a column of another row, of which nothing is asked."""
    assert DATA.negatives is not None and DATA.negatives.owner is not None
    batch = unsaid("negatives", 0, math.nan)
    owner = int(DATA.negatives.owner[0])
    parts = Parts(pools=("docs",), guided="absolute", teacher="own")
    losses = examples.objective_of(parts)(batch)
    assert losses.isnan().nonzero().flatten().tolist() == [owner]
    torch.testing.assert_close(losses, examples.defined(batch, parts), equal_nan=True)


def test_a_diagnosis_refuses_a_guide_that_is_not_finite() -> None:
    objective = examples.objective_of(Parts(pools=("docs", "negatives"), guided="absolute"))
    with pytest.raises(DataError, match=r"guide of negatives are not finite .*first is row 2"):
        diagnose(objective, unsaid("negatives", 2, math.nan))


# Lengths
# --------------------------------------------------------------------------------------------------

SIZES = (1e-37, 1e-25, 1e-13, 1.0, 1e15, 3e19, 1e25, 1e36)


def of_sizes(grad: bool = False) -> Batch[Tensor]:
    """The batch in float32, with embeddings of all sizes side by side, in every role."""
    sizes = itertools.cycle(SIZES)

    def sized(side: Side[Tensor]) -> Side[Tensor]:
        scale = torch.tensor([next(sizes) for _ in range(len(side))], dtype=torch.float64)
        return side.of((side.rows * scale[:, None]).float().requires_grad_(grad))

    return examples.with_sides(DATA, sized)


def test_embeddings_of_any_length_have_a_direction() -> None:
    batch = of_sizes()
    choices = [
        Parts(pools=("docs", "negatives", "sampled", "queries")),
        Parts(pools=("docs", "negatives"), guided="self", partition="per_direction"),
        Parts(pools=("docs", "back_queries"), hardness="others"),
    ]
    for parts in choices:
        objective = examples.objective_of(parts).float()
        want = defined_losses(objective, batch).float()
        torch.testing.assert_close(objective(batch), want, rtol=1e-5, atol=1e-5, msg=str(parts))
    nested = Matryoshka(Objective(temperature=0.3), widths=(3, 5), precisions=("binary",))
    pairs = Batch(batch.query, batch.doc)
    torch.testing.assert_close(
        nested(pairs), defined_losses(nested, pairs).float(), rtol=1e-5, atol=1e-5
    )


def test_gradients_grow_with_the_inverse_of_the_length() -> None:
    """That of an embedding times its length is the same however long it is."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(6, 5, generator=generator) for _ in range(2)]
    grads = []
    for size in SIZES:
        leaves = [(each * size).requires_grad_() for each in rows]
        objective = Objective(temperature=0.3)
        batch = Batch(*(Side(leaf) for leaf in leaves))
        objective.propagate(batch, batch.shares())
        grads.append([leaf.grad.double() * size for leaf in leaves])  # type: ignore[union-attr]
        again = [(each * size).requires_grad_() for each in rows]
        objective(*again).mean().backward()
        for leaf, other in zip(leaves, again, strict=True):
            torch.testing.assert_close(leaf.grad, other.grad)
    for found in grads:
        torch.testing.assert_close(found, grads[SIZES.index(1.0)], rtol=1e-5, atol=1e-6)


def test_a_zero_embedding_stays_zero_beside_any_other() -> None:
    for size in (1.0, 1e-25, 1e25):
        rows = torch.eye(3)[:, :2] * size  # the last one is zero
        leaf = rows.clone().requires_grad_()
        objective = Objective(temperature=0.3)
        losses = objective(leaf, torch.eye(3)[:, :2])
        losses.sum().backward()
        assert losses.isfinite().all() and leaf.grad is not None
        assert leaf.grad[2].tolist() == [0.0, 0.0] and cosine(rows)[2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_ordinary_embeddings_keep_their_bits(dtype: torch.dtype) -> None:
    """Those of a plain division by the length; also beside one that is not ordinary."""
    rows = (torch.randn(500, 48) * torch.logspace(-6, 6, 500)[:, None]).to(dtype)
    exact = rows.float() if dtype == torch.bfloat16 else rows
    plain = exact / torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    assert torch.equal(cosine(rows), plain)
    odd = torch.full((1, 48), 1e25).to(dtype)
    assert torch.equal(cosine(torch.cat([rows, odd]))[:-1], plain)
    assert torch.equal(lengths(rows)[:, 0], torch.linalg.vector_norm(exact, dim=1))


def test_what_is_not_finite_has_no_direction() -> None:
    rows = torch.tensor([[math.inf, 1.0], [math.nan, 1.0], [3.0, 4.0]])
    found = cosine(rows)
    assert found[:2].isnan().any(1).all() and found[2].isfinite().all()
    assert not at_precision(rows, "binary")[:2].isfinite().any()


def test_signs_keep_a_length_whose_square_overflows() -> None:
    rows = torch.tensor([[3e25, -4e25], [3e-25, -4e-25]])
    size = 5 / math.sqrt(2)
    want = torch.tensor([[size * 1e25, -size * 1e25], [size * 1e-25, -size * 1e-25]])
    torch.testing.assert_close(at_precision(rows, "binary"), want)


# Options
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_of_parts_are_finite(value: float) -> None:
    made = [
        lambda: LogQ(weight=value),
        lambda: Hardness(value),
        lambda: Margin(value),
        lambda: Guided(value),
        lambda: presets.gist(margin=value),
        lambda: Teacher(weight=value),
        lambda: Teacher(temperature=value),
        lambda: Temperature(value),
        lambda: Temperature(0.1, learnable=True, floor=value),
        lambda: Matryoshka(Objective(), [2, 3], [1.0, value]),
    ]
    for number, make in enumerate(made):
        with pytest.raises(ConfigError) as found:
            make()
        assert "\n" not in str(found.value), number


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0], [math.nan, 1.0]])
def test_weights_of_widths_are_shares(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="weights are finite, 0 or more, and one of them above 0"):
        Matryoshka(Objective(), [2, 3], weights)
    assert Matryoshka(Objective(), [2, 3], [0, 1]).weights == (0, 1)
