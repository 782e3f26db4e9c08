"""What processes do with tables that are divided among them; in a module of its own, since each
imports it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import table_towers
import torch
import torch.distributed as dist
import worlds
from sharded import Trap, runs_out
from table_towers import OPTIONS, Pair
from torch import Tensor
from worlds import LAYOUTS, Found

from tempera.arithmetic.table import Table
from tempera.engine import loop
from tempera.engine.cache import Cache, Mode
from tempera.engine.checkpoint import State
from tempera.engine.devices import Devices
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.io.documents import JsonLines
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.parallel.distributed import ALONE, Group
from tempera.parallel.divided_tables import divided, release
from tempera.parallel.shards import gather, part, whole
from tempera.run.fit import fit
from tempera.run.prepare import prepare

CASES: tuple[tuple[Mode, bool], ...] = (
    ("always", True),
    ("auto", False),
    ("never", True),
)  # mode, sparse gradients
END = 3  # steps
ROWWISE = replace(OPTIONS, micro_batch_tokens=30)
RECOMMENDER = {
    "batch_size": 256,
    "max_steps": 3,
    "sampled": 64,
    "table_optimizer": "rowwise_adagrad",
    "micro_batch_tokens": 600,
    "cache_memory": 100_000,
}
RUNS = {"rowwise_adagrad": ROWWISE, "adamw": replace(ROWWISE, table_optimizer="adamw")}


@cache
def processes() -> list[Found]:
    for library in (
        "torch._dynamo",
        "torch.distributed.tensor",
    ):  # loaded once, before the processes are forked
        import_module(library)
    return worlds.world(2, found)


def found(group: Group) -> Found:
    steps = {str(case): stepped(group, *case) for case in CASES}
    runs = {name: run(group, options) for name, options in RUNS.items()}
    return {
        "steps": steps,
        "runs": runs,
        "held": held(group),
        "recommender": recommender(group),
        "out of memory": out_of_memory(group, 16),
    }


def stepped(group: Group, mode: Mode, sparse: bool) -> Found:
    """Losses and gradients of two batches that are accumulated."""
    towers, objective = table_towers.made(sparse)
    towers = divided(towers, group, 1)
    batches = [worlds.part(table_towers.batch(seed), LAYOUTS[2], group.rank) for seed in range(2)]
    losses = [
        step(towers, objective, batch, Cache(mode, memory=2000.0, tokens=20), group)
        for batch in batches
    ]
    group.all_reduce_gradients([*towers.parameters(), *objective.parameters()])
    grads = worlds.gradients(towers, objective)
    return {"losses": losses, "gradients": {name: _dense(grad) for name, grad in grads.items()}}


def out_of_memory(group: Group, every: int) -> Found:
    towers, objective = table_towers.made(True)
    towers, trap = divided(towers, group, 1), Trap(())
    for module in towers.modules():
        if isinstance(module, Table | torch.nn.Linear):  # between two lookups, and after them
            trap.laid(module)
    return runs_out(
        group,
        towers,
        objective,
        worlds.part(table_towers.batch(), LAYOUTS[2], group.rank),
        trap,
        every,
    )


def _dense(grad: Tensor) -> Any:
    """The whole of a gradient, also of one that is divided and sparse."""
    if not part(grad).is_sparse:
        return whole(grad)
    parts: list[Any] = [None, None]
    dist.all_gather_object(parts, part(grad).to_dense())
    return torch.cat(parts)


def begun(group: Group, options: Training) -> State:
    torch.manual_seed(1)
    towers = Pair().double() if group.size == 1 else divided(Pair().double(), group, 1)
    return loop.begin(towers, worlds.OBJECTIVES["mnr"](), options, Devices(group))  # type: ignore[arg-type]


def run(group: Group, options: Training) -> Found:
    """Norms and weights of some steps at once, and in two runs, of which the second may be of one
    process."""
    through, first, again, alone = (begun(each, options) for each in (group, group, group, ALONE))
    norms = table_towers.taken(through, END, group, options, torch.float64)
    table_towers.taken(first, 1, group, options, torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        place = [folder]
        dist.broadcast_object_list(place)  # the main process writes
        first.save(Path(place[0]))
        group.wait()
        again.load(Path(place[0])), alone.load(Path(place[0]))
        group.wait()
    table_towers.taken(again, END, group, options, torch.float64)
    table_towers.taken(alone, END, ALONE, options, torch.float64)
    return {"norms": norms} | {
        name: weights(state)
        for name, state in {"through": through, "resumed": again, "alone": alone}.items()
    }


def weights(state: State) -> dict[str, Tensor]:
    return {name: whole(p.detach()) for name, p in state.modules.named_parameters()}


def held(group: Group) -> Found:
    """Bytes of tables and accumulators on this process; then the towers they came from, released
    and brought back."""
    state, original = begun(group, ROWWISE), Pair().double()
    table_towers.taken(state, 1, group, ROWWISE, torch.float64)
    towers: Any = state.modules["towers"]
    bytes_of = {
        "tables": [
            part(p).untyped_storage().nbytes()
            for p in (towers.query.first.weight, towers.query.words.weight)
        ],
        "sums": [
            part(each["sum"]).nbytes for each in state.optimizer.state.values() if "sum" in each
        ],
    }
    release(original, towers)
    empty = [len(original.query.first.weight), len(original.query.words.weight)]
    gather(towers, original, group, everyone=False)
    back = {name: p.detach() for name, p in original.named_parameters()}
    return bytes_of | {"released": empty, "back": back, "trained": weights(state)}


def recommender(group: Group) -> Found:
    """Losses and weights of a run with log_q, shared histories, samples, and items that begin by
    co-occurrence."""
    draw = np.random.default_rng(0)
    user, item = np.repeat(np.arange(110), 40), np.tile(draw.permutation(1100), 4)
    events = pa.table({"user": user, "item": item, "time": np.arange(len(item))})
    brands = [f"brand {i % 7}" for i in range(1100)]
    with tempfile.TemporaryDirectory() as place, JsonLines(Path(place) / "log.jsonl") as log:
        parquet.write_table(events, Path(place) / "events.parquet")
        parquet.write_table(
            pa.table({"item": np.arange(1100), "brand": brands}), Path(place) / "items.parquet"
        )
        data = {
            "path": f"{place}/events.parquet",
            "items": f"{place}/items.parquet",
            "source": "interactions",
        }
        doc = [{"id": {"init": "cooccurrence"}}, {"category": {"column": "brand"}}]
        train = {**RECOMMENDER, "divide_tables": group.size > 1}
        sections = {
            "data": data,
            "tower": {"kind": "features", "dimensions": 16, "doc": doc},
            "train": train,
        }
        prepared = prepare(build(configuration.of(sections)), Devices(group), Path(place), log)
        fit(prepared, looks=False)
        losses = [record["loss"] for record in log.records if record["event"] == "step"]
    return {"losses": losses, "weights": prepared.task.data.tower.state_dict()}
