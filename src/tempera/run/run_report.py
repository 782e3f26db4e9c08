"""The content of a run's report and model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..artifacts.card import Card
from ..artifacts.report import RunReport
from ..artifacts.report_tables import tables
from ..options import yaml_options as configuration
from ..ranking.compare import Difference
from ..ranking.fusion import Fusion
from ..ranking.spread import Spread
from ..task.showcase import Compared
from ..task.verdict import MAIN, TOGETHER, SystemScores, best_baseline
from .prepare import Prepared
from .refit import LEARNED

Systems = Mapping[str, SystemScores]
Differences = Mapping[str, Mapping[str, Difference]]


def card_of(prepared: Prepared, metrics: Mapping[str, Any], systems: Systems) -> Card:
    """Return the content of the model card, from the values of metrics.json."""
    resolved = prepared.config.resolved
    data = {"source": str(resolved["data"].get("path") or resolved["data"]["source"])}
    for name in ("pairs", "train", "validation", "queries", "corpus"):
        data[name] = f"{metrics['data'][name]:,}"
    data.update(_left_out(metrics["data"]))
    data.update(_refits(metrics))
    labels = prepared.config.card
    return Card(
        title=labels.title,
        license=labels.license,
        data_license=labels.data_license,
        language=labels.language,
        data=data,
        recipe=configuration.dump(resolved),
        metrics={name: scores.intervals() for name, scores in systems.items()},
        subject=prepared.task.facts.subject,
        base_model=_base_model(resolved["tower"]),
    )


def report_of(
    prepared: Prepared,
    metrics: Mapping[str, Any],
    compared: Compared,
    spreads: Mapping[str, Spread],
    differences: Differences,
) -> RunReport:
    """Return the content of report.html, from the values of metrics.json."""
    names = prepared.config.evaluation.metrics
    rival = best_baseline(compared.systems)
    difference = None
    if rival is not None:
        difference = differences[f"trained - {rival}"].get(MAIN)
    log = []
    for record in prepared.log.records:
        if "metrics" in record:
            record = {**record, "metrics": _only(names, record["metrics"])}
        log.append(record)
    return RunReport(
        facts=_facts(prepared, metrics, compared.systems, rival),
        systems={name: _only(names, values) for name, values in metrics["metrics"].items()},
        difference=difference,
        log=log,
        spreads=spreads,
        examples=compared.examples,
        config=configuration.dump(prepared.config.resolved),
        subject=prepared.task.facts.subject,
        rival=rival,
        tables=tables(metrics),
        alarms=metrics["alarms"],
        winner=metrics.get("winner", ""),
        cautions=metrics["cautions"],
    )


def _facts(
    prepared: Prepared, metrics: Mapping[str, Any], systems: Systems, rival: str | None
) -> dict[str, str]:
    """Return the facts of the report by title."""
    facts = {}
    for name, title in prepared.task.facts.subject.facts.items():
        facts[title] = f"{metrics['data'][name]:,}"
    facts.update(_left_out(metrics["data"]))
    seconds = metrics["seconds"]
    cpu = [f"{name} {each['cpu']:.0f}" for name, each in seconds.items()]
    facts["CPU seconds"] = ", ".join(cpu)
    facts["seconds"] = f"{sum(each['wall'] for each in seconds.values()):.0f}"
    facts["peak memory"] = f"{metrics['peak_memory_bytes'] / 2**20:,.0f} MiB"
    if rival == "bm25":
        facts["BM25 settings"] = str(metrics["bm25"])
    for name in systems:
        if name in TOGETHER:
            facts[name] = str(Fusion(**metrics["hybrid"]))
    if "counting" in metrics:
        facts["recommended by"] = "the vectors alone; both together by --hybrid"
        if metrics["counting"]["served"]:
            facts["recommended by"] = "both together; the vectors alone by --vectors"
    if "moment" in metrics:
        facts["moment of a question"] = metrics["moment"]
    facts.update(_refits(metrics))
    return facts


def _left_out(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers of left-out rows by reason, and sentences on rows held out together."""
    texts = {}
    for reason, count in data.get("dropped", {}).items():
        texts[f"left out: {reason}"] = f"{count:,}"
    notes = "; ".join(data.get("held_out", ()))
    if notes:
        texts["held out"] = notes
    return texts


def _refits(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence on each refit by title."""
    titles = {
        "validation": "trained again before the evaluation",
        "test": "trained again after the evaluation",
    }
    texts = {}
    for refit in metrics.get("refit", []):
        text = f"{LEARNED[refit['part']]}, {refit['pairs']:,} in all, {refit['steps']:,} steps"
        if refit.get("goes_on"):
            text += " on from the weights that validation has chosen"
        if "negatives" in refit:
            text += f", with {refit['negatives']:,} mined negatives"
        if refit["part"] == "test":
            text += "; the metrics are those of the model that was evaluated"
        texts[titles[refit["part"]]] = text
    return texts


def _base_model(tower: Mapping[str, Any]) -> str | None:
    """Return the model from which a tower, or the tower of queries, starts; None for a tower from
    scratch."""
    options = tower
    if isinstance(tower.get("query"), Mapping):
        (options,) = tower["query"].values()
    model: str | None = options.get("model")
    return model


def _only(names: Sequence[str], scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of some names, in the order of the names."""
    return {name: scores[name] for name in names if name in scores}
