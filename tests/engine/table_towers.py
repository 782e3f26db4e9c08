"""Towers of tables, runs of them, and what each of several processes does; every process imports
it."""

from __future__ import annotations

from typing import Any

import torch
import worlds
from torch import Tensor, nn
from worlds import LAYOUTS, WIDTH, WORDS, Found

from tempera.arithmetic.ragged import Ragged
from tempera.arithmetic.table import Table
from tempera.core.batch import Batch
from tempera.engine import loop
from tempera.engine.checkpoint import State
from tempera.engine.devices import Devices
from tempera.engine.loop import train
from tempera.engine.optim import set_sparse
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.parallel.distributed import ALONE, Group

UNREAD = 10  # rows of a table that no batch reads
STEPS = 5
OPTIONS = Training(
    learning_rate=0.02,
    table_optimizer="rowwise_adagrad",
    table_learning_rate=0.1,
    micro_batch_tokens=6,
    cache_memory=2000.0,
    gradient_accumulation_steps=2,
    max_grad_norm=0.05,
    weight_decay=0.1,
)


class Tower(nn.Module):
    """The first word's vector and the mean of all words', of tables that another tower may have as
    well, and a layer."""

    padded = False

    def __init__(self, first: Table, words: Table, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.words = first, words
        self.drop, self.layer = nn.Dropout(dropout), nn.Linear(10, WIDTH)

    def forward(self, features: Ragged) -> Tensor:
        first = self.first(features.values[features.offsets[:-1]])
        mean = self.words.mean_of(features.values, features.offsets[:-1])
        rows: Tensor = self.layer(self.drop(torch.cat([first, mean], 1)).tanh())
        return rows


class Pair(nn.Module):
    """Towers of queries and documents with a table in common, which documents read in two ways."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        common, own = (Table(WORDS + UNREAD, 5) for _ in range(2))
        self.query, self.doc = Tower(own, common, dropout), Tower(common, common, dropout)

    def of(self, role: str) -> Tower:
        return self.query if role == "query" else self.doc


def made(sparse: bool, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> tuple[Any, Any]:
    torch.manual_seed(1)
    towers, objective = Pair(dropout).to(dtype), worlds.OBJECTIVES["gte"]()
    set_sparse(towers, sparse)
    return towers, objective


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch[Ragged]:
    return worlds.whole(LAYOUTS[2], seed, dtype)


def gradients(towers: nn.Module, objective: nn.Module) -> dict[str, Tensor]:
    return {name: grad.to_dense() for name, grad in worlds.gradients(towers, objective).items()}


def begun(options: Training = OPTIONS, dropout: float = 0.3) -> State:
    torch.manual_seed(1)
    return loop.begin(Pair(dropout), worlds.OBJECTIVES["mnr"](), options)  # type: ignore[arg-type]


def taken(
    state: State,
    until: int,
    group: Group = ALONE,
    options: Training = OPTIONS,
    dtype: torch.dtype = torch.float32,
) -> list[float | None]:
    """Norms of the steps up to `until`, of two batches each; weights of rows are given, to no
    effect on the draws."""
    batches = [batch(seed, dtype) for seed in range(2 * state.step, 2 * STEPS)]
    mine = (
        batches
        if group.size == 1
        else [worlds.part(each, LAYOUTS[2], group.rank) for each in batches]
    )
    norms = []
    for progress in train(state, mine, STEPS, options, Devices(group)):
        norms.append(progress.grad_norm)
        if progress.step == until:
            break
    return norms


def weights(state: State) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.modules.state_dict().items()}


def processes_find(group: Group) -> Found:
    towers, objective = made(True)
    step(towers, objective, worlds.part(batch(), LAYOUTS[2], group.rank), group=group)
    group.all_reduce_gradients([*towers.parameters(), *objective.parameters()])
    added = gradients(towers, objective)
    merged = towers.query.words.weight.grad.is_coalesced()
    state = begun(dropout=0)
    norms = taken(state, STEPS, group)
    table, nobody = (nn.Parameter(torch.zeros(4, 2)) for _ in range(2))
    if group.rank:
        table.grad = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]).to_sparse(1)
    group.all_reduce_gradients([table, nobody])
    assert nobody.grad is None and table.grad is not None and table.grad.is_sparse
    empty = nn.Parameter(torch.zeros(4, 2))
    empty.grad = torch.zeros(4, 2).to_sparse(1)
    group.all_reduce_gradients([empty])
    nothing = empty.grad._nnz()
    found = {
        "one has it": table.grad.to_dense(),
        "rows": table.grad._nnz(),
        "nothing": nothing,
        "merged": merged,
    }
    return {"added": added, "weights": weights(state), "norms": norms, **found}
