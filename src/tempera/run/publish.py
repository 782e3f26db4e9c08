"""The folder of a run: the model with its card, the searched documents, metrics and a report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as as_bytes

from ..artifacts.card import render_card
from ..artifacts.report import render
from ..corpus.index import write_searched
from ..engine.clock import peak_memory_bytes
from ..io.atomic import write_mark
from ..io.documents import first_event
from ..mining.embedder import learned
from ..options import yaml_options as configuration
from ..ranking.compare import bootstrap_differences
from ..ranking.spread import Spread
from ..task.verdict import (
    OURS,
    TEACHER,
    TOGETHER,
    TaskScores,
    Verdict,
    best_baseline,
    main_metric,
)
from ..towers.saved import EVALUATED, MODEL
from .alarms import Alarms, doubts
from .fit import Fitted
from .prepare import CACHE, Prepared
from .run_report import Differences, Systems, card_of, report_of
from .task import RunTask

# Main metric of a teacher below which queries hardly ask for their documents.
_HARDLY = 0.1


def publish(
    prepared: Prepared,
    fitted: Fitted,
    before: Verdict | None,
    after: Verdict | None,
    served: Prepared,
) -> None:
    """Compare the trained tower with other systems, and write all files of the run's folder except
    the log.

    Args:
        before: verdict on the untrained tower; None without held-out data.
        after: verdict on the trained tower.
        served: the run with the tower to save: the same run, or the run after a refit on the test.
    """
    with prepared.phases("publish"):
        _publish(prepared, fitted, before, after, served)


def _publish(
    prepared: Prepared,
    fitted: Fitted,
    before: Verdict | None,
    after: Verdict | None,
    served: Prepared,
) -> None:
    folder = prepared.folder
    spreads: dict[str, Spread] = {}
    others: dict[str, Any] = {}
    with prepared.phases("evaluate"):
        compared = prepared.task.compared(before, after)
        if before is not None and after is not None:
            spreads = {"untrained": before.spread, "trained": after.spread}
        differences = _differences(compared.systems)
        if before is not None and after is not None:
            others = _on_other_data(before.others, after.others)
        # Whether the run answers by both together anyway.
        is_fused = compared.about.get("counting", {}).get("served", False)
        alarms = _alarms(prepared, fitted, compared.systems, differences, is_fused)
        _caution_of_other_data(alarms, fitted.step, others)
    _save(prepared, served.task, folder / MODEL, folder)
    if served is not prepared:
        _save(prepared, prepared.task, folder / EVALUATED, folder / EVALUATED)
    (folder / "objective.safetensors").write_bytes(as_bytes(served.config.objective.state_dict()))
    write_searched(folder, served.task.searched())
    sizes = {}
    for path in sorted(folder.iterdir()):
        if path.name not in (CACHE, "log.jsonl"):
            sizes[path.name] = _size(path)
    configured = configuration.dump(prepared.config.resolved)
    (folder / "config.yaml").write_text(configured, encoding="utf-8")

    metrics: dict[str, Any] = {}
    metrics["metrics"] = {name: scores.metrics for name, scores in compared.systems.items()}
    metrics["difference"] = _plain(differences)
    metrics["spread"] = {name: spread.summary() for name, spread in spreads.items()}
    metrics.update(compared.about)
    if others:
        metrics["also"] = others
    metrics.update(alarms.summary())
    metrics.update(_training(prepared, fitted))
    metrics["data"] = prepared.task.facts.counts
    metrics["mixed_precision"] = prepared.devices.mixed_precision
    metrics["seconds"] = prepared.phases.seconds()
    metrics["replaying"] = round(fitted.replaying, 4)
    metrics["peak_memory_bytes"] = peak_memory_bytes()
    metrics["bytes"] = sizes

    report = report_of(prepared, metrics, compared, spreads, differences)
    (folder / "report.html").write_text(render(report), encoding="utf-8")
    card = card_of(prepared, metrics, compared.systems)
    (folder / "model" / "README.md").write_text(render_card(card), encoding="utf-8")
    metrics["seconds"] = prepared.phases.seconds()  # with the report
    write_mark(folder, metrics)
    shutil.rmtree(folder / CACHE, ignore_errors=True)  # mapped files stay readable


def _save(prepared: Prepared, task: RunTask, model: Path, beside: Path) -> None:
    """Write a model, and beside the model the ids of all data known to the model, its first weights
    and its teachers."""
    task.data.tower.save(model)
    for name, array in prepared.config.world.trained_on(task).items():
        before = learned(prepared.config.begins_with)
        ids = np.unique(np.concatenate([array, *before])) if before else array
        np.save(beside / name, ids, allow_pickle=False)


def _training(prepared: Prepared, fitted: Fitted) -> dict[str, Any]:
    """Return the steps, the chosen options and weights, and later trainings, for metrics.json."""
    values: dict[str, Any] = {
        "steps": fitted.taken,
        "evaluations_left_out": fitted.looks_left_out,
    }
    recipe = first_event(prepared.log.records, "recipe")
    if recipe:
        values["recipe"] = recipe
    if fitted.best:
        values["best"] = fitted.best
    refits = []
    for record in prepared.log.records:
        if record["event"] == "refit":
            refits.append({name: value for name, value in record.items() if name != "event"})
    if refits:
        values["refit"] = refits
    return values


def _alarms(
    prepared: Prepared, fitted: Fitted, systems: Systems, differences: Differences, is_fused: bool
) -> Alarms:
    """Log and return the alarms and cautions of a complete run.

    Args:
        is_fused: the run answers by the model and a baseline together.
    """
    alarms = Alarms(prepared.log)
    main = main_metric(prepared.config.evaluation.metrics)
    queries = 0
    if systems:
        queries = len(systems["trained"].per_query[main])
    taught = 1.0
    if TEACHER in systems:
        taught = systems[TEACHER].metrics[main]
    rivals = {}
    if taught < _HARDLY:
        alarms.caution(
            fitted.step,
            f"the teacher itself has {main} {taught:.3f} here, so this test tells next to nothing "
            "of what was learned from it: judge by real queries (data.test=FILE)",
        )
    else:
        rivals = {
            name: differences[f"trained - {name}"][main] for name in systems if name not in OURS
        }
        if systems:
            alarms.regression(fitted.step, main, differences["trained - untrained"][main], queries)
    together = ""
    if not is_fused:
        for name, command in TOGETHER.items():
            if _ahead(systems, name, main):
                together = f"{command} with --hybrid"
                break
    cautions = doubts(
        prepared.config,
        prepared.log.records,
        rivals,
        prepared.task.facts.subject,
        together,
        prepared.task.facts.chooses,
        queries,
    )
    for text in cautions:
        alarms.caution(fitted.step, text)
    if systems:
        for text in prepared.config.world.cautions(prepared.task, prepared.config):
            alarms.caution(fitted.step, text)
    return alarms


def _on_other_data(
    before: Mapping[str, TaskScores], after: Mapping[str, TaskScores]
) -> dict[str, Any]:
    """Return the main metric on further data before and after training, with the difference and
    interval."""
    rows = {}
    for path, scores in after.items():
        differences = scores.against(before[path])
        metric = main_metric(differences)
        rows[path] = {
            "metric": metric,
            "before": before[path].metrics[metric],
            "after": scores.metrics[metric],
            "difference": differences[metric].json(),
        }
    return rows


def _caution_of_other_data(alarms: Alarms, step: int, others: Mapping[str, Any]) -> None:
    """Log a caution for each file of further data on which training has made the model worse."""
    for path, each in others.items():
        difference = each["difference"]
        if difference["real"] and difference["mean"] < 0:
            alarms.caution(
                step,
                f"training made {path} worse: {each['metric']} {each['before']:.3f} before, "
                f"{each['after']:.3f} after; `tempera merge` weighs both models",
            )


def _ahead(systems: Systems, name: str, metric: str) -> bool:
    """Return True if a system is better than the trained tower alone, and not below a baseline."""
    if name not in systems:
        return False
    value = systems[name].metrics[metric]
    baseline = best_baseline(systems) or "trained"
    is_better = value > systems["trained"].metrics[metric]
    return is_better and value >= systems[baseline].metrics[metric]


def _differences(systems: Systems) -> Differences:
    """Return the metrics of each trained system less the metrics of every system before it in the
    table, with intervals."""
    names = list(systems)
    if not names:
        return {}
    pairs = {}
    for place in range(names.index("trained"), len(names)):
        ours = names[place]
        for theirs in names[:place]:
            if ours in TOGETHER and theirs == "untrained":
                continue
            pair = systems[ours].per_query, systems[theirs].per_query
            pairs[f"{ours} - {theirs}"] = pair
    return bootstrap_differences(pairs)


def _plain(differences: Differences) -> dict[str, Any]:
    """Return differences as plain values, for metrics.json."""
    plain = {}
    for name, metrics in differences.items():
        plain[name] = {metric: asdict(difference) for metric, difference in metrics.items()}
    return plain


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
