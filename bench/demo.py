"""The default job as a new user runs it: quality beside BM25, seconds, memory, search and help from
a cold start.

`python bench/demo.py` runs `tempera train` with its defaults in a temporary folder.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _harness import Aim, arguments, finish, table

TEMPERA = [sys.executable, "-m", "tempera"]


def seconds(command: list[str], times: int = 5) -> float:
    """Return the median wall-clock seconds of a command."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    """Measure one run, five searches and five helps."""
    arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        start = time.perf_counter()
        done = subprocess.run(
            [*TEMPERA, "train", "--output", run, "--json"],
            check=True,
            capture_output=True,
            text=True,
        )
        total = time.perf_counter() - start
        document = json.loads(done.stdout)
        search = seconds([*TEMPERA, "search", run, "parse a date from a string"])
    help_ = seconds([*TEMPERA, "--help"])
    systems = document["metrics"]
    table(
        ("metric", *systems),
        [(m, *(f"{s[m]:.3f}" for s in systems.values())) for m in systems["trained"]],
    )
    gain = document["difference"]["trained - bm25"]["ndcg@10"]
    aims = [
        Aim(
            "nDCG@10 trained / BM25",
            systems["trained"]["ndcg@10"] / systems["bm25"]["ndcg@10"],
            1.15,
            at_least=True,
        ),
        Aim("low end of the interval of the difference", gain["low"], 0.0, at_least=True),
        Aim("seconds, whole run", total, 180),
        Aim("memory, GiB", document["peak_memory_bytes"] / 2**30, 3),
        Aim("seconds to search from a cold start", search, 2),
        Aim("seconds of --help", help_, 0.5),
    ]
    finish(
        "demo",
        {"document": document, "seconds": {"total": total, "search": search, "help": help_}},
        aims,
        ["torch"],
    )


if __name__ == "__main__":
    main()
