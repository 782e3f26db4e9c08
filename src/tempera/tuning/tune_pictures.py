"""The picture of a tuning: its trials in turn, their settings and scores, and the importance of the
options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.pictures import BLUE, GREY, LINES, can_draw, canvas, label, number, saved
from ..experiments.figures import cell
from ..experiments.record import Record
from .space import Choices, Field
from .trials import Tuning, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RED = LINES[1]
_INK = "#334155"
_RULE = "#94a3b8"
_WORST = (0xDB, 0xE3, 0xEC)  # colour of the worst trial's line
_BEST = (0x1D, 0x5F, 0xD1)  # colour of the best trial's line
_BESIDE: Any = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
_ABSENT = -0.12  # height of a line at an option that its setting does not have


def draw_tuning(tuning: Tuning) -> dict[str, bytes]:
    """Return SVG and PNG of a tuning, by the ends of their names."""
    if not can_draw("tune.svg"):
        return {}
    fields = tuning.space.fields
    width = max(6.6, 1.5 * (len(fields) + 1))
    heights = [2.4, 3.4]
    if tuning.importance:
        heights.append(0.5 + 0.28 * len(tuning.importance))
    with canvas("tune", width, sum(heights) + 0.4) as figure:
        panels = list(figure.subplots(len(heights), height_ratios=heights))
        _history(panels[0], tuning)
        _parallel(panels[1], tuning, fields)
        if tuning.importance:
            _importance(panels[2], tuning)
        return saved(figure)


def _history(axes: Axes, tuning: Tuning) -> None:
    """Draw each trial in turn, and the best so far."""
    x_of = {trial.number: i for i, trial in enumerate(tuning.trials, 1)}
    done = [trial for trial in tuning.trials if trial.done]
    x = [x_of[trial.number] for trial in done]
    best = np.maximum.accumulate([trial.value or 0.0 for trial in done])
    axes.step(x, best, where="post", color=BLUE, linewidth=1.5, label="best so far")
    for state, mark, color in (("finished", "o", BLUE), ("pruned", "x", GREY)):
        trials = [t for t in tuning.trials if t.state == state and t.value is not None]
        if trials:
            x = [x_of[trial.number] for trial in trials]
            y = [trial.value or 0.0 for trial in trials]
            axes.plot(x, y, mark, color=color, markersize=4, label=state)
    name = f"failed ({tuning.count('failed')})"
    for trial in tuning.trials:
        if trial.state == "failed":
            axes.axvline(x_of[trial.number], color=_RED, linewidth=1, linestyle=":", label=name)
            name = ""  # once in the legend
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("trial")
    axes.set_title(label(tuning.metric))
    axes.legend(loc="lower right", fontsize=8, ncols=4)


def _parallel(axes: Axes, tuning: Tuning, fields: Sequence[Field]) -> None:
    """Draw a line for each trial, through its values, to its score; a better trial is bluer."""
    done = ranked(tuning.trials)[::-1]
    values = [trial.value or 0.0 for trial in done]
    low, high = min(values), max(values)
    scale = (high - low) or 1.0
    x = np.arange(len(fields) + 1)
    absent = any(field.name not in trial.params for trial in done for field in fields)
    for rank, (trial, value) in enumerate(zip(done, values, strict=True)):
        share = rank / max(1, len(done) - 1)
        y = [_height(field, trial) for field in fields]
        y.append((value - low) / scale)
        is_best = trial is done[-1]
        axes.plot(
            x,
            y,
            color=_mixed(share),
            linewidth=2.2 if is_best else 1.0,
            alpha=1.0 if is_best else 0.8,
            zorder=2 + share,
        )
    for i, field in enumerate(fields):
        _scale(axes, i, field)
    axes.axvline(len(fields), color=_RULE, linewidth=0.8, zorder=1)
    for height, value in ((0.0, low), (1.0, high)):
        axes.annotate(number(value), (len(fields), height), (5, 0), **_BESIDE)
    names = [_wrapped(field.name) for field in fields]
    names.append(label(tuning.metric))
    axes.set_xticks(x, names, color=_INK)
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(fields) + 0.35)
    axes.set_ylim(_ABSENT - 0.05 if absent else -0.05, 1.05)
    axes.grid(False, axis="y")
    axes.tick_params(axis="x", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    note = "; lowest: has no such option" if absent else ""
    axes.set_title(f"finished trials, the best one bold{note}")


def _scale(axes: Axes, i: int, field: Field) -> None:
    """Draw the axis of an option, with its values."""
    axes.axvline(i, color=_RULE, linewidth=0.8, zorder=1)
    domain = field.domain
    if isinstance(domain, Choices):
        marks = [(_share(domain, value), cell(value)) for value in domain.labels]
    else:
        marks = [(0.0, f"{domain.low:g}"), (1.0, f"{domain.high:g}")]
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for height, text in marks:
        axes.annotate(text, (i, height), (4, 0), **_BESIDE, bbox=box, zorder=4)


def _height(field: Field, trial: Record) -> float:
    """Return the height of a trial's value on an option's axis, from 0 to 1."""
    if field.name not in trial.params:
        return _ABSENT
    value, domain = trial.params[field.name], field.domain
    if isinstance(domain, Choices):
        return _share(domain, value)
    if domain.log:
        return math.log(value / domain.low) / math.log(domain.high / domain.low)
    return float((value - domain.low) / (domain.high - domain.low))


def _share(domain: Choices, value: Any) -> float:
    """Return the position of a choice among all choices, from 0 to 1."""
    return domain.labels.index(value) / max(1, len(domain.labels) - 1)


def _mixed(share: float) -> tuple[float, ...]:
    """Return the colour at a share of the way from the worst line's colour to the best line's."""
    return tuple(((1 - share) * a + share * b) / 255 for a, b in zip(_WORST, _BEST))


def _wrapped(name: str) -> str:
    """Break a name into lines that are not wider than an axis."""
    return name.replace(".", ".\n").replace(" (", "\n(")


def _importance(axes: Axes, tuning: Tuning) -> None:
    """Draw a bar for each option's importance."""
    shares = dict(sorted(tuning.importance.items(), key=lambda item: item[1]))
    bars = axes.barh(list(shares), list(shares.values()), 0.7, color=BLUE)
    axes.bar_label(bars, [f"{share:.0%}" for share in shares.values()], padding=3, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_title("share in what makes a trial one of the best quarter")
