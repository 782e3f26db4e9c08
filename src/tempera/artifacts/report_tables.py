"""Tables of a recommender's metrics and of the settings that were tried, from the content of
metrics.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..task.verdict import OURS
from .pictures import setting

Row = tuple[str, ...]
SEEN = {"excluded": "seen items left out", "included": "seen items ranked too"}
_OURS = "trained"


@dataclass(frozen=True)
class ReportTable:
    """Hold rows below a head, in sections that may have a heading; the first cell of a row is its
    name."""

    title: str
    head: Row
    sections: Mapping[str, Sequence[Row]]


def tables(document: Mapping[str, Any]) -> dict[str, list[ReportTable]]:
    """Return the tables of each section: "tried", the settings of a race; "also", other data before
    and after training; "precisions", smaller vectors; "protocols", all systems, tiers and history
    lengths, lists and new items.

    Args:
        document: with `recipe` if there was a race, `also` if there were other data, and
            `precisions` of a model of texts; of a recommender with `protocols`, each system's
            protocols as `Recommended.json` gives them, and `cold` if there is one.
    """
    sections = {
        "tried": [_tried(document["recipe"])] if "recipe" in document else [],
        "also": [_also(document["also"])] if document.get("also") else [],
        "precisions": [_precisions(document["precisions"])] if "precisions" in document else [],
        "protocols": _protocols(document),
    }
    return {name: section for name, section in sections.items() if section}


def results(document: Mapping[str, Any]) -> list[ReportTable]:
    """Return the table of each protocol's systems alone, without items that users have seen."""
    seen = SEEN["excluded"]
    parts = []
    for name, systems in _by_protocol(document).items():
        table = _systems(name, systems[_OURS], systems)
        parts.append(replace(table, sections={seen: table.sections[seen]}))
    return parts


def _by_protocol(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the systems that were evaluated by each protocol; ours are the last."""
    protocols: Mapping[str, Mapping[str, Any]] = document.get("protocols", {})
    if not protocols:
        return {}
    order = sorted(protocols, key=lambda system: OURS.index(system) if system in OURS else 0)
    return {
        name: {system: protocols[system][name] for system in order if name in protocols[system]}
        for name in protocols[_OURS]
    }


def _protocols(document: Mapping[str, Any]) -> list[ReportTable]:
    parts = []
    for name, systems in _by_protocol(document).items():
        ours = systems[_OURS]
        parts += [
            _systems(name, ours, systems),
            *_leads(name, systems),
            _parts(name, ours),
            _lists(name, ours, systems),
        ]
    cold = document.get("cold")
    return [*parts, *([] if cold is None else [_cold(cold)])]


def _tried(recipe: Mapping[str, Any]) -> ReportTable:
    """Return the table of a race.

    >>> rate = {"values": {"train.learning_rate": 0.003}, "steps": 40, "score": 0.5, "low": 0.0, "high": 0.0, "seconds": 2.4}
    >>> table = _tried({"metric": "ndcg@10", "tried": [rate], "chosen": rate["values"]})
    >>> table.head, dict(table.sections)
    (('', 'ndcg@10', 'less the best', 'CPU seconds'), {'40 steps': [('learning_rate=0.003, chosen', '0.500', '', '2.4')]})
    >>> _tried({"metric": "m", "tried": [], "chosen": {}, "factors": {"tower.dimensions": 0.5}}).title.partition("; ")[2]
    'each was tried with 0.5 times dimensions'
    """
    sections: dict[str, list[Row]] = {}
    for each in recipe["tried"]:
        name = setting(each) + (", chosen" if each["values"] == recipe["chosen"] else "")
        gap = f"{each['low']:+.3f} to {each['high']:+.3f}" if each["low"] or each["high"] else ""
        sections.setdefault(f"{each['steps']:,} steps", []).append(
            (
                name,
                _number(each["score"]),
                gap,
                f"{each['seconds']:,.1f}" if "seconds" in each else "",
            )
        )
    title = "on validation, with the 95 % interval of the difference from the best of the round"
    factors = " and ".join(
        f"{v:.3g} times {name.rpartition('.')[2]}" for name, v in recipe.get("factors", {}).items()
    )
    title += factors and f"; each was tried with {factors}"
    return ReportTable(title, ("", recipe["metric"], "less the best", "CPU seconds"), sections)


def _also(also: Mapping[str, Any]) -> ReportTable:
    """Return the table of other data, before and after training.

    >>> difference = {"mean": -0.02, "low": -0.031, "high": -0.01}
    >>> table = _also({"scifact": {"metric": "ndcg@10", "before": 0.645, "after": 0.625, "difference": difference}})
    >>> table.sections[""]
    [('scifact', 'ndcg@10', '0.645', '0.625', '-0.020 [-0.031, -0.010]')]
    """
    rows = [
        (
            path,
            each["metric"],
            _number(each["before"]),
            _number(each["after"]),
            _signed(each["difference"]),
        )
        for path, each in also.items()
    ]
    return ReportTable(
        "other data, with the 95 % interval",
        ("", "metric", "before", "after", "difference"),
        {"": rows},
    )


def _signed(d: Mapping[str, Any]) -> str:
    return f"{d['mean']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}]"


def _precisions(document: Mapping[str, Any]) -> ReportTable:
    """Return the table of smaller vectors, a section for each width."""
    metrics = list(document["rows"][0]["metrics"])
    sections: dict[str, list[Row]] = {}
    for row in document["rows"]:
        cells = (f"{row['bytes'] / 1e6:,.0f}", *(_number(row["metrics"][name]) for name in metrics))
        sections.setdefault(f"{row['width']} numbers", []).append((row["precision"], *cells))
    title = f"{document['queries']:,} queries, by width and precision, with megabytes of a million documents"
    return ReportTable(title, ("", "MB", *metrics), sections)


def _systems(name: str, ours: Any, systems: Mapping[str, Any]) -> ReportTable:
    metrics = list(ours["rows"][0]["metrics"])
    sections = {
        text: [
            (system, *(_number(row["metrics"][metric]["mean"]) for metric in metrics))
            for system, protocol in systems.items()
            for row in protocol["rows"]
            if row["seen"] == seen and row["which"] == "all"
        ]
        for seen, text in SEEN.items()
    }
    return ReportTable(
        f"{name}: {ours['queries']:,} queries, {ours['items']:,} items", ("", *metrics), sections
    )


def _leads(name: str, systems: Mapping[str, Any]) -> list[ReportTable]:
    """Return the table of the leads over the other systems; none where no document has them."""
    leads = {system: protocol["lead"] for system, protocol in systems.items() if "lead" in protocol}
    cells = [
        (system, f"{d['mean']:+.3f}", f"{d['low']:+.3f} to {d['high']:+.3f}")
        for system, d in leads.items()
    ]
    title = f"{name}: lead of {_OURS} over the others, {SEEN['excluded']}, paired by user"
    metric = next((d["metric"] for d in leads.values()), "")
    return [ReportTable(title, ("", metric, "95 % interval"), {"": cells})] if cells else []


def _parts(name: str, ours: Any) -> ReportTable:
    rows = [row for row in ours["rows"] if row["seen"] == "excluded"]
    cells = [
        (
            row["which"].replace("history ", "past "),  # so that a line fits a terminal
            f"{row['queries']:,}",
            *(_with_interval(metric) for metric in row["metrics"].values()),
        )
        for row in rows
    ]
    title = f"{name}, {_OURS}, {SEEN['excluded']}: by tier of the item and length of the history, with 95 % intervals"
    return ReportTable(title, ("", "asked", *rows[0]["metrics"]), {"": cells})


def _lists(name: str, ours: Any, systems: Mapping[str, Any]) -> ReportTable:
    parts = ("head", "middle", "tail", "novelty", "coverage", "gini")
    cells = [
        (system, *(_number(_mean(protocol["lists"][part])) for part in parts))
        for system, protocol in systems.items()
        if protocol["lists"]
    ]
    title = f"{name}: what lists of {ours['depth']} hold: shares by tier, novelty in bits, catalogue shown, inequality"
    return ReportTable(title, ("", *parts), {"": cells})


def _cold(cold: Mapping[str, Any]) -> ReportTable:
    systems: Mapping[str, Mapping[str, Any]] = cold["systems"]
    metrics, ordered = (
        list(systems[_OURS]),
        sorted(systems.items(), key=lambda item: item[0] == _OURS),
    )
    cells = [
        (system, *(_with_interval(values[name]) for name in metrics)) for system, values in ordered
    ]
    title = f"items never trained on: {cold['queries']:,} queries, ranked among {cold['items']:,} such items"
    return ReportTable(title, ("", *metrics), {"": cells})


def _mean(value: Any) -> float:
    mean: float = value["mean"] if isinstance(value, Mapping) else value
    return mean


def _number(value: float) -> str:
    """Return a value with three decimals, or two from 1 on.

    >>> _number(0.27368), _number(9.8765), _number(0.0)
    ('0.274', '9.88', '0.000')
    """
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _with_interval(interval: Mapping[str, float]) -> str:
    """Return a mean with half the width of its interval.

    >>> _with_interval({"mean": 0.27368, "low": 0.262, "high": 0.2849})
    '0.274±0.011'
    """
    half = (interval["high"] - interval["low"]) / 2
    return _number(interval["mean"]) + (f"±{_number(half)}" if half else "")
