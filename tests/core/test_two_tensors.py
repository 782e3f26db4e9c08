"""An objective takes two tensors as well as a batch."""

from __future__ import annotations

import pytest
import torch

from tempera import Batch, Matryoshka, Objective, Side, infonce, mnr, pools
from tempera.core.memory import Memory
from tempera.errors import DataError


@pytest.mark.parametrize("objective", [mnr(), Matryoshka(mnr(), (2, 4))])
def test_two_tensors_are_a_batch_of_pairs(objective: Objective | Matryoshka) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, documents = (torch.randn(6, 4, generator=generator).requires_grad_() for _ in "qd")
    losses = objective(queries, documents)
    assert losses.shape == (6,) and torch.equal(
        losses, objective(Batch(Side(queries), Side(documents)))
    )
    losses.mean().backward()
    assert (
        queries.grad is not None and documents.grad is not None and float(queries.grad.norm()) > 0
    )


@pytest.mark.parametrize("widths", [None, (2, 4)])
def test_a_memory_is_asked_for_what_it_was_given(widths: tuple[int, ...] | None) -> None:
    """Nothing at first; then the documents of past batches are negatives, and count as those of a
    batch do."""
    objective = mnr(pools=(pools.docs, pools.memory), memory=Memory(6))
    wrapped = objective if widths is None else Matryoshka(objective, widths)
    plain = mnr() if widths is None else Matryoshka(mnr(), widths)
    past, queries, documents = torch.randn(
        3, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    assert torch.equal(wrapped(queries, documents), plain(queries, documents))
    wrapped.remember(Batch(Side(queries), Side(past)))
    sampled = mnr(pools=(pools.docs, pools.sampled))
    more = Batch(Side(queries), Side(documents), sampled=Side(past))
    want = (sampled if widths is None else Matryoshka(sampled, widths))(more)
    torch.testing.assert_close(wrapped(queries, documents), want)
    assert (want > plain(queries, documents)).all()


def test_one_tensor_is_refused() -> None:
    with pytest.raises(DataError, match="two tensors, queries and documents, or one Batch"):
        mnr()(torch.eye(2))
    with pytest.raises(DataError, match="two tensors"):
        mnr()(Batch(Side(torch.eye(2)), Side(torch.eye(2))), torch.eye(2))
    with pytest.raises(DataError, match="pairs queries with documents"):
        mnr()(torch.eye(2), torch.eye(3))


def test_infonce_is_the_name_of_one_loss() -> None:
    assert infonce is mnr
