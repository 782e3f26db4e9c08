"""The picture of a learning curve: measured scores, the power law through them, and its
continuation with a band."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..artifacts.pictures import BLUE, can_draw, canvas, label, saved
from ..experiments.sweep_pictures import log_marks
from .learning_curve import LEAST_SIZES, LearningCurve, PowerLaw, percentile_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_learning_curve(curve: LearningCurve) -> dict[str, bytes]:
    """Return SVG and PNG of a learning curve, by the ends of their names."""
    if not can_draw("learn.svg"):
        return {}
    with canvas("learn", 6.6, 3.9) as figure:
        axes = figure.subplots()
        intervals = curve.intervals
        axes.errorbar(
            curve.sizes,
            [score.mean for score in intervals],
            [
                [score.mean - score.low for score in intervals],
                [score.high - score.mean for score in intervals],
            ],
            label="measured on the test",
            fmt="o",
            color=BLUE,
            markersize=4,
            elinewidth=1,
            capsize=2,
        )
        if curve.law is not None:
            _law(axes, curve, curve.law)
        axes.set_xscale("log")
        log_marks(axes.xaxis)
        axes.set_xlabel("training pairs")
        seeds = f"mean of {len(curve.seeds)} seeds" if len(curve.seeds) > 1 else "one seed"
        axes.set_title(f"{label(curve.metric)}: {seeds} with 95 % interval")
        axes.legend(loc="lower right", fontsize=8)
        return saved(figure)


def _law(axes: Axes, curve: LearningCurve, law: PowerLaw) -> None:
    """Draw the law through the three largest sizes, and extrapolated with a band.

    Every resample's law holds for the three largest sizes.
    """
    end = curve.sizes[-1] + curve.more
    inside = np.geomspace(curve.sizes[-LEAST_SIZES], law.last, 100)
    beyond = np.geomspace(law.last, max(2 * law.last, end), 50)
    fitted = [law.at(x).mean() for x in inside]
    name = "power law of the largest sizes"
    axes.plot(inside, fitted, label=name, color=BLUE, linewidth=1.4)
    scores = [percentile_interval(law.at(x)) for x in beyond]
    means = [score.mean for score in scores]
    axes.plot(beyond, means, "--", label="extrapolated", color=BLUE, linewidth=1.4)
    low = [score.low for score in scores]
    high = [score.high for score in scores]
    axes.fill_between(beyond, low, high, color=BLUE, alpha=0.13, linewidth=0)
    height = law.at(end).mean()
    axes.plot(end, height, "o", markersize=5, markerfacecolor="white", color=BLUE)
    axes.annotate(
        f"{curve.more:,} more", (end, height), (7, -11), textcoords="offset points", fontsize=8
    )
