"""The last of a run's four functions: its folder with the model and its card, what it searches,
metrics and a report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as as_bytes

from ..artifacts.card import Card, render_card
from ..artifacts.index import write_searched
from ..artifacts.report import RunReport, render
from ..artifacts.report_tables import tables
from ..engine.clock import peak_memory_bytes
from ..io.atomic import write_mark
from ..io.documents import first_event
from ..mining.embedder import learned
from ..options import yaml_options as configuration
from ..ranking.compare import Difference, bootstrap_metrics
from ..ranking.fusion import Fusion
from ..ranking.spread import Spread
from ..task.showcase import Compared
from ..task.verdict import (
    MAIN,
    OURS,
    TEACHER,
    TOGETHER,
    SystemScores,
    TaskScores,
    Verdict,
    best_baseline,
    main_metric,
)
from ..towers.saved import EVALUATED, MODEL
from .alarms import Alarms, doubts
from .fit import Fitted
from .prepare import CACHE, Prepared
from .refit import LEARNED
from .task import RunTask

_LOST = ": {metric} {before:.3f} before, {after:.3f} after; `tempera merge` weighs both models"
# of the main metric, which a teacher falls short of where queries hardly ask for their documents
_HARDLY = 0.1
_SERVED = (
    "the vectors alone; both together by --hybrid",
    "both together; the vectors alone by --vectors",
)
Systems = Mapping[str, SystemScores]
Differences = Mapping[str, Mapping[str, Difference]]


def publish(
    prepared: Prepared,
    fitted: Fitted,
    before: Verdict | None,
    after: Verdict | None,
    served: Prepared,
) -> None:
    """Compare with other systems, and write everything but the log, which lies in the folder
    already.

    Args:
        before: the untrained tower; None where nothing is held out to judge by.
        after: the trained one.
        served: the run whose tower is saved: the same, or one that has then been trained on the
            test, too.
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
    config, task, folder = prepared.config, prepared.task, prepared.folder
    spreads: dict[str, Spread] = {}
    with prepared.phases("evaluate"):
        compared = task.compared(before, after)
        systems, about = compared.systems, compared.about
        if before is not None and after is not None:
            spreads = {"untrained": before.spread, "trained": after.spread}
        differences = _differences(systems)
        others = {} if before is None or after is None else _forgotten(before.others, after.others)
        alarms = _doubted(
            prepared, fitted, systems, differences, about.get("counting", {}).get("served", False)
        )
        for path, each in others.items():
            if each["difference"]["real"] and each["difference"]["mean"] < 0:
                alarms.caution(fitted.step, f"training made {path} worse{_LOST.format(**each)}")
    _save(prepared, served.task, folder / MODEL, folder)
    if served is not prepared:
        _save(prepared, task, folder / EVALUATED, folder / EVALUATED)
    (folder / "objective.safetensors").write_bytes(as_bytes(served.config.objective.state_dict()))
    write_searched(folder, served.task.searched())
    sizes = {
        each.name: _size(each)
        for each in sorted(folder.iterdir())
        if each.name not in (CACHE, "log.jsonl")
    }
    (folder / "config.yaml").write_text(configuration.dump(config.resolved), encoding="utf-8")
    metrics = {
        "metrics": {name: scores.metrics for name, scores in systems.items()},
        "difference": {name: _plain(each) for name, each in differences.items()},
        "spread": {name: spread.summary() for name, spread in spreads.items()},
        **about,
        **({"also": others} if others else {}),
        **alarms.summary(),
        "steps": fitted.taken,
        "evaluations_left_out": fitted.looks_left_out,
        **({"recipe": recipe} if (recipe := first_event(prepared.log.records, "recipe")) else {}),
        **({"best": fitted.best} if fitted.best else {}),
        **({"refit": again} if (again := _trained_again(prepared.log.records)) else {}),
        "data": task.facts.counts,
        "mixed_precision": prepared.devices.mixed_precision,
        "seconds": prepared.phases.seconds(),
        "replaying": round(fitted.replaying, 4),
        "peak_memory_bytes": peak_memory_bytes(),
        "bytes": sizes,
    }
    report = _report(prepared, metrics, compared, spreads, differences)
    (folder / "report.html").write_text(render(report), encoding="utf-8")
    (folder / "model" / "README.md").write_text(
        render_card(_card(prepared, metrics, systems)), encoding="utf-8"
    )
    write_mark(folder, {**metrics, "seconds": prepared.phases.seconds()})
    shutil.rmtree(folder / CACHE, ignore_errors=True)  # what is mapped stays readable


def _save(prepared: Prepared, task: RunTask, model: Path, beside: Path) -> None:
    """Write a model, and what it and those that it begins with or learns from have learned, into
    another folder."""
    task.data.tower.save(model)
    for name, array in prepared.config.world.trained_on(task).items():
        before = learned(prepared.config.begins_with)
        np.save(beside / name, np.unique(np.concatenate([array, *before])), allow_pickle=False)


def _doubted(
    prepared: Prepared, fitted: Fitted, systems: Systems, differences: Differences, served: bool
) -> Alarms:
    """Log the alarms and cautions of a run that has ended, and return them; `served` if it answers
    by both together anyway."""
    alarms, main = Alarms(prepared.log), main_metric(prepared.config.evaluation.metrics)
    queries = len(systems["trained"].per_query[main]) if systems else 0
    taught = systems[TEACHER].metrics[main] if TEACHER in systems else 1.0
    rivals = {name: differences[f"trained - {name}"][main] for name in systems if name not in OURS}
    if taught < _HARDLY:
        rivals = {}
        alarms.caution(
            fitted.step,
            f"the teacher itself has {main} {taught:.3f} here, so this test tells next to nothing of what was learned from it: "
            "judge by real queries (data.test=FILE)",
        )
    elif systems:
        alarms.regression(fitted.step, main, differences["trained - untrained"][main], queries)
    better = [
        command for name, command in TOGETHER.items() if not served and _ahead(systems, name, main)
    ]
    together = f"{better[0]} with --hybrid" if better else ""
    chooses = prepared.task.facts.chooses
    for text in doubts(
        prepared.config,
        prepared.log.records,
        rivals,
        prepared.task.facts.subject,
        together,
        chooses,
        queries,
    ):
        alarms.caution(fitted.step, text)
    if systems:
        for text in prepared.config.world.cautions(prepared.task, prepared.config):
            alarms.caution(fitted.step, text)
    return alarms


def _forgotten(before: Mapping[str, TaskScores], after: Mapping[str, TaskScores]) -> dict[str, Any]:
    """Return the main metric on other data before and after training, and the difference with its
    interval."""
    rows = {}
    for path, scores in after.items():
        differences = scores.against(before[path])
        metric = main_metric(differences)
        values = {"before": before[path].metrics[metric], "after": scores.metrics[metric]}
        rows[path] = {"metric": metric, **values, "difference": differences[metric].json()}
    return rows


def _ahead(systems: Systems, name: str, metric: str) -> bool:
    """Return True if a system is better than the trained one alone, and not below a baseline."""
    value = {each: reached.metrics[metric] for each, reached in systems.items()}
    baseline = best_baseline(systems) or "trained"
    return name in value and value[name] > value["trained"] and value[name] >= value[baseline]


def _differences(systems: Systems) -> Differences:
    """Return the metrics of each trained system less those of every system before it in the table,
    with intervals."""
    names = list(systems)
    return {
        f"{ours} - {theirs}": bootstrap_metrics(systems[ours].per_query, systems[theirs].per_query)
        for ours in (names[names.index("trained") :] if systems else ())
        for theirs in names[: names.index(ours)]
        if ours not in TOGETHER or theirs != "untrained"
    }


def _plain(differences: Mapping[str, Difference]) -> dict[str, Any]:
    return {metric: asdict(difference) for metric, difference in differences.items()}


def _card(prepared: Prepared, metrics: Mapping[str, Any], systems: Systems) -> Card:
    """Return what the saved model's README.md says."""
    resolved, data = prepared.config.resolved, metrics["data"]
    source = {"source": str(resolved["data"].get("path") or resolved["data"]["source"])}
    counts = {
        name: f"{data[name]:,}" for name in ("pairs", "train", "validation", "queries", "corpus")
    }
    return Card(
        **vars(prepared.config.card),
        data={**source, **counts, **_divided(data), **_again(metrics.get("refit", []))},
        recipe=configuration.dump(resolved),
        metrics={name: scores.intervals() for name, scores in systems.items()},
        subject=prepared.task.facts.subject,
        base_model=_base(resolved["tower"]),
    )


def _divided(data: Mapping[str, Any]) -> dict[str, str]:
    """Return what the data have lost, by reason, and sentences on what is held out together."""
    left_out = {
        f"left out: {reason}": f"{count:,}" for reason, count in data.get("dropped", {}).items()
    }
    notes = "; ".join(data.get("held_out", ()))
    return {**left_out, "held out": notes} if notes else left_out


def _base(tower: Mapping[str, Any]) -> str | None:
    """Return the model that a tower, or the one of queries, starts from; None for one from
    scratch."""
    (query,) = tower["query"].values() if isinstance(tower.get("query"), Mapping) else (tower,)
    model: str | None = query.get("model")
    return model


def _trained_again(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what each training after the first one added, with its pairs and steps."""
    return [
        {name: value for name, value in record.items() if name != "event"}
        for record in records
        if record["event"] == "refit"
    ]


def _again(refits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what card and report say of a model that has trained again on what was held out."""
    names = {
        "validation": "trained again before the evaluation",
        "test": "trained again after the evaluation",
    }
    lines = {
        names[
            each["part"]
        ]: f"{LEARNED[each['part']]}, {each['pairs']:,} in all, {each['steps']:,} steps"
        + (" on from the weights that validation has chosen" if each.get("goes_on") else "")
        + (f", with {each['negatives']:,} mined negatives" if "negatives" in each else "")
        for each in refits
    }
    if names["test"] in lines:
        lines[names["test"]] += "; the metrics are those of the model that was evaluated"
    return lines


def _report(
    prepared: Prepared,
    metrics: Mapping[str, Any],
    compared: Compared,
    spreads: Mapping[str, Spread],
    differences: Differences,
) -> RunReport:
    """Return what report.html shows."""
    subject = prepared.task.facts.subject
    systems = compared.systems
    rival = best_baseline(systems)
    names = prepared.config.evaluation.metrics
    records = prepared.log.records
    return RunReport(
        facts={
            **{text: f"{metrics['data'][name]:,}" for name, text in subject.facts.items()},
            **_divided(metrics["data"]),
            "CPU seconds": ", ".join(
                f"{name} {each['cpu']:.0f}" for name, each in metrics["seconds"].items()
            ),
            "seconds": f"{sum(each['wall'] for each in metrics['seconds'].values()):.0f}",
            "peak memory": f"{metrics['peak_memory_bytes'] / 2**20:,.0f} MiB",
            **({"BM25 settings": str(metrics["bm25"])} if rival == "bm25" else {}),
            **{name: str(Fusion(**metrics["hybrid"])) for name in systems if name in TOGETHER},
            **(
                {"recommended by": _SERVED[metrics["counting"]["served"]]}
                if "counting" in metrics
                else {}
            ),
            **({"moment of a question": metrics["moment"]} if "moment" in metrics else {}),
            **_again(metrics.get("refit", [])),
        },
        systems={name: _only(names, values) for name, values in metrics["metrics"].items()},
        difference=None if rival is None else differences[f"trained - {rival}"].get(MAIN),
        log=[
            {**r, "metrics": _only(names, r["metrics"])} if "metrics" in r else r for r in records
        ],
        spreads=spreads,
        examples=compared.examples,
        config=configuration.dump(prepared.config.resolved),
        subject=subject,
        rival=rival,
        tables=tables(metrics),
        alarms=metrics["alarms"],
        winner=metrics.get("winner", ""),
        cautions=metrics["cautions"],
    )


def _only(names: Sequence[str], scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores with these names, in their order."""
    return {name: scores[name] for name in names if name in scores}


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
