"""The last of a run's four functions: its folder with the model and its card, what it searches, metrics and a report."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save as as_bytes

from .. import config as configuration
from ..artifacts.card import Card, render_card
from ..artifacts.index import write_searched
from ..artifacts.report import RunReport, render
from ..artifacts.report_tables import tables
from ..io.documents import write_json
from ..ranking.compare import bootstrap
from ..ranking.fusion import Fusion
from ..ranking.spread import Spread
from ..ranking.verdict import FUSED, MAIN, SystemScores, best_baseline
from .alarms import Alarms
from .fit import Fitted
from .judge import Assessment
from .prepare import CACHE, Prepared

Systems = Mapping[str, SystemScores]


def publish(prepared: Prepared, fitted: Fitted, before: Assessment, after: Assessment) -> None:
    """Compare with other systems, and write everything but the log, which lies in the folder already.

    Args:
        before: the untrained tower.
        after: the trained one, with the weights that are saved.
    """
    config, task, folder, alarms = prepared.config, prepared.task, prepared.folder, Alarms(prepared.log)
    began = time.perf_counter()
    baselines = task.held_out.baselines()
    evaluating = before.seconds + after.seconds + time.perf_counter() - began
    alarms.regression(fitted.step, before.verdict.ranking, after.verdict.ranking)
    systems = {"untrained": before.verdict.ranking, **baselines, "trained": after.verdict.ranking}
    if FUSED in systems:
        systems[FUSED] = systems.pop(FUSED)  # the last of a table
    spreads = {"untrained": before.verdict.spread, "trained": after.verdict.spread}
    seconds = {"data": prepared.seconds, "train": fitted.seconds, "evaluate": evaluating}
    metrics = {
        "metrics": {name: scores.metrics for name, scores in systems.items()},
        "difference": _differences(systems),
        "spread": {name: spread.summary() for name, spread in spreads.items()},
        **task.held_out.about(),
        **alarms.summary(),
        "evaluations_left_out": fitted.looks_left_out,
        **({"best": fitted.best} if fitted.best else {}),
        "data": task.showcase.facts().counts,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "replaying": round(fitted.replaying, 4),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    task.data.tower.save(folder / "model")
    (folder / "objective.safetensors").write_bytes(as_bytes(config.objective.state_dict()))
    write_searched(folder, task.showcase.searched())
    metrics["bytes"] = {each.name: _size(each) for each in sorted(folder.iterdir()) if each.name != CACHE}
    (folder / "config.yaml").write_text(configuration.dump(config.resolved), encoding="utf-8")
    report = _report(prepared, metrics, systems, spreads)
    (folder / "report.html").write_text(render(report), encoding="utf-8")
    (folder / "model" / "README.md").write_text(render_card(_card(prepared, metrics, systems)), encoding="utf-8")
    write_json(folder / "metrics.json", metrics)
    shutil.rmtree(folder / CACHE, ignore_errors=True)  # what is mapped stays readable


def _differences(systems: Systems) -> dict[str, Any]:
    """Return the metrics of each trained system less those of every system before it in the table, with intervals."""
    names = list(systems)
    return {
        f"{ours} - {theirs}": {
            metric: asdict(bootstrap(values, systems[theirs].per_query[metric]))
            for metric, values in systems[ours].per_query.items()
        }
        for ours in names[names.index("trained") :]
        for theirs in names[: names.index(ours)]
    }


def _card(prepared: Prepared, metrics: Mapping[str, Any], systems: Systems) -> Card:
    """Return what the saved model's README.md says."""
    resolved, data = prepared.config.resolved, metrics["data"]
    source = {"source": str(resolved["data"].get("path") or resolved["data"]["source"])}
    counts = {name: f"{data[name]:,}" for name in ("pairs", "train", "validation", "queries", "corpus")}
    dropped = {f"left out: {reason}": f"{count:,}" for reason, count in data.get("dropped", {}).items()}
    return Card(
        **vars(prepared.config.card),
        data={**source, **counts, **dropped},
        recipe=configuration.dump(resolved),
        metrics={name: scores.intervals() for name, scores in systems.items()},
        subject=prepared.task.showcase.subject,
        base_model=resolved["tower"].get("model"),
    )


def _report(
    prepared: Prepared, metrics: Mapping[str, Any], systems: Systems, spreads: Mapping[str, Spread]
) -> RunReport:
    """Return what report.html shows."""
    subject, rival, names = prepared.task.showcase.subject, best_baseline(systems), prepared.config.evaluation.metrics
    trained, difference = systems["trained"].per_query, None
    if rival is not None and MAIN in trained:
        difference = bootstrap(trained[MAIN], systems[rival].per_query[MAIN])
    records = prepared.log.records
    return RunReport(
        facts={
            **{text: f"{metrics['data'][name]:,}" for name, text in subject.facts.items()},
            "seconds": ", ".join(f"{name} {value:.0f}" for name, value in metrics["seconds"].items()),
            "peak memory": f"{metrics['peak_memory_bytes'] / 2**20:,.0f} MiB",
            **({"BM25 settings": str(metrics["bm25"])} if rival == "bm25" else {}),
            **({FUSED: str(Fusion(**metrics["hybrid"]))} if FUSED in systems else {}),
        },
        systems={name: _only(names, values) for name, values in metrics["metrics"].items()},
        difference=difference,
        log=[{**r, "metrics": _only(names, r["metrics"])} if "metrics" in r else r for r in records],
        spreads=spreads,
        examples=prepared.task.showcase.examples(systems),
        config=configuration.dump(prepared.config.resolved),
        subject=subject,
        rival=rival,
        tables=tables(metrics),
        alarms=metrics["alarms"],
    )


def _only(names: Sequence[str], scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores with these names, in their order."""
    return {name: scores[name] for name in names if name in scores}


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held, and with it the largest of its workers."""
    return 1024 * sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
