"""Worlds of several processes, and what each of them does; in a module of its own, since every
process imports it.

A batch is made whole, and divided unequally: what the processes find together has to be what
    autograd finds for the whole.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from tempera.arithmetic.ragged import Ragged
from tempera.core import presets
from tempera.core.batch import Batch, Side
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.matryoshka import Matryoshka
from tempera.core.memory import Memory
from tempera.core.pools import POOLS
from tempera.core.pools import memory as memory_pool
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.engine import loop
from tempera.engine.checkpoint import State
from tempera.engine.devices import Devices
from tempera.engine.faults import NotFinite
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.errors import TemperaError
from tempera.parallel.distributed import Group

WIDTH, WORDS = 4, 20
Found = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """How many rows each process has."""

    pairs: tuple[int, ...]
    negatives: tuple[int, ...]
    sampled: tuple[int, ...]

    def span(self, role: str, rank: int) -> slice:
        """The rows of a process in the whole batch."""
        counts = {"negatives": self.negatives, "sampled": self.sampled}.get(role, self.pairs)
        ends = list(accumulate(counts, initial=0))
        return slice(ends[rank], ends[rank + 1])


# With processes that have no pairs, no negatives, no sampled documents.
LAYOUTS = {2: Layout((6, 3), (0, 5), (1, 3)), 4: Layout((4, 0, 3, 2), (2, 1, 0, 2), (0, 3, 1, 0))}
# Forked, with all that is loaded here: loading takes longer than the work. With CUDA, PyTorch
# refuses gradients in a fork of a process in which a GPU was planned for on paper.
START = "fork" if torch.version.cuda is None else "spawn"


def world(size: int, work: Callable[..., Any], *given: Any, seconds: float = 60) -> list[Any]:
    """What `work(group, *given)` returns on each of `size` processes."""
    with tempfile.TemporaryDirectory() as folder:
        running = mp.start_processes(
            _process, (size, folder, work, given), nprocs=size, join=False, start_method=START
        )
        assert running is not None
        end = time.monotonic() + seconds
        while not running.join(timeout=1):
            if time.monotonic() > end:
                for process in running.processes:
                    process.kill()
                raise AssertionError(f"the processes have not come to an end in {seconds} seconds")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(size)]


def _process(
    rank: int, size: int, folder: str, work: Callable[..., Any], given: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )
    torch.save(work(Group(rank, size), *given), Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


# Data
# ----------------------------------------------------------------------------------------------------------------


def whole(layout: Layout, seed: int, dtype: torch.dtype = torch.float64) -> Batch[Ragged]:
    """A batch with everything that can be known of rows; one of seed 1 has a temperature of its
    own."""
    draw = torch.Generator().manual_seed(seed)

    def side(rows: int, owner: Tensor | None = None) -> Side[Ragged]:
        words = [
            torch.randint(WORDS, (int(n),), generator=draw).tolist()
            for n in torch.randint(1, 6, (rows,), generator=draw)
        ]
        guide, teacher = (torch.randn(rows, width, generator=draw, dtype=dtype) for width in (3, 5))
        return Side(
            Ragged.of(words),
            ids=torch.randint(8, (rows,), generator=draw),
            logq=torch.rand(rows, generator=draw, dtype=dtype).log(),
            guide=nn.functional.normalize(guide, dim=1),
            owner=owner,
            teacher=nn.functional.normalize(teacher, dim=1),
        )

    n = sum(layout.pairs)
    owners = []
    for rank, count in enumerate(layout.negatives):
        mine = layout.span("query", rank)
        owners += (
            torch.randint(mine.start, mine.stop, (count,), generator=draw).tolist()
            if layout.pairs[rank]
            else [-1] * count
        )
    owners[0] = -1
    known = [torch.randint(8, (i % 3,), generator=draw).tolist() for i in range(n)]
    return Batch(
        side(n),
        side(n),
        side(sum(layout.negatives), torch.tensor(owners)),
        side(sum(layout.sampled)),
        weight=torch.rand(n, generator=draw, dtype=dtype),
        known=Ragged.of(known),
        temperature=0.17 if seed == 1 else None,
    )


def part(batch: Batch[Any], layout: Layout, rank: int) -> Batch[Any]:
    """The rows of one process; no negatives are no side."""
    first = layout.span("query", rank)
    sides: dict[str, Any] = {
        role: side[layout.span(role, rank)] for role, side in batch.sides().items()
    }
    owner = sides["negatives"].owner
    sides["negatives"] = replace(
        sides["negatives"], owner=torch.where(owner < 0, owner, owner - first.start)
    )
    if not len(sides["negatives"]):
        sides["negatives"] = None
    assert batch.weight is not None and batch.known is not None
    return replace(batch, **sides, weight=batch.weight[first], known=batch.known[first])


class Tower(nn.Module):
    """Bags of words, and a layer."""

    padded = False

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 6)
        self.layer = nn.Linear(6, WIDTH)

    def forward(self, features: Ragged) -> Tensor:
        rows: Tensor = self.layer(self.bag(features.values, features.offsets[:-1]).tanh())
        return rows


class Pair(nn.Module):
    """A tower each for queries and documents."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.doc = Tower(), Tower()

    def of(self, role: str) -> Tower:
        return self.query if role == "query" else self.doc


# What is compared
# ----------------------------------------------------------------------------------------------------


def dial() -> Temperature:
    return Temperature(0.3, learnable=True)


def remembering() -> nn.Module:
    pools = (*presets.FORWARD, memory_pool)
    return presets.mnr(dial(), pools=pools, memory=Memory(7), masks=(SameId(),))


def everything() -> nn.Module:
    pools = [pool for pool in POOLS if pool is not memory_pool]
    masks = (SameId(), KnownPositives(), Guided(0.1))
    return presets.mnr(dial(), pools=pools, masks=masks, numerator="mean", hardest=4)


OBJECTIVES: dict[str, Callable[[], Any]] = {
    **{preset.__name__: lambda preset=preset: preset(dial()) for preset in presets.PRESETS},
    "several positives": lambda: presets.symmetric(
        dial(), masks=(KnownPositives(),), numerator="sum"
    ),
    "everything": everything,
    "memory": remembering,
    "taught": lambda: presets.symmetric(
        dial(), masks=(KnownPositives(),), teacher=Teacher(0.4, temperature=0.2)
    ),
    "taught without pairs": lambda: Matryoshka(
        presets.mnr(dial(), teacher=Teacher(1.0)), (2, WIDTH)
    ),
    "own lists": lambda: presets.mnr(dial(), teacher=Teacher(0.5, over="own")),
    "matryoshka": lambda: Matryoshka(presets.gte(dial()), (2, WIDTH), (0.5, 1.0)),
    "precisions": lambda: Matryoshka(
        presets.gte(dial()), (2, WIDTH), precisions=("int8", "binary")
    ),
    "matryoshka of memory": lambda: Matryoshka(remembering(), (2, WIDTH)),  # type: ignore[arg-type]
}


def made(name: str, dtype: torch.dtype) -> tuple[Pair, Any]:
    """Towers and objective, equal in every process."""
    torch.manual_seed(1)
    return Pair().to(dtype), OBJECTIVES[name]().to(dtype)


def gradients(*modules: nn.Module) -> Found:
    return {
        name: p.grad
        for module in modules
        for name, p in module.named_parameters()
        if p.requires_grad and p.grad is not None
    }


def alone(name: str, layout: Layout, dtype: torch.dtype = torch.float64) -> Found:
    """Losses and gradients of two whole batches by autograd, in one process."""
    towers, objective = made(name, dtype)
    losses = []
    for seed in range(2):
        batch = whole(layout, seed, dtype)
        embedded = batch.of(
            {role: towers.of(role)(side.rows) for role, side in batch.sides().items()}
        )
        loss = (embedded.shares() * objective(objective.recall(embedded))).sum()
        loss.backward()
        objective.remember(embedded)
        losses.append(loss.item())
    return {"losses": losses} | gradients(towers, objective)


def together(group: Group, layout: Layout, dtype: torch.dtype) -> dict[str, Found]:
    """The same of the step, in every process, for every objective."""
    return {name: _together(group, layout, dtype, name) for name in OBJECTIVES}


def _together(group: Group, layout: Layout, dtype: torch.dtype, name: str) -> Found:
    towers, objective = made(name, dtype)
    batches = [part(whole(layout, seed, dtype), layout, group.rank) for seed in range(2)]
    losses = [step(towers, objective, batch, group=group) for batch in batches]
    group.all_reduce_gradients([*towers.parameters(), *objective.parameters()])
    return {"losses": losses} | gradients(towers, objective)


def facts(batch: Batch[Any]) -> Found:
    """All numbers of a batch by name."""
    found = {
        f"{role}.{name}": v
        for role, side in batch.sides().items()
        for name, v in vars(side).items()
        if v is not None
    }
    assert batch.known is not None
    return found | {
        "weight": batch.weight,
        "known.values": batch.known.values,
        "known.offsets": batch.known.offsets,
    }


def dense(batch: Batch[Ragged], dtype: torch.dtype) -> Batch[Tensor]:
    """Something in the place of embeddings: the lengths and offsets of the rows, and fractions of
    them."""
    return batch.map(
        lambda rows: torch.outer(rows.lengths.to(dtype) + 0.1, torch.arange(1, 4, dtype=dtype))
    )


def gathered(group: Group, layout: Layout) -> dict[str, Found]:
    """What a process sees of the whole batch, in every dtype."""
    found = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch = group.gather(dense(part(whole(layout, 0), layout, group.rank), dtype))
        assert all(side.rows.is_leaf and side.rows.requires_grad for side in batch.sides().values())
        assert batch.span is not None
        about = {
            "span": [batch.span.start, batch.span.stop],
            "counts": {role: list(n) for role, n in batch.counts.items()},
        }
        found[str(dtype)] = {name: value.detach() for name, value in facts(batch).items()} | about
    return found


def brought_home(group: Group, layout: Layout) -> dict[str, Found]:
    """Gradients that are (rank + 1) times the number of the row in the whole batch; documents are
    left without."""
    found = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        batch = group.gather(dense(part(whole(layout, 0), layout, group.rank), dtype))
        for role, side in batch.sides().items():
            if role != "doc":
                rows = torch.arange(len(side), dtype=dtype)[:, None].expand(-1, 3)
                side.rows.grad = (rows * (group.rank + 1)).contiguous()
        found[str(dtype)] = dict(group.reduce_scatter(batch))
    return found


def added_up(group: Group) -> Found:
    """Gradients of some, all, no processes; of several dtypes and shapes."""
    values = {"all": 1.0, "some": 2.0, "none": None, "double": 3.0, "large": 4.0, "scalar": 5.0}
    shapes: dict[str, tuple[int, ...]] = {"large": (300, 200), "scalar": ()}
    parameters = {}
    for name, value in values.items():
        dtype = torch.float64 if name in ("double", "scalar") else torch.float32
        parameters[name] = nn.Parameter(torch.zeros(shapes.get(name, (3, 2)), dtype=dtype))
        if value is not None and not (name == "some" and group.rank != group.size - 1):
            parameters[name].grad = torch.full_like(
                parameters[name], value * (group.rank + 1)
            ).detach()
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    group.all_reduce_gradients([*parameters.values(), frozen])
    return {
        name: None if p.grad is None else [p.grad.min().item(), p.grad.max().item()]
        for name, p in parameters.items()
    }


def agreed(group: Group) -> list[Any]:
    last = group.rank == group.size - 1
    numbers = [group.all_reduce_sum(group.rank + 0.5), group.all_reduce_max(10 * group.rank)]
    alike = [group.all_equal(2**53 - 1), group.all_equal(group.rank)]
    rows = group.all_gather(torch.full((group.rank + 1, 2), float(group.rank))).tolist()
    some = group.all_gather(
        torch.ones(group.rank + (group.size == 1), 2)
    ).tolist()  # the first of several has no rows
    return [group.any(last), group.any(False), *numbers, group.main, *alike, rows, some]


def _without_ids(batch: Batch[Any], rank: int) -> Batch[Any]:
    return replace(batch, doc=replace(batch.doc, ids=None)) if rank == 0 else batch


def _other_precision(batch: Batch[Any], rank: int) -> Batch[Any]:
    return batch.map(lambda rows: rows.to(torch.float32)) if rank == 0 else batch


def _wider(batch: Batch[Any], rank: int) -> Batch[Any]:
    return (
        replace(batch, query=replace(batch.query, guide=torch.ones(len(batch), 2)))
        if rank == 0
        else batch
    )


def _without_weight(batch: Batch[Any], rank: int) -> Batch[Any]:
    return replace(batch, weight=None) if rank == 0 else batch


def _other_temperature(batch: Batch[Any], rank: int) -> Batch[Any]:
    return replace(batch, temperature=0.1) if rank == 0 else batch


def _empty(batch: Batch[Any], rank: int) -> Batch[Any]:
    none = slice(0, 0)
    return Batch(batch.query[none], batch.doc[none])


def refusals(group: Group, layout: Layout) -> list[str]:
    """The error of every mistake, in this process; the processes go on afterwards."""
    found = []
    for mistake in (
        _without_ids,
        _other_precision,
        _wider,
        _without_weight,
        _other_temperature,
        _empty,
    ):
        batch = mistake(
            dense(part(whole(layout, 0), layout, group.rank), torch.float64), group.rank
        )
        try:
            group.gather(batch)
        except TemperaError as error:
            found.append(str(error))
    return found


@cache
def found(size: int) -> list[Found]:
    """What every process of a world has found of everything, by rank; starting processes takes most
    of the time."""
    return world(size, _all_work, LAYOUTS[size], seconds=120)


def _all_work(group: Group, layout: Layout) -> Found:
    return {
        "gathered": gathered(group, layout),
        "home": brought_home(group, layout),
        "added": added_up(group),
        "agreed": agreed(group),
        "refusals": refusals(group, layout),
        "float64": together(group, layout, torch.float64),
        "float32": together(group, layout, torch.float32),
    }


# Numbers that are not finite
# --------------------------------------------------------------------------------------------


def begun() -> State:
    """A run before its first step, with a memory."""
    torch.manual_seed(2)
    objective = presets.mnr(0.3, pools=(*presets.FORWARD, memory_pool), memory=Memory(20))
    return loop.begin(Pair(), objective, Training())  # type: ignore[arg-type]


class Cut(torch.nn.Module):
    """A tower that gives nan for bags that hold one word more often than any other does."""

    padded = False

    def __init__(self, tower: Any, word: int, value: float) -> None:
        super().__init__()
        self.tower, self.word, self.value = tower, word, value

    def forward(self, features: Any) -> Tensor:
        rows: Tensor = self.tower(features)
        first = features.values[features.offsets[:-1]] == self.word
        return torch.where(first[:, None], rows * self.value, rows)


def faulty(group: Group, role: str, word: int, value: float) -> dict[str, Any]:
    """Rows and cause of a step in which texts of a role that begin with a word are multiplied by a
    value."""
    layout = LAYOUTS[2]
    batch = whole(layout, 0, torch.float32)
    state = begun()
    towers: Any = state.modules["towers"]
    setattr(towers, role, Cut(getattr(towers, role), word, value))
    mine = batch if group.size == 1 else part(batch, layout, group.rank)
    try:
        list(loop.train(state, [mine], 1, Training(), Devices(group)))
    except NotFinite as error:
        assert state.step == 0 and state.modules["objective"].memory.rows is None  # type: ignore[union-attr]
        return {"rows": torch.tensor(error.fault.rows[0]), "message": str(error)}
    return {"rows": torch.empty(0), "message": "no fault"}
