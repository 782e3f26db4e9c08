"""Records of the study's sweeps: a curve for each value of the second option, with its
explanation."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tempera.experiments.figures import CONFIDENCE
from tempera.experiments.grid import axes_of
from tempera.experiments.noise import best_region
from tempera.experiments.record import Record, read_records
from tempera.experiments.result import Point, Sweep

METRIC = "ndcg@10"
SEEN = {
    "positive": "positive_50%",
    "hardest": "hardest_50%",
    "random": "random_50%",
    "effective": "effective_negatives",
    "share": "hardest_share",
    "uniformity": "uniformity",
}
DIGITS = 6


def record(folder: Path, over: Sequence[str], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the page needs of a sweep's folder, after `about`, with machine and
    date."""
    runs = [run for run in read_records(folder / "points.jsonl") if run.done]
    axes = axes_of(over)
    fixed = [run for run in runs if run.start is None]
    other = axes[1] if len(axes) > 1 else None
    seeds = tuple(sorted({run.seed for run in fixed}))
    lines = []
    for value in other.values if other else [None]:
        grid = [
            {axes[0].field: t} | ({other.field: value} if other else {}) for t in axes[0].values
        ]
        members = [tuple(run for run in fixed if run.params == point) for point in grid]
        sweep = Sweep.of(folder, axes[:1], METRIC, seeds, [Point(runs) for runs in members if runs])
        lines.append(
            {"option": other and other.field, "value": value, **_curve(sweep, axes[0].field)}
        )
    return {
        **about,
        "metric": METRIC,
        "seeds": len(seeds),
        "models": len(runs),
        "queries": len(runs[0].per_query),
        "minutes": round(sum(run.seconds for run in runs) / 60, 1),
        **stamp(),
        "lines": lines,
        "moving": _moving(
            [run for run in runs if run.start is not None], fixed if other is None else []
        ),
    }


def _curve(sweep: Sweep, field: str) -> dict[str, Any]:
    """Return a curve's points, its best one, and its best region."""
    assert sweep.best is not None
    return {
        "best": sweep.best.over[field],
        "region": [point.over[field] for point in sweep.region],
        "points": [{"temperature": point.over[field], **_seen(point)} for point in sweep.points],
    }


def _seen(point: Point) -> dict[str, Any]:
    metric = point.metric(METRIC)
    figures = {"mean": metric.mean, "low": metric.low, "high": metric.high}
    figures |= {name: point.seen(column) for name, column in SEEN.items()} | {
        "gradient": point.grad_norm
    }
    return {
        name: round(value, DIGITS) if math.isfinite(value) else None
        for name, value in figures.items()
    }


def _moving(runs: Sequence[Record], fixed: Sequence[Record]) -> list[dict[str, Any]]:
    """Return learned and scheduled temperatures, and whether they are in the best region of all,
    fixed ones included."""
    points = [
        (start, final, chosen)
        for (start, final), chosen in _by(runs, lambda run: (run.start, run.final))
    ]
    grid = [chosen for _, chosen in _by(fixed, lambda run: tuple(run.params.items()))]
    everything = [*grid, *(chosen for *_, chosen in points)]
    scores = [{run.seed: np.array(run.per_query) for run in chosen} for chosen in everything]
    region = best_region(scores, [""] * len(scores), CONFIDENCE)
    return [
        {
            "start": start,
            "final": final,
            "end": round(Point(tuple(chosen)).temperature, DIGITS),
            "in region": len(grid) + i in region,
            **_seen(Point(tuple(chosen))),
        }
        for i, (start, final, chosen) in enumerate(points)
    ]


def _by(runs: Iterable[Record], key: Any) -> list[tuple[Any, list[Record]]]:
    groups: dict[Any, list[Record]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.items())


def stamp() -> dict[str, Any]:
    """Return date, commit, machine and versions."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    cpu = [
        line.partition(": ")[2]
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "machine": f"{cpu[0] if cpu else platform.processor()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("tempera", "torch")},
        },
    }


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)
