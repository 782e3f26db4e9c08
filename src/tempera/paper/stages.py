"""The stages of a step on paper: first pass, loss, backward pass, optimiser, exchange, each with
the cost of its operations.

The step's own code runs, on the rows of one batch, with towers and embeddings without numbers; see
`cost`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..arithmetic.table import Table
from ..core.batch import Batch, divide
from ..core.objective import Objective, base_of
from ..core.temperature import Temperature
from ..core.tiles import SCORE_BYTES, tile_elements
from ..engine import outlook
from ..engine.cache import Cache, Embedded
from ..engine.curation import as_many, guides_of, judging
from ..engine.devices import DTYPES
from ..engine.fused import Fused, Kernel, Reach
from ..engine.micro_batches import Plan
from ..engine.optim import adagrad_rows, adam, set_sparse, total_norm
from ..engine.training_options import Training
from ..parallel.distributed import ALONE, CPU, buckets
from ..parallel.divided_tables import divisible
from ..parallel.exchange import column_offsets, columns_of, header_of, leaf
from .cost import (
    META,
    AsAccelerator,
    Call,
    Kind,
    Ledger,
    Operation,
    Stage,
    UnreadableError,
    blank,
    fakes,
    on_paper,
)

GUIDE = "choice, losses"
CHOICE = "choice, towers"
FIRST = "towers, first pass"
LOSS = "loss"
BACKWARD = "towers, backward"
OPTIMISER = "optimiser"
EXCHANGE = "exchange"
# Most micro-batches that are counted; on a CPU each takes a second or so.
MICROS = {"cpu": 6, "meta": 64}


@dataclass(frozen=True)
class StepOnPaper:
    """A step, counted and not taken.

    Args:
        stages: the stages of a device by name, in order.
        plan: the micro-batches.
        memory: bytes of a device at the peak, by use.
        width: of the embeddings.
        tile: scores held at once.
        examples: a call of each kind of operation.
        kernel: the kernel of the loss stage.
    """

    stages: dict[str, Stage]
    plan: Plan
    memory: dict[str, float]
    width: int
    tile: int
    examples: Mapping[Kind, tuple[Operation, Call]]
    kernel: Kernel = "torch"


def step_on_paper(
    towers: nn.Module,
    objective: nn.Module,
    batch: Batch[Any],
    options: Training,
    memory: float | None = None,
    count: int = 1,
    kernels: Reach = "no",
) -> StepOnPaper:
    """Count a step on a batch of all devices' rows, for one of `count` equal devices.

    Towers with a choice of rows on the device, as towers of item texts, need the numbers of the
    rows. The step of an accelerator is then counted by the operations of a CPU.

    Args:
        memory: bytes of an accelerator; None is a CPU.
        kernels: reach of the fused kernels on the device.
    """
    if memory is not None:
        with suppress(UnreadableError):
            return _counted(towers, objective, batch, options, META, memory, count, kernels)
    return _counted(towers, objective, batch, options, CPU, memory, count, "no")


def _counted(
    towers: nn.Module,
    objective: nn.Module,
    batch: Batch[Any],
    options: Training,
    device: torch.device,
    memory: float | None,
    count: int,
    kernels: Reach,
) -> StepOnPaper:
    """Count a step as on one device; `memory` is None for a CPU."""
    encoder = on_paper(towers, device).train()
    scored = objective_on_paper(objective, device)
    shared = _shared(encoder, options)

    def parts(p: Tensor) -> int:
        return count if p in shared else 1

    free = None
    if memory is not None:
        free = memory - sum(p.nbytes / parts(p) for p in encoder.parameters())
    set_sparse(encoder, options.table_optimizer == "rowwise_adagrad")
    if options.divide_tables:
        _make_gradients_of_rows(encoder, shared)
    cache = _cache(options, device, free)
    ledger = Ledger(device)
    most = MICROS[device.type]
    mine = _largest(batch, count)
    with ledger("the footprints that a run measures once"):
        cache.plan(encoder, mine)
    ledger.stages.clear()
    ledger.examples.clear()

    if options.select != 1:
        _choose(ledger, encoder, _tiled(scored, device, free), batch, options, cache, count)
        batch = as_many(batch, options.select)
        mine = _largest(batch, count)
    with _reading(encoder) as read, ledger(FIRST):
        sample = _sample(cache.plan(encoder, mine), most)
        embedded = cache.embed_plan(sample.plan, mine)
    rows = embedded.batch.doc.rows
    width = rows.shape[1]
    fused = None
    loss_pass = options.loss_pass(kernels, options.mixed_precision)
    if isinstance(loss_pass, Fused) and kernels != "no":
        fused = counting(ledger, loss_pass)
        base_of(scored).loss_pass = fused
    tile = loss_on_paper(ledger, scored, _everyone(batch, rows, len(mine)), free)
    grads = {role: side.rows.detach() for role, side in embedded.batch.sides().items()}
    with ledger(BACKWARD):
        embedded.backward(grads)
    reads = {table: min(len(table), int(sample.times * number)) for table, number in read.items()}
    modules = nn.ModuleDict({"towers": towers, "objective": objective})
    _optimise(ledger, modules, options, list(reads.values()), count)
    ledger.stages[EXCHANGE] = _exchange(
        embedded, sample.whole, encoder, options, count, shared, reads
    )
    for name in (FIRST, BACKWARD):
        ledger.stages[name].repeat(sample.times, sample.calls)
    for name in (FIRST, LOSS, BACKWARD):
        ledger.stages[name].repeat(options.gradient_accumulation_steps)

    by_kernels = fused is not None and fused.works
    score_bytes = fused.score_bytes if fused is not None and fused.works else SCORE_BYTES
    scores = score_bytes * min(tile, outlook.block(base_of(scored), batch, len(mine)))
    return StepOnPaper(
        stages=ledger.stages,
        plan=sample.whole,
        memory=outlook.memory(sample.whole, [encoder, scored], scores, width, parts),
        width=width,
        tile=tile,
        examples=ledger.examples,
        kernel="triton" if by_kernels else "torch",
    )


def _make_gradients_of_rows(towers: nn.Module, shared: set[Tensor]) -> None:
    """Let divided tables have gradients of the rows read, and of no other rows."""
    for table in towers.modules():
        if isinstance(table, Table) and table.weight in shared:
            table.lookup = partial(nn.functional.embedding, weight=table.weight, sparse=True)


def _choose(
    ledger: Ledger,
    encoder: nn.Module,
    objective: Objective,
    batch: Batch[Any],
    options: Training,
    cache: Cache,
    count: int,
) -> None:
    """Count the choice of rows: the guide's losses, and by learnability the model's losses."""
    mine = _largest(batch, count)
    judge = judging(objective)
    guides = guides_of(batch)["doc"]
    with ledger(GUIDE):
        blanks = blank(1, guides.shape[1], dtype=guides.dtype, device=ledger.device)
        judge.contrastive_losses(_everyone(batch, blanks, len(mine)))
    if options.select_by == "learnability":
        with ledger(CHOICE), torch.no_grad():
            sample = _sample(cache.plan(encoder, mine), MICROS[ledger.device.type])
            rows = cache.embed_plan(sample.plan, mine).batch.doc.rows
        with ledger(GUIDE), torch.no_grad():
            judge.contrastive_losses(_everyone(batch, rows, len(mine)))
        ledger.stages[CHOICE].repeat(sample.times, sample.calls)
    for stage in ledger.stages.values():
        stage.repeat(options.gradient_accumulation_steps)


def counting(ledger: Ledger, fused: Fused) -> Fused:
    """Return fused kernels to count and not to run; each kernel multiplies the first two
    tensors."""

    def launch(
        name: str, programs: int, arguments: Sequence[Any], sizes: Mapping[str, Any]
    ) -> None:
        anchors, candidates = arguments[:2]
        distinct = {id(x): x for x in arguments if isinstance(x, Tensor)}
        moved = sum(x.nbytes for x in distinct.values())
        flops = 2 * anchors.numel() * len(candidates)
        ledger.note(Operation(name, anchors.dtype, flops, moved))

    return replace(fused, launch=launch)


def objective_on_paper(objective: nn.Module, device: torch.device) -> Any:
    """Return a copy of an objective on a device; the temperature keeps a number for the host."""
    return copy.deepcopy(objective).to(device)


def loss_on_paper(
    ledger: Ledger, objective: Any, everyone: Batch[Tensor], free: float | None = None
) -> int:
    """Count the loss stage on an embedded batch, with a full memory; return the scores of a tile.

    Args:
        free: bytes of an accelerator's memory; None is a CPU.
    """
    device = ledger.device
    base = _tiled(objective, device, free)
    if base.memory is not None:
        for _ in range(-(-base.memory.size // len(everyone.doc))):
            base.remember(everyone)
    with ledger(LOSS):
        objective.propagate(objective.recall(everyone), everyone.shares())
    return base.tile_size(device)


def _tiled(objective: nn.Module, device: torch.device, free: float | None) -> Objective:
    """Return the objective without its widths, with tiles for `free` bytes of an accelerator; None
    is a CPU."""
    base = base_of(objective)
    base.tiles = {device.type: tile_elements(device if free is None else META, free)}
    return base


@dataclass(frozen=True)
class _Sample:
    """Some micro-batches of a plan, evenly spread over their lengths, which stand for all.

    Args:
        whole: the plan.
        plan: the micro-batches of the sample.
        times: tokens of the whole plan over tokens of the sample.
        calls: micro-batches of the whole plan over micro-batches of the sample.
    """

    whole: Plan
    plan: Plan
    times: float
    calls: float


def _sample(whole: Plan, most: int) -> _Sample:
    """Return at most `most` micro-batches of a plan; kept and replayed micro-batches are taken in
    proportion."""
    micros = whole.micros
    some = micros[:: max(1, -(-len(micros) // most))]
    tokens = sum(micro.tokens for micro in micros)
    tokens_of_some = sum(micro.tokens for micro in some)
    return _Sample(
        whole=whole,
        plan=Plan(whole.works, [replace(micro, number=i) for i, micro in enumerate(some)]),
        times=tokens / max(1, tokens_of_some),
        calls=len(micros) / max(1, len(some)),
    )


def _cache(options: Training, device: torch.device, free: float | None) -> Cache:
    """Return the cache of a run with `free` bytes of an accelerator's memory; None is a CPU."""
    dtype = DTYPES[options.mixed_precision]
    half = dtype != torch.float32
    autocast: Any = partial(torch.autocast, "cpu", dtype, enabled=half)
    if device == META:
        autocast = partial(AsAccelerator, dtype)
    kind = CPU if free is None else META
    sizes = Cache(options.cache, options.cache_memory, device=kind, free=free)
    # Meta tensors do not tell the precision, so `half` is given.
    cache = Cache(
        options.cache, sizes.bytes, options.micro_batch_tokens, device, autocast, half=half
    )
    cache.micro_bytes = sizes.micro_bytes
    return cache


def _largest(batch: Batch[Any], count: int) -> Batch[Any]:
    """Return the largest part of a batch among so many devices."""
    return divide(batch, count - 1, count)


def _shared(towers: nn.Module, options: Training) -> set[Tensor]:
    """Return the parameters that are divided among the devices."""
    if options.fsdp:
        return set(towers.parameters())
    if options.divide_tables:
        return divisible(towers)
    return set()


@contextmanager
def _reading(towers: nn.Module) -> Iterator[dict[Tensor, int]]:
    """Count the rows of each table that are read in the block, each row at most once."""
    tables = [m for m in towers.modules() if isinstance(m, Table)]
    read = {table.weight: 0 for table in tables}

    def count(table: Table, inputs: tuple[Tensor, ...]) -> None:
        read[table.weight] = min(len(table.weight), read[table.weight] + inputs[0].numel())

    hooks = [table.register_forward_pre_hook(count) for table in tables]
    yield read
    for hook in hooks:
        hook.remove()


def _everyone(batch: Batch[Any], rows: Tensor, mine: int) -> Batch[Tensor]:
    """Return the embeddings of all devices' rows, without numbers, as leaves."""
    sides = {}
    for role, side in batch.sides().items():
        embeddings = blank(len(side), rows.shape[1], dtype=rows.dtype, device=rows.device)
        sides[role] = leaf(embeddings)
    return replace(batch.of(sides).to(rows.device), span=range(mine))


def _optimise(
    ledger: Ledger, modules: nn.Module, options: Training, read: list[int], count: int
) -> None:
    """Count the norm of all gradients and the optimiser's step, on any device by the kernels of a
    CPU.

    Args:
        read: rows of each table that a step reads.
    """
    counter = Ledger(CPU)
    paper = on_paper(modules, CPU)
    _keep_parts(paper, _shared(paper["towers"], options), count)
    tables = list(dict.fromkeys(m.weight for m in paper.modules() if isinstance(m, Table)))
    rowwise = options.table_optimizer == "rowwise_adagrad"
    optimizer = adam(
        paper, options.learning_rate, options.temperature_learning_rate, options.weight_decay
    )
    apart = set()
    for module in paper.modules():
        if isinstance(module, Temperature):  # stays on the host
            apart |= {id(p) for p in module.parameters()}
    if rowwise:
        apart |= {id(table) for table in tables}
    for p in paper.parameters():
        p.grad = torch.empty_like(p) if p.requires_grad and id(p) not in apart else None
    with fakes():
        optimizer.step()  # makes its moments
    with fakes(), counter(OPTIMISER), torch.no_grad():
        total_norm(list(paper.parameters()), ALONE)
        if options.max_grad_norm is not None:
            torch._foreach_mul_([p.grad for p in paper.parameters() if p.grad is not None], 1.0)
        optimizer.step()
        if rowwise:
            for table, rows in zip(tables, read, strict=True):
                some = blank(rows, table.shape[1], dtype=table.dtype, device=CPU)
                adagrad_rows(some, torch.empty_like(some), some[:, 0], 0.1)
    ledger.stages |= counter.stages
    ledger.examples |= counter.examples


def _keep_parts(modules: nn.Module, shared: set[Tensor], count: int) -> None:
    """Replace each parameter to divide among so many devices by the part of a single device."""
    kept: dict[Tensor, nn.Parameter] = {}
    for module in modules.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if p not in shared or not p.dim():
                continue
            if p not in kept:
                rows = -(-len(p) // count)
                own = p.detach().new_empty(rows, *p.shape[1:])
                kept[p] = nn.Parameter(own, p.requires_grad)
            setattr(module, name, kept[p])


def _exchange(
    embedded: Embedded,
    plan: Plan,
    towers: nn.Module,
    options: Training,
    count: int,
    shared: set[Tensor],
    reads: Mapping[Tensor, int],
) -> Stage:
    """Return the stage in which one device sends rows, the gradients of other devices' rows, and
    the sums of the parameters' gradients.

    In a ring a gather of s bytes in all sends s (p - 1) / p from each of p devices, a
    reduce-scatter as much, and an all-reduce twice as much. Divided towers are gathered once for
    every call, in the precision of the towers, once more backward, and then reduced. For divided
    tables, numbers of rows, vectors and gradients are sent, and for sparse gradients the rows.

    Args:
        plan: all micro-batches of the device.
        shared: parameters that are divided among the devices.
        reads: rows of each table that the device reads.
    """
    stage = Stage()
    if count == 1:
        return stage
    others = (count - 1) / count

    def send(name: str, size: float, times: int = 1) -> None:
        stage.operations[Operation(name, torch.uint8, 0, 0, int(size * others))] += times

    columns = columns_of(embedded.batch)
    again = options.gradient_accumulation_steps
    send("all-gather of rows", count * column_offsets(header_of(columns))[-1], again)
    grads = sum(side.rows.nbytes for side in embedded.batch.sides().values())
    send("reduce-scatter of gradients", count * grads, again)
    if options.fsdp:
        half = DTYPES[options.mixed_precision].itemsize
        size = sum(p.numel() * min(half, p.itemsize) for p in shared)
        calls = len(plan.micros)
        replayed = sum(not micro.kept for micro in plan.micros)
        send("gather of weights", size, again * (2 * calls + replayed))
        weights = sum(p.nbytes for p in shared)
        send("reduce-scatter of weights' gradients", weights, again * calls)
        return stage
    for table in shared:
        rows = reads.get(table, 0)
        vectors = rows * table[0].nbytes
        send("all-to-all of rows of tables", 8 * rows, again)
        send("all-to-all of vectors of tables", vectors, again)
        send("all-to-all of gradients of tables", vectors, again)
    sparse = {m.weight for m in towers.modules() if isinstance(m, Table) and m.sparse} - shared
    for table in sparse:
        send("gather of sparse gradients", count * reads.get(table, 0) * (8 + table[0].nbytes))
    dense = [p for p in towers.parameters() if p.requires_grad and p not in shared | sparse]
    for bucket in buckets(dense):
        send("all-reduce of gradients", 2 * sum(p.nbytes for p in bucket))
    return stage
