"""The map from a model's similarities to probabilities, as a file beside it.

Letters in shapes: n pairs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, quantity
from ..io.atomic import adding, write_file
from ..io.documents import read_json
from ..io.manifest import refuse_damaged
from ..ranking.calibration import BASE, Bin, FittedMap, Judgement, Scored, Threshold, bins, doubt
from ..ranking.compare import Difference
from ..ranking.probability import Isotonic, Logistic, Map
from ..task.run_files import CALIBRATION
from ..towers.saved import MODEL
from .pictures import GREY, LINES, can_draw, canvas, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAPS: dict[str, type[Map]] = {"logistic": Logistic, "isotonic": Isotonic}
_COLORS = dict(zip(_MAPS, LINES, strict=False))


@dataclass(frozen=True)
class Calibration:
    """Map the similarities of one model to probabilities, with the errors of the probabilities.

    Attributes:
        model: the fingerprint of the model.
        kind: logistic or isotonic.
        map: similarities to probabilities.
        about: the data of the fit: pairs, queries, relevant, base_rate, left_out, and trained, the
            number of queries that the run was trained on, 0 for a model without its run; for hits
            of a search also depth, documents and found, the share of the answers among the hits.
        judged: errors of each map that was tried, and of the base rate, on queries without part in
            the fit.
        thresholds: for each target precision and recall.
        date: ISO 8601.
    """

    model: str
    kind: str
    map: Map
    about: Mapping[str, Any]
    judged: Mapping[str, Judgement]
    thresholds: tuple[Threshold, ...]
    date: str

    def probability(self, scores: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the probability of each similarity, [n]."""
        return self.map(np.asarray(scores, np.float64))

    @property
    def depth(self) -> int | None:
        """Rank to which search results were used; None for labelled pairs."""
        depth: int | None = self.about.get("depth")
        return depth

    @property
    def doubt(self) -> str | None:
        """The reason why no threshold is advised, as a sentence; None without a reason."""
        return doubt(self.about["queries"], self.judged, self.kind)

    def refuse_other(self, model: str, place: Path) -> None:
        """Raise DataError unless the calibration is of the model with this fingerprint."""
        if model != self.model:
            raise DataError(
                f"{place / CALIBRATION} is of another model ({self.model[:12]}; this one is {model[:12]}): "
                "run tempera calibrate again"
            )

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**asdict(self), "thresholds": [asdict(each) for each in self.thresholds]}

    def __str__(self) -> str:
        about = "{pairs:,} pairs of {queries:,} queries, {relevant:,} relevant (base rate {base_rate:.3f})"
        lines = [about.format(**self.about)]
        if self.depth is not None:
            more = "hits to rank {depth} among {documents:,} documents; {found:.1%} of the answers are among them"
            lines.append(more.format(**self.about))
        for reason, count in self.about["left_out"].items():
            lines.append(f"left out: {quantity(count, reason)}")
        head = ("log loss", "Brier score", "calibration error")
        lines.append(f"{'':<10}" + "".join(f"  {name:<22}" for name in head))
        for name, errors in self.judged.items():
            line = f"{name:<10}{_error_cell(errors.log_loss)}{_error_cell(errors.brier)}"
            if name != BASE:
                line += _error_cell(errors.ece)
            lines.append(line.rstrip())
        kind = f"taken: {self.kind}"
        if "isotonic" not in self.judged:
            kind += "; isotonic needs more pairs"
        lines.append(kind)
        lines += map(str, self.thresholds)
        if self.doubt:
            lines.append(f"no threshold is advised: {self.doubt}")
        trained = self.about.get("trained")
        if trained:
            lines.append(
                f"caution: the run was trained on {trained:,} of these {self.about['queries']:,} queries, so probabilities of new "
                "queries are too high: give queries that neither it nor a model that it began with has seen; without pairs, those "
                "that it has held out are taken"
            )
        return "\n".join(lines)


def _error_cell(error: Difference) -> str:
    """Return a cell of the table of errors: a mean with its interval."""
    return f"  {f'{error.mean:.4f} [{error.low:.4f}, {error.high:.4f}]':<22}"


def read_calibration(folder: Path) -> Calibration:
    """Read the calibration in a model's folder.

    Raises:
        DataError: there is none, or it is not readable.
    """
    path = folder / CALIBRATION
    refuse_damaged(path)
    try:
        document: dict[str, Any] = read_json(path)
        numbers: dict[str, Any] = {}
        for name, value in document["map"].items():
            numbers[name] = tuple(value) if isinstance(value, list) else value
        document["map"] = _MAPS[document["kind"]](**numbers)
        for name, errors in document["judged"].items():
            document["judged"][name] = Judgement(**_differences(errors))
        document["thresholds"] = tuple(
            Threshold(**_differences(each)) for each in document["thresholds"]
        )
        calibration = Calibration(**document)
        probabilities = calibration.probability([-1.0, 1.0])
        are_valid = ((probabilities >= 0) & (probabilities <= 1)).all()
        if not are_valid or not isinstance(calibration.model, str):
            raise ValueError("no probabilities")
        str(calibration)  # raises if a figure is missing
        json.dumps(calibration.json(), allow_nan=False)
        return calibration
    except FileNotFoundError:
        run = quote(str(folder.parent)) if folder.name == MODEL else "MODEL PAIRS"
        raise DataError(
            f"the model in {folder} is not calibrated; run: tempera calibrate {run}"
        ) from None
    except Exception:  # whatever a damaged file makes of it
        raise DataError(
            f"{path} is not a readable calibration: run tempera calibrate again"
        ) from None


def _differences(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, with a `Difference` for each value with an interval."""
    values = {}
    for name, value in fields.items():
        values[name] = Difference(**value) if isinstance(value, dict) else value
    return values


def write_calibration(folder: Path, calibration: Calibration, picture: Mapping[str, bytes]) -> None:
    """Write calibration.json and pictures beside a model, each whole or not at all."""
    text = json.dumps(calibration.json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    parts = {f"calibration.{end}": content for end, content in picture.items()}
    parts[CALIBRATION] = text.encode()
    with adding(folder, list(parts)):
        for name, content in parts.items():
            write_file(folder / name, content)


def draw_calibration(pairs: Scored, fitted: FittedMap) -> dict[str, bytes]:
    """Return SVG and PNG of predicted against observed relevance, and of probability by
    similarity."""
    if not can_draw("calibration.svg"):
        return {}
    with canvas("calibration", 8.2, 3.9) as figure:
        left, right = figure.subplots(1, 2)
        tenths = bins(pairs, fitted.held_out)
        # The axes end early, so that low probabilities can be told apart.
        highest = max(max(each.probability, each.relevant.high) for each in tenths)
        most = min(1.0, 1.2 * highest)
        _reliability(left, tenths, fitted.chosen, most)
        _curves(right, pairs, fitted)
        return saved(figure)


def _reliability(axes: Axes, tenths: Sequence[Bin], kind: str, most: float) -> None:
    """Draw the observed share of relevant pairs by the predicted probability."""
    axes.plot([0, most], [0, most], color=GREY, linewidth=1, label="perfect calibration")
    shares = [each.relevant for each in tenths]
    below = [share.mean - share.low for share in shares]
    above = [share.high - share.mean for share in shares]
    axes.errorbar(
        [each.probability for each in tenths],
        [share.mean for share in shares],
        np.abs([below, above]),
        fmt="o",
        markersize=4.5,
        color=_COLORS[kind],
        elinewidth=1.2,
        capsize=2,
        label="tenths of the pairs, 95 %",
    )
    axes.set_title(f"{kind}, on queries it was not fitted to")
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("share relevant")
    axes.set(xlim=(-0.02 * most, 1.02 * most), ylim=(-0.02 * most, 1.02 * most))
    axes.legend(loc="upper left")


def _curves(axes: Axes, pairs: Scored, fitted: FittedMap) -> None:
    """Draw the probability by similarity of each map, above the histograms of similarities."""
    low = float(pairs.scores.min())
    high = float(pairs.scores.max())
    x = np.linspace(low, high, 400)
    most = max(float(curve(x).max()) for curve in fitted.maps.values())
    edges = np.linspace(low, high, 41)
    counts, _ = np.histogram(pairs.scores[~pairs.relevant], edges)
    irrelevant = counts / counts.sum()
    counts, _ = np.histogram(pairs.scores[pairs.relevant], edges)
    relevant = counts / counts.sum()
    scale = 0.45 * most / max(float(irrelevant.max()), float(relevant.max()))
    look: Any = {"fill": True, "alpha": 0.35}
    axes.stairs(irrelevant * scale, edges, color=GREY, label="not relevant", **look)
    axes.stairs(relevant * scale, edges, color=LINES[2], label="relevant", **look)
    for name, curve in fitted.maps.items():
        if name == fitted.chosen:
            look = {"linestyle": "-", "linewidth": 1.8, "label": f"{name}, taken"}
        else:
            look = {"linestyle": "--", "linewidth": 1.1, "label": name}
        axes.plot(x, curve(x), color=_COLORS[name], **look)
    axes.set_title("probability by similarity")
    axes.set_xlabel("similarity")
    axes.set(ylim=(-0.02 * most, 1.02 * most))
    axes.legend(loc="upper left")
