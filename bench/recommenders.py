"""Training examples and queries per CPU second: Tempera, PyTorch by hand and TensorFlow
Recommenders, one thread each.

    python bench/recommenders.py --tfrs PYTHON [--interactions FILE --items FILE]

PYTHON is that of an environment with tensorflow==2.15.1 and tensorflow-recommenders==0.7.7; without
it these rows are left out, visibly. FILEs are MovieLens-1M's interactions (user_id, item_id,
position) and items (item_id, genres); without them data of that size is made up. All train the same
model: user id and the mean of the last 50 items against item id and genres, to 128, ReLU, 64,
vectors of length 1, temperature 0.05, batches of 1,024 with logQ, Adam. Ours adds up features of 64
where the others set 64 and 32, and 64 and 16, side by side. Making batches counts, except for the
others' histories, which are padded beforehand.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _harness import Aim, finish, table
from tempera import mnr
from tempera.core.corrections import LogQ
from tempera.core.masks import KnownPositives, Mask
from tempera.engine.batches import Draws
from tempera.engine.cache import Cache
from tempera.engine.step import step
from tempera.recommend.judge.full_catalogue import Histories, inner, rank
from tempera.recommend.read.division import LeaveLastOut
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.train.encoders import Categories, Entities, Id
from tempera.recommend.train.features import Features
from tempera.recommend.train.history import History
from tempera.recommend.train.pooling import WINDOWS, Mean
from tempera.recommend.train.segments import Contexts, Segments
from tempera.recommend.train.visits import Visits

BATCH, LAST, TEMPERATURE, RATE = 1024, 50, 0.05, 1e-3
Seconds = Callable[[], float]


def made_up(folder: Path) -> tuple[str, str]:
    """Interactions and items of MovieLens-1M's size: 6,040 users, 3,416 items of which few are
    taken often."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(4.55, 1.05, 6040), 20, 2000).astype(int)
    user = np.repeat(np.arange(6040), lengths)
    item = (3416 * generator.random(len(user)) ** 2.5).astype(int)
    genres = [
        "|".join(f"genre {g}" for g in generator.permutation(18)[: 1 + i % 3]) for i in range(3416)
    ]
    rows = {"user_id": user, "item_id": item, "position": np.arange(len(user))}
    parquet.write_table(pa.table(rows), folder / "interactions.parquet")
    parquet.write_table(
        pa.table({"item_id": np.arange(3416), "genres": genres}), folder / "items.parquet"
    )
    return str(folder / "interactions.parquet"), str(folder / "items.parquet")


class Work:
    """The interactions, and the arrays that each program reads."""

    def __init__(self, interactions: str, items: str) -> None:
        self.timeline = timeline = Interactions(
            path=interactions, items=items, split=LeaveLastOut()
        ).read()
        self.division = LeaveLastOut()(timeline)
        assert timeline.items is not None
        self.visits = Visits(timeline, self.division.train, Contexts(timeline, LAST))
        per_user = np.add.reduceat(self.division.train, timeline.offsets[:-1], dtype=np.int64)
        self.users = Entities(pa.table({"id": timeline.user_ids}), per_user)
        self.items = Entities(
            timeline.items.append_column("id", timeline.item_ids), self.visits.counts
        )
        self.segments = Segments.of(timeline, self.division.train, BATCH, 0)

    @cached_property
    def genres(self) -> Tensor:
        """Return codes of each item's genres from 1, padded with 0, [i, 6]."""
        names = [str(text).split("|")[:6] for text in self.items.table["genres"].to_pylist()]
        code = {
            name: i for i, name in enumerate(sorted({name for row in names for name in row}), 1)
        }
        return torch.tensor(
            [[code[name] for name in row] + [0] * (6 - len(row)) for row in names],
            dtype=torch.int32,
        )

    def padded(self, count: int) -> dict[str, Tensor]:
        """Return random training events as rows: user, the last items from 1 with 0 as padding,
        item."""
        chosen = np.random.default_rng(0).permutation(np.flatnonzero(self.division.train))[:count]
        begin, stop = self.timeline.histories(chosen)
        at = stop[:, None] - 1 - np.arange(LAST)
        history = np.where(at >= begin[:, None], self.timeline.item[np.maximum(at, 0)] + 1, 0)
        columns = {
            "user": self.timeline.user_of(chosen),
            "history": history,
            "item": self.timeline.item[chosen],
        }
        return {
            name: torch.from_numpy(np.asarray(column, np.int32)) for name, column in columns.items()
        }


def tempera(
    work: Work, history: History, masks: Sequence[Mask] = (), sampled: int = 0
) -> Callable[[int], None]:
    torch.manual_seed(0)
    towers = Features(
        doc=[Id(), Categories("genres")],
        query=[Id()],
        history=history,
        query_layers=(128,),
        doc_layers=(128,),
    ).build(work.users, work.items)
    objective = mnr(TEMPERATURE, corrections=(LogQ(),), masks=masks)
    optimizer = torch.optim.AdamW(towers.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    visits = replace(work.visits, draws=Draws(sampled), knowing=objective.asks_known)
    cache, place = Cache(), 0

    def run(steps: int) -> None:
        nonlocal place
        for i, events in enumerate(work.segments(place, place + steps), place):
            optimizer.zero_grad()
            step(towers, objective, visits.batch(events, i), cache)
            optimizer.step()
        place += steps

    return run


class Plain(nn.Module):
    """The model written by hand, with padded histories or with bags."""

    def __init__(self, work: Work, bags: bool) -> None:
        super().__init__()
        users, items = len(work.users.table), len(work.items.table)
        self.user, self.item = nn.Embedding(users, 32), nn.Embedding(items, 64)
        self.history, self.genre = (
            nn.Embedding(items + 1, 64),
            nn.Embedding(int(work.genres.max()) + 1, 16),
        )
        self.of_user = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64))
        self.of_item = nn.Sequential(nn.Linear(80, 128), nn.ReLU(), nn.Linear(128, 64))
        self.genres, self.mean = work.genres, _bag if bags else _masked
        self.logq = (
            torch.from_numpy(work.visits.counts / work.visits.counts.sum())
            .float()
            .clamp_min(1e-9)
            .log()
        )

    def forward(self, user: Tensor, history: Tensor, item: Tensor) -> Tensor:
        """Return the mean loss."""
        query = self.of_user(torch.cat([self.user(user), self.mean(self.history, history)], 1))
        doc = self.of_item(
            torch.cat([self.item(item), self.mean(self.genre, self.genres[item])], 1)
        )
        logits = F.normalize(query) @ F.normalize(doc).T / TEMPERATURE - self.logq[item]
        return F.cross_entropy(logits, torch.arange(len(user)))


def _masked(table: nn.Embedding, codes: Tensor) -> Tensor:
    there = (codes > 0)[..., None].float()
    mean: Tensor = (table(codes) * there).sum(1) / there.sum(1).clamp_min(1)
    return mean


def _bag(table: nn.Embedding, codes: Tensor) -> Tensor:
    there = codes > 0
    lengths = there.sum(1)
    return F.embedding_bag(codes[there], table.weight, lengths.cumsum(0) - lengths, mode="mean")


def plain(work: Work, rows: Mapping[str, Tensor], bags: bool) -> Callable[[int], None]:
    torch.manual_seed(0)
    model = Plain(work, bags)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    user, history, item = (rows[name] for name in ("user", "history", "item"))

    def run(steps: int) -> None:
        order = torch.randperm(len(item))
        for i in range(steps):
            chosen = order[i * BATCH : (i + 1) * BATCH]
            optimizer.zero_grad()
            model(user[chosen], history[chosen], item[chosen]).backward()
            optimizer.step()

    return run


class Worker:
    """TensorFlow Recommenders in a separate process, which waits while others are measured."""

    def __init__(self, python: str, data: Path) -> None:
        self.process = subprocess.Popen(
            [python, str(Path(__file__).parent / "_tfrs.py"), str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *asked: object) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(*asked, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def timed(run: Callable[..., Any], *given: object) -> Seconds:
    def seconds() -> float:
        start = time.process_time()
        run(*given)
        return time.process_time() - start

    return seconds


def turns(variants: Mapping[str, Seconds], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each variant in each round, after one round of warmup."""
    for run in variants.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            found[name].append(run())
    return found


def ratio(seconds: Mapping[str, list[float]], slow: str, fast: str) -> float:
    """Return the ratio of speeds, as the median over rounds."""
    return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def ranked(work: Work, queries: Any, items: Any) -> Callable[[], None]:
    events = work.division.test["last"]
    seen = Histories(work.timeline.item, *work.timeline.histories(events))
    target = work.timeline.item[events].astype(np.int64)

    def run() -> None:
        rank(inner(queries, items), len(items), target, seen)

    return run


TFRS, FIT = "TFRS, prepared batches", "TFRS, tf.data and fit"
ONE, FOUR = "tempera, the same model", "tempera, four windows"
OWN, MIXED = f"{FOUR}, own items masked", f"{FOUR}, {BATCH:,} drawn negatives"
PADDED, BAGS = "PyTorch by hand, padded", "PyTorch by hand, bags"
EXACT, STREAMED, PRODUCT = (
    "tempera, ranks",
    "FactorizedTopK, streamed",
    "FactorizedTopK, BruteForce",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tfrs", default=os.environ.get("TEMPERA_TFRS"), help="python with TensorFlow Recommenders"
    )
    parser.add_argument("--interactions")
    parser.add_argument("--items")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        made = (
            made_up(Path(folder))
            if given.interactions is None
            else (given.interactions, given.items)
        )
        compare(Work(*made), given.steps, given.rounds, given.tfrs, Path(folder) / "data.npz")


def compare(work: Work, steps: int, rounds: int, python: str | None, data: Path) -> None:
    rows = work.padded(4 * steps * BATCH)
    one, four = History((Mean(LAST),), "own"), History(WINDOWS, "own")
    runs = {
        PADDED: plain(work, rows, bags=False),
        BAGS: plain(work, rows, bags=True),
        ONE: tempera(work, one),
        FOUR: tempera(work, four),
        OWN: tempera(work, four, (KnownPositives(),)),
        MIXED: tempera(work, four, sampled=BATCH),
    }
    training = {name: timed(run, steps) for name, run in runs.items()}
    generator = np.random.default_rng(0)
    queries, items = (
        generator.standard_normal((count, 64), np.float32)
        for count in (len(work.users.table), len(work.items.table))
    )
    judging = {EXACT: timed(ranked(work, queries, items))}
    worker = None
    if python is None:
        print(
            "TensorFlow Recommenders skipped: give a python that has it by --tfrs or TEMPERA_TFRS"
        )
    else:
        target = work.timeline.item[work.division.test["last"]]
        about = {
            "users": len(work.users.table),
            "genres": work.genres.numpy(),
            "batch": BATCH,
            "temperature": TEMPERATURE,
        }
        chance = (work.visits.counts / work.visits.counts.sum()).astype(np.float32)
        arrays = {name: column.numpy() for name, column in rows.items()}
        np.savez(
            data, queries=queries, items=items, target=target, chance=chance, **about, **arrays
        )
        worker = Worker(python, data)
        training = {
            TFRS: lambda: worker("train", steps),
            FIT: lambda: worker("fit", steps),
            **training,
        }
        judging |= {STREAMED: lambda: worker("streaming"), PRODUCT: lambda: worker("brute")}
    report(turns(training, rounds), turns(judging, rounds), steps, len(queries))


def report(
    trained: dict[str, list[float]], judged: dict[str, list[float]], steps: int, queries: int
) -> None:
    slowest = next(iter(trained))
    rates = {name: steps * BATCH / statistics.median(s) for name, s in trained.items()}
    table(
        ["training", "examples per CPU second", f"x {slowest}", "CPU ms per batch"],
        [
            [n, f"{r:,.0f}", f"{ratio(trained, slowest, n):.2f}", f"{1e3 * BATCH / r:.1f}"]
            for n, r in rates.items()
        ],
    )
    print()
    table(
        ["evaluation", "queries per CPU second", "x"],
        [
            [n, f"{queries / statistics.median(s):,.0f}", f"{ratio(judged, n, EXACT):.2f}"]
            for n, s in judged.items()
        ],
    )
    aims = [
        Aim(
            f"{ONE}, examples per CPU second against PyTorch by hand, padded",
            ratio(trained, PADDED, ONE),
            0.9,
            True,
        ),
        Aim(f"{MIXED}: times the cost of {FOUR}", ratio(trained, MIXED, FOUR), 2.1),
    ]
    if TFRS in trained:
        aims.append(
            Aim(
                f"{ONE}, examples per CPU second against {TFRS}",
                ratio(trained, TFRS, ONE),
                2.0,
                True,
            )
        )
        aims.append(
            Aim(
                "queries ranked per CPU second against FactorizedTopK",
                ratio(judged, STREAMED, EXACT),
                5.0,
                True,
            )
        )
    figures = {
        "examples_a_cpu_second": rates,
        "cpu_seconds": {"training": trained, "evaluation": judged},
    }
    finish("recommenders", figures, aims, ["torch", "numpy"])


if __name__ == "__main__":
    main()
