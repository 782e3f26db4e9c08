"""An objective takes two tensors as well as a batch."""

from __future__ import annotations

import pytest
import torch

from tempera import Batch, Matryoshka, Objective, Side, infonce, mnr
from tempera.errors import DataError


@pytest.mark.parametrize("objective", [mnr(), Matryoshka(mnr(), (2, 4))])
def test_two_tensors_are_a_batch_of_pairs(objective: Objective | Matryoshka) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, documents = (torch.randn(6, 4, generator=generator).requires_grad_() for _ in "qd")
    losses = objective(queries, documents)
    assert losses.shape == (6,) and torch.equal(losses, objective(Batch(Side(queries), Side(documents))))
    losses.mean().backward()
    assert queries.grad is not None and documents.grad is not None and float(queries.grad.norm()) > 0


def test_one_tensor_is_refused() -> None:
    with pytest.raises(DataError, match="two tensors, queries and documents, or one Batch"):
        mnr()(torch.eye(2))
    with pytest.raises(DataError, match="two tensors"):
        mnr()(Batch(Side(torch.eye(2)), Side(torch.eye(2))), torch.eye(2))
    with pytest.raises(DataError, match="pairs queries with documents"):
        mnr()(torch.eye(2), torch.eye(3))


def test_infonce_is_the_name_of_one_loss() -> None:
    assert infonce is mnr
