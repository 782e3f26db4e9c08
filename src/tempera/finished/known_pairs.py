"""Pairs that are known to be relevant or not: labelled pairs, or search results for queries with
known answers.

Letters in shapes: q queries, c documents, r answers, n pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..artifacts.index import Index
from ..errors import DataError
from ..io.console import logger
from ..io.ids import mixed
from ..mining.embedder import Model, Vectors, encode_all
from ..ranking.calibration import Scored
from ..ranking.metrics import Relevant
from ..tables.arrow_types import is_list
from ..tables.profile import profile
from ..tables.vector_files import KEY
from ..text.judge.tasks import RetrievalTask
from ..text.read.beir import is_beir
from ..text.read.labels import advice
from ..text.read.pairs import GIVEN, Pairs, Rows, Text
from ..text.read.proposed_roles import log_proposed
from ..text.read.roles import UNTRAINED, Roles, refuse_roles
from ..text.read.rows import as_labels
from ..text.read.sources import PairsFile, read_table
from ..text.read.unfolded import column_at
from ..text.train.split import Split
from ..towers.saved import Encode
from .data_again import asked, divided_again, evaluated, indexed, learned

_ALL = float("-inf")  # as data.min_score: every pair is read


@dataclass(frozen=True)
class Known:
    """Hold pairs with their similarity, and counts for the record."""

    pairs: Scored
    about: Mapping[
        str, Any
    ]  # left_out, trained; of hits of a search also depth, documents and found


@dataclass(frozen=True)
class QuerySet:
    """Hold queries, the documents to search, and which of them answer which query."""

    queries: pa.ChunkedArray  # [q] texts
    docs: Vectors  # [c, D]
    relevant: Relevant
    left_out: Mapping[str, int]

    def shown(self, model: Model, depth: int) -> Known:
        """Search, and return the results to rank `depth` as pairs."""
        vectors = encode_all(model.query, self.queries, "queries")
        pairs = Scored.of_search(vectors, self.docs, self.relevant, depth)
        share = int(pairs.relevant.sum()) / len(self.relevant.doc)
        about = {
            "depth": depth,
            "documents": len(self.docs),
            "found": share,
            "left_out": dict(self.left_out),
        }
        return Known(pairs, about | {"trained": model.trained_on(self.queries)})


def known(model: Model, path: Path | None, roles: Roles | None, depth: int, split: str) -> Known:
    """Return labelled pairs of a table, or search results for the queries of a table, of a BEIR
    folder, or held out by a run.

    Raises:
        DataError: what cannot be read, or does not fit the model's corpus.
        ConfigError: roles for a BEIR folder.
    """
    run = Path(model.path)
    if path is None:
        if (judged := evaluated(run)) != run:
            logger.info(
                f"{run} has since learned what it held out: probabilities follow the similarities of {judged}"
            )
            before = Model(str(judged))
            return _of_task(before, asked(run, "held out", *unlearned(run))).shown(before, depth)
        if (queries := _in_index(model, held_out(run))) is None:
            raise DataError(
                f"no answer of the held-out queries of {run} is in its index, which is damaged"
            )
        return queries.shown(model, depth)
    if is_beir(path):
        refuse_roles(path, roles)
        return _of_task(model, RetrievalTask.beir(path, split)).shown(model, depth)
    roles = roles or UNTRAINED
    pairs, _ = PairsFile(**{**vars(roles), "path": str(path), "min_score": _ALL}).read()
    assert isinstance(pairs.source, PairsFile)
    log_proposed(pairs.about)
    roles = replace(roles, query=pairs.source.query, doc=pairs.source.doc)
    if pairs.source.score is not None:
        return _labelled(model, pairs, path, roles, pairs.source.score)
    if (run / "index").is_dir():
        if (queries := _in_index(model, pairs)) is not None:
            return queries.shown(model, depth)
        sought = _sought_by(pairs, run)
        logger.info(
            f"no answer of {path} is in the corpus of {run} by {sought}: the documents of {path} are searched instead"
        )
    return _of_task(model, RetrievalTask.pairs(path, roles)).shown(model, depth)


def held_out(run: Path) -> Pairs:
    """Read a run's data again, and return the pairs of the queries that its evaluated model has not
    learned."""
    split, rows = unlearned(run)
    queries = split.pairs.ids("query")
    return split.pairs.whole(np.isin(queries, queries[rows]))


def unlearned(run: Path) -> tuple[Split, Rows]:
    """Read a run's data again, and return rows that its evaluated model has not learned: of
    validation, or else of the test.

    Raises:
        DataError: no run, data of an object of Python, data that have changed since, or a run that
            has learned everything.
    """
    split, _ = divided_again(
        run, f"give pairs that it has not seen: tempera calibrate {quote(str(run))} PAIRS"
    )
    rows = (
        split.test
        if "validation" in learned(run) or not len(split.validation)
        else split.validation
    )
    if not len(rows):
        held = len(split.test) or len(split.validation)
        why = (
            "has learned all that it has held out (train.refit)" if held else "has held out nothing"
        )
        raise DataError(f"{run} {why}: give pairs that it has not seen")
    return split, rows


def _in_index(model: Model, pairs: Pairs) -> QuerySet | None:
    """Return the queries of pairs, to be searched for in the corpus of a run; None if no answer is
    in it."""
    index, doc = indexed(Path(model.path), model.folder, pa.array(pairs.ids("doc")))
    known_docs = doc >= 0
    first, query = Pairs(pairs.table.filter(pa.array(known_docs))).distinct("query")
    if not len(first):
        return None
    lost = len(pairs.distinct("query")[0]) - len(first)
    left_out = {
        **pairs.dropped,
        "answers that are not in the corpus": int((~known_docs).sum()),
        "queries without an answer in the corpus": lost,
        "negatives: what a search shows is judged": len(pairs.negatives[0]),
    }
    queries = pairs.table["query"].filter(pa.array(known_docs)).take(pa.array(first))
    relevant = Relevant.of_pairs(len(first), query, doc[known_docs])
    return QuerySet(queries, index.vectors, relevant, _counted(left_out))


def _sought_by(pairs: Pairs, run: Path) -> str:
    """Return what the answers of pairs were looked for by in a run's corpus, for a message."""
    documents = Index(run / "index").documents
    if KEY in documents.column_names:
        return f"ids such as {documents['id'][0].as_py()!r} (name their column as data.doc_id)"
    if GIVEN["doc"] in pairs.table.column_names:
        return "data.doc_id, which its own data had not (name that column in data.metadata, to look for content)"
    return "content"


def _of_task(model: Model, task: RetrievalTask) -> QuerySet:
    """Return queries with a corpus of their own."""
    docs = (
        encode_all(model.doc, task.corpus["text"], "documents") if task.kept is None else task.kept
    )
    besides = ("queries", "documents", "judgements", "queries that are a document")
    return QuerySet(
        task.queries["text"],
        docs,
        task.relevant,
        _counted({k: v for k, v in task.counts.items() if k not in besides}),
    )


def _labelled(model: Model, pairs: Pairs, path: Path, roles: Roles, column: str) -> Known:
    """Return pairs with labels, or with grades that are relevant from `roles.min_score` on."""
    if not roles.says_labels:
        roles = replace(roles, **_right_labels(path, column))
    relevant, _ = PairsFile(**{**vars(roles), "path": str(path)}).read()
    keys = mixed(pairs.ids("doc"), pairs.ids("query"))
    queries, docs = _vectors(model.query, pairs, "query"), _vectors(model.doc, pairs, "doc")
    scores: NDArray[np.float64] = np.einsum("nd,nd->n", queries, docs, dtype=np.float64)
    right = np.isin(keys, mixed(relevant.ids("doc"), relevant.ids("query")))
    first, which = pairs.distinct("query")
    trained = model.trained_on(pairs.table["query"].take(pa.array(first)))
    return Known(
        Scored(scores, right, which),
        {"left_out": _counted(dict(pairs.dropped)), "trained": trained},
    )


def _vectors(encode: Encode, pairs: Pairs, role: Text) -> Vectors:
    """Return the embedding of each pair's text, or of the first text with its id, [n, D]."""
    first, which = pairs.distinct(role)
    return encode_all(encode, pairs.table[role].take(pa.array(first)), f"{role}s")[which]


def _right_labels(path: Path, column: str) -> dict[str, Any]:
    """Return the option that says which labels of a table are those of relevant pairs.

    Raises:
        DataError: they are neither 0 and 1 nor true and false.
    """
    table = read_table(path)
    values = column_at(table, column)
    assert values is not None  # the pairs have been read by it
    if is_list(values.type):
        values = pc.list_flatten(values)
    labels = pc.unique(as_labels(values.combine_chunks())).drop_null().to_pylist()
    if {*labels} <= {"0", "1"}:
        return {"min_score": 1.0}
    if {*labels} <= {"true", "false"}:
        return {"positive_labels": ("true",)}
    of_column = profile(pa.table({column: values}), str(path)).columns[column]
    if of_column.scale is None:
        raise DataError(
            f"{path}: column {column!r} holds {', '.join(sorted(labels))}: give {advice(of_column, table.column_names)}"
        )
    low, high = of_column.scale
    raise DataError(
        f"{path}: column {column!r} holds grades from {low:g} to {high:g}: "
        f"give data.min_score, the lowest grade of a relevant pair, such as {advice(of_column, table.column_names)}"
    )


def _counted(reasons: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that are not 0."""
    return {reason: count for reason, count in reasons.items() if count}
