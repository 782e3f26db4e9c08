"""The stages of a step on paper: first pass, loss, backward pass, optimiser, exchange, each with
what its operations cost.

The step's own code runs, on the rows of one batch, with towers and embeddings that have no numbers;
see `cost`.
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
from ..parallel.distributed import ALONE, CPU, Group, buckets
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

GUIDE, CHOICE = "choice, losses", "choice, towers"
FIRST, LOSS, BACKWARD = "towers, first pass", "loss", "towers, backward"
OPTIMISER, EXCHANGE = "optimiser", "exchange"
MICROS = {"cpu": 6, "meta": 64}  # that are counted at most; on a CPU each takes a second or so


@dataclass(frozen=True)
class StepOnPaper:
    """A step that has only been counted.

    Args:
        stages: by name, in their order; those of one device.
        plan: the micro-batches.
        memory: bytes of one device at the peak, by what they are for.
        width: of the embeddings.
        tile: scores held at once.
        examples: one call of each kind of operation.
        kernel: what computes the loss stage.
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
    """Count a step on a batch of all devices' rows, as the first of `count` equal devices takes it.

    Towers that choose rows on the device, as those that read texts of items, need the numbers of
    these rows. The step of an accelerator is then counted with the operations that a CPU takes for
    it.

    Args:
        memory: bytes of an accelerator; None is a CPU.
        kernels: whether the fused kernels run on it, and pay.
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
    encoder, scored = on_paper(towers, device).train(), objective_on_paper(objective, device)
    shared = _shared(encoder, options)

    def parts(p: Tensor) -> int:
        return count if p in shared else 1

    free = (
        None if memory is None else memory - sum(p.nbytes / parts(p) for p in encoder.parameters())
    )
    set_sparse(encoder, options.table_optimizer == "rowwise_adagrad")
    for table in encoder.modules():
        if isinstance(table, Table) and options.divide_tables and table.weight in shared:
            table.lookup = partial(
                nn.functional.embedding, weight=table.weight, sparse=True
            )  # gradients of rows alone
    cache, ledger, mine = _cache(options, device, free), Ledger(device), _largest(batch, count)
    with ledger("the footprints that a run measures once"):
        cache.plan(encoder, mine)
    ledger.stages.clear()
    ledger.examples.clear()
    cache.most = MICROS[device.type]
    if options.select != 1:
        _choose(ledger, encoder, _tiled(scored, device, free), batch, options, cache, count)
        batch = as_many(batch, options.select)
        mine = _largest(batch, count)
    with _reading(encoder) as read, ledger(FIRST):
        embedded = cache.embed(encoder, mine)
    rows = embedded.batch.doc.rows
    everyone = _everyone(batch, rows, len(mine))
    loss_pass = options.loss_pass(kernels, options.mixed_precision)
    if isinstance(loss_pass, Fused) and kernels != "no":
        loss_pass = counting(ledger, loss_pass)
        base_of(scored).loss_pass = loss_pass
    tile = loss_on_paper(ledger, scored, everyone, free)
    fused = loss_pass if isinstance(loss_pass, Fused) and loss_pass.works else None
    grads = {role: side.rows.detach() for role, side in embedded.batch.sides().items()}
    with ledger(BACKWARD):
        embedded.backward(grads)
    reads = {table: min(len(table), int(cache.times * number)) for table, number in read.items()}
    _optimise(
        ledger,
        nn.ModuleDict({"towers": towers, "objective": objective}),
        options,
        [*reads.values()],
        count,
    )
    ledger.stages[EXCHANGE] = _exchange(
        embedded, cache.whole, encoder, options, count, shared, reads
    )
    for name in (FIRST, BACKWARD):
        ledger.stages[name].repeat(cache.times, cache.calls)
    for name in (FIRST, LOSS, BACKWARD):
        ledger.stages[name].repeat(options.gradient_accumulation_steps)
    scores = (fused.score_bytes if fused else SCORE_BYTES) * min(
        tile, outlook.block(base_of(scored), batch, len(mine))
    )
    sizes = outlook.memory(cache.whole, [encoder, scored], scores, rows.shape[1], parts)
    return StepOnPaper(
        ledger.stages,
        cache.whole,
        sizes,
        rows.shape[1],
        tile,
        ledger.examples,
        "triton" if fused else "torch",
    )


def _choose(
    ledger: Ledger,
    encoder: nn.Module,
    objective: Objective,
    batch: Batch[Any],
    options: Training,
    cache: _Sampled,
    count: int,
) -> None:
    """Count what it takes to choose rows: the guide's losses, and by learnability the model's."""
    mine, judge = _largest(batch, count), judging(objective)
    guides = guides_of(batch)["doc"]
    with ledger(GUIDE):
        blanks = blank(1, guides.shape[1], dtype=guides.dtype, device=ledger.device)
        judge.contrastive_losses(_everyone(batch, blanks, len(mine)))
    if options.select_by == "learnability":
        with ledger(CHOICE), torch.no_grad():
            rows = cache.embed(encoder, mine).batch.doc.rows
        with ledger(GUIDE), torch.no_grad():
            judge.contrastive_losses(_everyone(batch, rows, len(mine)))
        ledger.stages[CHOICE].repeat(cache.times, cache.calls)
    for stage in ledger.stages.values():
        stage.repeat(options.gradient_accumulation_steps)


def counting(ledger: Ledger, fused: Fused) -> Fused:
    """Return fused kernels that are counted, and do not run: the first two tensors of each are
    multiplied."""

    def launch(
        name: str, programs: int, arguments: Sequence[Any], sizes: Mapping[str, Any]
    ) -> None:
        anchors, candidates = arguments[:2]
        moved = sum(
            x.nbytes for x in {id(x): x for x in arguments if isinstance(x, Tensor)}.values()
        )
        ledger.note(Operation(name, anchors.dtype, 2 * anchors.numel() * len(candidates), moved))

    return replace(fused, launch=launch)


def objective_on_paper(objective: nn.Module, device: torch.device) -> Any:
    """Return a copy of an objective; its temperature keeps its number, which the host needs."""
    return copy.deepcopy(objective).to(device)


def loss_on_paper(
    ledger: Ledger, objective: Any, everyone: Batch[Tensor], free: float | None = None
) -> int:
    """Count the loss stage on an embedded batch, with a memory that is full; return the scores of a
    tile.

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
    """Return the objective without its widths, with the tiles that so much free memory allows; None
    is a CPU's."""
    base = base_of(objective)
    base.tiles = {device.type: tile_elements(device if free is None else META, free)}
    return base


class _Sampled(Cache):
    """Embeds some of a plan's micro-batches, evenly spread over their lengths, which stand for all
    of them."""

    most: int | None = None
    whole: Plan
    times = 1.0  # that the tokens of those embedded are the tokens of all
    calls = 1.0  # and their number
    half = False

    def in_half(self) -> bool:
        """Return whether towers multiply in half precision, which meta tensors do not tell."""
        return self.half

    def plan(self, towers: Any, batch: Batch[Any], group: Group = ALONE) -> Plan:
        """Return at most `most` micro-batches, as many of those that keep their graph and of the
        others as there are of each."""
        self.whole = super().plan(towers, batch, group)
        micros = self.whole.micros
        some = micros[:: -(-len(micros) // self.most)] if self.most else micros
        self.times = sum(micro.tokens for micro in micros) / max(
            1, sum(micro.tokens for micro in some)
        )
        self.calls = len(micros) / max(1, len(some))
        return Plan(self.whole.works, [replace(micro, number=i) for i, micro in enumerate(some)])


def _cache(options: Training, device: torch.device, free: float | None) -> _Sampled:
    """Return the cache of a run with so much free memory on an accelerator; None is a CPU."""
    half = DTYPES[options.mixed_precision]
    autocast: Any = partial(torch.autocast, "cpu", half, enabled=half != torch.float32)
    autocast = partial(AsAccelerator, half) if device == META else autocast
    sizes = _Sampled(
        options.cache, options.cache_memory, device=CPU if free is None else META, free=free
    )
    cache = _Sampled(options.cache, sizes.bytes, options.micro_batch_tokens, device, autocast)
    cache.micro_bytes, cache.half = sizes.micro_bytes, half != torch.float32
    return cache


def _largest(batch: Batch[Any], count: int) -> Batch[Any]:
    """Return the part of a batch that one of so many devices embeds, one with the most rows, for
    which the others wait."""
    return divide(batch, count - 1, count)


def _shared(towers: nn.Module, options: Training) -> set[Tensor]:
    """Return the parameters that devices share out, of which each keeps its part."""
    if options.fsdp:
        return set(towers.parameters())
    return divisible(towers) if options.divide_tables else set()


@contextmanager
def _reading(towers: nn.Module) -> Iterator[dict[Tensor, int]]:
    """Count the rows that are read of each table in the block, each at most once."""
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
    sides = {
        role: leaf(blank(len(side), rows.shape[1], dtype=rows.dtype, device=rows.device))
        for role, side in batch.sides().items()
    }
    return replace(batch.of(sides).to(rows.device), span=range(mine))


def _optimise(
    ledger: Ledger, modules: nn.Module, options: Training, read: list[int], count: int
) -> None:
    """Count the norm of all gradients and the optimiser's step. Its kernels are those of a CPU's
    parameters on any device."""
    counter = Ledger(CPU)
    paper = on_paper(modules, CPU)
    _keep_parts(paper, _shared(paper["towers"], options), count)
    tables = list(dict.fromkeys(m.weight for m in paper.modules() if isinstance(m, Table)))
    rowwise = options.table_optimizer == "rowwise_adagrad"
    optimizer = adam(
        paper, options.learning_rate, options.temperature_learning_rate, options.weight_decay
    )
    dials = [
        p for m in paper.modules() if isinstance(m, Temperature) for p in m.parameters()
    ]  # stay on the host
    apart = {id(p) for p in (*dials, *(tables if rowwise else ()))}
    for p in paper.parameters():
        p.grad = torch.empty_like(p) if p.requires_grad and id(p) not in apart else None
    with fakes():
        optimizer.step()  # makes its moments
    with fakes(), counter(OPTIMISER), torch.no_grad():
        total_norm(list(paper.parameters()), ALONE)
        if options.max_grad_norm is not None:
            torch._foreach_mul_([p.grad for p in paper.parameters() if p.grad is not None], 1.0)
        optimizer.step()
        for table, rows in zip(tables, read, strict=True) if rowwise else ():
            some = blank(rows, table.shape[1], dtype=table.dtype, device=CPU)
            adagrad_rows(some, torch.empty_like(some), some[:, 0], 0.1)
    ledger.stages |= counter.stages
    ledger.examples |= counter.examples


def _keep_parts(modules: nn.Module, shared: set[Tensor], count: int) -> None:
    """Replace parameters that so many devices share out by the part of each that a device keeps."""
    kept = dict[Tensor, nn.Parameter]()
    for module in modules.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if p in shared and p.dim():
                if p not in kept:
                    rows = -(-len(p) // count)
                    kept[p] = nn.Parameter(
                        p.detach().new_empty(rows, *p.shape[1:]), p.requires_grad
                    )
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
    """Return what one device sends: rows, their gradients on the way home, and the sums of the
    parameters' gradients.

    In a ring a gather of s bytes in all sends s (p - 1) / p from each of p devices, a
    reduce-scatter as much, and an all-reduce twice as much. Towers that are divided are gathered
    once for every call of them, in the precision of the towers, once more backward, and then
    reduced. Of divided tables numbers of rows, vectors and gradients travel, and of sparse
    gradients the rows.

    Args:
        plan: all micro-batches of the device.
        shared: parameters of which each device keeps its part.
        reads: rows of each table that the device reads.
    """
    stage, others = Stage(), (count - 1) / count
    if count == 1:
        return stage

    def send(name: str, size: float, times: int = 1) -> None:
        stage.operations[Operation(name, torch.uint8, 0, 0, int(size * others))] += times

    columns, again = columns_of(embedded.batch), options.gradient_accumulation_steps
    send("all-gather of rows", count * column_offsets(header_of(columns))[-1], again)
    grads = sum(side.rows.nbytes for side in embedded.batch.sides().values())
    send("reduce-scatter of gradients", count * grads, again)
    replayed = sum(not micro.kept for micro in plan.micros)
    if options.fsdp:
        half = DTYPES[options.mixed_precision].itemsize
        size = sum(p.numel() * min(half, p.itemsize) for p in shared)
        send("gather of weights", size, again * (2 * len(plan.micros) + replayed))
        send(
            "reduce-scatter of weights' gradients",
            sum(p.nbytes for p in shared),
            again * len(plan.micros),
        )
        return stage
    for table in shared:
        rows, vectors = 8 * reads.get(table, 0), reads.get(table, 0) * table[0].nbytes
        for name, size in (("rows", rows), ("vectors", vectors), ("gradients", vectors)):
            send(f"all-to-all of {name} of tables", size, again)
    sparse = {m.weight for m in towers.modules() if isinstance(m, Table) and m.sparse} - shared
    for table in sparse:
        send("gather of sparse gradients", count * reads.get(table, 0) * (8 + table[0].nbytes))
    for bucket in buckets(
        [p for p in towers.parameters() if p.requires_grad and p not in shared | sparse]
    ):
        send("all-reduce of gradients", 2 * sum(p.nbytes for p in bucket))
    return stage
