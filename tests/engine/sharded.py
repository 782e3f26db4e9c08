"""What processes do with towers whose parameters are divided among them; in a module of its own,
since each imports it."""

from __future__ import annotations

import tempfile
import unittest.mock
from collections.abc import Container, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
import worlds
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from worlds import WIDTH, WORDS, Found, Layout

from tempera.arithmetic.ragged import Ragged
from tempera.core import presets
from tempera.core.batch import Batch, Side
from tempera.core.frame import Events, Frame
from tempera.engine import loop
from tempera.engine.cache import Cache, Mode
from tempera.engine.devices import Devices
from tempera.engine.loop import Progress
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.errors import TemperaError
from tempera.parallel.distributed import Group
from tempera.parallel.shards import part, shard, whole
from tempera.recommend.train.encoders import Categories, Elapsed, Entities, Id
from tempera.recommend.train.features import Features
from tempera.recommend.train.history import History
from tempera.recommend.train.pooling import Causal, Gru, Mean

MODES: tuple[Mode, ...] = ("always", "auto", "never")
MEMORY, TOKENS = 12_000.0, 8  # of this, "auto" keeps some
STEPS = 3
# Divided towers of torch 2.13 can begin a step again where memory has run out.
RESTARTS = hasattr(FSDPModule, "reset_iter_state")
OPTIONS = Training(
    learning_rate=0.01,
    cache_memory=MEMORY,
    micro_batch_tokens=TOKENS,
    max_grad_norm=0.5,
    weight_decay=0.1,
)


class Layered(nn.Module):
    """A table of words, two layers of a transformer with dropout, and a head; padded."""

    padded = True

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, padding_idx=0)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 6, dropout, batch_first=True) for _ in range(2)
        )
        self.top = nn.Linear(8, WIDTH)
        self.calls: list[bool] = []  # whether with graph

    def forward(self, features: Ragged) -> Tensor:
        if not len(features):
            return self.top.weight.new_empty(0, WIDTH)
        self.calls.append(torch.is_grad_enabled())
        there = torch.arange(int(features.lengths.max())) < features.lengths[:, None]
        words = torch.zeros(there.shape, dtype=torch.int64).masked_scatter(there, features.values)
        hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=~there)
        weight = there[..., None].to(hidden.dtype)
        rows: Tensor = self.top((hidden * weight).sum(1) / weight.sum(1))
        return rows


class Headed(nn.Module):
    """A head on a body that another tower has as well."""

    padded = True

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(WIDTH, WIDTH)

    def forward(self, features: Ragged) -> Tensor:
        rows: Tensor = self.head(self.body(features))
        return rows


class Towers(nn.Module):
    """One tower, a tower each, or two on one body."""

    def __init__(self, kind: str, dropout: float) -> None:
        super().__init__()
        first = Layered(dropout)
        self.query = Headed(first) if kind == "heads" else first
        self.doc = {
            "one": lambda: first,
            "two": lambda: Layered(dropout),
            "heads": lambda: Headed(first),
        }[kind]()

    def of(self, role: str) -> nn.Module:
        return self.query if role == "query" else self.doc


# By how many processes: what is tried with a tower for both, a tower each, and two heads on a body.
CASES: dict[int, list[tuple[str, Mode]]] = {
    2: [("one", "always"), ("one", "never"), ("two", "auto"), ("two", "never"), ("heads", "auto")],
    4: [("one", "auto"), ("two", "always"), ("two", "auto")],
}
MEASURED = {"one": 3, "two": 6, "heads": 6}  # calls with graph that measure the footprints


def made(kind: str, dropout: float, dtype: torch.dtype = torch.float64) -> tuple[Towers, Any]:
    torch.manual_seed(1)
    return Towers(kind, dropout).to(dtype).train(), worlds.OBJECTIVES["everything"]()


def gradients(towers: nn.Module, objective: nn.Module) -> Found:
    """Put together from all processes."""
    return {name: whole(grad) for name, grad in worlds.gradients(towers, objective).items()}


def alone(kind: str, layout: Layout) -> Found:
    """Loss and gradients of the whole batch by autograd, every row by itself, in one process."""
    towers, objective = made(kind, 0.0)
    batch = worlds.whole(layout, 0)
    rows = {
        role: torch.cat([towers.of(role)(side.rows[[i]]) for i in range(len(side.rows))])
        for role, side in batch.sides().items()
    }
    embedded = batch.of(rows)
    loss = (embedded.shares() * objective(embedded)).sum()
    loss.backward()
    return {"loss": loss.item(), "gradients": worlds.gradients(towers, objective)}


def stepped(
    group: Group,
    layout: Layout,
    kind: str,
    mode: Mode,
    dropout: float,
    divided: bool = True,
) -> Found:
    """The same of the step; and how often the towers were called without and with graph."""
    towers, objective = made(kind, dropout)
    if divided:
        shard([towers.query, towers.doc], group)
    torch.manual_seed(5 + group.rank)
    given = worlds.part(worlds.whole(layout, 0), layout, group.rank)
    loss = step(towers, objective, given, Cache(mode, MEMORY, TOKENS), group)  # type: ignore[arg-type]
    group.all_reduce_gradients([*towers.parameters(), *objective.parameters()])
    bodies = [module for module in towers.modules() if isinstance(module, Layered)]
    calls = [sum(body.calls.count(graph) for body in bodies) for graph in (False, True)]
    return {"loss": loss, "calls": calls, "gradients": gradients(towers, objective)}


def lower(group: Group, layout: Layout, divided: bool) -> Found:
    """Gradients of a step in float32, of whole towers; or under autocast to bf16, of divided
    ones."""
    towers, objective = made("two", 0.0, torch.float32)
    if divided:
        shard([towers.query, towers.doc], group, torch.bfloat16)
    given = worlds.part(worlds.whole(layout, 0, torch.float32), layout, group.rank)
    cache = Cache(
        "auto", MEMORY, TOKENS, autocast=Devices(group, "bf16" if divided else "no").autocast
    )
    step(towers, objective, given, cache, group)  # type: ignore[arg-type]
    group.all_reduce_gradients([*towers.parameters(), *objective.parameters()])
    return gradients(towers, objective)


def trained(
    group: Group, layout: Layout, divided: bool, folder: Path, stop: int = STEPS, begin: int = 0
) -> Found:
    """Norms and weights after some steps of the loop; they begin from a checkpoint, or leave one
    where they stop early."""
    towers, objective = made("two", 0.2)
    if divided:
        shard([towers.query, towers.doc], group)
    devices = Devices(group)
    state = loop.begin(towers, objective, OPTIONS, devices)  # type: ignore[arg-type]
    if begin:
        state.load(folder)
    rows = [
        worlds.part(worlds.whole(layout, seed), layout, group.rank)
        for seed in range(state.step, STEPS)
    ]
    norms = [
        each.grad_norm for each in until(loop.train(state, rows, STEPS, OPTIONS, devices), stop)
    ]
    if stop < STEPS:
        state.save(folder)
        group.wait()
    weights = {name: whole(p.detach()) for name, p in state.modules.named_parameters()}
    return {"norms": norms, "weights": weights}


def until(steps: Iterator[Progress], stop: int) -> Iterator[Progress]:
    for progress in steps:
        yield progress
        if progress.step == stop:
            return


def parts(group: Group) -> Found:
    """How much each process has of a tower, and of what the optimiser keeps for it."""
    towers, objective = made("one", 0.0)
    shard([towers.query, towers.doc], group)
    state = loop.begin(towers, objective, OPTIONS, Devices(group))  # type: ignore[arg-type]
    rows = worlds.part(
        worlds.whole(worlds.LAYOUTS[group.size], 0), worlds.LAYOUTS[group.size], group.rank
    )
    next(loop.train(state, [rows], STEPS, OPTIONS, Devices(group)))
    held = [part(p).numel() for p in towers.parameters()]
    moments = [part(state.optimizer.state[p]["exp_avg"]).numel() for p in towers.parameters()]
    return {"held": held, "moments": moments, "all": [p.numel() for p in towers.parameters()]}


def mistakes(group: Group, layout: Layout) -> list[str]:
    """What is said of a group of one, and of memory that runs out within a divided tower; the last
    that processes do."""
    said = []
    towers, objective = made("one", 0.0)
    rows = worlds.part(worlds.whole(layout, 0), layout, group.rank)
    full = Trap(range(1, 10**6))
    towers.query.register_forward_pre_hook(full.sprung)
    for refused in (lambda: shard([towers.query], Group()), lambda: shard([towers.query], group)):
        try:
            refused()
            step(towers, objective, rows, Cache(), group)  # type: ignore[arg-type]
        except TemperaError as error:
            said.append(str(error))
    with unittest.mock.patch(
        "tempera.engine.step.can_restart", return_value=False
    ):  # as before torch 2.13
        try:
            step(towers, objective, rows, Cache(), group)  # type: ignore[arg-type]
        except TemperaError as error:
            said.append(str(error))
    return said


class Trap:
    """Runs out of memory at some of the moments at which layers begin, end or go backward, counted
    from 1."""

    def __init__(self, at: Container[int]) -> None:
        self.at, self.count = at, 0

    def sprung(self, *_: object) -> None:
        self.count += 1
        if self.count in self.at:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def laid(self, module: nn.Module) -> None:
        """Lay the trap before a module begins, within what divides it, and behind it, forward and
        backward."""
        if isinstance(module, nn.TransformerEncoderLayer):
            module.register_forward_pre_hook(
                lambda _, given: (_Trapped.apply(given[0], self), *given[1:])
            )  # type: ignore[no-untyped-call]
        module.register_forward_hook(lambda _, given, rows: _Trapped.apply(rows, self))  # type: ignore[no-untyped-call]


class _Trapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, trap: Trap) -> Tensor:
        ctx.trap = trap
        trap.sprung()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.trap.sprung()  # when the layer's weights have gradients that have not been summed
        return grad, None


def runs_out(
    group: Group, towers: Any, objective: Any, rows: Batch[Any], trap: Trap, every: int
) -> Found:
    """How far a step is off that runs out of memory at every so manyth moment of each process, and
    its halvings.

    The same towers go on: nothing may be left of what has been interrupted.
    """
    measured: dict[int, Any] = {}

    def taken(at: Container[int], mode: Mode) -> tuple[Found, int]:
        towers.zero_grad(), objective.zero_grad()
        trap.at, trap.count = at, 0
        cache = Cache(mode, tokens=30)
        if every > 1:
            cache.footprints = measured
        loss = step(towers, objective, rows, cache, group)
        return {"loss": torch.tensor(loss)} | worlds.gradients(towers, objective), cache.halved

    found: Found = {}
    taken((), "always")  # measures footprints
    for mode in ("always", "never"):
        (want, _), own = taken((), mode), trap.count  # moments, fewer where calls only keep pace
        moments = [group.all_reduce_max(own * (rank == group.rank)) for rank in range(group.size)]
        each = [
            (rank, at)
            for rank, last in enumerate(moments)
            for at in range(1 + rank * (every // 2), last + 1, every)
        ]
        for rank, at in each:
            got, halved = taken((at, at + 5) if rank == group.rank else (), mode)
            assert got.keys() == want.keys()
            off = [float((_dense(got[name]) - _dense(want[name])).abs().max()) for name in want]
            found[f"{mode}, moment {at} of {moments[rank]} on rank {rank}"] = {
                "off": max(off),
                "halved": halved,
            }
    return found


def _dense(grad: Tensor) -> Tensor:
    mine = part(grad)
    return mine.to_dense() if mine.numel() else torch.zeros(1)


def out_of_memory(group: Group, layout: Layout, kind: str, every: int) -> Found:
    towers, objective = made(kind, 0.0)
    shard([towers.query, towers.doc], group)
    trap = Trap(())
    for layer in [
        module for module in towers.modules() if isinstance(module, nn.TransformerEncoderLayer)
    ]:
        trap.laid(layer)
    return runs_out(
        group,
        towers,
        objective,
        worlds.part(worlds.whole(layout, 0), layout, group.rank),
        trap,
        every,
    )


def nobody(group: Group, layout: Layout) -> str:
    """The error of a batch without rows on any process."""
    towers, objective = made("two", 0.0)
    shard([towers.query, towers.doc], group)
    given: Batch[Any] = worlds.part(worlds.whole(layout, 0), layout, group.rank)
    given = Batch(given.query[:0], given.doc[:0])
    try:
        step(towers, objective, given, None, group)  # type: ignore[arg-type]
    except TemperaError as error:
        return str(error)
    return ""


def recommended(group: Group) -> Found:
    """Loss and gradients of a recommender's towers, of two rows that the first process has: their
    transformer reads two groups."""
    torch.manual_seed(1)
    known = Entities(
        pa.table({"id": list("abcd"), "tags": ["x|y", "y", "", "z"]}), np.ones(4, np.int64)
    )
    history = History((Mean(2), Gru(2), Causal(8, layers=2, heads=2, dropout=0.0)), targets=1)
    towers = (
        Features((Id(), Categories("tags")), (Id(), Elapsed()), history, WIDTH)
        .build(known, known)
        .double()
    )
    seen = Events.of(
        torch.tensor([1, 2, *[3, 1, 0, 2] * 2]), torch.tensor([0, 2]), torch.tensor([2, 10])
    )
    users = Frame(
        {"user": torch.arange(2), "history": seen, "elapsed": torch.tensor([1.0, torch.nan])}
    )
    items = torch.tensor([0, 2])
    batch = Batch(
        Side(users, ids=torch.arange(2)), Side(Frame({"item": items}), ids=items), answer=items
    )
    if group.size > 1:
        shard([towers.query, towers.doc], group)
        mine = slice(0, 2) if group.rank == 0 else slice(0, 0)
        batch = Batch(batch.query[mine], batch.doc[mine], answer=items[mine])
    objective = presets.mnr(temperature=0.5)
    loss = step(towers, objective, batch, None, group)  # type: ignore[arg-type]
    group.all_reduce_gradients([*towers.parameters(), *objective.parameters()])
    return {"loss": loss, "gradients": gradients(towers, objective)}


def by_torch(group: Group) -> list[Tensor]:
    """Gradients of a tower that a program divides by torch alone, which takes their mean unless it
    is told otherwise."""
    torch.manual_seed(2)
    tower = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    batch = Batch(Side(torch.randn(8, 6).double()), Side(torch.randn(8, 6).double()))
    if group.size > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(tower, mesh=init_device_mesh("cpu", (group.size,)))
        mine = slice(0, 3) if group.rank == 0 else slice(3, 8)
        batch = Batch(batch.query[mine], batch.doc[mine])
    step(tower, presets.mnr(temperature=0.5), batch, None, group)
    return [whole(p.grad) for p in tower.parameters() if p.grad is not None]


def all_work(group: Group, layout: Layout) -> Found:
    """Everything; the last takes the processes out of step."""
    found: Found = {
        "plain": {
            f"{kind} {mode}": stepped(group, layout, kind, mode, 0.0)
            for kind, mode in CASES[group.size]
        },
        "parts": parts(group),
    }
    if group.size == 2:
        found["dropout"] = {mode: stepped(group, layout, "two", mode, 0.3) for mode in MODES}
        found["undivided"] = stepped(group, layout, "two", "never", 0.3, divided=False)
        found |= {"bf16": lower(group, layout, True), "float32": lower(group, layout, False)}
        found["training"] = training(group, layout)
        found["nobody"] = nobody(group, layout)
        found |= {"recommended": recommended(group), "by torch": by_torch(group)}
        if RESTARTS:
            found["out of memory"] = out_of_memory(group, layout, "one", 24)
    return found | {"mistakes": mistakes(group, layout)}


@cache
def found(size: int) -> list[Found]:
    """What every process of a world has found of everything, by rank."""
    for library in (
        "torch._dynamo",
        "torch.distributed.fsdp",
    ):  # loaded once, before the processes are forked
        import_module(library)
    return worlds.world(size, all_work, worlds.LAYOUTS[size], seconds=120)


def training(group: Group, layout: Layout) -> Found:
    """All steps at once, and in two runs; of towers that are divided, or are not, or only from the
    checkpoint on."""
    with tempfile.TemporaryDirectory() as folder:
        place = [folder]
        dist.broadcast_object_list(place)  # the main process writes
        checkpoint = Path(place[0]) / "checkpoint"
        found = {
            "through": trained(group, layout, True, checkpoint),
            "undivided": trained(group, layout, False, checkpoint),
        }
        trained(group, layout, True, checkpoint, stop=2)
        found["resumed"] = trained(group, layout, True, checkpoint, begin=2)
        found["resumed undivided"] = trained(group, layout, False, checkpoint, begin=2)
        group.wait()
    return found
