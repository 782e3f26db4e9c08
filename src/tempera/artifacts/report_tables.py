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
    """Hold rows below a head, in sections that may have a heading; the first cell of a row names
    the row."""

    title: str
    head: Row
    sections: Mapping[str, Sequence[Row]]


def tables(document: Mapping[str, Any]) -> dict[str, list[ReportTable]]:
    """Return lists of tables by section, in this order, without empty sections: tried, also,
    precisions, protocols.

    Args:
        document: may hold `recipe` (the race), `also` (other data before and after training),
            `precisions` (smaller vectors of a model of texts), and of a recommender `protocols`
            (each system's protocols, as `Recommended.json` gives them) and `cold` (items never
            trained on).
    """
    sections = {}
    if "recipe" in document:
        sections["tried"] = [_tried(document["recipe"])]
    if document.get("also"):
        sections["also"] = [_also(document["also"])]
    if "precisions" in document:
        sections["precisions"] = [_precisions(document["precisions"])]
    protocols = _protocols(document)
    if protocols:
        sections["protocols"] = protocols
    return sections


def results(document: Mapping[str, Any]) -> list[ReportTable]:
    """Return a table of the systems for each protocol, without items that users have seen."""
    seen = SEEN["excluded"]
    parts = []
    for name, systems in _by_protocol(document).items():
        table = _systems(name, systems[_OURS], systems)
        parts.append(replace(table, sections={seen: table.sections[seen]}))
    return parts


def _by_protocol(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of each protocol by system: baselines and the untrained system in the
    given order, then the other systems in the order of `OURS`."""
    protocols: Mapping[str, Mapping[str, Any]] = document.get("protocols", {})
    if not protocols:
        return {}
    order = sorted(protocols, key=lambda system: OURS.index(system) if system in OURS else 0)
    by_protocol: dict[str, dict[str, Any]] = {name: {} for name in protocols[_OURS]}
    for name, systems in by_protocol.items():
        for system in order:
            if name in protocols[system]:
                systems[system] = protocols[system][name]
    return by_protocol


def _protocols(document: Mapping[str, Any]) -> list[ReportTable]:
    """Return the tables of each protocol, and of items that were not trained on."""
    parts = []
    for name, systems in _by_protocol(document).items():
        ours = systems[_OURS]
        parts.append(_systems(name, ours, systems))
        parts.extend(_leads(name, systems))
        parts.append(_parts(name, ours))
        parts.append(_lists(name, ours, systems))
    cold = document.get("cold")
    if cold is not None:
        parts.append(_cold(cold))
    return parts


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
        name = setting(each)
        if each["values"] == recipe["chosen"]:
            name += ", chosen"
        gap = ""  # the best setting of a round has no difference from itself
        if each["low"] or each["high"]:
            gap = f"{each['low']:+.3f} to {each['high']:+.3f}"
        seconds = f"{each['seconds']:,.1f}" if "seconds" in each else ""
        rows = sections.setdefault(f"{each['steps']:,} steps", [])
        rows.append((name, _number(each["score"]), gap, seconds))
    title = "on validation, with the 95 % interval of the difference from the best of the round"
    factors = []
    for name, factor in recipe.get("factors", {}).items():
        factors.append(f"{factor:.3g} times {name.rpartition('.')[2]}")
    if factors:
        title += f"; each was tried with {' and '.join(factors)}"
    return ReportTable(title, ("", recipe["metric"], "less the best", "CPU seconds"), sections)


def _also(also: Mapping[str, Any]) -> ReportTable:
    """Return the table of other data, before and after training.

    >>> difference = {"mean": -0.02, "low": -0.031, "high": -0.01}
    >>> table = _also({"scifact": {"metric": "ndcg@10", "before": 0.645, "after": 0.625, "difference": difference}})
    >>> table.sections[""]
    [('scifact', 'ndcg@10', '0.645', '0.625', '-0.020 [-0.031, -0.010]')]
    """
    rows = []
    for path, each in also.items():
        change = each["difference"]
        difference = f"{change['mean']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]"
        before = _number(each["before"])
        after = _number(each["after"])
        rows.append((path, each["metric"], before, after, difference))
    head = ("", "metric", "before", "after", "difference")
    return ReportTable("other data, with the 95 % interval", head, {"": rows})


def _precisions(document: Mapping[str, Any]) -> ReportTable:
    """Return the table of smaller vectors, a section for each width."""
    metrics = list(document["rows"][0]["metrics"])
    sections: dict[str, list[Row]] = {}
    for row in document["rows"]:
        cells = [row["precision"], f"{row['bytes'] / 1e6:,.0f}"]
        cells += [_number(row["metrics"][name]) for name in metrics]
        sections.setdefault(f"{row['width']} numbers", []).append(tuple(cells))
    among = ""
    if "documents" in document:
        among = f" among {document['documents']:,} documents"
    title = f"{document['queries']:,} queries{among}, by width and precision, with megabytes of a million documents"
    return ReportTable(title, ("", "MB", *metrics), sections)


def _systems(name: str, ours: Any, systems: Mapping[str, Any]) -> ReportTable:
    """Return the table of the metrics of each system, without and with items that users have
    seen."""
    metrics = list(ours["rows"][0]["metrics"])
    sections: dict[str, list[Row]] = {}
    for seen, heading in SEEN.items():
        rows = sections.setdefault(heading, [])
        for system, protocol in systems.items():
            for row in protocol["rows"]:
                if row["seen"] == seen and row["which"] == "all":
                    means = [_number(row["metrics"][metric]["mean"]) for metric in metrics]
                    rows.append((system, *means))
    title = f"{name}: {ours['queries']:,} queries, {ours['items']:,} items"
    return ReportTable(title, ("", *metrics), sections)


def _leads(name: str, systems: Mapping[str, Any]) -> list[ReportTable]:
    """Return the table of the leads over the other systems; no table for a document without
    leads."""
    metric = ""
    rows = []
    for system, protocol in systems.items():
        if "lead" in protocol:
            lead = protocol["lead"]
            metric = metric or lead["metric"]
            interval = f"{lead['low']:+.3f} to {lead['high']:+.3f}"
            rows.append((system, f"{lead['mean']:+.3f}", interval))
    if not rows:
        return []
    title = f"{name}: lead of {_OURS} over the others, {SEEN['excluded']}, paired by user"
    return [ReportTable(title, ("", metric, "95 % interval"), {"": rows})]


def _parts(name: str, ours: Any) -> ReportTable:
    """Return the table of the metrics by tier of the item and by length of the history."""
    excluded = [row for row in ours["rows"] if row["seen"] == "excluded"]
    rows = []
    for row in excluded:
        part = row["which"].replace("history ", "past ")  # so that a line fits a terminal
        metrics = [_with_interval(metric) for metric in row["metrics"].values()]
        rows.append((part, f"{row['queries']:,}", *metrics))
    title = f"{name}, {_OURS}, {SEEN['excluded']}: by tier of the item and length of the history, with 95 % intervals"
    return ReportTable(title, ("", "asked", *excluded[0]["metrics"]), {"": rows})


def _lists(name: str, ours: Any, systems: Mapping[str, Any]) -> ReportTable:
    """Return the table of the shares and the variety of the items in the lists of each system."""
    parts = ("head", "middle", "tail", "novelty", "coverage", "gini")
    rows = []
    for system, protocol in systems.items():
        lists = protocol["lists"]
        if lists:
            values = [lists[part] for part in parts]
            means = [each["mean"] if isinstance(each, Mapping) else each for each in values]
            rows.append((system, *map(_number, means)))
    title = f"{name}: what lists of {ours['depth']} hold: shares by tier, novelty in bits, catalogue shown, inequality"
    return ReportTable(title, ("", *parts), {"": rows})


def _cold(cold: Mapping[str, Any]) -> ReportTable:
    """Return the table of the metrics of each system on items that were not trained on."""
    systems: Mapping[str, Mapping[str, Any]] = cold["systems"]
    metrics = list(systems[_OURS])
    order = [system for system in systems if system != _OURS] + [_OURS]
    rows = []
    for system in order:
        cells = [_with_interval(systems[system][metric]) for metric in metrics]
        rows.append((system, *cells))
    title = f"items never trained on: {cold['queries']:,} queries, ranked among {cold['items']:,} such items"
    return ReportTable(title, ("", *metrics), {"": rows})


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
