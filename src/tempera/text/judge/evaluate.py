"""Evaluation of one or two models, and of BM25, on tasks, with tests of the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ...arguments import refuse_other_kinds
from ...errors import ConfigError, DataError, OutputError, article, quantity
from ...forms.roles import Roles
from ...forms.set_files import is_beir
from ...io.atomic import new_file, refuse_replacing
from ...io.console import aligned
from ...mining.embedder import Model, Reading, in_half, run_of
from ...parallel.distributed import ALONE, Group
from ...ranking.compare import Comparison
from ...ranking.metrics import DEFAULT_METRICS, KINDS, listed
from ...tables.streams import is_frame
from ...task.evaluation import Evaluation
from ...task.verdict import TaskScores
from ...towers.saved import EVALUATED, model_folder
from .encoded_vectors import encoded_vectors
from .hybrid import weight_of
from .tasks import Graded, RetrievalTask, read_task

BM25 = "bm25"
_COPIES = 0.05  # share of documents that have the text of another, above which scores are doubtful


class PerQuery(Protocol):
    """A result with a table of scores."""

    def per_query(self) -> pa.Table:
        """Return the columns task, query, system, metric and value."""


@dataclass(repr=False, frozen=True)
class Finding:
    """Hold the scores of each system on a task, the evaluated model first."""

    task: RetrievalTask | Graded
    systems: dict[str, TaskScores]
    # Queries of the task that a run was trained on, by run.
    trained: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def comparisons(self) -> dict[str, dict[str, Comparison]]:
        """Comparisons of the first system with every other system, by metric."""
        (_, first), *others = self.systems.items()
        return {name: first.against(other) for name, other in others}

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        kind, words = "retrieval", None
        if isinstance(self.task, Graded):
            kind = "sts"
        elif BM25 in self.systems:
            words = self.task.about_words
        systems: dict[str, dict[str, Any]] = {}
        for name, system in self.systems.items():
            intervals = system.intervals()
            systems[name] = {metric: asdict(interval) for metric, interval in intervals.items()}
        comparisons: dict[str, dict[str, Any]] = {}
        for name, metrics in self.comparisons.items():
            comparisons[name] = {metric: each.json() for metric, each in metrics.items()}
        return {
            "task": self.task.name,
            "kind": kind,
            "counts": self.task.counts,
            "bm25": words,
            "systems": systems,
            "comparisons": comparisons,
            "verdicts": self.verdicts(),
            "cautions": self.cautions(),
        }

    def __repr__(self) -> str:
        """Return the table of the scores, the cautions and the verdicts."""
        scores = [system.intervals() for system in self.systems.values()]
        rows = [["metric", *self.systems]]
        for metric in scores[0]:
            row = [metric]
            for intervals in scores:
                interval = intervals[metric]
                row.append(f"{interval.mean:.4f} [{interval.low:.3f}, {interval.high:.3f}]")
            rows.append(row)
        lines = [self.task.name, aligned(rows, str.ljust)]
        lines += [f"caution: {text}" for text in self.cautions()]
        lines += self.verdicts()
        return "\n".join(lines)

    def verdicts(self) -> list[str]:
        """Return every comparison in plain words."""
        first = next(iter(self.systems))
        sentences = list[str]()
        for other, metrics in self.comparisons.items():
            for metric, comparison in metrics.items():
                sentences.append(comparison.sentence(first, other, metric))
        return sentences

    def cautions(self) -> list[str]:
        """Return the reasons why the scores mislead: equal documents, and queries that a model was
        trained on."""
        sentences = list[str]()
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
        total = self.task.counts.get("queries", 0)
        for run, count in self.trained.items():
            sentences.append(
                f"{run} was trained on {count:,} of these {total:,} queries, so its scores here, and what compares them, "
                f"are too good: {self._remedy(Path(run))}"
            )
        return sentences

    def _remedy(self, run: Path) -> str:
        """Return advice for a run that is evaluated on queries of its training."""
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
        value is the similarity of its texts."""
        tables = []
        for name, system in self.systems.items():
            for metric, values in system.per_query.items():
                count = len(values)
                columns = {
                    "task": [self.task.name] * count,
                    "query": self.task.ids,
                    "system": [name] * count,
                    "metric": [metric] * count,
                    "value": pa.array(values, pa.float64()),
                }
                tables.append(pa.table(columns))
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
    index: str | Path | None = None,
    group: Group = ALONE,
) -> list[Finding]:
    """Evaluate a model on tasks.

    Args:
        model: a model folder or a run folder.
        data: retrieval sets, tables of pairs, tables of two sentences and their grade; frames of
            pandas or polars, tables of pyarrow, data sets; or tasks.
        against: another model, compared query by query.
        bm25: rank retrieval tasks by BM25, and by the model and BM25 together, as well.
        split: of BEIR folders.
        metrics: names with a depth, such as ndcg@10, or without a depth, to be taken at every `k`.
        k: depths; without metrics, every metric at each depth.
        exclude_self: leave out a document with the query's own text unless judged relevant.
        roles: roles of the tables' columns; all tables are then tables of pairs.
        mixed_precision: "auto" reads texts in bf16 where the processor multiplies it fast; rankings
            are computed in float32.
        index: an encoded corpus of the model, whose vectors are taken by the documents' ids.
        group: processes that divide the queries and the documents, each of which calls this with
            the same arguments: `tempera.engine.devices.start().group`.

    Raises:
        ConfigError: no data, an unknown metric or precision, a model against itself, or an index
            for graded pairs.
        DataError: a model or data that cannot be read, or that is no path; an index of another
            model, or without a document.

    >>> (finding,) = evaluate("runs/first", "pairs.jsonl", bm25=True, metrics=["ndcg@10"])
    >>> list(finding.systems), list(finding.comparisons["bm25"])
    (['runs/first', 'bm25', 'runs/first + BM25'], ['ndcg@10'])
    """
    half = in_half(mixed_precision, group)
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
    if against is not None and _is_one_model(against, model):
        raise ConfigError(f"cannot compare {model} with itself; give another model")
    first = Model(str(model), half)
    second = None if against is None else Model(str(against), half)
    if split != "test" and not any(isinstance(task, str | Path) and is_beir(task) for task in data):
        raise DataError(f"the split {split!r} is of a BEIR folder, and none is given: drop it")
    tasks = list[RetrievalTask | Graded]()
    for task in data:
        if not isinstance(task, RetrievalTask | Graded):
            task = read_task(task, split, roles)
        tasks.append(task)
    if all(isinstance(task, Graded) for task in tasks):
        for name, value in (("metrics", metrics), ("k", k), ("exclude_self", exclude_self)):
            if value:
                raise ConfigError(
                    f"{name} is for rankings, and {tasks[0].name} holds graded pairs of sentences: drop it"
                )
    findings = list[Finding]()
    for task in tasks:
        if isinstance(task, Graded):
            if index is not None:
                raise ConfigError(
                    f"index is for rankings, and {task.name} holds graded pairs of sentences: drop it"
                )
            findings.append(_evaluate_graded(task, first, second, group))
        else:
            task = replace(task, exclude_self=exclude_self)
            findings.append(_evaluate_retrieval(task, first, second, bm25, names, index, group))
    return findings


def _is_one_model(first: str | Path, second: str | Path) -> bool:
    """Return True if two paths, of models or of runs, lead to the same model."""
    return model_folder(Path(first)).resolve() == model_folder(Path(second)).resolve()


def _evaluate_graded(task: Graded, model: Model, against: Model | None, group: Group) -> Finding:
    """Return the correlations of one or two models with the grades of pairs."""
    systems: dict[str, TaskScores] = {model.path: task.judge(model, group=group)}
    if against is not None:
        systems[against.path] = task.judge(against, group=group)
    return Finding(task, systems)


def _evaluate_retrieval(
    task: RetrievalTask,
    model: Model,
    against: Model | None,
    bm25: bool,
    metrics: tuple[str, ...],
    index: str | Path | None,
    group: Group,
) -> Finding:
    """Return the rankings of a task by one or two models, and by BM25 if asked for."""
    trained = dict[str, int]()
    for each in [model] if against is None else [model, against]:
        count = each.trained_on(task.queries["text"])
        if count:
            trained[each.path] = count
    docs = None if index is None else encoded_vectors(index, task, model, group)
    vectors = task.vectors(model, docs, group)
    systems: dict[str, TaskScores] = {model.path: task.by_vectors(vectors, metrics, group)}
    if against is not None:
        others = task.vectors(against, None, group)
        systems[against.path] = task.by_vectors(others, metrics, group)
    if bm25:
        weight = weight_of(Path(model.path))
        words, fused = task.by_words(vectors, weight, metrics, group)
        systems[BM25] = words
        systems[f"{model.path} + BM25"] = fused
    return Finding(task, systems, trained)


def resolved(metrics: str | Sequence[str], k: Sequence[int]) -> tuple[str, ...]:
    """Return the names of metrics with their depths.

    >>> resolved(["ndcg", "mrr@5"], [1, 10])
    ('ndcg@1', 'ndcg@10', 'mrr@5')
    """
    if not metrics and not k:
        return DEFAULT_METRICS
    names = dict[str, None]()  # as an ordered set
    for name in listed(metrics) or KINDS:
        if name not in KINDS:
            names[name] = None
            continue
        for depth in k or (10,):
            names[f"{name}@{depth}"] = None
    return Evaluation(metrics=tuple(names)).metrics


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
        overwrite: replace an existing file.
        read: the data, never to be replaced.
        models: the evaluated models; nothing is written in the folders of models.
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
