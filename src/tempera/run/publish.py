"""What a run leaves in its folder: the model and its card, what it is searched in, metrics, report."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import save as as_bytes

from .. import config as configuration
from ..artifacts.card import Card, render_card
from ..artifacts.report import Report, render
from ..build import Config
from ..io.documents import write_json
from ..ranking.compare import bootstrap
from ..ranking.spread import Spread
from .task import Judged, Task


@dataclass
class Leaving:
    """A run after its training, when all has been judged.

    Args:
        systems: what each has reached: untrained, baselines, trained.
        spreads: of the embeddings, before and after.
        records: of the log.
        course: what happened on the way, for metrics.json.
        seconds: of each phase.
        replaying: share of the training's time in which rows were embedded again.
    """

    config: Config
    task: Task
    systems: Mapping[str, Judged]
    spreads: Mapping[str, Spread]
    records: Sequence[Mapping[str, Any]]
    course: Mapping[str, Any]
    seconds: Mapping[str, float]
    replaying: float

    def save(self, folder: Path) -> None:
        """Write everything but the log, which lies there already."""
        self.task.tower.save(folder / "model")
        (folder / "objective.safetensors").write_bytes(as_bytes(self.config.objective.state_dict()))
        self.task.write(folder)
        (folder / "config.yaml").write_text(configuration.dump(self.config.resolved), encoding="utf-8")
        (folder / "report.html").write_text(render(self.report()), encoding="utf-8")
        (folder / "model" / "README.md").write_text(render_card(self.card()), encoding="utf-8")
        write_json(folder / "metrics.json", self.metrics)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What metrics.json holds."""
        trained = self.systems["trained"]
        return {
            "metrics": {name: system.metrics for name, system in self.systems.items()},
            "difference": {
                f"trained - {other}": {
                    metric: asdict(bootstrap(values, system.per_query[metric]))
                    for metric, values in trained.per_query.items()
                }
                for other, system in self.systems.items()
                if other != "trained"
            },
            "spread": {name: spread.summary() for name, spread in self.spreads.items()},
            **self.task.about(),
            **self.course,
            "data": self.task.counts(),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "replaying": round(self.replaying, 4),
            "peak_memory_bytes": peak_memory_bytes(),
        }

    def card(self) -> Card:
        """What the saved model's README.md says."""
        resolved, data = self.config.resolved, self.metrics["data"]
        source = {"source": str(resolved["data"].get("path") or resolved["data"]["source"])}
        counts = {name: f"{data[name]:,}" for name in ("pairs", "train", "validation", "queries", "corpus")}
        dropped = {f"left out: {reason}": f"{count:,}" for reason, count in data.get("dropped", {}).items()}
        return Card(
            **vars(self.config.card),
            data={**source, **counts, **dropped},
            recipe=configuration.dump(resolved),
            metrics={name: system.intervals() for name, system in self.systems.items()},
            kind=self.task.kind,
            base_model=resolved["tower"].get("model"),
        )

    def report(self) -> Report:
        """What report.html shows."""
        trained, rival = self.systems["trained"], self.task.rival(self.systems)
        metrics, names = self.metrics, self.config.evaluation.metrics
        difference = None
        if rival is not None and "ndcg@10" in trained.per_query:
            difference = bootstrap(trained.per_query["ndcg@10"], self.systems[rival].per_query["ndcg@10"])
        return Report(
            facts={
                **{text: f"{metrics['data'][name]:,}" for name, text in self.task.words.facts.items()},
                "seconds": ", ".join(f"{name} {value:.0f}" for name, value in self.seconds.items()),
                "peak memory": f"{metrics['peak_memory_bytes'] / 2**20:,.0f} MiB",
                **({"BM25 settings": str(metrics["bm25"])} if rival == "bm25" else {}),
            },
            systems={name: _only(names, values) for name, values in metrics["metrics"].items()},
            difference=difference,
            log=[{**r, "metrics": _only(names, r["metrics"])} if "metrics" in r else r for r in self.records],
            spreads=self.spreads,
            examples=self.task.examples(self.systems),
            config=configuration.dump(self.config.resolved),
            rival=rival,
            words=self.task.words,
            tables=self.task.tables(),
            alarms=metrics["alarms"],
        )


def _only(names: Sequence[str], scores: Mapping[str, float]) -> dict[str, float]:
    """Scores with these names, in their order."""
    return {name: scores[name] for name in names if name in scores}


def peak_memory_bytes() -> int:
    """The most memory this process has held, and with it the largest of its workers."""
    return 1024 * sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
