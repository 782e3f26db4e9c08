"""Write the page of the study: fill in its tables and figures, between markers, from the records.

A block stands between `<!-- study: NAME ARGUMENTS -->` and `<!-- /study -->`. Losses are shares of
the best mean of a curve.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from _curve import Curve, Record, interval, shown, table

from tempera.artifacts.pictures import canvas, number, svg_of

DEFAULT = 0.05  # sentence-transformers' scale of 20
MARK = re.compile(r"(<!-- study: ([\w ]+) -->\n).*?(<!-- /study -->)", re.S)
NOT_YET = "*Not run yet.*"


def filled(page: str, records: Mapping[str, Record], planned: Mapping[str, str]) -> str:
    """Return a page with its blocks written again.

    Args:
        page: the text, with its markers.
        records: the record of each part that was run.
        planned: the titles of all parts, also of those without a record.
    """

    def block(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        missing = [part for part in arguments if part not in records]
        text = NOT_YET if missing or not records else BLOCKS[name](records, planned, *arguments)
        return f"{match[1]}\n{text}\n\n{match[3]}"

    return MARK.sub(block, page)


def _parts(records: Mapping[str, Record], planned: Mapping[str, str]) -> str:
    rows = []
    for name, title in planned.items():
        record = records.get(name)
        if record is None:
            rows.append((title, "not run yet", "", "", "", ""))
            continue
        cells = (
            record["models"],
            record["seeds"],
            f"{record['queries']:,}",
            f"{record['minutes']:.0f}",
        )
        rows.append((title, *map(str, cells), f"{record['date']}, {record['commit']}"))
    some = next(iter(records.values()))
    versions = ", ".join(f"{name} {version}" for name, version in some["versions"].items())
    models = sum(record["models"] for record in records.values())
    head = ("part", "models", "seeds", "held-out queries", "minutes of runs", "date, commit")
    quick = (
        "This is a small study; the text of this page is about the full one. "
        if some["size"] == "quick"
        else ""
    )
    return f"{quick}{models:,} models, trained on {some['machine']}; {versions}.\n\n{table(head, rows)}"


def _curves(records: Mapping[str, Record], planned: Mapping[str, str]) -> str:
    rows = []
    for curve in Curve.all_of(records):
        best = next(
            point for point in curve.line["points"] if point["temperature"] == curve.line["best"]
        )
        region = curve.line["region"]
        spread = (
            shown(region[0])
            if len(region) == 1
            else f"{shown(min(region))} to {shown(max(region))}"
        )
        at = f"**{shown(curve.line['best'])}** ({1 / curve.line['best']:g})"
        lost = f"{100 * curve.lost(DEFAULT):.1f} %" if curve.cosine else ""
        seeds = str(records[curve.part]["seeds"])
        rows.append((curve.title, curve.option, seeds, at, spread, interval(best), lost))
    return table(
        ("part", "", "seeds", "best (scale)", "best region", "nDCG@10, 95 %", "lost by 0.05"), rows
    )


def _fixed(records: Mapping[str, Record], planned: Mapping[str, str]) -> str:
    curves = [curve for curve in Curve.all_of(records) if curve.cosine]
    grid = [t for t in sorted(curves[0].means) if all(t in curve.means for curve in curves)]
    rules = {f"{shown(t)} (scale {1 / t:g})": [t] * len(curves) for t in grid}
    rules["1 / ln(batch)"] = [1 / math.log(curve.batch) for curve in curves]
    rows = []
    for name, chosen in rules.items():
        lost = [curve.lost(t) for curve, t in zip(curves, chosen, strict=True)]
        worst = curves[lost.index(max(lost))]
        inside = sum(curve.holds(t) for curve, t in zip(curves, chosen, strict=True))
        where = f"{worst.title}{', ' * bool(worst.option)}{worst.option}"
        cells = (f"{100 * statistics.mean(lost):.1f} %", f"{100 * max(lost):.1f} %", where)
        rows.append((name, *cells, f"{inside} of {len(curves)}"))
    return table(
        (
            "one temperature for all",
            "lost on average",
            "lost at most",
            "where",
            "in the best region",
        ),
        rows,
    )


def _explained(records: Mapping[str, Record], planned: Mapping[str, str], part: str) -> str:
    rows = []
    for point in records[part]["lines"][0]["points"]:
        t, gap = point["temperature"], point["positive"] - point["hardest"]
        cosines = (point["positive"], point["hardest"], point["random"])
        rest = f"{point['effective']:.0f}", number(point["share"]), f"{point['uniformity']:.1f}"
        rows.append(
            (shown(t), number(point["mean"]), *map(number, cosines), f"{gap / t:.1f}", *rest)
        )
    cells = (
        "positive",
        "hardest",
        "random",
        "lead / t",
        "effective negatives",
        "share of the hardest",
        "uniformity",
    )
    return table(("temperature", "nDCG@10", *cells), rows)


def _untrained(records: Mapping[str, Record], planned: Mapping[str, str], part: str) -> str:
    """Return a table of the median cosine of random pairs by temperature, for every line."""
    lines = records[part]["lines"]
    head = [f"rate {line['value']:g}" if line["value"] != 1e-9 else "untrained" for line in lines]
    grid = [point["temperature"] for point in lines[0]["points"]]
    rows = [
        (shown(t), *(number(line["points"][i]["random"]) for line in lines))
        for i, t in enumerate(grid)
    ]
    return table(("temperature", *head), rows)


def _moving(records: Mapping[str, Record], planned: Mapping[str, str], part: str) -> str:
    record = records[part]
    best = next(
        p for p in record["lines"][0]["points"] if p["temperature"] == record["lines"][0]["best"]
    )
    rows = [(f"fixed at {shown(best['temperature'])}, the best", "", interval(best), "yes")]
    for point in record["moving"]:
        kind = "learned" if point["final"] is None else "scheduled"
        moved = f"{shown(point['start'])} to {shown(round(point['end'], 3))}"
        rows.append((kind, moved, interval(point), "yes" if point["in region"] else "no"))
    return table(
        ("temperature", "start to end", "nDCG@10, 95 %", "not significantly worse than the best"),
        rows,
    )


def _figure(records: Mapping[str, Record], planned: Mapping[str, str], part: str) -> str:
    return f"![{records[part]['title']}](study/{part}.svg)"


def _answers(records: Mapping[str, Record], planned: Mapping[str, str]) -> str:
    curves = [curve for curve in Curve.all_of(records) if curve.cosine]
    lost = [curve.lost(DEFAULT) for curve in curves]
    inside = sum(curve.holds(DEFAULT) for curve in curves)
    wide = sum(len(curve.line["region"]) > 1 for curve in curves)
    bests = sorted(curve.line["best"] for curve in curves)
    low, middle, high = bests[0], bests[len(bests) // 2], bests[-1]
    mean, most = (f"{100 * figure:.1f} %" for figure in (statistics.mean(lost), max(lost)))
    spread = (
        f"the best temperatures lie between {shown(low)} and {shown(high)} (scale {1 / high:g} to {1 / low:g}), with the median at "
        f"{shown(middle)} (scale {1 / middle:g})"
    )
    return (
        f"- Over {len(curves)} curves with cosines, "
        f"{spread if low < high else f'the best temperature tried is always {shown(low)} (scale {1 / low:g})'}.\n"
        f"- Temperature 0.05, scale 20, is in the best region of {inside} of them. It loses {mean} of nDCG@10 to the best on "
        f"average, and {most} at most.\n"
        f"- {_least(curves)}\n"
        f"- {_aside(curves)}\n"
        f"- Noise hides the difference between two or more temperatures at the top of {wide} of {len(curves)} curves."
    )


def _least(curves: Sequence[Curve]) -> str:
    """Return a sentence on the temperature of all grids that loses least over all curves."""
    grid = [t for t in curves[0].means if all(t in curve.means for curve in curves)]
    lost = {t: [curve.lost(t) for curve in curves] for t in grid}
    least = min(grid, key=lambda t: statistics.mean(lost[t]))
    mean, most = (
        f"{100 * figure:.1f} %" for figure in (statistics.mean(lost[least]), max(lost[least]))
    )
    which = f"{shown(least)} (scale {1 / least:g})"
    return f"The temperature that loses least over all of them is {which}: {mean} on average, {most} at most."


def _aside(curves: Sequence[Curve]) -> str:
    """Return a sentence on the loss from missing the best temperature by a factor of 5, on either
    side."""
    both = [
        c
        for c in curves
        if c.line["best"] / 5 >= min(c.means) and c.line["best"] * 5 <= max(c.means)
    ]
    low, high = (
        statistics.mean(c.lost(c.line["best"] * f) for c in both) if both else math.nan
        for f in (1 / 5, 5)
    )
    return (
        f"A temperature of a fifth of the best loses {100 * low:.1f} % on average, one of 5 times the best {100 * high:.1f} % "
        f"(over the {len(both)} curves that reach so far on both sides)."
    )


def _steps(
    records: Mapping[str, Record], planned: Mapping[str, str], logq: str, products: str
) -> str:
    """Return a table of the gains of temperature, logQ and norms, each with the best temperature of
    what is compared."""
    plain, corrected = (Curve(logq, "", line, 0, True) for line in records[logq]["lines"])
    dot = Curve(products, "", records[products]["lines"][0], 0, False)
    steps = [
        ("temperature, cosines without logQ: from 1 to its best", plain.means[1], plain.top),
        (
            "temperature, cosines without logQ: from 0.05 to its best",
            plain.means[DEFAULT],
            plain.top,
        ),
        ("temperature, cosines with logQ: from 1 to its best", corrected.means[1], corrected.top),
        (
            "temperature, cosines with logQ: from 0.05 to its best",
            corrected.means[DEFAULT],
            corrected.top,
        ),
        ("temperature, inner products with logQ: from 1 to its best", dot.means[1], dot.top),
        ("logQ, at the best temperature of each", plain.top, corrected.top),
        ("cosines for inner products, at the best temperature of each", dot.top, corrected.top),
    ]
    rows = [(name, number(a), number(b), f"{100 * (b / a - 1):+.0f} %") for name, a, b in steps]
    return table(("step", "from", "to", "nDCG@10"), rows)


BLOCKS: dict[str, Callable[..., str]] = {
    "parts": _parts,
    "figure": _figure,
    "answers": _answers,
    "curves": _curves,
    "fixed": _fixed,
    "explained": _explained,
    "untrained": _untrained,
    "moving": _moving,
    "steps": _steps,
}


def picture(records: Mapping[str, Record]) -> str:
    """Draw all best regions below each other, as SVG: a dot for every temperature of the region, a
    diamond for the best one."""
    curves = [curve for curve in Curve.all_of(records) if curve.cosine]
    with canvas("curves", 7.2, 1.1 + 0.19 * len(curves)) as figure:
        axes = figure.subplots()
        for y, curve in enumerate(curves):
            tried, region = sorted(curve.means), sorted(curve.line["region"])
            axes.plot(tried, [y] * len(tried), ".", color="#cbd5e1", markersize=3)
            axes.plot(
                region,
                [y] * len(region),
                "-o",
                color="#1d5fd1",
                markersize=4,
                linewidth=2,
                alpha=0.6,
            )
            axes.plot([curve.line["best"]], [y], "D", color="#be3455", markersize=5)
        axes.axvline(DEFAULT, color="#64748b", linestyle="--", linewidth=1)
        names = [f"{curve.title}{': ' * bool(curve.option)}{curve.option}" for curve in curves]
        axes.set_yticks(range(len(curves)), names, fontsize=6.5)
        axes.set_xscale("log")
        axes.set_xticks([0.01, 0.05, 0.1, 0.2, 0.5, 1], ["0.01", "0.05", "0.1", "0.2", "0.5", "1"])
        axes.minorticks_off()
        axes.invert_yaxis()
        figure.suptitle(
            "best temperature (diamond) and best region (line); dashed: scale 20",
            x=0.01,
            ha="left",
            fontsize=9,
        )
        return svg_of(figure)


def write(
    page: Path,
    source: Path,
    figures: Path,
    records: Mapping[str, Record],
    planned: Mapping[str, str],
) -> None:
    """Write the page, from the text of `source`, and the picture of all curves."""
    figures.mkdir(parents=True, exist_ok=True)
    page.write_text(filled(source.read_text(encoding="utf-8"), records, planned), encoding="utf-8")
    if records:
        (figures / "curves.svg").write_text(picture(records), encoding="utf-8")
