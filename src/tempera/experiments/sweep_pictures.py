"""The picture of a sweep: what is reached, and below it, on the same axis, what explains it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..artifacts.pictures import canvas, label, svg_of
from .result import Point, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#1d5fd1", "#be3455", "#0f766e", "#7e3fb0", "#8a6100", "#475569")
_LEARNED, _SCHEDULED, _REGION = "#b45309", "#0f766e", "#dbe8fb"
_TEMPERATURE = "objective.temperature"
_WIDE = 8.0  # a range of values is drawn on a logarithmic axis if the highest is so many times the lowest
_MARKS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class Line:
    """Points that differ in the option of the x axis only, in its order."""

    name: str  # the value of the other option; empty if there is none
    color: str
    x: tuple[float, ...]
    points: tuple[Point, ...]


def picture(sweep: Sweep) -> dict[str, bytes]:
    """SVG and PNG of a sweep, by the ends of their names."""
    first, *other = sorted(sweep.axes, key=lambda axis: axis.field != _TEMPERATURE)
    if not first.numeric and other and other[0].numeric:
        first, other = other[0], [first]
    place = {repr(value): float(value) if first.numeric else float(i) for i, value in enumerate(first.values)}
    lines = []
    for i, value in enumerate(other[0].values if other else [None]):
        points = [p for p in sweep.points if p.done and (not other or p.over[other[0].field] == value)]
        points.sort(key=lambda point: place[repr(point.over[first.field])])
        x = tuple(place[repr(point.over[first.field])] for point in points)
        name = f"{other[0].field} {value}" if other else ""
        lines.append(Line(name, _COLORS[i % len(_COLORS)], x, tuple(points)))
    with canvas("sweep", 6.6, 10.4) as figure:
        panels = list(figure.subplots(len(_PANELS), sharex=True, height_ratios=(2, 1.6, 1, 1, 1)))
        for draw, axes in zip(_PANELS, panels, strict=True):
            draw(axes, sweep, lines)
            axes.title.set_fontsize(9)
        _ticks(panels[-1], first, place)
        svg, png = svg_of(figure).encode(), io.BytesIO()
        figure.set_layout_engine("none")  # the places that are found stay, which halves the time
        figure.savefig(png, format="png", dpi=150)
    return {"svg": svg, "png": png.getvalue()}


def _ticks(axes: Axes, first: Any, place: dict[str, float]) -> None:
    """One axis for all panels."""
    values = list(place.values())
    if not first.numeric:
        axes.set_xticks(values, [str(value) for value in first.values])
    elif min(values) > 0 and max(values) / min(values) >= _WIDE:
        axes.set_xscale("log")
        _log(axes.xaxis)
    axes.set_xlabel(first.field)


def _log(axis: Any) -> None:
    """Marks at 1, 2, 5, 10, ..., or at powers of 10, written as they are."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _reached(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    """The metric with its intervals, the best region, and where learned temperatures end."""
    for i, line in enumerate(lines):
        found = [point.metric(sweep.metric) for point in line.points]
        spread = [0.0 if math.isnan(f.low) else f.high - f.mean for f in found]
        axes.errorbar(
            line.x,
            [f.mean for f in found],
            spread,
            color=line.color,
            marker=_MARKS[i % len(_MARKS)],
            markersize=4,
            linewidth=1.5,
            elinewidth=1,
            capsize=2,
            label=line.name or None,
        )
        best = [(x, f.mean) for x, f, point in zip(line.x, found, line.points, strict=True) if point in sweep.region]
        axes.plot(
            [x for x, _ in best],
            [y for _, y in best],
            "o",
            markersize=11,
            color=_REGION,
            markeredgecolor=line.color,
            markeredgewidth=0.6,
            zorder=1.5,
            label="not shown to be worse than any" if i == 0 else None,
        )
    if any(axis.field == _TEMPERATURE for axis in sweep.axes):
        _moving(axes, sweep.metric, sweep.learned, _LEARNED, "D", "learned: start to end")
        _moving(axes, sweep.metric, sweep.scheduled, _SCHEDULED, "s", "scheduled: start to end")
    seeds = len(sweep.seeds)
    bars = f"mean of {seeds} seeds with 95 % interval" if seeds > 1 else "one seed"
    axes.set_title(f"{label(sweep.metric)}: {bars}")
    axes.legend(loc="best", fontsize=8)


def _moving(axes: Axes, metric: str, points: Sequence[Point], color: str, mark: str, name: str) -> None:
    """Of each temperature that moved: from where it started, empty, to where it ended, full, at the height that it reached."""
    for point in points:
        if not point.done or point.start is None:
            continue
        height = point.metric(metric).mean
        axes.plot([point.start, point.temperature], [height, height], color=color, linewidth=1)
        axes.plot([point.start], [height], mark, markersize=5, markerfacecolor="white", color=color)
        axes.plot([point.temperature], [height], mark, markersize=5, color=color, label=name)
        name = ""  # once in the legend


def _cosines(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    kinds = {"positive": "-", "hardest": "--", "random": ":"}
    for line in lines:
        for i, (kind, dashes) in enumerate(kinds.items()):
            color = line.color if len(lines) > 1 else _COLORS[i]
            name = {"hardest": "hardest negative"}.get(kind, kind) if line is lines[0] else None
            axes.plot(line.x, _seen(line, f"{kind}_50%"), dashes, color=color, linewidth=1.5, label=name)
            if len(lines) == 1:
                low, high = _seen(line, f"{kind}_5%"), _seen(line, f"{kind}_95%")
                axes.fill_between(line.x, low, high, color=color, alpha=0.13, linewidth=0)
    axes.set_title("similarities in a fixed batch: median" + (", 5 % to 95 %" if len(lines) == 1 else ""))
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),  # beside the title, for lines are everywhere
        borderaxespad=0.0,
        fontsize=8,
        ncols=3,
        handlelength=1.2,
        columnspacing=0.8,
        handletextpad=0.4,
    )


def _shared(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    _two(
        axes,
        lines,
        "effective_negatives",
        "hardest_share",
        "effective negatives",
        "the hardest's share of the gradient",
    )
    axes.set_yscale("log")
    _log(axes.yaxis)


def _spread(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    _two(axes, lines, "alignment", "uniformity", "alignment", "uniformity")


def _gradient(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    for line in lines:
        axes.plot(line.x, [point.grad_norm for point in line.points], color=line.color, linewidth=1.5)
    axes.set_title("gradient norm, mean of the last steps")
    axes.set_yscale("log")
    _log(axes.yaxis)


def _two(axes: Axes, lines: Sequence[Line], left: str, right: str, one: str, two: str) -> None:
    """One quantity on the left axis, whole lines, and one on the right axis, dashed."""
    beside = axes.twinx()
    beside.grid(False)
    for line in lines:
        axes.plot(line.x, _seen(line, left), color=line.color, linewidth=1.5)
        color = line.color if len(lines) > 1 else _COLORS[1]
        beside.plot(line.x, _seen(line, right), "--", color=color, linewidth=1.5)
    axes.set_title(one)
    beside.set_title(f"{two} (right, dashed)", loc="right", fontsize=8)


def _seen(line: Line, name: str) -> list[float]:
    return [point.seen(name) for point in line.points]


_PANELS: tuple[Callable[[Any, Sweep, Sequence[Line]], None], ...] = (_reached, _cosines, _shared, _spread, _gradient)
