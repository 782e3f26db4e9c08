"""The pictures of a report, as SVG elements."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..io.console import logger
from ..io.documents import first_event
from ..io.require import missing
from ..ranking.spread import Spread
from ..task.verdict import COUNTED, FUSED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]
Scores = Mapping[str, float]
Floats = NDArray[np.float64]

_NAMES = {"bm25": "BM25", "ndcg": "nDCG", "mrr": "MRR", "map": "MAP"}
BLUE, GREY, _QUIET, _RULE = "#1d5fd1", "#a3adba", "#5b6778", "#cbd5e1"
# A system keeps its colour in every picture. What is written in a colour has a contrast of at least
# 4.5 to white.
_SYSTEMS = {
    "untrained": GREY,
    "bm25": "#b45309",
    "trained": BLUE,
    FUSED: "#0f766e",
    COUNTED: "#0f766e",
}
LINES = (BLUE, "#be3455", "#0f766e", "#7e3fb0", "#8a6100", "#475569")
SIZE = 4.3, 3.6  # inches
_BAR = 0.16  # inches of a bar with a number
_POINTS = 1000  # of a line; more cannot be seen and would make the page large


def label(name: str) -> str:
    """Return the usual spelling of a metric or system.

    >>> label("ndcg@10"), label("bm25"), label("recall@10")
    ('nDCG@10', 'BM25', 'recall@10')
    """
    kind, at, depth = name.partition("@")
    return _NAMES.get(kind, kind) + at + depth


def number(value: float) -> str:
    """Return a value with three decimals.

    >>> number(0.4512), number(-0.02), number(1)
    ('0.451', '-0.020', '1.000')
    """
    return f"{value:z.3f}"


def pictures(
    systems: Mapping[str, Scores],
    spreads: Mapping[str, Spread],
    log: Records,
    rival: str | None = None,
) -> dict[str, str]:
    """Return each picture that has data, as SVG, and none without matplotlib; `rival` is the system
    that curves are compared with."""
    if missing("pictures", "drawing"):
        return {}
    steps, race = [r for r in log if r["event"] == "step"], first_event(log, "recipe")
    evaluations = [r for r in log if r["event"] == "evaluation" and r["metrics"]]
    drawings: dict[str, Callable[[Figure], None]] = (
        {"systems": partial(_bars, systems=systems)} if systems else {}
    )
    if spreads:
        drawings["spreads"] = partial(_histograms, spreads=spreads)
    if steps:
        drawings["training"] = partial(_training, steps=steps)
    if evaluations:
        drawings["evaluations"] = partial(
            _curves, records=evaluations, rival=systems.get(rival or "", {})
        )
    if race:
        drawings["tried"] = partial(_rounds, recipe=race)
    bars = len(systems) * max(map(len, systems.values()), default=0)
    heights = {"systems": max(SIZE[1], 1 + _BAR * bars)}  # so that no number stands upon another
    return {name: _svg(name, draw, heights.get(name, SIZE[1])) for name, draw in drawings.items()}


def can_draw(name: str) -> bool:
    """Return True if matplotlib, an extra of the package, is there; else False, and the log says
    how to get the picture.

    Args:
        name: of the picture's file, for example "sweep.svg".
    """
    line = missing("pictures", f"drawing {name}")
    if line:
        logger.warning(line)
    return not line


@contextmanager
def canvas(name: str, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of a size in inches, in the style of all pictures, to draw and save within the
    block."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own matplotlibrc says
        matplotlib.rcParams.update({**_LOOK, "svg.hashsalt": name})
        yield Figure((width, height), layout="constrained")


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG, with the same bytes on every run."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return text.getvalue()


def saved(figure: Figure) -> dict[str, bytes]:
    """Return a figure as SVG and PNG, by the ends of their names."""
    svg, png = svg_of(figure).encode(), io.BytesIO()
    figure.set_layout_engine("none")  # the layout is done, and a second one would double the time
    figure.savefig(png, format="png", dpi=150)
    return {"svg": svg, "png": png.getvalue()}


def _svg(name: str, draw: Callable[[Figure], None], height: float) -> str:
    """Draw a picture, and return it as an SVG element whose ids no other picture has."""
    with canvas(name, SIZE[0], height) as figure:
        draw(figure)
        svg = svg_of(figure)
    return re.sub(r'( id="| xlink:href="#|url\(#)', rf"\1{name}-", svg[svg.index("<svg") :])


_LOOK: Any = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 9,
    "text.color": "#334155",
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _QUIET,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-3, 7),
    "grid.color": "#e5eaf0",
    "legend.frameon": False,
    "xtick.color": _RULE,
    "xtick.labelcolor": _QUIET,
    "xtick.labelsize": 8,
    "ytick.color": _RULE,
    "ytick.labelcolor": _QUIET,
    "ytick.labelsize": 8,
}


def _training(figure: Figure, steps: Records) -> None:
    rows: list[Any] = [["loss", "loss"], ["learning_rate", "grad_norm"]]
    axes = figure.subplot_mosaic(rows, height_ratios=(2, 1))
    x = _column(steps, "step")
    for name, panel in axes.items():
        values = _column(steps, name)
        panel.locator_params(axis="x", nbins=6 if name == "loss" else 4, integer=True)
        panel.set_title(name.replace("_", " ").replace("grad ", "gradient "))
        if name != "learning_rate":
            _line(panel, x, values, color=BLUE, linewidth=0.7, alpha=0.45)
            values = _smooth(values)
        _line(panel, x, values, color=BLUE, linewidth=1.6)
    temperature = _column(steps, "temperature")
    if np.ptp(temperature) > 1e-6:
        other = axes["loss"].twinx()
        other.set_title("temperature (right)", loc="right", color=_SYSTEMS["bm25"])
        other.grid(False)
        _line(other, x, temperature, color=_SYSTEMS["bm25"], linewidth=1.6)


def _curves(figure: Figure, records: Records, rival: Scores) -> None:
    axes = figure.subplots()
    names = list(dict.fromkeys(name for record in records for name in record["metrics"]))
    ends = {}
    for i, name in enumerate(names):
        have = [r for r in records if name in r["metrics"]]
        color, values = LINES[i % len(LINES)], [r["metrics"][name] for r in have]
        axes.plot(
            [r["step"] for r in have],
            values,
            color=color,
            marker="o",
            markersize=3.5,
            linewidth=1.6,
        )
        ends[name] = (values[-1], color)
        if name in rival:
            axes.axhline(rival[name], color=color, linestyle=(0, (4, 3)), linewidth=0.9)
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True)
    axes.set_xlim(left=0)
    low, high = axes.get_ylim()
    y = -np.inf  # names stand at the ends of their lines, none upon another
    for name, (end, color) in sorted(ends.items(), key=lambda item: item[1][0]):
        y = max(end, y + (high - low) / 20)
        text, place = f"{label(name)} {number(end)}", axes.get_yaxis_transform()
        axes.text(1.02, y, text, color=color, va="center", transform=place)


def _bars(figure: Figure, systems: Mapping[str, Scores]) -> None:
    axes = figure.subplots()
    metrics = list(dict.fromkeys(name for scores in systems.values() for name in scores))
    height = 0.8 / len(systems)
    for i, (system, scores) in enumerate(systems.items()):
        y = [
            j + (i - (len(systems) - 1) / 2) * height
            for j, name in enumerate(metrics)
            if name in scores
        ]
        values = [scores[name] for name in metrics if name in scores]
        color = _SYSTEMS.get(system, LINES[-1 - i % len(LINES)])
        bars = axes.barh(y, values, height * 0.9, color=color, label=label(system))
        axes.bar_label(bars, [number(v) for v in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(metrics)), [label(name) for name in metrics])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    figure.legend(loc="outside upper left", ncols=len(systems) if len(systems) < 4 else 2)


def setting(tried: Mapping[str, Any]) -> str:
    """Return the name of a setting that a race has tried, or its options without the names of their
    sections.

    >>> setting({"values": {"objective.temperature": 0.05, "train.learning_rate": 0.003}})
    'temperature=0.05, learning_rate=0.003'
    """
    return tried.get("name") or ", ".join(
        f"{name.rpartition('.')[2]}={v:g}" for name, v in tried["values"].items()
    )


def _rounds(figure: Figure, recipe: Mapping[str, Any]) -> None:
    """Draw the scores of a race, a panel for each round; intervals are of the difference from the
    best, at the dashed line."""
    rounds: dict[int, Records] = {}
    for each in recipe["tried"]:
        rounds[each["steps"]] = [*rounds.get(each["steps"], ()), each]
    ratios = [len(tried) + 1 for tried in rounds.values()]  # a line for each, and one for the title
    panels = figure.subplots(len(rounds), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    for axes, (steps, tried) in zip(panels, rounds.items(), strict=True):
        best = max(each["score"] for each in tried)
        axes.axvline(best, color=GREY, linestyle=(0, (4, 3)), linewidth=0.9)
        for y, each in enumerate(tried):
            color = BLUE if each["values"] == recipe["chosen"] else _QUIET
            axes.plot([best + each["low"], best + each["high"]], [y, y], color=color, linewidth=1.6)
            axes.plot(each["score"], y, color=color, marker="o", markersize=5)
        axes.set_title(f"after {steps:,} steps")
        axes.set_yticks(range(len(tried)), [setting(each).replace(", ", "\n") for each in tried])
        axes.set_ylim(len(tried) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
    panels[-1].set_xlabel(label(recipe["metric"]))


def draw_merge(points: Records, best: float) -> dict[str, bytes]:
    """Return SVG and PNG of the scores of merged models by their weight, a line for each set, with
    the chosen one marked."""
    if not can_draw("merge.svg"):
        return {}
    with canvas("merge", *SIZE) as figure:
        axes, weights = figure.subplots(), [point["weight"] for point in points]
        for i, name in enumerate(points[0]["scores"]):
            values = [point["scores"][name] for point in points]
            axes.plot(
                weights,
                values,
                color=LINES[i % len(LINES)],
                marker="o",
                markersize=3.5,
                label=name[-40:],
            )
        axes.axvline(best, color=GREY, linestyle=(0, (4, 3)), linewidth=0.9)
        axes.set_xlabel("weight of the trained model; its base has the rest")
        axes.set_ylabel("main metric of each set")
        figure.legend(loc="outside upper left")
        return saved(figure)


def _histograms(figure: Figure, spreads: Mapping[str, Spread]) -> None:
    values = np.concatenate(
        [v for spread in spreads.values() for v in (spread.pairs, spread.random)]
    )
    edges = np.linspace(values.min() - 0.01, values.max() + 0.01, 61)
    panels = figure.subplots(len(spreads), sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, spread) in zip(panels, spreads.items(), strict=True):
        for kind, cosines, color in (
            ("random pairs", spread.random, GREY),
            ("pairs", spread.pairs, BLUE),
        ):
            share = np.histogram(cosines, edges)[0] / len(cosines)
            axes.stairs(share, edges, fill=True, color=color, alpha=0.6, label=kind)
        axes.set_title(f"{label(name)}: AUC {number(spread.auc)}")
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    panels[-1].set_xlabel("cosine")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)


def _column(records: Records, name: str) -> Floats:
    return np.array([record[name] for record in records], np.float64)


def _line(axes: Axes, x: Floats, y: Floats, **look: Any) -> None:
    every = slice(None, None, 1 + len(x) // _POINTS)
    axes.plot(x[every], y[every], marker="o" if len(x) == 1 else "", markersize=4, **look)


def _smooth(values: Floats) -> Floats:
    """Return the moving average over a fifteenth of the values."""
    around = np.ones(2 * (len(values) // 30) + 1)
    mean: Floats = np.convolve(values, around, "same") / np.convolve(
        np.ones(len(values)), around, "same"
    )
    return mean
