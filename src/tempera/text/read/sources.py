"""Pairs from files, from objects in memory, and from BEIR folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError
from ...io.console import logger
from ...io.ids import Ids, content_ids, given_ids
from ...tables.arrow_types import is_list
from ...tables.columns import Columns, ColumnsSoFar, RoleTable
from ...tables.profile import TableProfile, profile
from ...tables.proposal import decision_table
from ...tables.streams import stream
from ...tables.tables import TableBlock, blocks, read_table, refuse_repeated
from .beir import UNNAMED, Beir, files_of_set, read_beir
from .labels import advice, is_wrong
from .pairs import GIVEN, GRADE, RANKED, TEXTS, Pairs, Source, Text
from .parts import joined, named_parts, parts_in_memory
from .proposed_roles import named_columns, proposed_roles, refuse_ids_alone, unfolding_of
from .roles import DOC_NAMES, QUERY_NAMES, TABLE, USUAL, Roles, UnsaidScoreError
from .rows import as_labels, docs_of, rows_of
from .unfolded import Unfolding

__all__ = ["DOC_NAMES", "QUERY_NAMES", "BeirFolder", "Given", "PairsFile", "read_table"]

_SHOWN = 6  # different values that a message has
_CODE = re.compile(r"\S*\d\S*")  # in place of a text
_SOME = 200  # rows that tell whether documents hold their queries


@dataclass(frozen=True)
class PairsFile(Roles):
    """Read rows of a query and documents that answer it, with or without negatives, from a file or
    a folder of files.

    Args:
        path: a .parquet, .arrow, .jsonl, .json, .csv or .tsv file, the last four also with .gz or
            .zst, or a folder of them.
        validation: another one, whose queries are the validation; None draws validation from the
            rows of `path`.
        test: another one, whose queries are the test.
    """

    path: str
    validation: str | None = None
    test: str | None = None

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation may use every one of them."""
        parts = {}
        for part, path, place in named_parts(self, self.path, folder):
            alone = replace(self, path=path, validation=None, test=None)
            parts[part] = _pairs(blocks(Path(path), self.form), alone, place)[0]
        pairs = joined(parts)
        ids: dict[Text, str | None] = {"query": self.query_id, "doc": self.doc_id}
        for role, column in ids.items():
            if column is not None and len(parts) > 1:
                self._refuse_restarted(pairs, role, column)
        return _asked(pairs)

    def _refuse_restarted(self, pairs: Pairs, role: Text, column: str) -> None:
        """Raise DataError where most ids that the files share name other texts, as numbers do that
        begin anew in each file."""
        first, which = pairs.distinct(role)
        content = pairs.contents(role, np.arange(len(pairs)))
        shared = pairs.part != pairs.part[first[which]]
        other = int((shared & (content != content[first[which]])).sum())
        if 2 * other > shared.sum():
            raise DataError(
                f"{self.path}: {other:,} rows of data.validation and data.test have a {column!r} that another file gives to "
                f"another text: make it unique across the files, or leave data.{role}_id out, so that content tells texts apart"
            )


@dataclass(frozen=True)
class Given(Roles):
    """Read rows of a Python object: `tempera.train(data=...)`.

    A datasets.Dataset, a pandas or polars frame, a pyarrow table: whatever has
        `__arrow_c_stream__`. Roles are as in files.

    >>> pairs, _ = Given.of(pa.table({"anchor": ["a"], "positive": [["x", "y"]], "negative_1": ["z"]})).read()
    >>> pairs.texts("doc"), pairs.table["negatives"].to_pylist()
    (['x', 'y'], [['z'], ['z']])
    """

    @classmethod
    def of(cls, data: Any, **roles: Any) -> Source:
        """Return a source that reads an object, with options of `Roles`."""
        return cls(**roles).hand(data)

    def hand(self, data: Any) -> Source:
        """Return a source with these options for an object; without one for None."""
        return self if data is None else _Handed(self, data)

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Raise DataError: there is no object."""
        raise DataError(
            "data.source: given needs a Python object: pass it as tempera.train(data=...)"
        )


@dataclass(frozen=True)
class _Handed:
    roles: Given
    data: Any = field(repr=False)

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        parts = {
            part: _pairs(stream(data), self.roles, place)[0]
            for part, data, place in parts_in_memory(self.data, folder)
        }
        return _asked(joined(parts))


@dataclass(frozen=True)
class BeirFolder:
    """Read queries with every document that is relevant to them, and the other documents of the
    corpus, from a BEIR folder or from other tables of a retrieval set.

    Args:
        path: the folder of corpus.jsonl, queries.jsonl and qrels/, or of other tables that hold a
            corpus, queries and judgements, as their names or folders say (MTEB, MS MARCO).
        split: the file of qrels to train on.
        validation: another one, whose queries are the validation; None draws validation from the
            queries of `split`.
        test: another one, whose queries are the test.
        corpus: documents that are ranked and searched: "all", as `tempera eval` ranks them, or
            those that are "judged" to be relevant to a query of any of these splits, where a model
            would embed the whole corpus for too long.
    """

    path: str
    split: str = "train"
    validation: str | None = None
    test: str | None = None
    corpus: Literal["all", "judged"] = "all"

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return a pair for every judgement above 0, and a row for every other document of the
        corpus."""
        parts, answers, unused = {}, np.empty(0, np.int64), Counter[str]()
        beir: Beir | None = None
        for part, split, place in named_parts(self, self.split, folder):
            beir = read_beir(self.path, split, beir)
            unused.update({kind: count for kind, count in beir.unused.items() if kind != UNNAMED})
            parts[part] = Pairs.distinct_of([self._table(beir)], place)
            answers = np.union1d(answers, beir.doc[beir.grade > 0])
        assert beir is not None
        others = np.setdiff1d(np.arange(len(beir.corpus)), answers)
        if self.corpus == "judged":
            unused["documents that answer no query, and are not searched (data.corpus=judged)"] = (
                len(others)
            )
        elif len(others):
            parts[RANKED] = Pairs.distinct_of(
                [self._unasked(beir, others)], folder and folder / "corpus"
            )
        pairs = joined(parts)
        about = self._about()
        if len(beir.itself()[0]):
            about += (
                f"; {len(beir.itself()[0]):,} queries are a document of their own id, which `tempera evaluate` leaves out "
                "of their ranking"
            )
        return _asked(replace(pairs, dropped={**+unused, **pairs.dropped}, about=about))

    def _about(self) -> str:
        """Return a sentence on the files that are read, and those that are not."""
        folder = Path(self.path)
        files = files_of_set(folder)

        def named(paths: Sequence[Path]) -> str:
            more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
            return f"{paths[0].relative_to(folder)}{more}" if paths else "nothing"

        parts = {"training": self.split, "validation": self.validation, "test": self.test}
        judged = [
            f"{part} by {named(files.qrels[split])}" for part, split in parts.items() if split
        ]
        texts = f"corpus = {named(files.corpus)}, queries = {named(files.queries)}"
        about = f"{self.path} is a retrieval set: {texts}, {', '.join(judged)}"
        about += "" if self.test else ", of which some queries are held out"
        unread = f"; not read: {named(files.others)}" if files.others else ""
        return about + unread

    def _table(self, beir: Beir) -> pa.Table:
        """Return a row for every judgement above 0."""
        good = np.flatnonzero(beir.grade > 0)
        query, doc = (pa.array(side[good]) for side in (beir.query, beir.doc))
        ids = beir.queries["id"].take(query)
        rows = self._rows(beir.queries["text"].take(query), given_ids(ids), beir.corpus.take(doc))
        if (beir.grade[good] != 1).any():
            rows = rows.append_column(GRADE, pa.array(beir.grade[good]))
        return rows.append_column(GIVEN["query"], ids)

    def _unasked(self, beir: Beir, others: NDArray[np.int64]) -> pa.Table:
        """Return a row for each of some documents, without a query."""
        nothing = pa.array([""] * len(others), pa.large_string())
        return self._rows(nothing, content_ids(nothing), beir.corpus.take(pa.array(others)))

    def _rows(self, query: pa.ChunkedArray | pa.Array, query_ids: Ids, docs: pa.Table) -> pa.Table:
        """Return rows of queries with their ids and documents; a title is the beginning of the
        text, so none has a name."""
        texts = {
            "query": query,
            "doc": docs["text"],
            "name": pa.array([""] * len(docs)),
            "place": pa.array([f"{self.path}:{name}" for name in docs["id"].to_pylist()]),
            GIVEN["doc"]: docs["id"],
        }
        columns = {name: column.cast(pa.large_string()) for name, column in texts.items()}
        return pa.table({**columns, "query_id": query_ids, "doc_id": given_ids(docs["id"])})


def documents(path: Path) -> tuple[list[str], pa.ChunkedArray]:
    """Return the documents of a table, with or without queries, and their ids as it has them, null
    where it has none.

    They are in its column of a usual name, or `text`.

    Raises:
        DataError: a file that cannot be read, by file, row and column.
    """
    table = RoleTable({"doc": (*DOC_NAMES, "text"), "doc_id": USUAL["doc_id"]}, ("doc",))
    columns, texts, own = (
        ColumnsSoFar(partial(table.columns, Roles(metadata=("*",)))),
        list[str](),
        [],
    )
    for block in columns.of(blocks(path)):
        of_block, ids = docs_of(block, columns.columns)
        texts += of_block.to_pylist()
        own.append(ids)
    return texts, pa.chunked_array(own, pa.large_string())


def _pairs(
    read: Iterator[TableBlock], roles: PairsFile | Given, folder: Path | None
) -> tuple[Pairs, NDArray[np.bool_]]:
    dropped, where = Counter[str](), roles.path if isinstance(roles, PairsFile) else "data"
    options = vars(roles)
    first, read = _ahead(read)
    refuse_repeated(first.table.column_names, where)
    guessed = "*" in roles.metadata
    unfolding = unfolding_of(first.table, options, guessed)
    rows = unfolding(first).table
    proposal = proposed_roles(rows, options if guessed else _strict(options, rows), where)
    if guessed:
        roles = replace(roles, **_typed(proposal.options))
        if not TABLE.suits(vars(roles), rows.column_names):
            refuse_ids_alone(proposal.of_table, where)
    unfolding = unfolding.used(TABLE.chosen(vars(roles)))
    constants = _constants(roles, proposal.of_table) if guessed else {}
    roles = replace(roles, metadata=(*roles.metadata, *constants))
    _refuse_unsaid(roles, proposal.of_table, rows, where)
    so_far = ColumnsSoFar(roles.role_columns, TABLE.needed)
    tables = _constant(so_far.of(map(unfolding, read)), constants, where)
    pairs = Pairs.distinct_of(
        (rows_of(block, roles, so_far.columns, dropped) for block in tables), folder
    )
    if not len(pairs):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise DataError(f"{where}: no rows are left: {reasons}")
    dropped.update(pairs.dropped)
    dropped.update(_hidden_texts(pairs, so_far.columns))
    if roles.says_labels and roles.min_score != -np.inf and "score" not in so_far.columns:
        option = "min_score" if roles.positive_labels is None else "positive_labels"
        logger.warning(
            f"{where}: data.{option} leaves nothing out, for no column holds scores: name it by data.score=COLUMN"
        )
    decisions = proposal.decisions(so_far.columns, so_far.names, options)
    notes = _notes(pairs, so_far, unfolding)
    about = "\n".join([decision_table(decisions, f"{where}: pairs"), *notes])
    source = replace(roles, **TABLE.options(so_far.columns))
    if roles.query_prompt or "prompt" in so_far.columns:
        prompt = repr(roles.query_prompt) if "prompt" not in so_far.columns else "its row's prompt"
        about += f"\neach query begins with {prompt}: so has a search to begin, since the saved model does not add it"
    return _asked(replace(pairs, dropped=dict(dropped), source=source, about=about))


def _ahead(read: Iterator[TableBlock]) -> tuple[TableBlock, Iterator[TableBlock]]:
    """Return the first block that holds rows, and all blocks again."""
    ahead, read = tee(read)
    nothing = TableBlock(pa.table({}), "")
    return next((block for block in ahead if len(block.table)), nothing), read


def _strict(options: Mapping[str, Any], first: pa.Table) -> dict[str, Any]:
    """Return options by which nothing is proposed: every column is as they say, or not read."""
    return {**options, "metadata": tuple(first.column_names)}


def _typed(proposed: Mapping[str, Any]) -> dict[str, Any]:
    """Return proposed options with tuples in place of lists."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in proposed.items()
    }


def _refuse_unsaid(roles: Roles, of_table: TableProfile, rows: pa.Table, where: str) -> None:
    """Refuse a table with labels or grades of which no option says which are those of pairs.

    Args:
        rows: the first ones, which the profile is of.
    """
    if roles.says_labels:
        return
    names = list(of_table.columns)
    others = [role for role in TABLE.usual if role != "score"]
    named = {name for role in others for name in named_columns(getattr(roles, role))}
    free = [name for name in names if name not in roles.metadata and name not in named]
    scores = [roles.score] if roles.score is not None else TABLE.usual_columns("score", free)
    for name in scores:
        column = of_table.columns.get(name)
        if column is None:
            continue
        if is_list(column.type):
            inside = pa.table({name: pc.list_flatten(rows[name])})
            column = profile(inside, where).columns[name]
        values = ", ".join(sorted(column.values)) if column.distinct <= _SHOWN else "scores"
        if column.scale is not None and column.distinct > _SHOWN:
            values = f"scores from {column.scale[0]:g} to {column.scale[1]:g}"
        raise UnsaidScoreError(
            f"{where}: column {name!r} holds {values}, as labels or grades, and rows of each would train as positives: give "
            f"{advice(column, names)}; or, if all rows are pairs that belong together, data.metadata=[{name}]"
        )


def _constants(roles: Roles, of_table: TableProfile) -> dict[str, str]:
    """Return columns of scores by their usual names that hold one value alone, by which all rows
    belong together, with that value."""
    if roles.says_labels or roles.score is not None:
        return {}
    free = [name for name in of_table.columns if name not in roles.metadata]
    columns = [of_table.columns[name] for name in TABLE.usual_columns("score", free)]
    return {
        column.name: column.values[0]
        for column in columns
        if column.distinct == 1 and column.whole and not column.blanks and not is_wrong(column)
    }


def _constant(
    read: Iterable[TableBlock], constants: Mapping[str, str], where: str
) -> Iterator[TableBlock]:
    """Pass on blocks whose columns of one value have no other one."""
    for block in read:
        for name, value in constants.items():
            if name not in block.table.column_names:
                continue
            values = pc.unique(block.table[name].cast(pa.large_string())).to_pylist()
            if {*as_labels(pa.array(values, pa.large_string())).to_pylist()} - {value.lower()}:
                raise UnsaidScoreError(
                    f"{where}: column {name!r} holds {value} at first, and {', '.join(map(str, values))} in {block.file}: give "
                    f"data.min_score or data.positive_labels, or data.metadata=[{name}] if all rows are pairs"
                )
        yield block


def _notes(pairs: Pairs, so_far: ColumnsSoFar, unfolding: Unfolding) -> list[str]:
    """Return sentences on the form of the files, on what a table's rows are made of, and on what
    makes them easy."""
    notes = list(so_far.notes)
    chats = [name for name in so_far.columns.get("query", ()) if name.endswith(".user")]
    if chats:
        notes.append("of each chat, the first question and the answer to it make a pair")
    if unfolding.repeated:
        notes.append(f"each record of {', '.join(unfolding.repeated)} is a row")
    some = np.arange(len(pairs))[:: max(1, len(pairs) // _SOME)]
    texts = zip(pairs.texts("query", some), pairs.texts("doc", some), strict=True)
    held = [query in doc for query, doc in texts]
    if len(held) > 1 and 2 * sum(held) > len(held):
        notes.append(
            "caution: most documents hold their own query word for word, which makes it easy to find"
        )
    sides = [pairs.texts(role, some) for role in TEXTS]
    if all(sum(map(bool, map(_CODE.fullmatch, side))) > 0.9 * len(side) for side in sides):
        notes.append("caution: queries and documents look like ids, and texts are needed")
    return notes


def _hidden_texts(pairs: Pairs, columns: Columns) -> dict[str, int]:
    """Count the texts whose id an earlier text has; only the first text of an id is read."""
    counts: dict[str, int] = {}
    for role, of_role in (("query", "query_id"), ("doc", "doc_id")):
        if of_role in columns:
            content = np.concatenate([content_ids(chunk) for chunk in pairs.table[role].chunks])
            first, which = pairs.distinct(role)  # type: ignore[arg-type]
            hidden = len(np.unique(content[content != content[first[which]]]))
            counts |= {f"texts whose {of_role} another text has": hidden} if hidden else {}
    return counts


def _asked(pairs: Pairs) -> tuple[Pairs, NDArray[np.bool_]]:
    return pairs, np.ones(len(pairs), dtype=bool)
