"""Pairs known to be relevant or not: labelled pairs, or hits of a search for queries with known
answers.

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

from ..corpus.index import Index
from ..errors import DataError
from ..forms.labels import advice
from ..forms.proposed_roles import log_proposed
from ..forms.roles import UNTRAINED, Roles, refuse_roles
from ..forms.set_files import is_beir
from ..forms.unfolded import column_at
from ..io.console import logger
from ..io.ids import mixed
from ..mining.embedder import Model, Vectors, encode_all
from ..ranking.calibration import Scored
from ..ranking.metrics import Relevant
from ..tables.arrow_types import is_list
from ..tables.profile import profile
from ..tables.vector_files import KEY
from ..text.judge.tasks import RetrievalTask
from ..text.read.pairs import GIVEN, Pairs, Rows, Text
from ..text.read.rows import as_labels
from ..text.read.sources import PairsFile, read_table
from ..text.train.split import Split
from ..towers.saved import Encode
from .data_again import (
    evaluated_model,
    find_in_index,
    held_out_task,
    read_split_again,
    refitted_parts,
)

_ALL = float("-inf")  # as data.min_score, so that every pair is read


@dataclass(frozen=True)
class Known:
    """Pairs with similarity and relevance, and counts for the record.

    Args:
        pairs: the pairs.
        about: left_out and trained; for hits of a search also depth, documents and found, the share
            of the answers among the hits.
    """

    pairs: Scored
    about: Mapping[str, Any]


@dataclass(frozen=True)
class QuerySet:
    """Queries, the documents to search, and the answers of each query.

    Args:
        queries: texts, [q].
        docs: vectors of the documents, [c, D].
        relevant: the answers.
        left_out: numbers of queries and pairs left out, by reason.
    """

    queries: pa.ChunkedArray
    docs: Vectors
    relevant: Relevant
    left_out: Mapping[str, int]

    def search(self, model: Model, depth: int) -> Known:
        """Search for each query, and return the `depth` best hits as pairs."""
        vectors = encode_all(model.query, self.queries, "queries")
        pairs = Scored.of_search(vectors, self.docs, self.relevant, depth)
        about = {
            "depth": depth,
            "documents": len(self.docs),
            "found": int(pairs.relevant.sum()) / len(self.relevant.doc),
            "left_out": dict(self.left_out),
            "trained": model.trained_on(self.queries),
        }
        return Known(pairs, about)


def known_pairs(
    model: Model, path: Path | None, roles: Roles | None, depth: int, split: str
) -> Known:
    """Return labelled pairs of a table, or hits of a search for queries with known answers.

    Args:
        model: the model that embeds texts.
        path: a table of labelled pairs, a table of queries with answers, or a BEIR folder; None is
            the held-out queries of the model's run.
        roles: roles of the columns of a table.
        depth: number of hits of each query.
        split: split of a BEIR folder.

    Raises:
        DataError: unreadable data, or data that do not fit the model's corpus.
        ConfigError: roles for a BEIR folder.
    """
    run = Path(model.path)
    if path is None:
        return _search_held_out(model, run, depth)
    if is_beir(path):
        refuse_roles(path, roles)
        return _of_task(model, RetrievalTask.beir(path, split)).search(model, depth)
    roles = roles or UNTRAINED
    pairs, _ = _pairs_file(path, roles, min_score=_ALL).read()
    assert isinstance(pairs.source, PairsFile)
    log_proposed(pairs.about)
    roles = replace(roles, query=pairs.source.query, doc=pairs.source.doc)
    if pairs.source.score is not None:
        return _labelled(model, pairs, path, roles, pairs.source.score)
    if (run / "index").is_dir():
        queries = _in_index(model, pairs)
        if queries is not None:
            return queries.search(model, depth)
        sought = _sought_by(pairs, run)
        logger.info(
            f"no answer of {path} is in the corpus of {run} by {sought}: the documents of {path} are searched instead"
        )
    return _of_task(model, RetrievalTask.pairs(path, roles)).search(model, depth)


def _search_held_out(model: Model, run: Path, depth: int) -> Known:
    """Return the hits of a search for the held-out queries of a run.

    If the run has learned these queries after its evaluation (`train.refit`), its evaluated model
    searches, and embeds the corpus anew.
    """
    evaluated = evaluated_model(run)
    if evaluated != run:
        logger.info(
            f"{run} has since learned what it held out: probabilities follow the similarities of {evaluated}"
        )
        before = Model(str(evaluated))
        split, rows = unlearned(run)
        task = held_out_task(run, "held out", split, rows)
        return _of_task(before, task).search(before, depth)
    queries = _in_index(model, held_out(run))
    if queries is None:
        raise DataError(
            f"no answer of the held-out queries of {run} is in its index, which is damaged"
        )
    return queries.search(model, depth)


def _pairs_file(path: Path, roles: Roles, **options: Any) -> PairsFile:
    return PairsFile(**{**vars(roles), "keep": (), "path": str(path), **options})


def held_out(run: Path) -> Pairs:
    """Return the pairs of the queries that the evaluated model has not learned, read again; parts
    of a document have the id of the whole document."""
    split, rows = unlearned(run)
    queries = split.pairs.ids("query")
    return split.pairs.with_whole_documents(np.isin(queries, queries[rows]))


def unlearned(run: Path) -> tuple[Split, Rows]:
    """Return the pairs of a run, read again, and the rows not learned by the evaluated model: the
    validation, or else the test.

    Raises:
        DataError: no run, a run on data that were given as a Python object, changed data, or a run
            that has learned everything.
    """
    instead = f"give pairs that it has not seen: tempera calibrate {quote(str(run))} PAIRS"
    split, _ = read_split_again(run, instead)
    rows = split.validation
    if "validation" in refitted_parts(run) or not len(rows):
        rows = split.test
    if not len(rows):
        fault = "has held out nothing"
        if len(split.validation):
            fault = "has learned all that it has held out (train.refit)"
        raise DataError(f"{run} {fault}: give pairs that it has not seen")
    return split, rows


def _in_index(model: Model, pairs: Pairs) -> QuerySet | None:
    """Return the queries of pairs, with the corpus of the model's run; None if the corpus has no
    answer."""
    index, doc = find_in_index(Path(model.path), model.folder, pa.array(pairs.ids("doc")))
    in_corpus = doc >= 0
    answered = pairs.table.filter(pa.array(in_corpus))
    first, query = Pairs(answered).distinct("query")
    if not len(first):
        return None
    lost = len(pairs.distinct("query")[0]) - len(first)
    # Given negatives are not needed: each hit of a search is judged.
    left_out = {
        **pairs.dropped,
        "answers that are not in the corpus": int((~in_corpus).sum()),
        "queries without an answer in the corpus": lost,
        "negatives: what a search shows is judged": len(pairs.negatives[0]),
    }
    queries = answered["query"].take(pa.array(first))
    relevant = Relevant.of_pairs(len(first), query, doc[in_corpus])
    return QuerySet(queries, index.vectors, relevant, _without_zeros(left_out))


def _sought_by(pairs: Pairs, run: Path) -> str:
    """Return the name of the key by which answers were looked up in a run's corpus, with a remedy:
    ids of the user, or content."""
    documents = Index(run / "index").documents
    if KEY in documents.column_names:  # the run's data gave ids, and the index keeps them
        return f"ids such as {documents['id'][0].as_py()!r} (name their column as data.doc_id)"
    if GIVEN["doc"] in pairs.table.column_names:
        return "data.doc_id, though the data of the run had no ids (to look for content, name the column of ids in data.metadata)"
    return "content"


def _of_task(model: Model, task: RetrievalTask) -> QuerySet:
    """Return the queries of a task, with the task's own corpus."""
    docs = task.kept
    if docs is None:
        docs = encode_all(model.doc, task.corpus["text"], "documents")
    sizes = ("queries", "documents", "judgements", "queries that are a document")
    left_out = {name: count for name, count in task.counts.items() if name not in sizes}
    return QuerySet(task.queries["text"], docs, task.relevant, _without_zeros(left_out))


def _labelled(model: Model, pairs: Pairs, path: Path, roles: Roles, column: str) -> Known:
    """Return the pairs of a table with labels or grades; relevant are the pairs that
    `roles.min_score` or `roles.positive_labels` keeps."""
    if not roles.says_labels:
        roles = replace(roles, **_right_labels(path, column))
    relevant, _ = _pairs_file(path, roles).read()
    queries = _vectors(model.query, pairs, "query")
    docs = _vectors(model.doc, pairs, "doc")
    scores: NDArray[np.float64] = np.einsum("nd,nd->n", queries, docs, dtype=np.float64)
    keys = mixed(pairs.ids("doc"), pairs.ids("query"))
    relevant_keys = mixed(relevant.ids("doc"), relevant.ids("query"))
    first, which = pairs.distinct("query")
    about = {
        "left_out": _without_zeros(pairs.dropped),
        "trained": model.trained_on(pairs.table["query"].take(pa.array(first))),
    }
    return Known(Scored(scores, np.isin(keys, relevant_keys), which), about)


def _vectors(encode: Encode, pairs: Pairs, role: Text) -> Vectors:
    """Return the embedding of each pair's text, [n, D]; of texts with the same id the first
    counts."""
    first, which = pairs.distinct(role)
    return encode_all(encode, pairs.table[role].take(pa.array(first)), f"{role}s")[which]


def _right_labels(path: Path, column: str) -> dict[str, Any]:
    """Return the option to mark relevant pairs by labels in a column.

    Raises:
        DataError: the labels are neither 0 and 1 nor true and false.
    """
    table = read_table(path)
    values = column_at(table, column)
    assert values is not None  # the pairs have been read by it
    if is_list(values.type):
        values = pc.list_flatten(values)
    labels = pc.unique(as_labels(values.combine_chunks())).drop_null().to_pylist()
    if set(labels) <= {"0", "1"}:
        return {"min_score": 1.0}
    if set(labels) <= {"true", "false"}:
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


def _without_zeros(reasons: Mapping[str, int]) -> dict[str, int]:
    """Return the counts above 0."""
    return {reason: count for reason, count in reasons.items() if count}
