"""Time of a step and memory of the optimiser by table size: optimisers that update all rows, and
those that update the rows read.

    python bench/tables.py [LIMIT]

A batch is 1,024 users, each the mean of 10 items taken before, with the items they take next; both
read one table, items as often as 1 / rank has it. The same step for every optimiser, in turns on
the same table: towers, softmax, gradients, norm, optimiser. What would hold more than LIMIT GB (3)
of table, gradient and accumulators is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from _harness import Aim, alternate, arguments, finish, table
from tempera.arithmetic.ragged import Ragged
from tempera.arithmetic.table import Table
from tempera.core import presets
from tempera.core.batch import Batch, Side
from tempera.engine.checkpoint import State
from tempera.engine.loop import begin, train
from tempera.engine.optim import set_sparse
from tempera.engine.training_options import Training

ROWS, WIDTH, BATCH, HISTORY = (100_000, 1_000_000, 4_000_000), 64, 1024, 10
STEPS, ROUNDS = 4, 7  # a measurement, and how many
NAMES = ("AdamW", "Adagrad, dense", "SparseAdam", "row-wise Adagrad")
TABLES = {
    "AdamW": 4,
    "Adagrad, dense": 3,
    "SparseAdam": 3,
    "row-wise Adagrad": 1,
}  # table, its gradient if dense, accumulators
SPARSE = ("SparseAdam", "row-wise Adagrad")


class Means(nn.Module):
    """The mean of the vectors of each row's items, for queries and documents."""

    padded = False

    def __init__(self, items: Table) -> None:
        super().__init__()
        self.items = items

    def of(self, role: str) -> Means:
        return self

    def forward(self, features: Ragged) -> Tensor:
        return self.items.mean_of(features.values, features.offsets[:-1])


def batches(rows: int) -> list[Batch[Ragged]]:
    """Return different batches, of items as frequent as 1 / rank."""
    draw = torch.Generator().manual_seed(0)

    def side(each: int) -> Side[Ragged]:
        items = (rows ** torch.rand(BATCH * each, generator=draw, dtype=torch.float64)).long() - 1
        return Side(Ragged(items, torch.arange(0, BATCH * each + 1, each)))

    return [Batch(side(HISTORY), side(1)) for _ in range(16)]


def begun(name: str, towers: Means) -> State:
    """Return a run with one of the optimisers."""
    options = Training(table_optimizer="rowwise_adagrad" if name == "row-wise Adagrad" else "adamw")
    state = begin(towers, presets.mnr(), options)  # type: ignore[arg-type]
    kinds: dict[str, Any] = {
        "Adagrad, dense": torch.optim.Adagrad,
        "SparseAdam": torch.optim.SparseAdam,
    }
    if name in kinds:
        group = {"params": list(towers.parameters()), "lr": 0.03, "initial_lr": 0.03}
        state.optimizer = kinds[name]([group])
    return state


def stepping(
    name: str, state: State, given: list[Batch[Ragged]], found: dict[str, int]
) -> Callable[[], None]:
    """Return a function that takes the next steps of a run."""
    at = count()

    def run() -> None:
        set_sparse(state.modules, name in SPARSE)
        rows = (given[next(at) % len(given)] for _ in range(STEPS))
        for _ in train(state, rows, state.step + STEPS, Training()):
            pass
        state.optimizer.zero_grad()
        accumulators = [value for each in state.optimizer.state.values() for value in each.values()]
        found[name] = sum(value.nbytes for value in accumulators if isinstance(value, Tensor))

    return run


def measure(rows: int, limit: float) -> dict[str, Mapping[str, float]]:
    """Return the CPU milliseconds of a step and the bytes of accumulators."""
    names = [name for name in NAMES if 4 * rows * WIDTH * TABLES[name] <= limit]
    towers, chosen, state_bytes = Means(Table(rows, WIDTH)), batches(rows), dict[str, int]()
    runs = {name: stepping(name, begun(name, towers), chosen, state_bytes) for name in names}
    for run in runs.values():
        run()
    seconds = alternate(runs, ROUNDS)
    read = torch.cat([chosen[0].query.rows.values, chosen[0].doc.rows.values]).unique()
    print(f"{rows:,} rows, of which a batch reads {len(read):,}", flush=True)
    return {
        name: {
            "milliseconds": round(1000 * seconds[name] / STEPS, 2),
            "state_bytes": state_bytes[name],
        }
        for name in names
    }


def main() -> None:
    torch.set_num_threads(1)
    limit = 1e9 * arguments(__doc__, limit=3.0).limit
    figures = {rows: measure(rows, limit) for rows in ROWS}
    lines = [
        [
            f"{rows:,}",
            name,
            *(
                (f"{f['milliseconds']:.1f}", f"{f['state_bytes'] / 1e6:,.1f}")
                if f
                else ("left out", "")
            ),
        ]
        for rows, found in figures.items()
        for name in NAMES
        for f in [found.get(name)]
    ]
    table(["rows", "optimiser", "CPU ms per step", "MB of accumulators"], lines)
    ours = {rows: found["row-wise Adagrad"] for rows, found in figures.items()}
    adamw = figures[1_000_000]["AdamW"]
    aims = [
        Aim(
            "AdamW's step / ours, 1M rows",
            adamw["milliseconds"] / ours[1_000_000]["milliseconds"],
            5,
            at_least=True,
        ),
        Aim(
            "AdamW's accumulators / ours",
            adamw["state_bytes"] / ours[1_000_000]["state_bytes"],
            100,
            at_least=True,
        ),
        Aim(
            "ours, 4M rows / 100k rows",
            ours[4_000_000]["milliseconds"] / ours[100_000]["milliseconds"],
            2,
        ),
    ]
    finish("tables", figures, aims, ["tempera", "torch"])


if __name__ == "__main__":
    main()
