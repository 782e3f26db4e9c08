"""The picture of a learning curve: measured scores, the power law through them, and its
continuation with a band."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.pictures import BLUE, canvas, label, saved
from ..experiments.sweep_pictures import log_marks
from .learning_curve import LEAST_SIZES, LearningCurve, PowerLaw, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def picture(curve: LearningCurve) -> dict[str, bytes]:
    """Return SVG and PNG of a learning curve, by the ends of their names."""
    with canvas("learn", 6.6, 3.9) as figure:
        axes = figure.subplots()
        means = [score.mean for score in curve.intervals]
        ends = [
            [s.mean - s.low for s in curve.intervals],
            [s.high - s.mean for s in curve.intervals],
        ]
        look: dict[str, Any] = {
            "fmt": "o",
            "color": BLUE,
            "markersize": 4,
            "elinewidth": 1,
            "capsize": 2,
        }
        axes.errorbar(curve.sizes, means, ends, label="measured on the test", **look)
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
    """Draw the law through the sizes that it always holds for, and from the last one its
    continuation with a band."""
    end = curve.sizes[-1] + curve.more
    inside = np.geomspace(curve.sizes[-LEAST_SIZES], law.last, 100)
    beyond = np.geomspace(law.last, max(2 * law.last, end), 50)
    look: dict[str, Any] = {"color": BLUE, "linewidth": 1.4}
    axes.plot(
        inside, [law.at(x).mean() for x in inside], label="power law of the largest sizes", **look
    )
    scores = [spread(law.at(x)) for x in beyond]
    axes.plot(beyond, [s.mean for s in scores], "--", label="extrapolated", **look)
    axes.fill_between(
        beyond,
        [s.low for s in scores],
        [s.high for s in scores],
        color=BLUE,
        alpha=0.13,
        linewidth=0,
    )
    point = end, law.at(end).mean()
    axes.plot(*point, "o", markersize=5, markerfacecolor="white", color=BLUE)
    axes.annotate(f"{curve.more:,} more", point, (7, -11), textcoords="offset points", fontsize=8)
