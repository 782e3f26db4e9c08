"""The picture of a sweep: the metric, and below it, on the same axis, the quantities that explain it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..artifacts.pictures import LINES, canvas, label, saved
from .grid import TEMPERATURE
from .result import Point, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEARNED, _REGION = "#b45309", "#dbe8fb"
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
    """Return SVG and PNG of a sweep, by the ends of their names."""
    first, *other = sorted(sweep.axes, key=lambda axis: axis.field != TEMPERATURE)
    if not first.numeric and other and other[0].numeric:
        first, other = other[0], [first]
    place = {repr(value): float(value) if first.numeric else float(i) for i, value in enumerate(first.values)}
    lines = []
    for i, value in enumerate(other[0].values if other else [None]):
        points = [p for p in sweep.points if p.done and (not other or p.over[other[0].field] == value)]
        points.sort(key=lambda point: place[repr(point.over[first.field])])
        x = tuple(place[repr(point.over[first.field])] for point in points)
        name = f"{other[0].field} {value}" if other else ""
        lines.append(Line(name, LINES[i % len(LINES)], x, tuple(points)))
    with canvas("sweep", 6.6, 10.4) as figure:
        panels = list(figure.subplots(len(_PANELS), sharex=True, height_ratios=(2, 1.6, 1, 1, 1)))
        for draw, axes in zip(_PANELS, panels, strict=True):
            draw(axes, sweep, lines)
            axes.title.set_fontsize(9)
        _ticks(panels[-1], first, place)
        return saved(figure)


def _ticks(axes: Axes, first: Any, place: dict[str, float]) -> None:
    """Give all panels one axis."""
    values = list(place.values())
    if not first.numeric:
        axes.set_xticks(values, [str(value) for value in first.values])
    elif min(values) > 0 and max(values) / min(values) >= _WIDE:
        axes.set_xscale("log")
        _log(axes.xaxis)
    axes.set_xlabel(first.field)


def _log(axis: Any) -> None:
    """Put marks at 1, 2, 5, 10, ..., or at powers of 10, written as they are."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _reached(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    """Draw the metric with its intervals, the best region, and where learned temperatures end."""
    region = "not shown to be worse than any"
    for i, line in enumerate(lines):
        heights = [point.metric(sweep.metric) for point in line.points]
        half = [0.0 if math.isnan(height.low) else height.high - height.mean for height in heights]
        means = [height.mean for height in heights]
        look: dict[str, Any] = {"marker": _MARKS[i % len(_MARKS)], "color": line.color}
        axes.errorbar(
            line.x, means, half, markersize=4, linewidth=1.5, elinewidth=1, capsize=2, label=line.name or None, **look
        )
        best = [(x, y) for x, y, point in zip(line.x, means, line.points, strict=True) if point in sweep.region]
        ring: dict[str, Any] = {"markeredgecolor": line.color, "markeredgewidth": 0.6, "color": _REGION}
        axes.plot(*zip(*best or [(math.nan, math.nan)]), "o", markersize=11, zorder=1.5, label=region, **ring)
        region = ""  # once in the legend
    if any(axis.field == TEMPERATURE for axis in sweep.axes):
        _moving(axes, sweep.metric, sweep.learned, _LEARNED, "D", "learned: start to end")
        _moving(axes, sweep.metric, sweep.scheduled, LINES[2], "s", "scheduled: start to end")
    seeds = len(sweep.seeds)
    axes.set_title(f"{label(sweep.metric)}: {f'mean of {seeds} seeds with 95 % interval' if seeds > 1 else 'one seed'}")
    axes.legend(loc="best", fontsize=8)


def _moving(axes: Axes, metric: str, points: Sequence[Point], color: str, mark: str, name: str) -> None:
    """Draw each temperature that moved: from its start, empty, to its end, full, at the height of its metric."""
    for point in points:
        if not point.done or point.start is None:
            continue
        height = point.metric(metric).mean
        axes.plot([point.start, point.temperature], [height, height], color=color, linewidth=1)
        axes.plot([point.start], [height], mark, markersize=5, markerfacecolor="white", color=color)
        axes.plot([point.temperature], [height], mark, markersize=5, color=color, label=name)
        name = ""  # once in the legend


def _cosines(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    kinds = {"positive": ("-", "positive"), "hardest": ("--", "hardest negative"), "random": (":", "random")}
    for line in lines:
        for i, (kind, (dashes, name)) in enumerate(kinds.items()):
            color = line.color if len(lines) > 1 else LINES[i]
            text = name if line is lines[0] else None
            axes.plot(line.x, _seen(line, f"{kind}_50%"), dashes, color=color, linewidth=1.5, label=text)
            if len(lines) == 1:
                low, high = _seen(line, f"{kind}_5%"), _seen(line, f"{kind}_95%")
                axes.fill_between(line.x, low, high, color=color, alpha=0.13, linewidth=0)
    axes.set_title("similarities in a fixed batch: median" + (", 5 % to 95 %" if len(lines) == 1 else ""))
    beside: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0}  # the title
    axes.legend(**beside, fontsize=8, ncols=3, handlelength=1.2, columnspacing=0.8, handletextpad=0.4)


def _shared(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    names = "effective negatives", "the hardest's share of the gradient"
    _two(axes, lines, ("effective_negatives", "hardest_share"), names)
    axes.set_yscale("log")
    _log(axes.yaxis)


def _spread(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    _two(axes, lines, ("alignment", "uniformity"), ("alignment", "uniformity"))


def _gradient(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    for line in lines:
        axes.plot(line.x, [point.grad_norm for point in line.points], color=line.color, linewidth=1.5)
    axes.set_title("gradient norm, mean of the last steps")
    axes.set_yscale("log")
    _log(axes.yaxis)


def _two(axes: Axes, lines: Sequence[Line], columns: tuple[str, str], names: tuple[str, str]) -> None:
    """Draw one quantity on the left axis, solid, and one on the right axis, dashed."""
    beside = axes.twinx()
    beside.grid(False)
    for line in lines:
        axes.plot(line.x, _seen(line, columns[0]), color=line.color, linewidth=1.5)
        color = line.color if len(lines) > 1 else LINES[1]
        beside.plot(line.x, _seen(line, columns[1]), "--", color=color, linewidth=1.5)
    axes.set_title(names[0])
    beside.set_title(f"{names[1]} (right, dashed)", loc="right", fontsize=8)


def _seen(line: Line, name: str) -> list[float]:
    return [point.seen(name) for point in line.points]


_PANELS: tuple[Callable[[Any, Sweep, Sequence[Line]], None], ...] = (_reached, _cosines, _shared, _spread, _gradient)
