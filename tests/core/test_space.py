"""Memory: with all parts at once, nothing of the size of the square of the batch is ever
allocated."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tempera.arithmetic.ragged import Ragged
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness, LogQ, Margin
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.pools import POOLS
from tempera.core.similarity import cosine
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature

D = 32


class Meter(TorchDispatchMode):
    """The largest storage that any operation gave, and the most that was held at once, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}  # bytes of each storage, by its address
        self.users: Counter[int] = Counter()
        self.largest = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and id(tensor) not in given:
                self.count(tensor)
        return out

    def count(self, tensor: Tensor) -> None:
        address, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if not size:
            return
        self.users[address] += 1
        self.held[address] = size
        weakref.finalize(tensor, self.drop, address)
        self.largest = max(self.largest, size)
        self.peak = max(self.peak, sum(self.held.values()))

    def drop(self, address: int) -> None:
        self.users[address] -= 1
        if not self.users[address]:
            del self.held[address]


def batch_of(n: int, span: range | None) -> Batch[Tensor]:
    """Pairs with a negative each, half as many sampled and remembered, and a few equal ids."""
    generator = torch.Generator().manual_seed(0)

    def side(count: int, grad: bool = True, owner: Tensor | None = None) -> Side[Tensor]:
        rows = torch.randn(count, D, generator=generator).requires_grad_(grad)
        guide = F.normalize(torch.randn(count, 8, generator=generator), dim=1)
        ids = torch.randint(0, 2 * n, (count,), generator=generator)
        return Side(rows, ids, torch.randn(count, generator=generator), guide, owner, guide)

    known = Ragged.of(torch.randint(0, 2 * n, (n, 3), generator=generator).tolist())
    negatives = side(n, owner=torch.arange(n).flip(0))
    return Batch(
        side(n),
        side(n),
        negatives,
        side(n // 2),
        side(n // 2, grad=False),
        torch.rand(n),
        known,
        span,
    )


def measured(
    n: int,
    tile_elements: int,
    numerator: str = "one",
    autograd: bool = False,
    span: range | None = None,
) -> Meter:
    batch = batch_of(n, span)
    objective = Objective(
        cosine,
        Temperature(0.1, learnable=True),
        POOLS,
        (LogQ("refined"), Hardness(3.0), Margin(0.5)),
        (SameId(), KnownPositives(), Guided(0.1), Guided(0.1, "relative", by="self")),
        numerator=numerator,
        hardest=50,
        memory=Memory(n // 2),
        teacher=Teacher(pools=POOLS),
        tile_elements=tile_elements,
    )
    with Meter() as meter:
        if autograd:
            objective(batch).sum().backward()
        else:
            objective.propagate(batch, batch.shares())
    assert batch.query.rows.grad is not None and meter.peak >= meter.largest > 0
    return meter


# Every tile allocates the same, so a device's share of the rows is enough to see; its candidates
# are those of all rows.
RUNS = [("one", False), ("sum", False), ("mean", True)]


@pytest.mark.parametrize(("numerator", "autograd"), RUNS)
def test_no_tensor_is_as_large_as_the_square_of_the_batch(numerator: str, autograd: bool) -> None:
    n, tile = 2048, 1 << 18
    assert_small(measured(n, tile, numerator, autograd, range(1000, 1128)), n, tile)


@pytest.mark.slow
@pytest.mark.parametrize(("numerator", "autograd"), RUNS)
def test_nor_for_all_rows(numerator: str, autograd: bool) -> None:
    n, tile = 2048, 1 << 18
    assert_small(measured(n, tile, numerator, autograd), n, tile)


def assert_small(meter: Meter, n: int, tile: int) -> None:
    """A tile's logits and a few like them, and a few times the embeddings."""
    side = n * D * 4  # bytes
    assert meter.largest <= 1.01 * max(4 * tile, 2 * side)
    assert meter.peak <= 5 * 4 * tile + 31 * side
    assert meter.peak < n * n * 4  # one of the nine blocks


def test_memory_grows_with_the_rows_and_not_with_their_square() -> None:
    small, large = (measured(n, 1 << 16, span=range(48)).peak for n in (1024, 2048))
    assert large < 2.1 * small


def test_the_meter_sees_a_square() -> None:
    """In one tile the whole matrix is there."""
    n = 256
    meter = measured(n, 1 << 30)
    assert meter.largest >= 9 * n * n * 4 * 0.8 and meter.peak > 2 * meter.largest
