"""The picture of a sweep: the metric above, and below, on the same axis, the quantities that
explain the metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ..artifacts.pictures import BLUE, LINES, can_draw, canvas, label, saved
from .grid import TEMPERATURE, Axis
from .result import Point, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEARNED = "#b45309"
_REGION = "#dbe8fb"
# The x axis is logarithmic if the highest value is at least so many times the lowest.
_WIDE = 8.0


@dataclass(frozen=True)
class Line:
    """Points that differ in the option of the x axis only, in the order of the option."""

    name: str  # the other option with its value; empty if there is no other option
    color: str
    x: tuple[float, ...]
    points: tuple[Point, ...]


def draw_sweep(sweep: Sweep) -> dict[str, bytes]:
    """Return SVG and PNG of a sweep, by the ends of the file names."""
    if not can_draw("sweep.svg"):
        return {}
    first, other = _x_axis_and_other(sweep.axes)
    x_of: dict[str, float] = {}
    for i, value in enumerate(first.values):
        x_of[repr(value)] = float(value) if first.numeric else float(i)
    lines = []
    for value, color in zip(other.values if other else [None], cycle(LINES)):
        points = []
        for point in sweep.points:
            on_line = other is None or repr(point.over[other.field]) == repr(value)
            if point.done and on_line:
                points.append(point)
        points.sort(key=lambda point: x_of[repr(point.over[first.field])])
        x = tuple(x_of[repr(point.over[first.field])] for point in points)
        name = f"{other.field} {value}" if other else ""
        lines.append(Line(name, color, x, tuple(points)))
    with canvas("sweep", 6.6, 10.4) as figure:
        panels = list(figure.subplots(len(_PANELS), sharex=True, height_ratios=(2, 1.6, 1, 1, 1)))
        for draw, axes in zip(_PANELS, panels, strict=True):
            draw(axes, sweep, lines)
            axes.title.set_fontsize(9)
        _ticks(panels[-1], first, x_of)
        return saved(figure)


def _x_axis_and_other(axes: Sequence[Axis]) -> tuple[Axis, Axis | None]:
    """Return the option of the x axis, the temperature or else a numeric option if there is any,
    and the other option."""
    if len(axes) == 1:
        return axes[0], None
    first, other = axes
    if other.field == TEMPERATURE and first.field != TEMPERATURE:
        first, other = other, first
    if other.numeric and not first.numeric:
        first, other = other, first
    return first, other


def _ticks(axes: Axes, first: Axis, x_of: dict[str, float]) -> None:
    """Put the values of an option at the x axis, shared by all panels."""
    values = list(x_of.values())
    if not first.numeric:
        axes.set_xticks(values, [str(value) for value in first.values])
    elif min(values) > 0 and max(values) / min(values) >= _WIDE:
        axes.set_xscale("log")
        log_marks(axes.xaxis)
    axes.set_xlabel(first.field)


def log_marks(axis: Any) -> None:
    """Put marks at 1, 2, 5, 10, ..., or at powers of 10, written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _metric(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    """Draw the metric with its intervals, the best region, and where learned temperatures end."""
    region_label = "not shown to be worse than any"
    for line, mark in zip(lines, cycle("os^D")):
        scores = [point.metric(sweep.metric) for point in line.points]
        means = [score.mean for score in scores]
        half = [0.0 if math.isnan(score.low) else score.high - score.mean for score in scores]
        axes.errorbar(
            line.x,
            means,
            half,
            marker=mark,
            color=line.color,
            label=line.name or None,
            markersize=4,
            elinewidth=1,
            capsize=2,
        )
        best = []
        for score, point in zip(scores, line.points, strict=True):
            best.append(score.mean if point in sweep.region else math.nan)
        axes.plot(
            line.x,
            best,
            "o",
            markersize=11,
            zorder=1.5,
            label=region_label,
            markeredgecolor=line.color,
            markeredgewidth=0.6,
            color=_REGION,
        )
        region_label = ""  # once in the legend
    if any(axis.field == TEMPERATURE for axis in sweep.axes):
        _moving(axes, sweep.metric, sweep.learned, _LEARNED, "D", "learned: start to end")
        _moving(axes, sweep.metric, sweep.scheduled, LINES[2], "s", "scheduled: start to end")
    seeds = len(sweep.seeds)
    sample = f"mean of {seeds} seeds with 95 % interval" if seeds > 1 else "one seed"
    axes.set_title(f"{label(sweep.metric)}: {sample}")
    axes.legend(loc="best", fontsize=8)


def _moving(
    axes: Axes, metric: str, points: Sequence[Point], color: str, mark: str, name: str
) -> None:
    """Draw each moving temperature at the height of the metric, from start (empty mark) to end
    (full mark)."""
    for point in points:
        if not point.done or point.start is None:
            continue
        height = point.metric(metric).mean
        axes.plot([point.start, point.temperature], [height, height], color=color, linewidth=1)
        axes.plot([point.start], [height], mark, markersize=5, markerfacecolor="white", color=color)
        axes.plot([point.temperature], [height], mark, markersize=5, color=color, label=name)
        name = ""  # once in the legend


def _cosines(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
    """Draw the similarities of positives, hardest negatives and random negatives."""
    names = {"positive": "positive", "hardest": "hardest negative", "random": "random"}
    single = len(lines) == 1
    for line in lines:
        for i, (kind, dashes) in enumerate(zip(names, ("-", "--", ":"), strict=True)):
            color = LINES[i] if single else line.color
            name = names[kind] if line is lines[0] else None
            middle = [point.seen(f"{kind}_50%") for point in line.points]
            axes.plot(line.x, middle, dashes, color=color, label=name)
            if single:
                low = [point.seen(f"{kind}_5%") for point in line.points]
                high = [point.seen(f"{kind}_95%") for point in line.points]
                axes.fill_between(line.x, low, high, color=color, alpha=0.13, linewidth=0)
    title = "similarities in a fixed batch: median"
    if single:
        title += ", 5 % to 95 %"
    axes.set_title(title)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),  # beside the title
        borderaxespad=0.0,
        fontsize=8,
        ncols=3,
        handlelength=1.2,
        columnspacing=0.8,
        handletextpad=0.4,
    )


def _quantities(log: bool, left: tuple[str, str], right: tuple[str, str] | None = None) -> Panel:
    """Return a panel of a single column or two columns of the table.

    Args:
        log: the left axis is logarithmic.
        left: column and title of the left axis, drawn solid.
        right: column and title of the right axis, drawn dashed.
    """
    left_column, left_title = left

    def draw(axes: Axes, sweep: Sweep, lines: Sequence[Line]) -> None:
        _curve(axes, lines, left_column, "-")
        axes.set_title(left_title)
        if log:
            axes.set_yscale("log")
            log_marks(axes.yaxis)
        if right is not None:
            right_column, right_title = right
            right_axes = axes.twinx()
            right_axes.grid(False)
            _curve(right_axes, lines, right_column, "--", LINES[1])
            right_axes.set_title(f"{right_title} (right, dashed)", loc="right", fontsize=8)

    return draw


def _curve(axes: Axes, lines: Sequence[Line], column: str, dashes: str, color: str = BLUE) -> None:
    """Draw a column of the table for each line, `color` if there is a single line."""
    for line in lines:
        if column == "grad_norm":
            values = [point.grad_norm for point in line.points]
        else:
            values = [point.seen(column) for point in line.points]
        axes.plot(line.x, values, dashes, color=color if len(lines) == 1 else line.color)


Panel = Callable[[Any, Sweep, Sequence[Line]], None]
_PANELS: tuple[Panel, ...] = (
    _metric,
    _cosines,
    _quantities(
        True,
        ("effective_negatives", "effective negatives"),
        ("hardest_share", "the hardest's share of the gradient"),
    ),
    _quantities(False, ("alignment", "alignment"), ("uniformity", "uniformity")),
    _quantities(True, ("grad_norm", "gradient norm, mean of the last steps")),
)
