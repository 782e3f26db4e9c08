"""Memory and time of a recommender's data: generated interactions, from Parquet shards to batches
of targets with contexts.

The measured memory is private (RssAnon), since the system reclaims pages of mapped files when
others need them. The towers, their tables and the optimiser are not included. User ids are texts,
and rows are unordered.

    python bench/interactions.py [INTERACTIONS]
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from _harness import Aim, Meter, arguments, by_line, finish, own_bytes
from tempera.recommend.read.division import GlobalTime
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.train.frequency import counted
from tempera.recommend.train.segments import Contexts, Segments

SHARD, BATCH, STEPS, TARGETS = 1_000_000, 1024, 2000, 16
GOAL = 100_000_000
A_USER = 20  # events in the mean: 5 million users at the goal
ITEMS = 1_000_000


def write(folder: Path, count: int) -> None:
    """Write uniform users, items by 1 / rank, unordered times, and ids as texts and as numbers."""
    generator = np.random.default_rng(0)
    for start in range(0, count, SHARD):
        rows = min(SHARD, count - start)
        user = generator.integers(0, count // A_USER, rows)
        columns = {
            "user_id": pa.array([f"user-{number:09}" for number in user.tolist()]),
            "item_id": (ITEMS ** generator.random(rows)).astype(np.int64),
            "timestamp": generator.integers(1_000_000_000, 1_600_000_000, rows),
        }
        parquet.write_table(pa.table(columns), folder / f"{start:09}.parquet")


def measure(count: int) -> dict[str, dict[str, float]]:
    meter = Meter()
    with TemporaryDirectory() as name:
        folder, cache = Path(name) / "rows", Path(name) / "cache"
        folder.mkdir()
        write(folder, count)
        pa.default_memory_pool().release_unused()
        before = own_bytes()
        with meter("read"):
            timeline = Interactions(path=str(folder)).read(cache)
        with meter("divide"):
            division = GlobalTime()(timeline)
            train = division.train
            counted(timeline.item, train, len(timeline.item_ids))
        with meter("epoch"):
            segments = Segments.of(timeline, train, BATCH, seed=0, targets=TARGETS)
            segments.plan(0)
        with meter("batches"):
            contexts = Contexts(timeline, targets=TARGETS)
            for events in segments(0, STEPS):
                start, stop = contexts(events)
                assert (start <= stop).all()
        assert len(timeline) == count
    figures = {phase: {**at, "bytes": at["bytes"] - before} for phase, at in meter.phases.items()}
    begin = time.process_time()
    for _ in segments(0, STEPS):
        pass
    alone = time.process_time() - begin
    plan = figures["epoch"]["seconds"] / segments.events  # each event's share of its epoch's plan
    figures["batches"]["sampled_a_second"] = 1 / (plan + alone / (STEPS * BATCH))
    figures["batches"]["with_contexts_a_second"] = 1 / (
        plan + figures["batches"]["seconds"] / (STEPS * BATCH)
    )
    return figures


def main() -> None:
    chosen = arguments(__doc__, interactions=10_000_000)
    if chosen.one:
        print(json.dumps(measure(chosen.interactions)))
        return
    found, many, most = by_line(__file__, chosen.interactions, GOAL, "interaction")
    sampled, whole = (
        many["batches"][name] / 1e6 for name in ("sampled_a_second", "with_contexts_a_second")
    )
    print(
        f"{sampled:.1f} million targets per CPU second, with the plan of the epoch; {whole:.1f} with their contexts"
    )
    aims = [
        Aim(f"GiB at {GOAL:,} interactions, by proportion", most, 8.0),
        Aim("million targets per CPU second", sampled, 5.0, at_least=True),
    ]
    finish("interactions", found, aims, ["pyarrow", "numpy", "torch"])


if __name__ == "__main__":
    main()
