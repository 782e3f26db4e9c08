"""The report of a run: results, training curves and examples in one HTML file without scripts or
links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..ranking.compare import Difference
from ..ranking.spread import Spread
from ..task.showcase import Example, Subject
from ..task.verdict import MAIN, main_metric
from .pictures import Records, Scores, label, number, pictures
from .report_tables import ReportTable

_TOLD = 0.05  # a score of which a multiple says something
_CHANCE = 0.5  # AUC of scores that tell nothing


@dataclass(frozen=True)
class RunReport:
    """Hold what a page shows; values that are empty or None are left out."""

    facts: Mapping[str, str]
    systems: Mapping[
        str, Scores
    ]  # metrics of "trained" and of what it is compared with, in the order of display
    difference: Difference | None  # trained - rival in nDCG@10
    log: Records  # events "step" and "evaluation"
    spreads: Mapping[str, Spread]
    examples: Sequence[Example]
    config: str  # YAML
    subject: Subject
    rival: str | None = (
        "bm25"  # the system that is compared with most, where it is one of the systems
    )
    tables: Mapping[str, Sequence[ReportTable]] = field(
        default_factory=dict
    )  # by the name of their section
    alarms: Sequence[str] = ()
    cautions: Sequence[str] = ()
    winner: str = ""  # a sentence on which system is best

    @property
    def against(self) -> str | None:
        """The rival if it is among the systems."""
        return self.rival if self.rival in self.systems else None


def render(report: RunReport) -> str:
    """Return one self-contained HTML document; all content is escaped, pictures are SVG inside
    it."""
    from markupsafe import Markup

    spreads = {name: s for name, s in report.spreads.items() if len(s.pairs) and len(s.random)}
    metrics = list(dict.fromkeys(name for scores in report.systems.values() for name in scores))
    page: str = _template().render(
        report=report,
        headline=headline(report),
        main=main_metric(metrics) if metrics else "",
        metrics=metrics,
        kinds={name.partition("@")[0] for name in metrics},
        best={name: max(s[name] for s in report.systems.values() if name in s) for name in metrics},
        tally=_tally(report.examples, report.against),
        spreads=spreads,
        pictures={
            name: Markup(svg)
            for name, svg in pictures(report.systems, spreads, report.log, report.rival).items()
        },
    )
    return page


@cache
def _template() -> Any:
    """Return the page's template, compiled once in a process."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    page = Environment(
        autoescape=True,
        loader=folder,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    page.filters |= {"label": label, "number": number}
    return page.get_template("report.html.j2")


def headline(report: RunReport) -> str:
    """Return the main result in a sentence: the main metric, compared with the rival and the
    untrained model."""
    if "trained" not in report.systems:
        return "Trained, and not evaluated: no queries were held out for a test"
    metric = main_metric(report.systems["trained"])
    scores = {name: values[metric] for name, values in report.systems.items() if metric in values}
    ours, parts = scores["trained"], []
    if report.rival in scores:
        parts.append(_against(ours, scores[report.rival], label(report.rival)))
        if metric == MAIN and (d := report.difference) is not None:
            doubt = "which may be chance: " if d.low <= 0 <= d.high else ""
            share = f"{100 * d.confidence:g} %"
            parts[0] += (
                f" ({doubt}{share} interval of the difference {number(d.low)} to {number(d.high)})"
            )
    if "untrained" in scores:
        parts.append(_against(ours, scores["untrained"], "the untrained model"))
    said = f"{label(metric)} {number(ours)}" + (f": {', '.join(parts)}" if parts else "")
    spread = report.spreads.get("trained")
    if spread is None or not len(spread.pairs) or not len(spread.random) or spread.auc >= _CHANCE:
        return said
    return f"{said}; but its pairs are no more alike than random pairs (AUC {number(spread.auc)})"


def _against(ours: float, theirs: float, name: str) -> str:
    if theirs <= 0:
        return f"{name} {number(theirs)}"
    if ours >= 2 * theirs:  # so many times next to nothing may still be next to nothing
        return f"{ours / theirs:.1f}× {name}" if theirs >= _TOLD else f"{name} {number(theirs)}"
    percent = 100 * abs(ours / theirs - 1)
    written = f"{percent:.0f}" if percent >= 0.95 else f"{percent:.1f}"
    return (
        f"level with {name}"
        if written == "0.0"
        else f"{written} % {'above' if ours > theirs else 'below'} {name}"
    )


def _tally(examples: Sequence[Example], rival: str | None) -> str:
    ranks = [(e.rank or math.inf, e.baseline_rank or math.inf) for e in examples]
    higher, lower = sum(a < b for a, b in ranks), sum(a > b for a, b in ranks)
    name = label(rival or "")
    return f"The first right answer stands higher than with {name} in {higher} of {len(ranks)}, lower in {lower}."
