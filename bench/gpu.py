"""Everything that has to be shown on an accelerator, in one command: `make gpu`, or `python bench/gpu.py [PAIRS]`.

`tempera verify`, the tests marked `gpu`, the loss stage against the CPU's, its time and memory at 65,536 pairs, in tiles and by
kernels, a whole step of a 6-layer, 384-wide transformer in bf16, and two cards against one where there are two. Without one it ends
in one line.
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
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from _chunked import chunked
from _harness import Aim, arguments, finish
from tempera import Batch, Objective, Side, gte, mnr, symmetric
from tempera.core.abilities import free_memory, missing
from tempera.core.batch import divide
from tempera.core.masks import SameId
from tempera.engine import fused, loop
from tempera.engine.cache import Cache
from tempera.engine.devices import start
from tempera.engine.distributed import Group
from tempera.engine.step import step
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
    widths: tuple[int, ...] = (64, 128, 384)  # at which the kernels are compared with tiles


def timed(run: Callable[[], Any], rounds: int, pairs: int, device: torch.device) -> Figures:
    """Return the shortest time of a warm run, for whose end the program waits, and the peak memory if the device knows it."""
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
    return {"pairs": pairs, "milliseconds": 1000 * min(seconds), "per_second": pairs / min(seconds), "peak_bytes": peak}


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
    return [losses, *(side.rows.grad for side in batch.sides().values() if side.rows.grad is not None)]


def gap(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """Return the largest distance of two tensors, relative to the wanted one."""
    pairs = [(x.cpu().double(), y.cpu().double()) for x, y in zip(got, want, strict=True)]
    return max(float((x - y).norm() / y.norm().clamp(min=1e-30)) for x, y in pairs)


def loss_stage(sizes: Sizes, device: torch.device) -> tuple[Figures, list[Aim]]:
    """Compare the loss stage with the CPU's, and time it on embeddings in float32 and in bf16."""
    figures, aims, masks = {}, [], (SameId(),)
    for name, make in {"mnr": mnr, "symmetric": symmetric, "gte, same ids": partial(gte, masks=masks)}.items():
        few = [rows_of(sizes.compared, sizes.width, torch.float32, place) for place in (device, torch.device("cpu"))]
        got, want = (passed(make().to(rows.doc.rows.device), rows) for rows in few)
        aims.append(Aim(f"loss and gradients of {name} off the CPU's", gap(got, want), 1e-3))
        for precision, dtype in {"float32": torch.float32, "bf16": torch.bfloat16}.items():
            run = partial(passed, make().to(device), rows_of(sizes.pairs, sizes.width, dtype, device))
            figures[f"loss stage, {name}, {precision}"] = timed(run, sizes.rounds, sizes.pairs, device)
    return figures, aims


def kernel_stage(sizes: Sizes, device: torch.device) -> tuple[Figures, list[Aim]]:
    """Compare the fused kernels with tiles, and time both and torch's chunked cross entropy, where the kernels run."""
    figures, aims = {}, []
    if device.type != fused.DEVICE:
        return figures, aims
    parts = {"mnr": mnr, "symmetric, same ids": partial(symmetric, masks=(SameId(),))}
    choices = product(sizes.widths, {"float32": torch.float32, "bf16": torch.bfloat16}.items(), parts.items())
    for width, (precision, dtype), (name, make) in choices:
        way, by_kernels = fused.Fused(dtype), make().to(device)
        by_kernels.sweep = way
        few = rows_of(sizes.compared, width, dtype, device)
        off = gap(passed(by_kernels, few), passed(make().to(device), few))
        if way.said:  # too wide
            continue
        aims.append(
            Aim(f"kernels off tiles: {name}, {precision}, width {width}", off, 1e-3 if dtype.itemsize > 2 else 0.02)
        )
        rows = rows_of(sizes.pairs, width, dtype, device)
        ways = {"tiles": partial(passed, make().to(device), rows), "kernels": partial(passed, by_kernels, rows)}
        if name == "mnr":
            ways["linear_cross_entropy"] = partial(chunked, rows.query.rows, rows.doc.rows)
        for each, run in ways.items():
            figures[f"{name}, {precision}, width {width}: {each}"] = timed(run, sizes.rounds, sizes.pairs, device)
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
    """Time a training step in bf16: towers, loss stage, backward passes and optimiser, with as many graphs as fit."""
    devices, options = start("bf16"), loop.Training(mixed_precision="bf16", learning_rate=5e-4, evaluations=0)
    tower, batch = towers(sizes, sizes.pairs, sizes.tower)
    device, count = devices.group.device, sizes.rounds + 1
    state = loop.begin(tower.to(device), mnr().to(device), options, devices)
    steps = loop.train(state, [batch] * count, count, options, devices)
    return timed(lambda: next(steps), sizes.rounds, sizes.pairs, device)


def one_card(rank: int, cards: int, kind: str, folder: str, tower: Any, batch: Batch[Any]) -> None:
    """Write loss and gradient of a step in float32 as one of some cards computes them."""
    device = torch.device(kind, rank)
    if cards > 1:
        torch.accelerator.set_device_index(rank)
        store, backend = f"file://{folder}/store", torch.distributed.get_default_backend_for_device(kind)
        torch.distributed.init_process_group(backend, init_method=store, rank=rank, world_size=cards)
    tower, group = copy.deepcopy(tower).to(device), Group(rank, cards, device)
    loss = step(tower, symmetric().to(device), divide(batch, rank, cards), Cache(device=device), group)
    group.all_reduce_gradients(tower.parameters())
    gradient = torch.cat([p.grad.flatten() for p in tower.parameters() if p.grad is not None]).cpu()
    save_file({"loss": torch.tensor(loss), "gradient": gradient}, Path(folder) / f"{cards}-{rank}.safetensors")
    if cards > 1:
        torch.distributed.destroy_process_group()


def cards_agree(sizes: Sizes, device: torch.device, cards: int) -> list[Aim]:
    """Compare the gradients of several cards with those of one."""
    given = towers(sizes, sizes.compared, replace(sizes.tower, dropout=0.0))
    with tempfile.TemporaryDirectory() as folder:
        one_card(0, 1, device.type, folder, *given)
        if cards > 1:
            spawn(one_card, (cards, device.type, folder, *given), nprocs=cards)
        want, *others = (list(load_file(path).values()) for path in sorted(Path(folder).glob("*.safetensors")))
    return [
        Aim(f"loss and gradient of card {i} of {cards} off one's", gap(x, want), 1e-3) for i, x in enumerate(others)
    ]


def checked(folder: str) -> list[Aim]:
    """Run what has to end well, and return the exit codes."""
    pairs = Path(folder) / "pairs.csv"
    pairs.write_text("\n".join(["query,doc", *map(",".join, zip(*texts(200, 8), strict=True))]), encoding="utf-8")
    options = ["tower={kind: transformer, layers: 2, width: 64, heads: 2}", "train.mixed_precision=bf16"]
    tests = ["-m", "gpu", "-p", "no:cacheprovider", "-o", "python_files=on_*.py", "tests/devices"]
    aims, environment = [], {**os.environ, "TEMPERA_TESTS": "gpu"}
    for command in (["tempera", "verify", str(pairs), *options], ["pytest", *tests]):
        print(f"{' '.join(command)}:", flush=True)
        code = subprocess.call([sys.executable, "-m", *command], cwd=ROOT, env=environment)
        aims.append(Aim(f"exit code of {command[0]}", code, 0))
    return aims


def main(sizes: Sizes, check: Callable[[str], list[Aim]] = checked) -> None:
    """Check and measure all, print a table in Markdown, and write the record."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        print("There is no accelerator: torch finds a CPU only, so nothing was checked or measured.")
        return
    device, cards = torch.device(kind.type, 0), torch.accelerator.device_count()
    with tempfile.TemporaryDirectory() as folder:
        aims = check(folder)
    named = getattr(torch.get_device_module(device), "get_device_name", lambda device: kind.type)
    card = {"name": named(device), "cards": cards, "cuda": torch.version.cuda, "hip": torch.version.hip}
    card |= {"free_bytes": free_memory(device), "lacks": missing(device)}
    rows, compared = loss_stage(sizes, device)
    by_kernels, near = kernel_stage(sizes, device)
    rows |= by_kernels
    rows["whole step, mnr, bf16"] = whole_step(sizes)
    aims += [*compared, *near, *cards_agree(sizes, device, min(cards, 2))]
    print(f"\n{card['name']}, {cards} of them\n")
    print("| | pairs | ms | pairs per second | peak MiB |\n|---|---:|---:|---:|---:|")
    for name, of in rows.items():
        peak = "" if of["peak_bytes"] is None else f"{of['peak_bytes'] / 2**20:,.0f}"
        print(f"| {name} | {of['pairs']:,} | {of['milliseconds']:,.1f} | {of['per_second']:,.0f} | {peak} |")
    finish("gpu", {"device": card, "measured": rows}, aims, ["tempera", "torch"])


if __name__ == "__main__":
    main(Sizes(arguments(__doc__, pairs=Sizes.pairs).pairs))
