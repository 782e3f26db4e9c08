"""Tools of every benchmark: alternating CPU time, peak memory in a separate process, tables, aims,
records."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Aim:
    """A figure and its bound, an upper one unless `at_least`."""

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Return whether the figure keeps its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{'met   ' if self.met else 'MISSED'}  {self.name}: {self.value:.3g} (aim {sign} {self.bound:g})"


def alternate(
    variants: Mapping[str, Callable[[], Any]], rounds: int, limit: float = 60.0
) -> dict[str, float]:
    """Return the median CPU seconds of each variant, run alternately; one slower than `limit`
    seconds runs once."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            if seconds[name] and max(seconds[name]) > limit:
                continue
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def arguments(doc: str, **defaults: float) -> argparse.Namespace:
    """Return the numbers of the command line, by position and with defaults; `one` is for
    `by_line`."""
    parser = parser_of(doc, **defaults)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def parser_of(doc: str, **defaults: float) -> argparse.ArgumentParser:
    """Return a parser of numbers by position, with defaults."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(
            name, nargs="?", type=type(default), default=default, help=f"default: {default:,}"
        )
    return parser


def peak_bytes(script: str, *arguments: str) -> int:
    """Return the added memory that `script` prints, run in a separate process with the
    arguments."""
    # A fixed threshold keeps freed blocks from being counted for the next one.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    out = subprocess.run(
        [sys.executable, script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(out.stdout.split()[-1])


def added_memory(run: Callable[[], Any]) -> int:
    """Return the highest resident memory while `run` runs, above that before, in bytes (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


class Meter:
    """The highest private memory and the CPU seconds of each phase."""

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
        try:
            yield
        finally:
            done.set()
            watcher.join()
        self.phases[name] = {
            "seconds": time.process_time() - start,
            "bytes": max(highest[0], own_bytes()),
        }


def own_bytes() -> int:
    """Return the private memory of the process (RssAnon), in bytes (Linux)."""
    return _status("RssAnon")


def by_line(
    script: str, count: int, goal: int, what: str
) -> tuple[dict[str, Any], dict[str, dict[str, float]], float]:
    """Measure `script --one n` at `count` and at a quarter of it, and extrapolate the line through
    both to `goal`.

    Each runs in a separate process, which separates the memory that grows with the rows from the
    rest.

    Returns:
        All figures, those at `count` by phase, and the largest GiB of a phase at the goal.
    """
    few, many = (
        json.loads(
            subprocess.run(
                [sys.executable, script, "--one", str(n)], capture_output=True, check=True
            ).stdout
        )
        for n in (count // 4, count)
    )
    slope = {name: (many[name]["bytes"] - few[name]["bytes"]) / (count * 3 / 4) for name in many}
    expected = {name: (many[name]["bytes"] + slope[name] * (goal - count)) / 2**30 for name in many}
    rows = [
        [
            name,
            f"{p['seconds']:.1f}",
            f"{p['bytes'] / 2**20:,.0f}",
            f"{slope[name]:.0f}",
            f"{expected[name]:.2f}",
        ]
        for name, p in many.items()
    ]
    table(["phase", "CPU s", "MiB", f"bytes for one {what} more", f"GiB at {goal:,}"], rows)
    print(
        f"{count:,} {what}s and a quarter of them measured; {goal:,} extrapolated by the line through both"
    )
    figures = {
        f"{what}s": count,
        "phases": many,
        "quarter": few,
        "bytes_each": slope,
        "expected_gib": expected,
    }
    return figures, many, max(expected.values())


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        print(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)),
            flush=True,
        )


def finish(name: str, figures: Any, aims: Sequence[Aim], packages: Sequence[str]) -> None:
    """Print the aims, keep the figures with commit, versions, machine and date, and exit non-zero
    if an aim is missed."""
    print()
    for aim in aims:
        print(aim)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    info = Path("/proc/cpuinfo")  # of Linux
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = [line.partition(": ")[2] for line in lines if "model name" in line]
    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "machine": f"{cpu[0] if cpu else platform.processor()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in packages},
        },
        "aims": [str(aim) for aim in aims],
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    missed = [aim.name for aim in aims if not aim.met]
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")
