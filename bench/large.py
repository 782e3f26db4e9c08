"""A recommender of 10 million interactions with 200,000 items, from Parquet to recommendations; and
its tables on two processes.

    python bench/large.py [EVENTS] [ITEMS]

Users stay with a kind of item for a while, and items are taken as often as 1 / rank within their
kind, after some of them the same one again and again: there is something to learn. `tempera train`
reads, divides, trains one epoch (windows, row-wise Adagrad), evaluates and saves; then `tempera
recommend` answers one user. Every command runs in a process of its own. The last part takes the
steps of one tower, of ids of users and items, on one process and on two, with whole and with
divided tables.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import yaml

from _harness import Aim, arguments, finish, own_bytes, table
from tempera.arithmetic.table import Table
from tempera.core import presets
from tempera.core.batch import Batch, Side, divide
from tempera.core.frame import Frame
from tempera.engine.devices import Devices
from tempera.engine.loop import begin, train
from tempera.engine.training_options import Training
from tempera.parallel.distributed import Group
from tempera.parallel.divided_tables import divided
from tempera.parallel.shards import part
from tempera.recommend.train.encoders import Entities, Id
from tempera.recommend.train.features import Features

A_USER, KIND, STAYS, FOLLOWS = 20, 200, 0.85, 0.4  # events, items of a kind, chances
DAY, YEAR = 86_400, 365 * 86_400
OPTIONS: dict[str, Any] = {
    "data": {
        "split": {"global_time": {"test_share": 0.005, "validation_share": 0.005, "rolling": 1}}
    },
    "tower": {
        "kind": "features",
        "history": {"pools": [{"mean": {"last": n}} for n in (1, 3, 10)]},
    },
    "objective": {
        "temperature": 0.05,
        "corrections": ["log_q"],
        "masks": ["same_id", "known_positives"],
    },
    "train": {
        "batch_size": 4096,
        "num_train_epochs": 1,
        "table_optimizer": "rowwise_adagrad",
        "evaluations": 1,
    },
    "evaluation": {"baselines": True},
}
ROWS, WIDTH, BATCH, STEPS = (
    1_000_000,
    64,
    4096,
    12,
)  # of the tables on several processes: ids of each kind, of a vector


def write(folder: Path, events: int, items: int) -> int:
    """Write shards of users with all their events, and return how many users there are."""
    draw, users, kinds = np.random.default_rng(0), events // A_USER, max(1, items // KIND)
    for shard, first in enumerate(range(0, users, 50_000)):
        count = min(50_000, users - first)
        lengths = 2 + draw.geometric(1 / (A_USER - 1), count).clip(max=300) - 1
        kind, item = np.zeros(count, np.int64), np.zeros(count, np.int64)
        time_of, parts = draw.integers(0, YEAR, count), []
        for place in range(int(lengths.max())):
            on = np.flatnonzero(lengths > place)
            moves = on[(draw.random(len(on)) > STAYS) | (place == 0)]
            kind[moves] = (kinds ** draw.random(len(moves))).astype(np.int64) - 1
            follows = (draw.random(len(on)) < FOLLOWS) & (place > 0)
            chosen = (KIND ** draw.random(len(on))).astype(np.int64) - 1
            item[on] = np.where(follows, (7 * item[on] + 3) % KIND, chosen)
            time_of[on] += draw.exponential(DAY / 2, len(on)).astype(np.int64) + 1
            parts.append((on + first, (kind[on] * KIND + item[on]) % items, time_of[on] + 0))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = draw.permutation(len(columns[0]))
        rows = dict(
            zip(
                ("user_id", "item_id", "timestamp"),
                (column[order] for column in columns),
                strict=True,
            )
        )
        parquet.write_table(pa.table(rows), folder / f"{shard:03}.parquet")
    return users


def command(*words: str) -> tuple[str, dict[str, float]]:
    """Run `tempera` with these words; return what it prints, and its seconds."""
    before, start = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tempera", *words], capture_output=True, text=True, check=False
    )
    after, wall = getrusage(RUSAGE_CHILDREN), time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, {"cpu": round(cpu, 1), "wall": round(wall, 1)}


def trained(events: int, items: int) -> dict[str, Any]:
    """Train one epoch and recommend, and return what both have taken."""
    with TemporaryDirectory() as name:
        place, rows = Path(name), Path(name) / "events"
        rows.mkdir()
        users = write(rows, events, items)
        OPTIONS["data"]["path"] = str(rows)
        (place / "large.yaml").write_text(yaml.safe_dump(OPTIONS))
        _, whole = command("train", str(place / "large.yaml"), "--output", str(place / "run"))
        answer, one = command("recommend", str(place / "run"), "--user", "7")
        metrics = json.loads((place / "run" / "metrics.json").read_text())
        log = [json.loads(line) for line in (place / "run" / "log.jsonl").read_text().splitlines()]
    assert len(answer.splitlines()) >= 10, answer
    steps = [record["seconds"] for record in log if record["event"] == "step"]
    learned = metrics["data"]["train"]
    cpu = metrics["seconds"]["train"]["cpu"]
    return {
        "events": metrics["data"]["pairs"],
        "users": users,
        "items": metrics["data"]["corpus"],
        "phases": metrics["seconds"],
        "train": whole,
        "recommend": one,
        "peak_bytes": metrics["peak_memory_bytes"],
        "run_bytes": metrics["bytes"],
        "steps": len(steps),
        "announced_wall_minutes_an_epoch": round(statistics.mean(steps[1:51]) * len(steps) / 60, 2),
        "cpu_minutes_an_epoch": round(cpu / 60, 2),
        "events_a_cpu_second": round(learned / cpu),
        "queries": metrics["data"]["queries"],
        "metrics": metrics["metrics"],
    }


# Tables on several processes
# --------------------------------------------------------------------------------------------


def batches(rows: int) -> Iterator[Batch[Frame]]:
    """Yield batches of users by chance and of items as frequent as 1 / rank."""
    draw = torch.Generator().manual_seed(0)
    while True:
        items = (rows ** torch.rand(BATCH, generator=draw, dtype=torch.float64)).long() - 1
        users = torch.randint(rows, (BATCH,), generator=draw)
        yield Batch(
            Side(Frame({"user": users}), ids=users), Side(Frame({"item": items}), ids=items)
        )


def stepping(rank: int, size: int, divides: bool, optimizer: Any, rows: int, place: str) -> None:
    """Take steps in one of several processes; the main one writes milliseconds and bytes of each
    process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=size)
    ids = Entities(pa.table({"id": np.arange(rows)}), np.ones(rows, np.int64))
    group, options = Group(rank, size), Training(table_optimizer=optimizer)
    towers: Any = Features((Id(),), (Id(),), None, WIDTH, ()).build(ids, ids)
    towers = divided(towers, group) if divides else towers
    state, drawn = begin(towers, presets.mnr(0.05), options, Devices(group)), batches(rows)
    taken, spent, mine = [], [time.process_time()], (divide(batch, rank, size) for batch in drawn)
    for progress in train(state, mine, STEPS, options, Devices(group)):
        taken.append(progress.seconds)
        spent.append(time.process_time())
    moments = [part(value) for each in state.optimizer.state.values() for value in each.values()]
    held = sum(part(each).nbytes for each in (*state.parameters, *moments))
    figures = {
        "milliseconds": _median(taken),
        "cpu_milliseconds": _median(np.diff(spent)),
        "held": held,
    }
    (Path(place) / f"{rank}.json").write_text(json.dumps({**figures, "resident": own_bytes()}))
    group.wait()
    dist.destroy_process_group()


def looking_up(rank: int, size: int, rows: int, place: str) -> None:
    """Look rows up and go back, by torch's RowwiseParallel and by ours; write CPU milliseconds, and
    bytes of the gradient."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=size)
    mesh, weight, figures = init_device_mesh("cpu", (size,)), torch.randn(rows, WIDTH), {}
    plan = RowwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0))
    made: dict[str, Any] = {
        "RowwiseParallel": parallelize_module(
            torch.nn.Embedding(rows, WIDTH, _weight=weight), mesh, plan
        )
    }
    made |= {
        name: divided(Table(rows, WIDTH, _weight=weight), Group(rank, size))
        for name in ("ours", "ours, sparse")
    }
    made["ours, sparse"].sparse = True
    for name, tables in made.items():
        spent = []
        for batch in islice(batches(rows), STEPS):
            tables.weight.grad, start = None, time.process_time()
            tables(batch.doc.rows.columns["item"]).square().sum().backward()
            spent.append(time.process_time() - start)
            grad = part(tables.weight.grad)
            stored = grad.values().nbytes + grad.indices().nbytes if grad.is_sparse else grad.nbytes
        figures[name] = {"cpu_milliseconds": _median(spent), "gradient": stored}
    (Path(place) / f"{rank}.json").write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


def _median(seconds: Any) -> float:
    """Return milliseconds, without the first two, which make what the others use again."""
    return round(1000 * statistics.median(seconds[2:]), 1)


def launched(work: Any, size: int, *given: Any) -> list[Any]:
    """Return what each of several processes has written."""
    with TemporaryDirectory() as place:
        mp.start_processes(work, (size, *given, place), size, start_method="spawn")
        return [json.loads((Path(place) / f"{rank}.json").read_text()) for rank in range(size)]


def processes(rows: int) -> list[dict[str, Any]]:
    """Return the time of a step, and what the largest process holds, on one process and on two."""
    figures = []
    for optimizer in ("adamw", "rowwise_adagrad"):
        for size, divides in ((1, False), (2, False), (2, True)):
            each = launched(stepping, size, divides, optimizer, rows)
            most = {name: max(one[name] for one in each) for name in each[0]}
            figures.append({"optimizer": optimizer, "processes": size, "divided": divides, **most})
    return figures


def main() -> None:
    chosen = arguments(__doc__, events=10_000_000, items=200_000, rows=ROWS)
    lookups = launched(looking_up, 2, chosen.rows)[0]
    table(
        ["lookup", "CPU ms", "MiB of gradient"],
        [[k, v["cpu_milliseconds"], v["gradient"] >> 20] for k, v in lookups.items()],
    )
    divisions = processes(chosen.rows)
    lines = [
        [
            f["optimizer"],
            f["processes"],
            "divided" if f["divided"] else "whole",
            f["milliseconds"],
            f["cpu_milliseconds"],
        ]
        + [f"{f[name] / 2**20:,.0f}" for name in ("held", "resident")]
        for f in divisions
    ]
    table(
        [
            "optimiser",
            "processes",
            "tables",
            "ms a step",
            "CPU ms",
            "MiB of tables",
            "MiB resident",
        ],
        lines,
    )
    figures = trained(chosen.events, chosen.items)
    table(
        ["phase", "CPU s", "s"],
        [[k, f"{v['cpu']:.0f}", f"{v['wall']:.0f}"] for k, v in figures["phases"].items()],
    )
    print(
        f"{figures['events']:,} events, {figures['items']:,} items: peak {figures['peak_bytes'] / 2**30:.2f} GiB, ",
        end="",
    )
    print(
        f"{figures['cpu_minutes_an_epoch']} CPU minutes an epoch, {figures['events_a_cpu_second']:,} events a CPU second"
    )
    for system, metrics in figures["metrics"].items():
        print(f"{system}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    whole, half = (
        next(f for f in divisions[3:] if (f["processes"], f["divided"]) == way)
        for way in ((1, False), (2, True))
    )
    aims = [
        Aim("GiB at the peak", figures["peak_bytes"] / 2**30, 12.0),
        Aim(
            "bytes of tables that a process holds, two processes / one",
            half["held"] / whole["held"],
            0.51,
        ),
    ]
    finish(
        "large",
        {"run": figures, "tables": divisions, "lookups": lookups},
        aims,
        ["tempera", "torch", "numpy", "pyarrow"],
    )


if __name__ == "__main__":
    main()
