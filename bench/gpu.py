"""Everything that has to be shown on an accelerator, in one command: `make gpu`, or `python
bench/gpu.py [PAIRS]`.

`tempera verify`, the tests marked `gpu`, what the card multiplies and moves, the loss stage against
the CPU's, its time and memory at 65,536 pairs, in tiles and by kernels, a whole step of a 6-layer,
384-wide transformer in bf16, alone and against sentence-transformers' losses, and two cards against
one where there are two. Without one it ends in one line.
"""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from _chunked import chunked
from _harness import Aim, arguments, finish
from tempera import Batch, Objective, Side, gte, mnr, symmetric
from tempera.arithmetic.abilities import free_memory, missing
from tempera.core.batch import divide
from tempera.core.masks import SameId
from tempera.engine import fused, loop
from tempera.engine.cache import Cache
from tempera.engine.devices import start
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.paper.machines import measured
from tempera.parallel.distributed import Group
from tempera.towers.transformer import Transformer

ROOT = Path(__file__).parents[1]
Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Sizes of what is measured."""

    pairs: int = 65_536
    compared: int = 2048  # pairs that the CPU and two cards compute too
    width: int = 384
    tower: Transformer = field(default_factory=lambda: Transformer(6, 384, 12, 30_000, 64))
    words: int = 40  # at most, in a text
    rounds: int = 3
    widths: tuple[int, ...] = (64, 384, 768)  # at which the kernels are compared with tiles
    against: tuple[int, ...] = (1024, 8192)  # pairs of a step that sentence-transformers takes too
    other_lengths: tuple[int, ...] = (
        64,
    )  # pairs of steps on short texts, whose lengths differ from step to step


def timed(run: Callable[[], Any], rounds: int, pairs: int, device: torch.device) -> Figures:
    """Return the shortest time of a warm run, for whose end the program waits, and the peak memory
    if the device knows it."""
    run()
    seconds, peak = [], None
    for _ in range(rounds):
        torch.accelerator.synchronize(device)
        begun = time.perf_counter()
        run()
        torch.accelerator.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    with suppress(RuntimeError, AttributeError):
        peak = torch.accelerator.max_memory_allocated(device)
        torch.accelerator.reset_peak_memory_stats(device)
    return {
        "pairs": pairs,
        "milliseconds": 1000 * min(seconds),
        "per_second": pairs / min(seconds),
        "peak_bytes": peak,
    }


def rows_of(pairs: int, width: int, dtype: torch.dtype, device: torch.device) -> Batch[Tensor]:
    """Return embeddings that are leaves on a device, with ids of which some are of several rows."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(pairs, (pairs,), generator=draw)
    sides = (Side(torch.randn(pairs, width, generator=draw).to(dtype), ids) for _ in range(2))
    return Batch(*sides).to(device).map(lambda rows: rows.requires_grad_())


def passed(objective: Objective, batch: Batch[Tensor]) -> list[Tensor]:
    """Run the loss stage; return losses and gradients."""
    for side in batch.sides().values():
        side.rows.grad = None
    losses = objective.propagate(batch, batch.shares())
    return [
        losses,
        *(side.rows.grad for side in batch.sides().values() if side.rows.grad is not None),
    ]


def gap(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """Return the largest distance of two tensors, relative to the wanted one."""
    pairs = [(x.cpu().double(), y.cpu().double()) for x, y in zip(got, want, strict=True)]
    return max(float((x - y).norm() / y.norm().clamp(min=1e-30)) for x, y in pairs)


def loss_stage(sizes: Sizes, device: torch.device) -> tuple[Figures, list[Aim]]:
    """Compare the loss stage with the CPU's, and time it on embeddings in float32 and in bf16."""
    figures, aims, masks = {}, [], (SameId(),)
    for name, make in {
        "mnr": mnr,
        "symmetric": symmetric,
        "gte, same ids": partial(gte, masks=masks),
    }.items():
        few = [
            rows_of(sizes.compared, sizes.width, torch.float32, place)
            for place in (device, torch.device("cpu"))
        ]
        got, want = (passed(make().to(rows.doc.rows.device), rows) for rows in few)
        aims.append(Aim(f"loss and gradients of {name} off the CPU's", gap(got, want), 1e-3))
        for precision, dtype in {"float32": torch.float32, "bf16": torch.bfloat16}.items():
            run = partial(
                passed, make().to(device), rows_of(sizes.pairs, sizes.width, dtype, device)
            )
            figures[f"loss stage, {name}, {precision}"] = timed(
                run, sizes.rounds, sizes.pairs, device
            )
    return figures, aims


def kernel_stage(sizes: Sizes, device: torch.device) -> tuple[Figures, list[Aim]]:
    """Compare the fused kernels with tiles, and time both and torch's chunked cross entropy, where
    the kernels run."""
    figures, aims = {}, []
    if device.type != fused.DEVICE:
        return figures, aims
    parts = {"mnr": mnr, "symmetric, same ids": partial(symmetric, masks=(SameId(),))}
    for width, (name, make) in product(sizes.widths, parts.items()):
        few, rows = (
            rows_of(pairs, width, torch.float32, device) for pairs in (sizes.compared, sizes.pairs)
        )
        ways, want = (
            {"tiles": partial(passed, make().to(device), rows)},
            passed(make().to(device), few),
        )
        for way, count in {"kernels": 2, "kernels in half precision": 1}.items():
            by_kernels = make().to(device)
            by_kernels.loss_pass = fused.Fused(count)
            off = gap(passed(by_kernels, few), want)
            aims.append(
                Aim(f"{way} off tiles: {name}, width {width}", off, 1e-5 if count == 2 else 1e-2)
            )
            ways[way] = partial(passed, by_kernels, rows)
        if name == "mnr" and hasattr(torch.nn.functional, "linear_cross_entropy"):
            ways["linear_cross_entropy"] = partial(chunked, rows.query.rows, rows.doc.rows)
        for way, run in ways.items():
            figures[f"{name}, width {width}: {way}"] = timed(run, sizes.rounds, sizes.pairs, device)
    return figures, aims


def texts(pairs: int, words: int) -> list[list[str]]:
    """Return queries and documents of words that both share."""
    draw = random.Random(0)
    known = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(20_000)]
    docs = [draw.choices(known, k=draw.randint(4, words)) for _ in range(pairs)]
    return [[" ".join(doc[:3]) for doc in docs], [" ".join(doc) for doc in docs]]


def towers(sizes: Sizes, pairs: int, options: Transformer) -> tuple[Any, Batch[Any]]:
    """Return a tower and a batch of its features."""
    columns = texts(pairs, sizes.words)
    tower: Any = options.build(columns[1][: sizes.compared]).train()
    return tower, Batch(*(Side(tower.features(column)) for column in columns))


def whole_step(sizes: Sizes) -> Figures:
    """Time a training step in bf16: towers, loss stage, backward passes and optimiser, with as many
    graphs as fit."""
    devices, options = (
        start("bf16"),
        Training(mixed_precision="bf16", learning_rate=5e-4, evaluations=0),
    )
    tower, batch = towers(sizes, sizes.pairs, sizes.tower)
    device, count = devices.group.device, sizes.rounds + 1
    state = loop.begin(tower.to(device), mnr().to(device), options, devices)
    steps = loop.train(state, [batch] * count, count, options, devices)
    return timed(lambda: next(steps), sizes.rounds, sizes.pairs, device)


def readers(
    sizes: Sizes, pairs: int, device: torch.device, batches: int = 1
) -> tuple[Any, Callable[..., float], Callable[..., float]]:
    """Return a model and two functions that go forward and backward on the same texts: ours, and
    that of a loss of theirs.

    Each takes the batches in turn. Their texts are on the device before, ours are copied in every
    step. There is no dropout.
    """
    options, columns = replace(sizes.tower, dropout=0.0), texts(pairs * batches, sizes.words)
    tower, whole = towers(sizes, pairs * batches, options)
    tower, model, group = tower.to(device), tower.model, Group(device=device)
    cuts = [slice(start, start + pairs) for start in range(0, pairs * batches, pairs)]
    own = cycle(
        [Batch(*(Side(side.rows[cut]) for side in (whole.query, whole.doc))) for cut in cuts]
    )
    read = cycle(
        [[_on(device, model.preprocess(column[cut])) for column in columns] for cut in cuts]
    )

    @lru_cache
    def cache(precision: Any) -> Cache:
        return Cache(
            device=device, autocast=start(precision).autocast
        )  # which measures the tower once, as in a run

    def ours(objective: Objective, precision: Any = "bf16") -> float:
        return step(tower, objective.to(device), next(own), cache(precision), group)

    def theirs(loss: Any, precision: str = "bf16") -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            value = loss([dict(each) for each in next(read)], torch.empty(0))
        value.backward()
        return value.item()

    return model, ours, theirs


def _on(device: torch.device, inputs: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in inputs.items() if isinstance(value, Tensor)}


def against(sizes: Sizes, pairs: int, device: torch.device, batches: int = 1) -> Figures:
    """Time forward and backward pass in bf16 against sentence-transformers' losses; what does not
    fit the card is left out.

    With several batches, each step has texts of other lengths, as in training, and kernels that are
    prepared for one shape do not serve the next.
    """
    from sentence_transformers.sentence_transformer import losses

    model, ours, theirs = readers(sizes, pairs, device, batches)
    several = "" if batches == 1 else ", each of other lengths"
    cached, by_kernels = losses.CachedMultipleNegativesRankingLoss, mnr()
    by_kernels.loss_pass = fused.Fused(1)
    ways: dict[str, Callable[[], float]] = {
        "Tempera": partial(ours, mnr()),
        "Tempera, kernels": partial(ours, by_kernels),
        "MultipleNegativesRankingLoss": partial(theirs, losses.MultipleNegativesRankingLoss(model)),
        "its cached loss, mini-batches of 32": partial(theirs, cached(model, mini_batch_size=32)),
        "its cached loss, mini-batches of 512": partial(
            theirs, cached(model, mini_batch_size=min(512, pairs))
        ),
    }
    figures = {}
    for name, run in ways.items():
        model.zero_grad()
        with suppress(torch.OutOfMemoryError):
            figures[f"step of {pairs:,} pairs, bf16{several}: {name}"] = timed(
                run, sizes.rounds, pairs, device
            )
    return figures


def same_gradients(sizes: Sizes, device: torch.device) -> Aim:
    """Compare our gradients with those of sentence-transformers' loss, in float32."""
    from sentence_transformers.sentence_transformer import losses

    pairs = min(256, sizes.compared)
    model, ours, theirs = readers(sizes, pairs, device)

    def gradient(run: Callable[[], float]) -> list[Tensor]:
        model.zero_grad()
        return [
            torch.tensor(run()),
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]),
        ]

    got = gradient(partial(ours, mnr(), "no"))
    off = gap(got, gradient(partial(theirs, losses.MultipleNegativesRankingLoss(model), "no")))
    return Aim(f"gradients of {pairs} pairs off sentence-transformers'", off, 1e-3)


def ceilings(device: torch.device) -> Figures:
    """Return what the card multiplies in a second, and moves, as `tempera plan` measures it."""
    machine = measured(device)
    rates = {
        f"{str(dtype).removeprefix('torch.')} TFLOP/s": rate / 1e12
        for dtype, rate in machine.flops.items()
    }
    return {**rates, "TB/s": machine.bandwidth / 1e12, "launch, microseconds": machine.launch * 1e6}


def one_card(rank: int, cards: int, kind: str, folder: str, tower: Any, batch: Batch[Any]) -> None:
    """Write loss and gradient of a step in float32 as one of some cards computes them."""
    device = torch.device(kind, rank)
    if cards > 1:
        torch.accelerator.set_device_index(rank)
        store, backend = (
            f"file://{folder}/store",
            torch.distributed.get_default_backend_for_device(kind),
        )
        torch.distributed.init_process_group(
            backend, init_method=store, rank=rank, world_size=cards
        )
    tower, group = copy.deepcopy(tower).to(device), Group(rank, cards, device)
    loss = step(
        tower, symmetric().to(device), divide(batch, rank, cards), Cache(device=device), group
    )
    group.all_reduce_gradients(tower.parameters())
    gradient = torch.cat([p.grad.flatten() for p in tower.parameters() if p.grad is not None]).cpu()
    save_file(
        {"loss": torch.tensor(loss), "gradient": gradient},
        Path(folder) / f"{cards}-{rank}.safetensors",
    )
    if cards > 1:
        torch.distributed.destroy_process_group()


def cards_agree(sizes: Sizes, device: torch.device, cards: int) -> list[Aim]:
    """Compare the gradients of several cards with those of one."""
    given = towers(sizes, sizes.compared, replace(sizes.tower, dropout=0.0))
    with tempfile.TemporaryDirectory() as folder:
        one_card(0, 1, device.type, folder, *given)
        if cards > 1:
            spawn(one_card, (cards, device.type, folder, *given), nprocs=cards)
        want, *others = (
            list(load_file(path).values()) for path in sorted(Path(folder).glob("*.safetensors"))
        )
    return [
        Aim(f"loss and gradient of card {i} of {cards} off one's", gap(x, want), 1e-3)
        for i, x in enumerate(others)
    ]


def checked(folder: str) -> list[Aim]:
    """Run what has to end well, and return the exit codes."""
    pairs = Path(folder) / "pairs.csv"
    pairs.write_text(
        "\n".join(["query,doc", *map(",".join, zip(*texts(200, 8), strict=True))]), encoding="utf-8"
    )
    options = [
        "tower={kind: transformer, layers: 2, width: 64, heads: 2}",
        "train.mixed_precision=bf16",
    ]
    tests = ["-m", "gpu", "-p", "no:cacheprovider", "-o", "python_files=on_*.py", "tests/devices"]
    aims, environment = [], {**os.environ, "TEMPERA_TESTS": "gpu"}
    scaled = [
        "tempera",
        "train",
        str(pairs),
        *options[:1],
        "train.mixed_precision=fp16",
        "--output",
        f"{folder}/fp16",
    ]
    for command in (["tempera", "verify", str(pairs), *options], scaled, ["pytest", *tests]):
        print(f"{' '.join(command)}:", flush=True)
        code = subprocess.call([sys.executable, "-m", *command], cwd=ROOT, env=environment)
        aims.append(Aim(f"exit code of {' '.join(command[:2])}", code, 0))
    return aims


def shown(rows: Figures) -> Figures:
    """Print rows of the table as soon as they are measured, and return them."""
    for name, of in rows.items():
        peak = "" if of["peak_bytes"] is None else f"{of['peak_bytes'] / 2**20:,.0f}"
        print(
            f"| {name} | {of['pairs']:,} | {of['milliseconds']:,.1f} | {of['per_second']:,.0f} | {peak} |",
            flush=True,
        )
    return rows


def main(sizes: Sizes, check: Callable[[str], list[Aim]] = checked) -> None:
    """Check and measure all, print a table in Markdown, and write the record."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        print(
            "There is no accelerator: torch finds a CPU only, so nothing was checked or measured."
        )
        return
    device, cards = torch.device(kind.type, 0), torch.accelerator.device_count()
    with tempfile.TemporaryDirectory() as folder:
        aims = check(folder)
    named = getattr(torch.get_device_module(device), "get_device_name", lambda device: kind.type)
    card = {
        "name": named(device),
        "cards": cards,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    card |= {"free_bytes": free_memory(device), "lacks": missing(device), **ceilings(device)}
    print(f"\n{card['name']}, {cards} of them\n")
    print("| | pairs | ms | pairs per second | peak MiB |\n|---|---:|---:|---:|---:|")
    rows = Figures()
    for stage in (loss_stage, kernel_stage):
        figures, more = stage(sizes, device)
        rows |= shown(figures)
        aims += more
    rows |= shown({"whole step, mnr, bf16": whole_step(sizes)})
    for pairs in sizes.against:
        rows |= shown(against(sizes, pairs, device))
    for pairs in sizes.other_lengths:
        batches = 3 * (
            sizes.rounds + 1
        )  # for three ways of theirs, so that no batch comes twice; two are ours
        rows |= shown(against(replace(sizes, words=sizes.words // 2), pairs, device, batches))
    aims += [
        *([same_gradients(sizes, device)] if sizes.against else []),
        *cards_agree(sizes, device, min(cards, 2)),
    ]
    finish(
        "gpu",
        {"device": card, "measured": rows},
        aims,
        ["torch", "triton", "sentence-transformers"],
    )


if __name__ == "__main__":
    main(Sizes(arguments(__doc__, pairs=Sizes.pairs).pairs))
