"""Memory and time of the data path: generated pairs, from Parquet shards to batches, with nothing else beside them.

Memory that counts is what the process holds for itself (RssAnon): pages of mapped files are given back when others need them.
The model, its optimiser and the embeddings of a batch are apart.

    python bench/data.py [PAIRS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

from _harness import Aim, finish, table
from tempera.data.batches import Draws, Shuffled
from tempera.data.catalogue import Catalogue, stored
from tempera.data.files import PairsFile
from tempera.data.pairs import hold_out
from tempera.towers.tokenizer import tokenize, train_tokenizer

SHARD, BATCH, STEPS = 250_000, 2048, 50
GOAL = 10_000_000
WORDS = np.array([f"word{i}" for i in range(20_000)])


def write(folder: Path, pairs: int) -> None:
    """Queries of 8 words; documents of 30, a tenth as many."""
    generator = np.random.default_rng(0)
    docs = [" ".join(WORDS[generator.integers(0, len(WORDS), 30)]) for _ in range(pairs // 10)]
    for start in range(0, pairs, SHARD):
        rows = min(SHARD, pairs - start)
        chosen = WORDS[generator.integers(0, len(WORDS), (rows, 8))]
        columns = {
            "query": [" ".join(row) for row in chosen],
            "doc": [docs[i] for i in generator.integers(0, len(docs), rows)],
        }
        parquet.write_table(pa.table(columns), folder / f"{start:09}.parquet")


class Meter:
    """Highest memory of the process's own and CPU seconds of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        done, highest = threading.Event(), [0]

        def watch() -> None:
            while not done.wait(0.05):
                highest[0] = max(highest[0], own_bytes())

        watcher = threading.Thread(target=watch)
        start = time.process_time()
        watcher.start()
        yield
        done.set()
        watcher.join()
        self.phases[name] = {"seconds": time.process_time() - start, "bytes": max(highest[0], own_bytes())}


def own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


def measure(pairs: int) -> dict[str, dict[str, float]]:
    meter = Meter()
    with TemporaryDirectory() as name:
        folder, cache = Path(name) / "pairs", Path(name) / "cache"
        folder.mkdir()
        write(folder, pairs)
        tokenizer = train_tokenizer(WORDS.tolist() * 2, 32_000, 256)
        tokenize(tokenizer, ["to start its threads"])
        pa.default_memory_pool().release_unused()
        before = own_bytes()
        with meter("read"):
            rows, asked = PairsFile(str(folder)).read(cache)
        with meter("divide"):
            split, catalogue = hold_out(rows, asked, 1000, 0), Catalogue.of(rows)
        with meter("tokens"):
            sides = [
                stored(lambda part: tokenize(tokenizer, part), texts, cache / f"tokens.{i}")
                for i, texts in enumerate((catalogue.queries, catalogue.docs))
            ]
        with meter("batches"):
            examples = catalogue.examples(split.train, *sides, Draws())
            for step, chosen in enumerate(Shuffled(len(examples), BATCH, 0)(0, STEPS)):
                tokens = len(examples.batch(torch.as_tensor(chosen), step).doc.rows.values)
        assert tokens > BATCH * 29
    return {name: {**phase, "bytes": phase["bytes"] - before} for name, phase in meter.phases.items()}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    few, many = (
        json.loads(subprocess.run([sys.executable, __file__, "--one", str(n)], capture_output=True, check=True).stdout)
        for n in (pairs // 4, pairs)
    )  # each in a process of its own: what does not grow with the pairs is told from what does
    slope = {name: (many[name]["bytes"] - few[name]["bytes"]) / (pairs * 3 / 4) for name in many}
    expected = {name: (many[name]["bytes"] + slope[name] * (GOAL - pairs)) / 2**30 for name in many}
    rows = [
        [name, f"{p['seconds']:.1f}", f"{p['bytes'] / 2**20:,.0f}", f"{slope[name]:.0f}", f"{expected[name]:.2f}"]
        for name, p in many.items()
    ]
    table(["phase", "CPU s", "MiB", "bytes a pair more", f"GiB at {GOAL:,}"], rows)
    print(f"{pairs:,} pairs and a quarter of them measured; {GOAL:,} by the line through both")
    figures = {"pairs": pairs, "phases": many, "quarter": few, "bytes_a_pair": slope, "expected_gib": expected}
    aims = [Aim(f"GiB at {GOAL:,} pairs, by proportion", max(expected.values()), 2.0)]
    finish("data", figures, aims, ["pyarrow", "numpy", "torch"])


if __name__ == "__main__":
    main()
