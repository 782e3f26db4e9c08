"""Evaluation of one or two models, and BM25, on any number of tasks, with tests of their
differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ...arguments import refuse_other_kinds
from ...errors import ConfigError, DataError, OutputError, article, quantity
from ...io.atomic import new_file, refuse_replacing
from ...io.console import aligned
from ...mining.embedder import Model, Reading, in_half, run_of
from ...ranking.compare import Comparison
from ...ranking.metrics import DEFAULT_METRICS, KINDS, listed
from ...tables.streams import is_frame
from ...task.evaluation import Evaluation
from ...task.verdict import TaskScores
from ...towers.saved import EVALUATED, model_folder
from ..read.beir import is_beir
from ..read.roles import Roles
from .hybrid import weight_of
from .tasks import Graded, RetrievalTask, read_task

BM25 = "bm25"
_COPIES = 0.05  # share of documents that have the text of another, above which scores are doubtful


class PerQuery(Protocol):
    """A finding with a table of scores."""

    def per_query(self) -> pa.Table:
        """Return the columns task, query, system, metric and value."""


@dataclass(repr=False, frozen=True)
class Finding:
    """Hold the scores of each system on a task, the evaluated model first."""

    task: RetrievalTask | Graded
    systems: dict[str, TaskScores]
    trained: Mapping[str, int] = field(
        default_factory=dict
    )  # queries that a run was trained on, by run

    @cached_property
    def comparisons(self) -> dict[str, dict[str, Comparison]]:
        """Comparisons of the first system with each other one, by metric."""
        (_, first), *others = self.systems.items()
        return {name: first.against(other) for name, other in others}

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "task": self.task.name,
            "kind": "sts" if isinstance(self.task, Graded) else "retrieval",
            "counts": self.task.counts,
            "bm25": self.task.about_words
            if isinstance(self.task, RetrievalTask) and BM25 in self.systems
            else None,
            "systems": {
                name: {metric: asdict(interval) for metric, interval in system.intervals().items()}
                for name, system in self.systems.items()
            },
            "comparisons": {
                other: {metric: comparison.json() for metric, comparison in metrics.items()}
                for other, metrics in self.comparisons.items()
            },
            "verdicts": self.verdicts(),
            "cautions": self.cautions(),
        }

    def __repr__(self) -> str:
        """Return the table of the scores, and what they show."""
        scores = [system.intervals() for system in self.systems.values()]
        lines = [["metric", *self.systems]]
        for metric in scores[0]:
            cells = (
                f"{each[metric].mean:.4f} [{each[metric].low:.3f}, {each[metric].high:.3f}]"
                for each in scores
            )
            lines.append([metric, *cells])
        said = [*(f"caution: {text}" for text in self.cautions()), *self.verdicts()]
        return "\n".join([self.task.name, aligned(lines, str.ljust), *said])

    def verdicts(self) -> list[str]:
        """Return every comparison in plain words."""
        first = next(iter(self.systems))
        return [
            comparison.sentence(first, other, metric)
            for other, metrics in self.comparisons.items()
            for metric, comparison in metrics.items()
        ]

    def cautions(self) -> list[str]:
        """Return sentences about what makes the scores misleading: queries that were trained on,
        documents that are equal."""
        total, sentences = self.task.counts.get("queries", 0), list[str]()
        if isinstance(self.task, RetrievalTask):
            documents = len(self.task.corpus)
            counts = self.task.corpus["text"].value_counts().field("counts").to_numpy()
            copies = int(counts[counts > 1].sum())
            if copies > _COPIES * documents:
                sentences.append(
                    f"{copies:,} of the {documents:,} documents have the text of another "
                    f"({quantity(len(counts), 'different texts')} in all); equal ones are ranked by their ids, so that an "
                    "answer may lose to its copy: leave copies out, or judge all of them"
                )
        return sentences + [
            f"{run} was trained on {count:,} of these {total:,} queries, so its scores here, and what compares them, "
            f"are too good: {self._remedy(Path(run))}"
            for run, count in self.trained.items()
        ]

    def _remedy(self, run: Path) -> str:
        """Return what to do instead of judging a run by queries that it was trained on."""
        judged = run_of(run) / EVALUATED
        assert isinstance(self.task, RetrievalTask)
        if self.task.kept is not None:
            return "train the model of the index with train.refit=none, and take the index that it makes"
        if judged.is_dir() and not Model(str(judged)).trained_on(self.task.queries["text"]):
            return f"judge {judged}, which has not learned what the run held out"
        return (
            "give queries that it has not seen; its report.html has the metrics of those that it held out, from before it "
            "learned them if it did (train.refit)"
        )

    def per_query(self) -> pa.Table:
        """Return columns task, query, system, metric, value; for graded pairs, query is the row and
        the metric its similarity."""
        tables = []
        for name, system in self.systems.items():
            for metric, values in system.per_query.items():
                said = {
                    "task": self.task.name,
                    "query": self.task.ids,
                    "system": name,
                    "metric": metric,
                }
                columns = {
                    key: [v] * len(values) if isinstance(v, str) else v for key, v in said.items()
                }
                tables.append(pa.table({**columns, "value": pa.array(values, pa.float64())}))
        return pa.concat_tables(tables)


def evaluate(
    model: str | Path,
    *data: Any,
    against: str | Path | None = None,
    bm25: bool = False,
    split: str = "test",
    metrics: str | Sequence[str] = (),
    k: Sequence[int] = (),
    exclude_self: bool = False,
    roles: Roles | None = None,
    mixed_precision: Reading = "no",
) -> list[Finding]:
    """Evaluate a model on tasks.

    Args:
        model: a model folder or a run folder.
        data: retrieval sets, tables of pairs, tables of two sentences and their grade; frames of
            pandas or polars, tables of pyarrow, data sets; or tasks.
        against: another model, compared query by query.
        bm25: rank retrieval tasks by BM25, and by the model and BM25 together, as well.
        split: of BEIR folders.
        metrics: names with a depth, such as ndcg@10, or without one, to be taken at every `k`.
        k: depths; without metrics, every metric at each of them.
        exclude_self: leave out a document with the query's own text unless it is judged relevant.
        roles: of the columns of the tables, all of which are then tables of pairs.
        mixed_precision: "auto" reads texts in bf16 where the processor multiplies it fast; rankings
            are computed in float32.

    Raises:
        ConfigError: no data, an unknown metric or precision, or a model against itself.
        DataError: a model or data that cannot be read, or that is no path.

    >>> (finding,) = evaluate("runs/first", "pairs.jsonl", bm25=True, metrics=["ndcg@10"])
    >>> list(finding.systems), list(finding.comparisons["bm25"])
    (['runs/first', 'bm25', 'runs/first + BM25'], ['ndcg@10'])
    """
    half = in_half(mixed_precision)
    if not data:
        raise ConfigError(
            "no data to evaluate on: give a table of pairs or a BEIR folder, or a run to evaluate_held_out"
        )
    for number, task in enumerate(data, 1):
        if not isinstance(task, str | Path | RetrievalTask | Graded) and not is_frame(task):
            raise DataError(
                f"data {number} to evaluate on is {article(type(task).__name__)}; expected the path of a table of pairs or of a "
                "retrieval set, or a frame: write rows to a file, such as pairs.jsonl, or make them a pyarrow.table"
            )
    refuse_other_kinds(evaluate, locals())
    names = resolved(metrics, k)
    if (
        against is not None
        and model_folder(Path(against)).resolve() == model_folder(Path(model)).resolve()
    ):
        raise ConfigError(f"cannot compare {model} with itself; give another model")
    models = [Model(str(path), half) for path in (model, against) if path is not None]
    if split != "test" and not any(isinstance(task, str | Path) and is_beir(task) for task in data):
        raise DataError(f"the split {split!r} is of a BEIR folder, and none is given: drop it")
    tasks = [
        task if isinstance(task, RetrievalTask | Graded) else read_task(task, split, roles)
        for task in data
    ]
    idle = {"metrics": metrics, "k": k, "exclude_self": exclude_self}
    if any(idle.values()) and all(isinstance(task, Graded) for task in tasks):
        name = next(name for name, value in idle.items() if value)
        raise ConfigError(
            f"{name} is for rankings, and {tasks[0].name} holds graded pairs of sentences: drop it"
        )
    findings = []
    for task in tasks:
        if isinstance(task, Graded):
            findings.append(Finding(task, {each.path: task.judge(each) for each in models}))
            continue
        systems: dict[str, TaskScores] = {}
        trained = {each.path: each.trained_on(task.queries["text"]) for each in models}
        ranked = replace(task, exclude_self=exclude_self)
        vectors = ranked.vectors(models[0])
        systems[models[0].path] = ranked.by_vectors(vectors, names)
        systems |= {
            each.path: ranked.by_vectors(ranked.vectors(each), names) for each in models[1:]
        }
        if bm25:
            words, fused = ranked.by_words(vectors, weight_of(Path(model)), names)
            systems |= {BM25: words, f"{model} + BM25": fused}
        findings.append(
            Finding(ranked, systems, {run: count for run, count in trained.items() if count})
        )
    return findings


def resolved(metrics: str | Sequence[str], k: Sequence[int]) -> tuple[str, ...]:
    """Return names of metrics with their depths.

    >>> resolved(["ndcg", "mrr@5"], [1, 10])
    ('ndcg@1', 'ndcg@10', 'mrr@5')
    """
    if not metrics and not k:
        return DEFAULT_METRICS
    parts = [
        [name] if name not in KINDS else [f"{name}@{depth}" for depth in k or (10,)]
        for name in listed(metrics) or KINDS
    ]
    return Evaluation(metrics=tuple(dict.fromkeys(name for part in parts for name in part))).metrics


def refuse_scores(
    path: Path,
    overwrite: bool = False,
    read: Sequence[str | Path] = (),
    models: Sequence[str | Path] = (),
) -> None:
    """Raise OutputError unless `path` can take the scores of every query; called before they are
    computed.

    Args:
        path: a file of .parquet or .csv.
        overwrite: replace a file that is there.
        read: the data, which are never replaced.
        models: what is evaluated, in whose folders nothing is written.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise OutputError(
            f"cannot write scores to {path}; give a name that ends in .parquet or .csv"
        )
    refuse_replacing(path, overwrite, *read, models=models)


def write_per_query(path: Path, findings: Sequence[PerQuery], overwrite: bool = False) -> None:
    """Write every score of every query as .parquet or .csv; raises OutputError as `refuse_scores`
    does."""
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    refuse_scores(path, overwrite)
    write = parquet.write_table if path.suffix == ".parquet" else csv.write_csv
    with new_file(path) as partial:
        write(pa.concat_tables([finding.per_query() for finding in findings]), str(partial))
