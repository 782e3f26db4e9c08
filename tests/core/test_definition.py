"""The definition of the loss, against numbers that were worked out apart from it."""

from __future__ import annotations

import math
from dataclasses import replace

import examples
import pytest
import torch
from examples import Parts

from tempera.arithmetic.ragged import Ragged
from tempera.core.batch import Batch, Side
from tempera.core.definition import Definition, defined_losses
from tempera.core.matryoshka import Matryoshka

# Two pairs and a hard negative of the first; inner products are read off: 1 and 0 among the pairs,
# 0.5 with the negative.
PAIRS = torch.eye(2, dtype=torch.float64)
BATCH = Batch(
    Side(PAIRS, ids=torch.tensor([1, 2])),
    Side(PAIRS, ids=torch.tensor([5, 6]), logq=torch.tensor([-1.0, -2.0])),
    Side(
        torch.tensor([[0.5, 0.5]]),
        ids=torch.tensor([6]),
        logq=torch.tensor([-3.0]),
        owner=torch.tensor([0]),
    ),
    known=Ragged.of([[6], []]),
)


def log_sum(*logits: float) -> float:
    return math.log(sum(map(math.exp, logits)))


OWN, HARD = (
    1 / examples.T,
    0.5 / examples.T,
)  # logits of a row's positive and of the hard negative; of the other row's 0
ALONE, WITH_HARD = log_sum(OWN, 0) - OWN, log_sum(OWN, 0, HARD) - OWN
BOTH = ("docs", "negatives")


@pytest.mark.parametrize(
    ("parts", "first", "second"),
    [
        (Parts("dot"), ALONE, ALONE),
        (Parts("dot", BOTH), WITH_HARD, WITH_HARD),
        (
            Parts("dot", logq="classic"),
            log_sum(OWN + 0.8, 1.6) - OWN - 0.8,
            log_sum(OWN + 1.6, 0.8) - OWN - 1.6,
        ),
        (Parts("dot", logq="refined"), log_sum(OWN, 1.6) - OWN, log_sum(OWN, 0.8) - OWN),
        (Parts("dot", BOTH, hardness="own"), log_sum(OWN, 0, HARD + 1.5) - OWN, WITH_HARD),
        (Parts("dot", BOTH, hardness="others"), WITH_HARD, log_sum(OWN, 0, HARD + 1.5) - OWN),
        (Parts("dot", margin=True), *[log_sum(OWN - 0.7, 0) - OWN + 0.7] * 2),
        (Parts("dot", BOTH, same_id=True), WITH_HARD, ALONE),
        (Parts("dot", BOTH, known=True), 0.0, WITH_HARD),
        (Parts("dot", numerator="mean"), log_sum(OWN, 0) - OWN / 2, ALONE),
        (Parts("dot", numerator="sum"), 0.0, ALONE),
        (Parts("dot", BOTH, hardest=1), *[log_sum(OWN, HARD) - OWN] * 2),
        (Parts("dot", ("docs", "back_queries")), *[log_sum(OWN, 0, OWN, 0) - OWN] * 2),
        (Parts("dot", ("docs", "back_queries"), partition="per_direction"), ALONE, ALONE),
    ],
)
def test_each_part_by_hand(parts: Parts, first: float, second: float) -> None:
    assert examples.defined(BATCH, parts).tolist() == pytest.approx(
        [first, second], rel=1e-12, abs=1e-12
    )


def test_gradients_are_those_of_finite_differences() -> None:
    batch, parts = (
        examples.made(0, n=4, width=2),
        Parts("cosine", examples.POOLS, "refined", None, True, True, True, "absolute"),
    )
    objective = examples.objective_of(parts)

    def losses(query: torch.Tensor, doc: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        changed = replace(batch, query=batch.query.of(query), doc=batch.doc.of(doc))
        return Definition(objective, changed, scale).losses()

    leaves = [batch.query.rows, batch.doc.rows, torch.tensor(3.0, dtype=torch.float64)]
    assert torch.autograd.gradcheck(losses, [leaf.clone().requires_grad_() for leaf in leaves])


def test_widths_are_added() -> None:
    objective = Matryoshka(examples.objective_of(Parts()), (2, 5), (0.5, 2.0))
    batch = examples.made(0)
    torch.testing.assert_close(defined_losses(objective, batch), objective(batch))
