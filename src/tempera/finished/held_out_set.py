"""The held-out queries of a run as a separate retrieval set, to compare runs, or to export the set
to further programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import refuse_other_kinds
from ..errors import ConfigError, DataError
from ..exports.export import BEIR, place_of
from ..io.atomic import staged, write_mark
from ..io.console import logger
from ..mining.embedder import Reading
from ..options.build import config_of_run
from ..parallel.distributed import ALONE, Group
from ..recommender.other_events import EventsFinding
from ..task.run_files import HISTORIES
from ..text.judge.evaluate import Finding, evaluate
from ..text.read.beir import write_beir
from ..text.read.pairs import Pairs, Rows, Text
from ..towers.saved import fingerprint, model_folder
from ..towers.stamp import Kept
from .data_again import evaluated_model, held_out_task, read_split_again
from .held_out_events import evaluate_held_out_events

_SPLITS = {"test": "test", "validation": "dev"}  # by the names that BEIR has for them


def evaluate_held_out(
    run: str | Path,
    against: str | Path | None = None,
    bm25: bool = False,
    metrics: str | Sequence[str] = (),
    k: Sequence[int] = (),
    exclude_self: bool = False,
    mixed_precision: Reading = "no",
    group: Group = ALONE,
) -> Finding | EventsFinding:
    """Evaluate a run again by the held-out queries of the run, beside another run or model, query
    by query.

    A recommender is evaluated on its held-out events, see `evaluate_held_out_events`. Both findings
    have verdicts, per_query() and json().

    If a run has learned the queries since (`train.refit`), the earlier model (`RUN/evaluated`) is
    judged, for either run. Two runs on the same data, roles and evaluation options divide the data
    alike, and neither has learned the queries; the finding says if a model has learned some.
    Changed data are refused. For a run with a kept index (`tower.doc.index`) no document is
    embedded: the queries of both models are searched in the index.

    Args:
        run: a run folder.
        against: another run or model.
        bm25: also rank by BM25, and by the run and BM25 together.
        metrics: as in `evaluate`.
        k: as in `evaluate`.
        exclude_self: as in `evaluate`.
        mixed_precision: as in `evaluate`.
        group: as in `evaluate`.

    Raises:
        DataError: no run on texts, changed or missing data, no test, or a model for another index.
        ConfigError: an unknown metric or precision, or a run against itself.

    >>> finding = evaluate_held_out("runs/first", bm25=True, metrics=["ndcg@10"])
    >>> list(finding.systems)
    ['runs/first/evaluated', 'bm25', 'runs/first/evaluated + BM25']
    """
    refuse_other_kinds(evaluate_held_out, locals())
    run = Path(run)
    if (run / HISTORIES).is_file():
        _refuse_for_recommender(run, "bm25", bm25)
        _refuse_for_recommender(run, "k", len(k) > 0)
        _refuse_for_recommender(run, "exclude_self", exclude_self)
        _refuse_for_recommender(run, "mixed_precision", mixed_precision != "no")
        return evaluate_held_out_events(run, against, metrics, group=group)
    model_folder(run)  # raises if this is no run on texts
    split, _ = read_split_again(run, "give data to evaluate it on")
    if not len(split.test):
        raise DataError(f"{run} has no test (evaluation.queries=0): give data to evaluate it on")
    judged = evaluated_model(run)
    other = None
    if against is not None:
        other = _comparable_model(run, Path(against))
    _log_if_earlier(judged, run)
    if other is not None:
        _log_if_earlier(other, Path(str(against)))
    task = held_out_task(run, "held out", split, split.test)
    (finding,) = evaluate(
        judged,
        task,
        against=other,
        bm25=bm25,
        metrics=metrics,
        k=k,
        exclude_self=exclude_self,
        mixed_precision=mixed_precision,
        group=group,
    )
    return finding


def _refuse_for_recommender(run: Path, name: str, is_set: bool) -> None:
    """Raise ConfigError if an option for models of texts is set for a recommender."""
    if is_set:
        raise ConfigError(f"{name} is for models of texts, and {run} is a recommender")


def _log_if_earlier(model: Path, run: Path) -> None:
    """Log the use of a run's model from before the last training, if the run has two models."""
    if model != run:
        logger.info(
            f"{model} is judged, the model of {run} from before it learned what the run had held out"
        )


def _comparable_model(run: Path, other: Path) -> Path:
    """Return the model of another run for the comparison with a run.

    The model is the evaluated model. If the run keeps an index, the model must be for the kept
    index: a model with the same kept index, or the maker of the index. An index without a named
    maker was made by the model that the run's queries began with.

    Raises:
        DataError: a model with queries for another index.
    """
    kept = Kept.read(model_folder(run))
    if kept is None:
        return evaluated_model(other)
    maker = kept.model or _first_model_of_queries(run)
    for model in (evaluated_model(other), other):
        kept_by_model = Kept.read(model_folder(model))
        if kept_by_model is None:
            if fingerprint(model_folder(model)) == maker:
                return model
        elif kept_by_model.checksum == kept.checksum:
            return model
    raise DataError(
        f"queries of {other} are not for the index of {run}: compare with the model that made it, or with another run for it"
    )


def _first_model_of_queries(run: Path) -> str | None:
    """Return the fingerprint of the model that a run's queries began with; None if the model is
    gone."""
    side = getattr(config_of_run(run).tower, "query", None)
    model = getattr(side, "model", None)
    if not model or not Path(model).exists():
        return None
    return fingerprint(model_folder(Path(model)))


def inputs_of(run: Path) -> list[str]:
    """Return the paths that an export may not replace: the folder of the run and the run's data."""
    if not (run / "config.yaml").is_file():
        return []
    return [str(run), *config_of_run(run).read]


def export_held_out(
    run: str | Path, output: str | Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Write a run's held-out queries, the answers and all ranked documents as a BEIR folder.

    qrels/test.tsv has the queries of the run's test, and qrels/dev.tsv the queries of validation.
    `tempera.evaluate(model, output)` judges any model on the folder, to compare two runs query by
    query on data learned by neither. Ids are the ids of `search` and of all exports, and grades are
    the grades of the data, or 1.

    Args:
        run: a run folder, of texts.
        output: the folder to write; None is RUN/export/beir.
        overwrite: replace an earlier export.

    Returns:
        Facts: the output, and numbers of documents, test_queries and validation_queries.

    Raises:
        DataError: no run on texts, changed or missing data, or nothing held out.
        OutputError: the output cannot be written.

    >>> facts = export_held_out("runs/first", "runs/held-out")
    >>> facts["test_queries"] > 0
    True
    """
    refuse_other_kinds(export_held_out, locals())
    run = Path(run)
    model_folder(run)  # raises if this is no run on texts
    instead = "give the folder of a run, and its data as they were"
    split, config = read_split_again(run, instead)
    pairs = split.pairs
    judged = {}
    counts = {}
    held_out_rows = []
    for part, rows in (("test", split.test), ("validation", split.validation)):
        if not len(rows):
            continue
        query_ids = pairs.shown_ids("query", rows).to_pylist()
        doc_ids = pairs.shown_ids("doc", rows).to_pylist()
        judged[_SPLITS[part]] = (query_ids, doc_ids, pairs.grades(rows).tolist())
        counts[f"{part}_queries"] = split.queries(rows)
        held_out_rows.append(rows)
    if not judged:
        raise DataError(f"{run} has held out nothing")
    place = place_of(run, BEIR, None if output is None else Path(output))
    with staged(place, overwrite, [run, *config.read]) as folder:
        docs = _texts(pairs, "doc", split.corpus)
        queries = _texts(pairs, "query", np.concatenate(held_out_rows))
        write_beir(folder, docs, queries, judged)
        facts: dict[str, Any] = {"to": BEIR, "output": str(place), "documents": len(split.corpus)}
        facts.update(counts)
        write_mark(folder, facts)
    return facts


def _texts(pairs: Pairs, role: Text, rows: Rows) -> dict[str, str]:
    """Return texts by id; of several texts with the same id the first."""
    first, which = pairs.distinct(role)
    chosen = first[np.unique(which[rows])]
    ids = pairs.shown_ids(role, chosen).to_pylist()
    return dict(zip(ids, pairs.texts(role, chosen), strict=True))
