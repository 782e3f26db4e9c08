"""A step on paper against a step: six small configurations on this machine's CPU, one thread,
fastest of some steps in CPU seconds.

`python bench/plan.py` also prints the loss stage of 65,536 pairs on an H100 on paper, against the
floor of its products.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from _harness import Aim, finish, table
from tempera import Batch, Objective, Side, gte, mnr, symmetric
from tempera.core.corrections import LogQ
from tempera.core.masks import SameId
from tempera.engine.fused import Fused
from tempera.engine.loop import begin, train
from tempera.engine.training_options import Training
from tempera.paper.cost import META, Ledger
from tempera.paper.machines import MACHINES, measured, timed
from tempera.paper.stages import LOSS, counting, loss_on_paper, objective_on_paper, step_on_paper
from tempera.parallel.distributed import CPU
from tempera.towers.static import Static
from tempera.towers.transformer import Transformer

STEPS = 6
Configuration = tuple[Any, int, Callable[[], Objective], Training]
SIX: dict[str, Configuration] = {
    "static 64, mnr, 1,024 pairs": (Static(64), 1024, mnr, Training()),
    "static 256, symmetric, 2,048 pairs": (Static(256), 2048, symmetric, Training()),
    "static 64, gte with masks, 512 pairs": (
        Static(64),
        512,
        lambda: gte(masks=(SameId(),), corrections=(LogQ(),)),
        Training(),
    ),
    "2 layers of 128, 128 pairs": (Transformer(2, 128, 4, 2000, 64), 128, mnr, Training()),
    "2 layers of 128, all embedded twice": (
        Transformer(2, 128, 4, 2000, 64),
        128,
        mnr,
        Training(cache="always"),
    ),
    "6 layers of 384, 32 pairs": (Transformer(6, 384, 12, 8000, 64), 32, mnr, Training()),
}


def rows_of(options: Any, pairs: int) -> tuple[Any, Batch[Any]]:
    """Return a tower and a batch of queries of three words and documents of 4 to 40."""
    draw = random.Random(0)
    known = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(2000)]
    docs = [draw.choices(known, k=draw.randint(4, 40)) for _ in range(pairs)]
    columns = [[" ".join(doc[:3]) for doc in docs], [" ".join(doc) for doc in docs]]
    torch.manual_seed(0)
    tower = options.build(columns[1]).train()
    ids, logq = torch.randint(pairs, (pairs,)), -torch.rand(pairs)
    return tower, Batch(*(Side(tower.features(column), ids, logq) for column in columns))


def compared(configuration: Configuration) -> tuple[float, float]:
    """Return the CPU seconds of a step, as planned and as taken."""
    options, pairs, make, training = configuration
    tower, batch = rows_of(options, pairs)
    paper = step_on_paper(tower, make(), batch, training)
    machine = measured(CPU, time.process_time)
    machine = replace(machine, timed=timed(paper.examples, CPU, time.process_time))
    planned = sum(
        sum(machine.seconds(stage).values()) + stage.host for stage in paper.stages.values()
    )
    steps, taken = train(begin(tower, make(), training), [batch] * STEPS, STEPS, training), []
    for _ in range(STEPS):
        start = time.process_time()
        next(steps)
        taken.append(time.process_time() - start)
    return planned, min(taken)


def loss_stage(make: Callable[[], Objective], width: int, pairs: int = 65_536) -> dict[str, float]:
    """Return the seconds of a loss stage on an H100 on paper, and of 6 b^2 D FLOPs in float32 and
    in bf16."""
    machine, seconds = MACHINES["h100"], {}
    for way, parts in {"seconds": 0, "by kernels": 2, "by kernels in half precision": 1}.items():
        ledger, objective = Ledger(META), make()
        if parts:
            objective.loss_pass = counting(ledger, Fused(parts))
        rows = Batch(
            *(Side(torch.empty(pairs, width, device=META, requires_grad=True)) for _ in range(2))
        )
        loss_on_paper(ledger, objective_on_paper(objective, META), rows, machine.memory)
        seconds[way] = sum(machine.seconds(ledger.stages[LOSS]).values())
    floor = 6 * pairs**2 * width
    return {
        **seconds,
        **{
            str(dtype).removeprefix("torch."): floor / machine.flops[dtype]
            for dtype in (torch.float32, torch.bfloat16)
        },
    }


def main() -> None:
    """Compare, print, and keep the figures."""
    torch.set_num_threads(1)
    compared(SIX["static 64, mnr, 1,024 pairs"])  # libraries load once
    times = {name: compared(each) for name, each in SIX.items()}
    rows = [
        [name, f"{1000 * a:.1f}", f"{1000 * b:.1f}", f"{a / b:.2f}"]
        for name, (a, b) in times.items()
    ]
    table(["step", "planned, CPU ms", "taken", "ratio"], rows)
    on_h100 = {
        f"{make.__name__}, D={width}": loss_stage(make, width)
        for make in (mnr, symmetric)
        for width in (384, 768)
    }
    ways = "seconds", "by kernels", "by kernels in half precision"
    titles = [
        "65,536 pairs, H100 on paper",
        "ms, tiles",
        *ways[1:],
        "tiles / 6 b^2 D in float32",
        "in bf16",
    ]
    kinds = ("float32", "bfloat16")
    table(
        titles,
        [
            [
                k,
                *(f"{1e3 * x[way]:.0f}" for way in ways),
                *(f"{x['seconds'] / x[of]:.2f}" for of in kinds),
            ]
            for k, x in on_h100.items()
        ],
    )
    figures = {
        "steps": {
            name: {"planned": a, "taken": b, "ratio": a / b} for name, (a, b) in times.items()
        },
        "loss stage, 65,536 pairs, H100 on paper": on_h100,
    }
    aims = [
        Aim(f"planned off taken, {name}", abs(a / b - 1), 0.3) for name, (a, b) in times.items()
    ]
    aims += [
        Aim(f"loss stage / 6 b^2 D in float32, {k}", x["seconds"] / x["float32"], 3)
        for k, x in on_h100.items()
    ]
    finish("plan", figures, aims, ["torch"])


if __name__ == "__main__":
    main()
