"""The picture of a tuning: its trials in turn, their settings and scores, and the importance of the
options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.pictures import BLUE, GREY, LINES, canvas, label, number, saved
from ..experiments.figures import shown
from ..experiments.record import Record
from .space import Choices, Field
from .trials import Tuning, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RED, _INK, _RULE = LINES[1], "#334155", "#94a3b8"
_LOW, _HIGH = (0xDB, 0xE3, 0xEC), (0x1D, 0x5F, 0xD1)  # of the worst line, and of the best
_BESIDE: Any = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
_ABSENT = -0.12  # where lines go whose setting has no such option


def picture(tuning: Tuning) -> dict[str, bytes]:
    """Return SVG and PNG of a tuning, by the ends of their names."""
    fields = tuning.space.fields
    width = max(6.6, 1.5 * (len(fields) + 1))
    bars = 0.5 + 0.28 * len(tuning.importance)
    heights = [2.4, 3.4, *([bars] if tuning.importance else [])]
    with canvas("tune", width, sum(heights) + 0.4) as figure:
        panels = list(figure.subplots(len(heights), height_ratios=heights))
        _history(panels[0], tuning)
        _parallel(panels[1], tuning, fields)
        if tuning.importance:
            _importance(panels[2], tuning)
        return saved(figure)


def _history(axes: Axes, tuning: Tuning) -> None:
    """Draw each trial in turn, and the best so far."""
    order = {trial.number: i for i, trial in enumerate(tuning.trials, 1)}
    done = [trial for trial in tuning.trials if trial.done]
    best = np.maximum.accumulate([trial.value or 0.0 for trial in done])
    axes.step(
        [order[t.number] for t in done],
        best,
        where="post",
        color=BLUE,
        linewidth=1.5,
        label="best so far",
    )
    for state, mark, color in (("finished", "o", BLUE), ("pruned", "x", GREY)):
        values = {
            order[t.number]: t.value
            for t in tuning.trials
            if t.state == state and t.value is not None
        }
        if values:
            axes.plot(
                list(values), list(values.values()), mark, color=color, markersize=4, label=state
            )
    name = f"failed ({tuning.count('failed')})"
    for trial in tuning.trials:
        if trial.state == "failed":
            axes.axvline(order[trial.number], color=_RED, linewidth=1, linestyle=":", label=name)
            name = ""  # once in the legend
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("trial")
    axes.set_title(label(tuning.metric))
    axes.legend(loc="lower right", fontsize=8, ncols=4)


def _parallel(axes: Axes, tuning: Tuning, fields: Sequence[Field]) -> None:
    """Draw a line for each trial, through its values, to its score; the better, the bluer."""
    done = ranked(tuning.trials)[::-1]
    values = [trial.value or 0.0 for trial in done]
    low, high = min(values), max(values)
    scale = (high - low) or 1.0
    x = np.arange(len(fields) + 1)
    absent = any(field.name not in trial.params for trial in done for field in fields)
    for rank, (trial, value) in enumerate(zip(done, values, strict=True)):
        share = rank / max(1, len(done) - 1)
        y = [_height(field, trial) for field in fields] + [(value - low) / scale]
        width, alpha = (2.2, 1.0) if trial is done[-1] else (1.0, 0.8)
        axes.plot(x, y, color=_mixed(share), linewidth=width, alpha=alpha, zorder=2 + share)
    for i, field in enumerate(fields):
        _scale(axes, i, field)
    axes.axvline(len(fields), color=_RULE, linewidth=0.8, zorder=1)
    for height, value in ((0.0, low), (1.0, high)):
        axes.annotate(number(value), (len(fields), height), (5, 0), **_BESIDE)
    axes.set_xticks(
        x, [*(_wrapped(field.name) for field in fields), label(tuning.metric)], color=_INK
    )
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(fields) + 0.35)
    axes.set_ylim(_ABSENT - 0.05 if absent else -0.05, 1.05)
    axes.grid(False, axis="y")
    axes.tick_params(axis="x", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    note = "; lowest: has no such option" if absent else ""
    axes.set_title(f"finished trials, the best one bold{note}")


def _scale(axes: Axes, i: int, field: Field) -> None:
    """Write values at an option's axis."""
    axes.axvline(i, color=_RULE, linewidth=0.8, zorder=1)
    domain = field.domain
    if isinstance(domain, Choices):
        marks = [(_share(domain, value), shown(value)) for value in domain.labels]
    else:
        marks = [(0.0, f"{domain.low:g}"), (1.0, f"{domain.high:g}")]
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for height, text in marks:
        axes.annotate(text, (i, height), (4, 0), **_BESIDE, bbox=box, zorder=4)


def _height(field: Field, trial: Record) -> float:
    if field.name not in trial.params:
        return _ABSENT
    value, domain = trial.params[field.name], field.domain
    if isinstance(domain, Choices):
        return _share(domain, value)
    if domain.log:
        return math.log(value / domain.low) / math.log(domain.high / domain.low)
    return float((value - domain.low) / (domain.high - domain.low))


def _share(domain: Choices, value: Any) -> float:
    return domain.labels.index(value) / max(1, len(domain.labels) - 1)


def _mixed(share: float) -> tuple[float, ...]:
    """Return a colour between that of the worst line and that of the best."""
    return tuple(((1 - share) * a + share * b) / 255 for a, b in zip(_LOW, _HIGH))


def _wrapped(name: str) -> str:
    """Break a name into lines that are not wider than an axis."""
    return name.replace(".", ".\n").replace(" (", "\n(")


def _importance(axes: Axes, tuning: Tuning) -> None:
    shares = sorted(tuning.importance.items(), key=lambda item: item[1])
    bars = axes.barh([name for name, _ in shares], [share for _, share in shares], 0.7, color=BLUE)
    axes.bar_label(bars, [f"{share:.0%}" for _, share in shares], padding=3, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_title("share in what makes a trial one of the best quarter")
