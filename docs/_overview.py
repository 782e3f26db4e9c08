"""Draw overview.png, the picture of the README, from recorded results: `python
docs/_overview.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
BLUE, RED, GREY, INK = "#1d5fd1", "#be3455", "#a3adba", "#334155"
STEPS = {
    "tempera, all kept": "Tempera, all graphs kept",
    "tempera, none kept": "Tempera, none kept",
    "ST cached, 8 rows": "sentence-transformers, cached, 8 rows",
    "GradCache, 8 rows": "GradCache, 8 rows",
    "ST": "sentence-transformers, not cached",
}


def record(path: str) -> Any:
    """Return a recorded result."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def sweep(axes: Axes) -> None:
    """Draw nDCG@10 over the temperature, with the best region."""
    line = record("study/results/code_moving.json")["lines"][0]
    points = line["points"]
    t, mean = ([point[name] for point in points] for name in ("temperature", "mean"))
    errors = [
        [point["mean"] - point["low"] for point in points],
        [point["high"] - point["mean"] for point in points],
    ]
    best = [point for point in points if point["temperature"] in line["region"]]
    axes.errorbar(t, mean, errors, color=BLUE, marker="o", markersize=4, capsize=2, linewidth=1.5)
    axes.plot(
        [point["temperature"] for point in best],
        [point["mean"] for point in best],
        "D",
        color=RED,
        label="best region",
    )
    axes.axvline(0.05, color=GREY, linestyle="--", linewidth=1, label="usual temperature, 0.05")
    axes.set_xscale("log")
    axes.set_xticks(
        [0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1], ["0.005", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]
    )
    axes.minorticks_off()
    axes.set_xlabel("temperature")
    axes.set_title("nDCG@10 of a sweep, 3 seeds, 95 % intervals")
    axes.legend(frameon=False, loc="lower right")


def steps(axes: Axes) -> None:
    """Draw the CPU time and the memory of one training step."""
    figures = {figure["variant"]: figure for figure in record("bench/results/step.json")["figures"]}
    seconds = [figures[name]["seconds"] for name in STEPS]
    colours = [BLUE if name.startswith("tempera") else GREY for name in STEPS]
    axes.barh(list(STEPS.values()), seconds, color=colours, height=0.62)
    for y, name in enumerate(STEPS):
        text = f"{seconds[y]:.1f} s, {figures[name]['bytes'] / 2**20:,.0f} MiB"
        axes.annotate(
            text, (seconds[y], y), (5, 0), textcoords="offset points", va="center", color=INK
        )
    axes.set_xlim(0, 1.45 * max(seconds))
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds")
    axes.set_title("One step of 64 pairs: time and added memory")


def main() -> None:
    """Write the picture."""
    figure = Figure((11, 3.4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    sweep(left)
    steps(right)
    for axes in (left, right):
        axes.title.set(fontsize=10.5, color=INK)
        axes.tick_params(labelsize=8.5, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "overview.png")


if __name__ == "__main__":
    main()
