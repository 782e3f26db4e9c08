"""The loss stage on a device: the CPU's bits, no wait, and launches that grow with the number of
tiles alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from pretend import GIB, Accelerator, assert_same
from torch import Tensor

from tempera import Batch, Objective, Ragged, Side, Temperature, gte, mnr, pools, symmetric
from tempera.core.corrections import Hardness, LogQ, Margin
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.pools import Block, Exclusion
from tempera.core.similarity import dot
from tempera.core.teacher import Teacher
from tempera.core.tiles import tile_elements

ROWS = 40
LEARNED: dict[str, Callable[[], Objective]] = {
    "mnr": lambda: mnr(temperature=Temperature(0.05, learnable=True)),
    "symmetric": lambda: symmetric(temperature=Temperature(0.05, learnable=True)),
    "gte": lambda: gte(temperature=0.05),
    "guided": lambda: Objective(masks=[SameId(), Guided()], corrections=[LogQ(), Hardness(9.0)]),
    "self-guided": lambda: Objective(
        masks=[Guided(by="self", kind="relative")], corrections=[Hardness(9.0, on="own")]
    ),
    "recommender": lambda: Objective(
        dot, 1.0, masks=[SameId(), KnownPositives()], corrections=[LogQ("refined")]
    ),
    "several positives": lambda: Objective(
        numerator="mean", masks=[SameId()], corrections=[Margin(0.3)], hardest=9
    ),
    "summed": lambda: Objective(
        numerator="sum", masks=[KnownPositives()], temperature=Temperature(0.05, learnable=True)
    ),
    "both ways": lambda: Objective(
        pools=[pools.docs, pools.back_queries], partition="per_direction", masks=[SameId()]
    ),
    "taught": lambda: Objective(masks=[SameId()], teacher=Teacher(0.3)),
    "memory": lambda: Objective(
        pools=[pools.docs, pools.memory], memory=Memory(64), masks=[SameId()]
    ),
}


def batch(rows: int = ROWS, width: int = 8, shared: bool = False) -> Batch[Tensor]:
    """Rows with everything that a part may look at; with `shared`, half as many documents as
    rows."""
    generator = torch.Generator().manual_seed(0)

    def side(count: int, ids: Tensor) -> Side[Tensor]:
        numbers = torch.randn(count, width, generator=generator)
        guide = torch.nn.functional.normalize(torch.randn(count, 4, generator=generator), dim=1)
        logq = -torch.rand(count, generator=generator)
        return Side(numbers.requires_grad_(), ids, logq, guide, teacher=guide.flip(0))

    ids = torch.randint(rows, (rows,), generator=generator)
    known = Ragged.of([sorted({int(i), int(i) % 7}) for i in ids])
    docs = torch.arange(rows) if shared else ids
    answer = docs[torch.randint(rows, (rows,), generator=generator)] if shared else None
    return Batch(
        side(rows, ids),
        side(rows, docs),
        known=known,
        answer=answer,
        weight=torch.rand(rows, generator=generator),
    )


def gradients(objective: Objective, rows: Batch[Tensor]) -> list[Tensor]:
    """Return losses and all gradients, on the CPU, of two steps in which the memory fills."""
    for _ in range(2):
        for side in rows.sides().values():
            side.rows.grad = None
        losses = objective.propagate(objective.recall(rows), rows.shares())
        objective.remember(rows)
    objective.temperature.collect()
    grads = [losses, *(side.rows.grad for side in rows.sides().values())]
    return [x.cpu() for x in (*grads, objective.temperature.log_scale.grad) if x is not None]


def on(used: Accelerator, rows: Batch[Tensor]) -> Batch[Tensor]:
    """Return a batch whose embeddings are leaves on the device."""
    moved = rows.to(used.device)
    return moved.map(lambda x: x.detach().requires_grad_())


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", LEARNED)
def test_losses_and_gradients_have_the_bits_of_the_cpu_and_nothing_waits(
    name: str, shared: bool
) -> None:
    want = gradients(LEARNED[name](), batch(shared=shared))
    with Accelerator() as used:
        rows, objective = on(used, batch(shared=shared)), LEARNED[name]().to(used.device)
        objective.tile_elements = 1 << 20
        used.clear()
        objective.propagate(objective.recall(rows), rows.shares())
        assert not list(used.by_line("waits"))
        rows, objective = on(used, batch(shared=shared)), LEARNED[name]().to(used.device)
        got = gradients(objective, rows)
    assert_same(got, want)


@pytest.mark.parametrize("name", ["guided", "several positives"])
def test_a_device_without_float64_or_an_answer_about_its_memory_computes_the_same(
    name: str,
) -> None:
    want = gradients(LEARNED[name](), batch())
    with Accelerator(memory=None, float64=False) as used:
        got = gradients(LEARNED[name]().to(used.device), on(used, batch()))
    assert_same(got, want)


def counted(objective: Objective, rows: int, tiles: int) -> int:
    """Return the launches of a warm pass over `rows` in some tiles."""
    blocks = len(
        {pair for pool in objective.pools for pair in pool.blocks if set(pair) <= {"query", "doc"}}
    )
    with Accelerator() as used:
        objective.tile_elements = -(-rows // tiles) * rows * blocks
        moved = on(used, batch(rows, 16))
        used.clear()
        objective.propagate(moved, moved.shares())
    assert not used.total("waits")
    return used.total("launches")


def test_launches_of_one_tile() -> None:
    assert counted(mnr(), 64, 1) <= 60
    assert counted(mnr(temperature=Temperature(learnable=True)), 64, 1) <= 60
    guarded = gte()
    guarded.masks = (SameId(),)
    assert counted(guarded, 64, 1) <= 120


def test_launches_grow_with_the_tiles_alone() -> None:
    """As many tiles of 4,096 rows as 65,536 rows take on devices of 80 GB and of 24 GB."""
    per_device = []
    for memory in (80 * GIB, 24 * GIB):
        with Accelerator(memory) as used:
            per_device.append(-(-(65_536**2) // tile_elements(used.device)))
    few, many = per_device
    assert (few, many) == (7, 22)
    one, two = counted(mnr(), 64, 1), counted(mnr(), 64, 2)
    assert counted(mnr(), 4096, few) == one + (few - 1) * (two - one)
    assert counted(mnr(), 4096, many) == one + (many - 1) * (two - one) <= 600


def test_memory_that_torch_has_taken_for_its_next_tensors_is_free() -> None:
    sizes = []
    for kept in (0, 30 * GIB):
        with Accelerator(kept=kept) as used:
            sizes.append(tile_elements(used.device))
    assert sizes[0] == sizes[1]


class Planted:
    """A mask in which something has been planted."""

    def __init__(self, plant: str) -> None:
        self.plant = plant

    def __call__(self, block: Block) -> Sequence[Exclusion]:
        def nobody(tile: slice) -> Tensor:
            table = torch.zeros(tile.stop - tile.start, len(block.candidates), device=block.device)
            if self.plant == "wait":
                table.sum().item()  # planted wait
            if self.plant == "mixed":
                return table + torch.zeros(len(block.candidates))  # planted mixed
            return table

        return (nobody,)


def test_what_is_planted_in_a_mask_fails_with_its_line() -> None:
    with Accelerator() as used:
        rows = on(used, batch())
        used.clear()
        Objective(masks=[Planted("wait")]).propagate(rows, rows.shares())
        copies = {"core/abilities.py placed": 1, "core/objective.py Objective._term": 1}
        with pytest.raises(
            AssertionError, match=r"1 waits, tests/devices/on_loss_stage.py:\d+ .*# planted wait"
        ):
            used.within(waits={}, copies=copies, launches=99)
        with pytest.raises(
            RuntimeError,
            match=r"two devices, at tests/devices/on_loss_stage.py:\d+ .*# planted mixed",
        ):
            Objective(masks=[Planted("mixed")]).propagate(rows, rows.shares())
