"""Twelve short runs of two source trees, alternating: losses, weights and metrics have to be equal
to the bit.

`python bench/same_bits.py OLD NEW [RUN ...]` takes two checkouts and trains, in a process of its
own, each run with the one and then with the other on tables made from a seed: static towers with
and without the recipe, a transformer in gradient-cached micro-batches, bidirectional, guided,
nested and taught objectives, a head on an index, and recommenders with windows, a transformer,
times, contexts and dislikes. RUN names some of them. It prints one line a run and ends with 1 if
any differs. It is run beside a change that has to leave results as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from safetensors.numpy import load_file

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "r", "st", "lo")]
SHORT = ["recipe=none", "train.max_steps=12", "train.evaluations=1", "train.refit=none"]
TEXTS = ["pairs.parquet", *SHORT, "train.batch_size=64"]
TRANSFORMER = [
    "tower.kind=transformer",
    "tower.width=32",
    "tower.layers=2",
    "tower.heads=2",
    "tower.vocabulary=800",
]
EVENTS = ["events.csv", *SHORT, "train.batch_size=128", "tower.dimensions=16"]
RATED = "data.metadata=[rating,device]"
HISTORY = "tower.history={pools: [{mean: {last: 1}}, {mean: {last: 10, decay: 0.9}}]}"
ATTENTION = "tower.history={pools: [{transformer: {last: 10, layers: 1, heads: 2, dropout: 0.1}}]}"
# In this order: later runs read the folder of the first.
RUNS: dict[str, list[str]] = {
    "static": TEXTS,
    "negatives": [*TEXTS, "data.negatives=[negative]", "train.max_steps=20"],
    "transformer": [*TEXTS, *TRANSFORMER, "train.cache_memory=200000"],
    "bidirectional": [*TEXTS, "objective.preset=gte", "objective.temperature={learnable: true}"],
    "nested": [*TEXTS, "objective.matryoshka=[64, 128, 256]", "objective.precisions=[int8]"],
    "guided": [*TEXTS, "train.guide=runs/static", "objective.masks=[same_id, guided]"],
    "taught": [*TEXTS, "train.teacher=runs/static", "train.refit=auto"],
    "head": [
        *TEXTS,
        "tower.query.kind=head",
        "tower.query.model=runs/static",
        "tower.doc.index=runs/static",
    ],
    "recipe": ["pairs.parquet", "train.num_train_epochs=1"],
    "windows": [*EVENTS, RATED, HISTORY, "tower.query=[elapsed]", "evaluation.baselines=true"],
    "attention": [*EVENTS, ATTENTION, "data.context=[device]", "data.dislikes=2"],
    "events": ["events.csv", RATED, "train.max_steps=30", "evaluation.queries=100"],
}


def make_data(folder: Path) -> None:
    """Write pairs of texts with a negative each, and events with times, ratings and a device."""
    draw = np.random.default_rng(7)
    queries, docs, negatives = [], [], []
    for _ in range(1_500):
        words = draw.choice(WORDS, 12)
        queries.append(" ".join(words[:4]))
        docs.append(" ".join(draw.permutation(np.concatenate([words[2:8], draw.choice(WORDS, 6)]))))
        negatives.append(" ".join(np.concatenate([words[:2], draw.choice(WORDS, 8)])))
    table = pa.table({"query": queries, "doc": docs, "negative": negatives})
    parquet.write_table(table, folder / "pairs.parquet")
    lines = ["user,item,rating,timestamp,device"]
    for user in range(200):
        at = 1_600_000_000 + int(draw.integers(0, 10_000_000))
        item = int(draw.integers(0, 120))
        for _ in range(int(draw.integers(8, 30))):
            item = (item + int(draw.integers(1, 6))) % 120
            at += int(draw.exponential(80_000)) + 1
            device = draw.choice(["phone", "desk"])
            lines.append(f"{user},{item},{draw.integers(1, 6)},{at},{device}")
    (folder / "events.csv").write_text("\n".join(lines) + "\n")


def train(source: Path, folder: Path, name: str) -> None:
    """Train one run with the code of a checkout, on one thread."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tempera", "train", *RUNS[name], "--output", f"runs/{name}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"{name} with {source} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )


def marks(run: Path) -> dict[str, str]:
    """Return a checksum of the losses, of each file of weights or vectors, and of the metrics."""
    found = {}
    steps = [each for each in _lines(run / "log.jsonl") if each["event"] == "step"]
    found["losses"] = _digest([(each["step"], each["loss"], each["temperature"]) for each in steps])
    for path in sorted(run.rglob("*.safetensors")):
        tensors = {key: value.tobytes().hex() for key, value in load_file(path).items()}
        found[str(path.relative_to(run))] = _digest(sorted(tensors.items()))
    for path in sorted(run.rglob("*.npy")):
        found[str(path.relative_to(run))] = _digest(np.load(path).tobytes().hex())
    document = json.loads((run / "metrics.json").read_text())
    found["metrics"] = _digest([document["metrics"], document.get("difference")])
    return found


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text().splitlines():
        if line:
            yield json.loads(line)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def main(old: Path, new: Path, names: list[str]) -> int:
    """Compare the runs of two checkouts; return the number of runs that differ."""
    differing = 0
    with tempfile.TemporaryDirectory() as root:
        folders = {}
        for label in ("old", "new"):
            folders[label] = Path(root, label)
            folders[label].mkdir()
            make_data(folders[label])
        for name in names:
            train(old.resolve(), folders["old"], name)
            train(new.resolve(), folders["new"], name)
            before = marks(folders["old"] / "runs" / name)
            after = marks(folders["new"] / "runs" / name)
            different = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            differing += bool(different)
            outcome = f"DIFFERS in {', '.join(different)}" if different else "equal"
            print(f"{name:14} {len(before)} marks  {outcome}", flush=True)
    return differing


if __name__ == "__main__":
    _, old, new, *names = sys.argv
    raise SystemExit(bool(main(Path(old), Path(new), names or list(RUNS))))
