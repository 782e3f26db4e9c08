"""The report of a run: results, training curves and examples in one HTML file without scripts or
links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..io.require import missing
from ..ranking.compare import Difference
from ..ranking.spread import Spread
from ..task.showcase import Example, Subject
from ..task.verdict import MAIN, main_metric
from .pictures import Records, Scores, label, number, pictures
from .report_tables import ReportTable

_LEAST_SCORE = 0.05  # a score below is shown as it is, not as "2.0× the untrained model"
_CHANCE = 0.5  # AUC of random scores


@dataclass(frozen=True)
class RunReport:
    """Hold the content of a page; the page leaves out empty values and None.

    Attributes:
        facts: texts by name.
        systems: metrics of "trained" and of the systems beside it, in the order of display.
        difference: trained - rival in nDCG@10.
        log: events "step" and "evaluation".
        spreads: similarities of pairs and of random pairs, by system.
        examples: queries with their hits.
        config: the configuration as YAML.
        subject: words for the model and its data.
        rival: the system to compare with.
        tables: tables by the name of their section.
        alarms: sentences on faults of the training.
        cautions: sentences on doubts about the figures.
        winner: a sentence on the best system.
    """

    facts: Mapping[str, str]
    systems: Mapping[str, Scores]
    difference: Difference | None
    log: Records
    spreads: Mapping[str, Spread]
    examples: Sequence[Example]
    config: str
    subject: Subject
    rival: str | None = "bm25"
    tables: Mapping[str, Sequence[ReportTable]] = field(default_factory=dict)
    alarms: Sequence[str] = ()
    cautions: Sequence[str] = ()
    winner: str = ""

    @property
    def against(self) -> str | None:
        """The rival if it is among the systems."""
        return self.rival if self.rival in self.systems else None


def render(report: RunReport) -> str:
    """Return a self-contained HTML document with escaped content and SVG pictures.

    The page emphasises the highest score of each metric, and explains each kind of metric (ndcg of
    ndcg@10).
    """
    from markupsafe import Markup

    spreads = {name: s for name, s in report.spreads.items() if len(s.pairs) and len(s.random)}
    best: dict[str, float] = {}  # the highest score of each metric, emphasised on the page
    for scores in report.systems.values():
        for name, score in scores.items():
            best[name] = max(score, best.get(name, score))
    drawings = pictures(report.systems, spreads, report.log, report.rival)
    page: str = _template().render(
        report=report,
        headline=headline(report),
        main=main_metric(list(best)) if best else "",
        metrics=list(best),
        kinds={name.partition("@")[0] for name in best},
        best=best,
        tally=_tally(report.examples, report.against),
        spreads=spreads,
        pictures={name: Markup(svg) for name, svg in drawings.items()},
        without_charts=missing("pictures", "drawing charts in reports"),
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
    untrained model, and a warning if pairs are less alike than random pairs; a run without a test
    has a sentence that says so."""
    if "trained" not in report.systems:
        return "Trained, and not evaluated: no queries were held out for a test"
    metric = main_metric(report.systems["trained"])
    scores = {name: values[metric] for name, values in report.systems.items() if metric in values}
    ours = scores["trained"]
    comparisons = []
    if report.rival in scores:
        comparison = _against(ours, scores[report.rival], label(report.rival))
        difference = report.difference
        if metric == MAIN and difference is not None:
            doubt = "which may be chance: " if difference.low <= 0 <= difference.high else ""
            interval = f"{number(difference.low)} to {number(difference.high)}"
            comparison += (
                f" ({doubt}{100 * difference.confidence:g} % interval of the difference {interval})"
            )
        comparisons.append(comparison)
    if "untrained" in scores:
        comparisons.append(_against(ours, scores["untrained"], "the untrained model"))
    sentence = f"{label(metric)} {number(ours)}"
    if comparisons:
        sentence += f": {', '.join(comparisons)}"
    spread = report.spreads.get("trained")
    if spread is None or not len(spread.pairs) or not len(spread.random) or spread.auc >= _CHANCE:
        return sentence
    return (
        f"{sentence}; but its pairs are no more alike than random pairs (AUC {number(spread.auc)})"
    )


def _against(ours: float, theirs: float, name: str) -> str:
    """Return a comparison of a score with the score of a named system, in words."""
    doubled = ours >= 2 * theirs
    if theirs <= 0 or (doubled and theirs < _LEAST_SCORE):
        return f"{name} {number(theirs)}"
    if doubled:
        return f"{ours / theirs:.1f}× {name}"
    percent = 100 * abs(ours / theirs - 1)
    rounded = f"{percent:.0f}" if percent >= 0.95 else f"{percent:.1f}"
    if rounded == "0.0":
        return f"level with {name}"
    return f"{rounded} % {'above' if ours > theirs else 'below'} {name}"


def _tally(examples: Sequence[Example], rival: str | None) -> str:
    """Return a sentence with the number of examples that rank the first right answer higher than
    the rival, and lower."""
    higher = 0
    lower = 0
    for example in examples:
        ours = example.rank or math.inf
        theirs = example.baseline_rank or math.inf
        higher += ours < theirs
        lower += ours > theirs
    name = label(rival or "")
    return f"The first right answer stands higher than with {name} in {higher} of {len(examples)}, lower in {lower}."
