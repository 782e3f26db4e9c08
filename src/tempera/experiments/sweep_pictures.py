"""The picture of a sweep: the metric, and below it, on the same axis, the quantities that explain
it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ..artifacts.pictures import BLUE, LINES, canvas, label, saved
from .grid import TEMPERATURE
from .result import Point, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEARNED, _REGION = "#b45309", "#dbe8fb"
# a range of values is drawn on a logarithmic axis if the highest is so many times the lowest
_WIDE = 8.0


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
    place = {
        repr(value): float(value) if first.numeric else float(i)
        for i, value in enumerate(first.values)
    }
    lines = []
    for value, color in zip(other[0].values if other else [None], cycle(LINES)):
        points = [
            p
            for p in sweep.points
            if p.done and (not other or repr(p.over[other[0].field]) == repr(value))
        ]
        points.sort(key=lambda point: place[repr(point.over[first.field])])
        x = tuple(place[repr(point.over[first.field])] for point in points)
        name = f"{other[0].field} {value}" if other else ""
        lines.append(Line(name, color, x, tuple(points)))
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
        log_marks(axes.xaxis)
    axes.set_xlabel(first.field)


def log_marks(axis: Any) -> None:
    """Put marks at 1, 2, 5, 10, ..., or at powers of 10, written as they are."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _reached(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    """Draw the metric with its intervals, the best region, and where learned temperatures end."""
    region = "not shown to be worse than any"
    look: dict[str, Any] = {"markersize": 4, "elinewidth": 1, "capsize": 2}
    for line, mark in zip(lines, cycle("os^D")):
        heights = [point.metric(sweep.metric) for point in line.points]
        half = [0.0 if math.isnan(height.low) else height.high - height.mean for height in heights]
        means = [height.mean for height in heights]
        axes.errorbar(
            line.x, means, half, marker=mark, color=line.color, label=line.name or None, **look
        )
        best = [
            y if point in sweep.region else math.nan
            for y, point in zip(means, line.points, strict=True)
        ]
        ring: dict[str, Any] = {
            "markeredgecolor": line.color,
            "markeredgewidth": 0.6,
            "color": _REGION,
        }
        axes.plot(line.x, best, "o", markersize=11, zorder=1.5, label=region, **ring)
        region = ""  # once in the legend
    if any(axis.field == TEMPERATURE for axis in sweep.axes):
        _moving(axes, sweep.metric, sweep.learned, _LEARNED, "D", "learned: start to end")
        _moving(axes, sweep.metric, sweep.scheduled, LINES[2], "s", "scheduled: start to end")
    seeds = len(sweep.seeds)
    axes.set_title(
        f"{label(sweep.metric)}: {f'mean of {seeds} seeds with 95 % interval' if seeds > 1 else 'one seed'}"
    )
    axes.legend(loc="best", fontsize=8)


def _moving(
    axes: Axes, metric: str, points: Sequence[Point], color: str, mark: str, name: str
) -> None:
    """Draw each temperature that moved: from its start, empty, to its end, full, at the height of
    its metric."""
    for point in points:
        if not point.done or point.start is None:
            continue
        height = point.metric(metric).mean
        axes.plot([point.start, point.temperature], [height, height], color=color, linewidth=1)
        axes.plot([point.start], [height], mark, markersize=5, markerfacecolor="white", color=color)
        axes.plot([point.temperature], [height], mark, markersize=5, color=color, label=name)
        name = ""  # once in the legend


def _cosines(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    single = len(lines) == 1
    for line in lines:
        for i, (kind, dashes) in enumerate(
            {"positive": "-", "hardest": "--", "random": ":"}.items()
        ):
            color, name = (
                (LINES[i] if single else line.color),
                "hardest negative" if kind == "hardest" else kind,
            )
            middle, low, high = (
                [p.seen(f"{kind}_{share}%") for p in line.points] for share in (50, 5, 95)
            )
            axes.plot(line.x, middle, dashes, color=color, label=name if line is lines[0] else None)
            if single:
                axes.fill_between(line.x, low, high, color=color, alpha=0.13, linewidth=0)
    axes.set_title("similarities in a fixed batch: median" + (", 5 % to 95 %" if single else ""))
    beside: dict[str, Any] = {
        "loc": "lower right",
        "bbox_to_anchor": (1.0, 1.0),
        "borderaxespad": 0.0,
    }  # the title
    axes.legend(
        **beside, fontsize=8, ncols=3, handlelength=1.2, columnspacing=0.8, handletextpad=0.4
    )


def _quantities(log: bool, left: tuple[str, str], right: tuple[str, str] | None = None) -> Panel:
    """Return what draws a column of the table under a title on the left axis, solid, and one on the
    right axis, dashed."""

    def draw(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
        _curve(axes, lines, left[0], "-")
        axes.set_title(left[1])
        if log:
            axes.set_yscale("log")
            log_marks(axes.yaxis)
        if right is not None:
            beside = axes.twinx()
            beside.grid(False)
            _curve(beside, lines, right[0], "--", LINES[1])
            beside.set_title(f"{right[1]} (right, dashed)", loc="right", fontsize=8)

    return draw


def _curve(axes: Axes, lines: Sequence[Line], column: str, dashes: str, color: str = BLUE) -> None:
    for line in lines:
        values = [
            point.grad_norm if column == "grad_norm" else point.seen(column)
            for point in line.points
        ]
        axes.plot(line.x, values, dashes, color=color if len(lines) == 1 else line.color)


Panel = Callable[[Any, Sweep, Sequence[Line]], None]
_PANELS: tuple[Panel, ...] = (
    _reached,
    _cosines,
    _quantities(
        True,
        ("effective_negatives", "effective negatives"),
        ("hardest_share", "the hardest's share of the gradient"),
    ),
    _quantities(False, ("alignment", "alignment"), ("uniformity", "uniformity")),
    _quantities(True, ("grad_norm", "gradient norm, mean of the last steps")),
)
