"""The held-out queries of a run as a retrieval set of their own: to judge it beside another, or for
other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import refuse_other_kinds
from ..artifacts.export import BEIR, place_of
from ..artifacts.other_events import EventsFinding
from ..errors import ConfigError, DataError
from ..io.atomic import staged, write_mark
from ..io.console import logger
from ..mining.embedder import Reading
from ..options.build import config_of_run
from ..recommend.read.timeline import HISTORIES
from ..text.judge.evaluate import Finding, evaluate
from ..text.read.beir import write_beir
from ..text.read.pairs import Pairs, Rows, Text
from ..towers.saved import fingerprint, model_folder
from ..towers.stamp import Kept
from .data_again import asked, divided_again, evaluated
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
) -> Finding | EventsFinding:
    """Evaluate a run once more by the queries that it has held out, beside another run or model,
    query by query.

    A recommender is asked for its held-out events, as `evaluate_held_out_events` says. Both
    findings have verdicts, per_query() and json().

    Of a run that has learned these queries since, the model that had not (`RUN/evaluated`) is
    judged, and so it is of the other one. Two runs on the same data, roles and evaluation options
    divide them alike, so that neither has learned what is asked; the finding says if one has. That
    the data are those of then is checked. For a run that keeps an index (`tower.doc.index`), no
    document is embedded: its queries, and those of the other model, are asked of the vectors of
    that index.

    Args:
        run: a run folder.
        against: another run or model.
        bm25: rank by BM25, and by the run and BM25 together, as well.
        metrics: as in `evaluate`.
        k: as in `evaluate`.
        exclude_self: as in `evaluate`.
        mixed_precision: as in `evaluate`.

    Raises:
        DataError: no run on texts, data that have changed since or are gone, no test, or a model
            for another index.
        ConfigError: an unknown metric or precision, or a run against itself.

    >>> finding = evaluate_held_out("runs/first", bm25=True, metrics=["ndcg@10"])
    >>> list(finding.systems)
    ['runs/first/evaluated', 'bm25', 'runs/first/evaluated + BM25']
    """
    refuse_other_kinds(evaluate_held_out, locals())
    if (Path(run) / HISTORIES).is_file():
        of_texts = {
            "bm25": bm25,
            "k": len(k) > 0,
            "exclude_self": exclude_self,
            "mixed_precision": mixed_precision != "no",
        }
        if refused := next((name for name, is_set in of_texts.items() if is_set), None):
            raise ConfigError(f"{refused} is for models of texts, and {run} is a recommender")
        return evaluate_held_out_events(run, against, metrics)
    model_folder(Path(run))  # of texts
    split, _ = divided_again(Path(run), "give data to evaluate it on")
    if not len(split.test):
        raise DataError(f"{run} has no test (evaluation.queries=0): give data to evaluate it on")
    judged, other = (
        evaluated(Path(run)),
        None if against is None else _beside(Path(run), Path(against)),
    )
    for each, place in ((judged, run), (other, against)):
        if each is not None and each != Path(str(place)):
            logger.info(
                f"{each} is judged, the model of {place} from before it learned what the run had held out"
            )
    (finding,) = evaluate(
        judged, asked(Path(run), "held out", split, split.test), against=other, bm25=bm25, metrics=metrics,
        k=k, exclude_self=exclude_self, mixed_precision=mixed_precision,
    )  # fmt: skip
    return finding


def _beside(run: Path, other: Path) -> Path:
    """Return the model of another run that is compared with a run: the evaluated one, or one for
    the index that the run keeps.

    Of an index that does not say which model made it, this is the model that the run's queries
    began with.

    Raises:
        DataError: a model whose queries are not for that index.
    """
    kept = Kept.read(model_folder(run))
    if kept is None:
        return evaluated(other)
    side = getattr(config_of_run(run).tower, "query", None)
    began = getattr(side, "model", None)
    maker = kept.model or (
        fingerprint(model_folder(Path(began))) if began and Path(began).exists() else None
    )
    for each in (evaluated(other), other):
        theirs = Kept.read(model_folder(each))
        if theirs.checksum == kept.checksum if theirs else fingerprint(model_folder(each)) == maker:
            return each
    raise DataError(
        f"queries of {other} are not for the index of {run}: compare with the model that made it, or with another run for it"
    )


def inputs_of(run: Path) -> list[str]:
    """Return the run and what its data are read from, none of which is ever replaced."""
    return [str(run), *config_of_run(run).read] if (run / "config.yaml").is_file() else []


def export_held_out(
    run: str | Path, output: str | Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Write a run's held-out queries, their answers and all documents that it ranks as a BEIR
    folder.

    qrels/test.tsv has the queries by which the run was judged, and qrels/dev.tsv those of
    validation. Any model is judged on them by `tempera.evaluate(model, output)`, so that two runs
    are compared query by query on what neither has learned. Ids are those that `search` and the
    other exports give, and grades are those of the data, or 1.

    Args:
        run: a run folder, of texts.
        output: the folder to write; None is RUN/export/beir.
        overwrite: replace an earlier export.

    Returns:
        Facts: the output, and numbers of documents, test_queries and validation_queries.

    Raises:
        DataError: no run on texts, data that have changed since or are gone, or nothing held out.
        OutputError: the output cannot be written.

    >>> facts = export_held_out("runs/first", "runs/held-out")
    >>> facts["test_queries"] > 0
    True
    """
    refuse_other_kinds(export_held_out, locals())
    run = Path(run)
    model_folder(run)  # of texts
    split, config = divided_again(run, "give the folder of a run, and its data as they were")
    parts = {
        name: rows
        for name, rows in (("test", split.test), ("validation", split.validation))
        if len(rows)
    }
    if not parts:
        raise DataError(f"{run} has held out nothing")
    place = place_of(run, BEIR, None if output is None else Path(output))
    with staged(place, overwrite, [run, *config.read]) as folder:
        pairs = split.pairs
        judged = {
            _SPLITS[part]: (
                *(pairs.shown_ids(role, rows).to_pylist() for role in ("query", "doc")),
                pairs.grades(rows).tolist(),
            )
            for part, rows in parts.items()
        }
        queries = _texts(pairs, "query", np.concatenate(list(parts.values())))
        write_beir(folder, _texts(pairs, "doc", split.corpus), queries, judged)
        counts = {f"{part}_queries": split.queries(rows) for part, rows in parts.items()}
        facts = {"to": BEIR, "output": str(place), "documents": len(split.corpus), **counts}
        write_mark(folder, facts)
    return facts


def _texts(pairs: Pairs, role: Text, rows: Rows) -> dict[str, str]:
    """Return texts by their ids: of several texts with one id the first, which alone is read."""
    first, which = pairs.distinct(role)
    chosen = first[np.unique(which[rows])]
    return dict(
        zip(pairs.shown_ids(role, chosen).to_pylist(), pairs.texts(role, chosen), strict=True)
    )
