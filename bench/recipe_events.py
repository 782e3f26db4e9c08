"""`tempera train EVENTS` without options, against the counting baselines, on interactions with and
without times and order.

`python bench/recipe_events.py [CASES]` takes the first cases whose interactions lie in the folder
that TEMPERA_DATA names. Each is one command without options, but for the metrics and
`data.ordered=false` where the order is thrown away. The run itself evaluates: all items are ranked,
those of the user's history left out. Differences of what is served and of the vectors from the best
baseline have 95 % intervals, paired by user. CPU seconds are of the whole command, by phase.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import tempera
from _harness import Aim, arguments, finish, table
from _sets import measured_cases
from tempera.task.verdict import COUNTED

CASES: dict[str, tuple[str, list[str]]] = {
    "toys": ("toys/interactions.parquet", []),
    "grocery, by time": ("grocery/interactions.parquet", []),
    "lastfm": ("lastfm/interactions.parquet", []),
    "toys, no order": ("toys/interactions.parquet", ["data.ordered=false"]),
}
BASELINES = ("popularity", "item-kNN", "EASE", "transitions")


def measured(path: Path, options: list[str]) -> dict[str, Any]:
    """Return what one command without options reaches, and what it costs."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        run = tempera.train(
            str(path), Path(folder) / "run", ["evaluation.metrics=[ndcg@10,hit@10]", *options]
        )
        seconds = time.process_time() - start
        document = run.results
    hit, ndcg = "hit@10", "ndcg@10"
    best = max(
        (name for name in BASELINES if name in run.metrics),
        key=lambda name: run.metrics[name][ndcg],
    )
    return {
        "metrics": {name: {key: each[key] for key in (hit, ndcg)} for name, each in run.metrics.items()},
        "chosen": document.get("recipe", {}).get("chosen"), "hybrid": document.get("hybrid"), "served": document.get("counting"),
        "best baseline": best, "seconds": seconds, "phases": {k: v["cpu"] for k, v in document["seconds"].items()},
        "peak_memory_bytes": document["peak_memory_bytes"],
        "differences": {
            name: document["difference"][f"{name} - {best}"][ndcg] for name in ("trained", COUNTED) if name in run.metrics
        },
    }  # fmt: skip


def main() -> None:
    """Measure the cases."""
    options = arguments(__doc__ or "", cases=len(CASES))
    torch.set_num_threads(1)
    report(measured_cases(CASES, int(options.cases), measured))


def report(figures: dict[str, Any]) -> None:
    """Print the table and keep the figures."""
    systems = (*BASELINES, "trained", COUNTED)
    table(
        ["data", *systems, "CPU s", "MiB"],
        [
            [
                name,
                *(" / ".join(f"{v:.4f}" for v in each["metrics"][s].values()) if s in each["metrics"] else "" for s in systems),
                f"{each['seconds']:.0f}", f"{each['peak_memory_bytes'] / 2**20:.0f}",
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    gaps = [max(each["differences"].values(), key=lambda d: d["mean"]) for each in figures.values()]
    aims = [
        Aim("cases shown below the best baseline", sum(gap["high"] < 0 for gap in gaps), 0),
        Aim(
            "cases shown above the best baseline",
            sum(gap["low"] > 0 for gap in gaps),
            len(gaps),
            True,
        ),
        Aim("CPU seconds, at most", max(each["seconds"] for each in figures.values()), 1200),
    ]
    finish("recipe_events", figures, aims, ["torch", "scipy", "numpy"])


if __name__ == "__main__":
    main()
