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

from ...errors import ConfigError, DataError
from ...forms.labels import advice, is_wrong
from ...forms.proposed_roles import (
    ProposedRoles,
    named_columns,
    proposed_roles,
    refuse_ids_alone,
    unfolding_of,
)
from ...forms.roles import DOC_NAMES, QUERY_NAMES, TABLE, USUAL, Roles, UnsaidScoreError
from ...forms.set_files import files_of_set
from ...forms.unfolded import Unfolding
from ...io.console import logger
from ...io.ids import Ids, content_ids, given_ids
from ...tables.arrow_types import is_list
from ...tables.columns import Columns, ColumnsSoFar, RoleTable
from ...tables.profile import TableProfile, profile
from ...tables.proposal import decision_table
from ...tables.streams import stream
from ...tables.tables import TableBlock, blocks, read_table, refuse_repeated
from ...tables.vector_files import COLUMNS
from .beir import UNNAMED, Beir, read_beir
from .keeper import Keeper
from .pairs import GIVEN, GRADE, IDS, RANKED, TEXTS, TRAIN, Pairs, Source, Text
from .parts import joined, named_parts, parts_in_memory
from .rows import as_labels, docs_of, rows_of

__all__ = ["DOC_NAMES", "QUERY_NAMES", "BeirFolder", "Given", "PairsFile", "read_table"]

_SHOWN = 6  # different values that a message shows
_CODE = re.compile(r"\S*\d\S*")  # an id in place of a text
_SOME = 200  # sampled rows that the cautions about texts rest on


@dataclass(frozen=True)
class PairsFile(Roles):
    """Read rows of a query and its documents, with or without negatives, from a file or a folder.

    Args:
        path: a .parquet, .arrow, .jsonl, .json, .csv or .tsv file, the last four also with .gz or
            .zst, or a folder of such files.
        validation: a file or folder of the validation's queries; None draws validation from the
            rows of `path`.
        test: a file or folder of the test's queries.
        in_shards: train on more pairs than memory holds: `path` is a folder, a pattern or an address
            of shards, of which each process of a training reads its own, a window of rows at a
            time.
    """

    path: str
    validation: str | None = None
    test: str | None = None
    in_shards: bool = False

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation may use every pair.

        Raises:
            ConfigError: pairs in shards, which only a training reads.
        """
        if self.in_shards:
            raise ConfigError(
                "data.in_shards reads pairs shard by shard, which only a training on this one source does: remove it"
            )
        parts = {}
        keeper = Keeper(self.keep)
        for part, path, part_folder in named_parts(self, self.path, folder):
            alone = replace(self, path=path, validation=None, test=None)
            table = blocks(Path(path), self.form)
            parts[part] = _pairs(table, alone, part_folder, keeper, is_further=part != TRAIN)
        pairs = _settled(joined(parts), keeper)
        if len(parts) > 1:
            self._refuse_restarted(pairs, "query", self.query_id)
            self._refuse_restarted(pairs, "doc", self.doc_id)
        return _all_usable(pairs)

    def _refuse_restarted(self, pairs: Pairs, role: Text, column: str | None) -> None:
        """Raise DataError if most ids shared by the files belong to different texts, as with
        numbers from 1 in each file."""
        if column is None:
            return
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

    The object is a datasets.Dataset, a pandas or polars frame, a pyarrow table or any object with
    `__arrow_c_stream__`. Roles are as in files.

    >>> pairs, _ = Given.of(pa.table({"anchor": ["a"], "positive": [["x", "y"]], "negative_1": ["z"]})).read()
    >>> pairs.texts("doc"), pairs.table["negatives"].to_pylist()
    (['x', 'y'], [['z'], ['z']])
    """

    @classmethod
    def of(cls, data: Any, **roles: Any) -> Source:
        """Return a source of an object, with options of `Roles`."""
        return cls(**roles).hand(data)

    def hand(self, data: Any) -> Source:
        """Return a source of an object with the options of the present source; for None, the
        present source."""
        if data is None:
            return self
        return _Handed(self, data)

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
        parts = {}
        keeper = Keeper(self.roles.keep)
        for part, data, part_folder in parts_in_memory(self.data, folder):
            parts[part] = _pairs(
                stream(data), self.roles, part_folder, keeper, is_further=part != TRAIN
            )
        return _all_usable(_settled(joined(parts), keeper))


@dataclass(frozen=True)
class BeirFolder:
    """Read queries with every relevant document, and the rest of the corpus, from a BEIR folder or
    from tables of a retrieval set.

    Args:
        path: the folder of corpus.jsonl, queries.jsonl and qrels/, or of tables of a corpus,
            queries and judgements, by the names of files or folders (MTEB, MS MARCO).
        split: the file of qrels to train on.
        validation: the split of the validation's queries; None draws validation from the queries of
            `split`.
        test: the split of the test's queries.
        corpus: documents to rank and search: "all" documents, as in `tempera eval`, or only
            documents "judged" to be relevant to a query of any named split, for a corpus too large
            to embed.
        keep: further columns of the corpus to keep with the documents, for search to return. None
            keeps every one whose values have at most 200 letters, [] keeps none.
    """

    path: str
    split: str = "train"
    validation: str | None = None
    test: str | None = None
    corpus: Literal["all", "judged"] = "all"
    keep: tuple[str, ...] | None = None

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return a pair for every judgement above 0, and a row for every further document of the
        corpus."""
        parts = {}
        answers = np.empty(0, np.int64)
        unused = Counter[str]()
        beir: Beir | None = None
        for part, split, part_folder in named_parts(self, self.split, folder):
            beir = read_beir(self.path, split, beir, Keeper(self.keep))
            unused.update({kind: count for kind, count in beir.unused.items() if kind != UNNAMED})
            parts[part] = Pairs.distinct_of([self._judged_rows(beir)], part_folder)
            answers = np.union1d(answers, beir.doc[beir.grade > 0])
        assert beir is not None
        others = np.setdiff1d(np.arange(len(beir.corpus)), answers)
        if self.corpus == "judged":
            reason = "documents that answer no query, and are not searched (data.corpus=judged)"
            unused[reason] = len(others)
        elif len(others):
            rows = self._rows_without_query(beir, others)
            parts[RANKED] = Pairs.distinct_of([rows], folder and folder / "corpus")
        pairs = joined(parts)
        about = self._about()
        queries_in_corpus, _ = beir.itself()
        if len(queries_in_corpus):
            about += (
                f"; {len(queries_in_corpus):,} queries are a document of their own id, which `tempera evaluate` leaves out "
                "of their ranking"
            )
        dropped = dict(+unused)
        dropped.update(pairs.dropped)
        return _all_usable(replace(pairs, dropped=dropped, about=about))

    def _about(self) -> str:
        """Return a sentence on the files read, and the tables not read."""
        files = files_of_set(Path(self.path))
        about = (
            f"{self.path} is a retrieval set: corpus = {self._named(files.corpus)}, "
            f"queries = {self._named(files.queries)}"
        )
        parts = {"training": self.split, "validation": self.validation, "test": self.test}
        for part, split in parts.items():
            if split:
                about += f", {part} by {self._named(files.qrels[split])}"
        if not self.test:
            about += ", of which some queries are held out"
        if files.others:
            about += f"; not read: {self._named(files.others)}"
        return about

    def _named(self, paths: Sequence[Path]) -> str:
        """Return the name of the first of some files, and the number of further files."""
        if not paths:
            return "nothing"
        first = str(paths[0].relative_to(Path(self.path)))
        if len(paths) == 1:
            return first
        return f"{first} and {len(paths) - 1:,} more"

    def _judged_rows(self, beir: Beir) -> pa.Table:
        """Return a row for every judgement above 0."""
        good = np.flatnonzero(beir.grade > 0)
        query = pa.array(beir.query[good])
        docs = beir.corpus.take(pa.array(beir.doc[good]))
        ids = beir.queries["id"].take(query)
        rows = self._rows(beir.queries["text"].take(query), given_ids(ids), docs)
        if (beir.grade[good] != 1).any():
            rows = rows.append_column(GRADE, pa.array(beir.grade[good]))
        return rows.append_column(GIVEN["query"], ids)

    def _rows_without_query(self, beir: Beir, docs: NDArray[np.int64]) -> pa.Table:
        """Return a row for each of some documents, with an empty query."""
        empty = pa.array([""] * len(docs), pa.large_string())
        return self._rows(empty, content_ids(empty), beir.corpus.take(pa.array(docs)))

    def _rows(self, query: pa.ChunkedArray | pa.Array, query_ids: Ids, docs: pa.Table) -> pa.Table:
        """Return rows of queries and documents with ids. Documents have no name, since the text
        begins with the title."""
        texts = {
            "query": query,
            "doc": docs["text"],
            "name": pa.array([""] * len(docs)),
            "place": pa.array([f"{self.path}:{name}" for name in docs["id"].to_pylist()]),
            GIVEN["doc"]: docs["id"],
        }
        columns: dict[str, Any] = {}
        for name, column in texts.items():
            columns[name] = column.cast(pa.large_string())
        columns["query_id"] = query_ids
        columns["doc_id"] = given_ids(docs["id"])
        if COLUMNS in docs.column_names:
            columns[COLUMNS] = docs[COLUMNS]
        return pa.table(columns)


def documents(path: Path) -> tuple[list[str], pa.ChunkedArray]:
    """Return the documents of a table, with or without queries, and the ids of the table, null for
    a document without an id.

    The documents stand in the column of a usual name, or in `text`.

    Raises:
        DataError: an unreadable file, by file, row and column.
    """
    table = RoleTable({"doc": (*DOC_NAMES, "text"), "doc_id": USUAL["doc_id"]}, ("doc",))
    columns = ColumnsSoFar(partial(table.columns, Roles(metadata=("*",))))
    texts: list[str] = []
    ids: list[pa.Array] = []
    for block in columns.of(blocks(path)):
        texts_of_block, ids_of_block = docs_of(block, columns.columns)
        texts += texts_of_block.to_pylist()
        ids.append(ids_of_block)
    return texts, pa.chunked_array(ids, pa.large_string())


def _settled(pairs: Pairs, keeper: Keeper) -> Pairs:
    """Return pairs with the columns that are kept in the end, and their types."""
    return replace(pairs, table=keeper.settled(pairs.table))


def _pairs(
    table: Iterator[TableBlock],
    options: PairsFile | Given,
    folder: Path | None,
    keeper: Keeper,
    *,
    is_further: bool = False,
) -> Pairs:
    """Return the pairs of a table: choose roles by the first rows, then read all rows.

    Args:
        is_further: True for a table beside the training rows, which may lack columns of `keep`.
    """
    where = options.path if isinstance(options, PairsFile) else "data"
    first, table = first_block(table)
    refuse_repeated(first.table.column_names, where)
    plan = plan_of(first, options, where)
    if not is_further:
        keeper.refuse_absent(first.table.column_names, plan.unfolding(first).table, where)
    roles = plan.roles
    so_far = ColumnsSoFar(roles.role_columns, TABLE.needed)
    unfolded = so_far.of(map(plan.unfolding, table))
    dropped = Counter[str]()
    rows = (
        rows_of(block, roles, so_far.columns, dropped, keeper)
        for block in checked_constants(unfolded, plan.constants, where)
    )
    pairs = Pairs.distinct_of(rows, folder)
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
    decisions = plan.proposal.decisions(
        so_far.columns, so_far.names, vars(options), keeper.columns, keeper.left_out
    )
    lines = [decision_table(decisions, f"{where}: pairs")]
    lines += _notes(pairs, so_far, plan.unfolding)
    if "prompt" in so_far.columns:
        lines.append(_prompt_note("its row's prompt"))
    elif roles.query_prompt:
        lines.append(_prompt_note(repr(roles.query_prompt)))
    source = replace(roles, **TABLE.options(so_far.columns))
    pairs = replace(pairs, table=keeper.typed(pairs.table))
    return replace(pairs, dropped=dict(dropped), source=source, about="\n".join(lines))


def first_block(blocks: Iterator[TableBlock]) -> tuple[TableBlock, Iterator[TableBlock]]:
    """Return the first block with rows, and all blocks again."""
    ahead, again = tee(blocks)
    for block in ahead:
        if len(block.table):
            return block, again
    return TableBlock(pa.table({}), ""), again


@dataclass(frozen=True)
class TablePlan:
    """The way to read a table, chosen by its first rows."""

    roles: PairsFile | Given
    proposal: ProposedRoles
    unfolding: Unfolding
    constants: Mapping[str, str]  # columns of scores that hold one value alone, with the value


def plan_of(first: TableBlock, roles: PairsFile | Given, where: str) -> TablePlan:
    """Return the plan to read a table; roles are proposed if metadata holds "*".

    Args:
        first: the first rows.
        roles: the options of the user.
    """
    guessed = "*" in roles.metadata
    unfolding = unfolding_of(first.table, vars(roles), guessed)
    rows = unfolding(first).table
    constants: dict[str, str] = {}
    if guessed:
        proposal = proposed_roles(rows, vars(roles), where)
        proposed = dict(proposal.options)
        for name, value in proposed.items():
            if isinstance(value, list):
                proposed[name] = tuple(value)
        roles = replace(roles, **proposed)
        if not TABLE.suits(vars(roles), rows.column_names):
            refuse_ids_alone(proposal.of_table, where)
        constants = _constants(roles, proposal.of_table)
        roles = replace(roles, metadata=(*roles.metadata, *constants))
    else:
        # Nothing is proposed: every column is as the options say, or not read.
        strict = dict(vars(roles))
        strict["metadata"] = tuple(rows.column_names)
        proposal = proposed_roles(rows, strict, where)
    unfolding = unfolding.used(TABLE.chosen(vars(roles)))
    _refuse_unsaid(roles, proposal.of_table, rows, where)
    return TablePlan(roles, proposal, unfolding, constants)


def _refuse_unsaid(roles: Roles, of_table: TableProfile, rows: pa.Table, where: str) -> None:
    """Refuse a table with labels or grades if no option names the labels or grades of pairs.

    Args:
        of_table: the profile of the first rows.
        rows: the first rows.
    """
    if roles.says_labels:
        return
    for name in _score_columns(roles, list(of_table.columns)):
        column = of_table.columns.get(name)
        if column is None:
            continue
        if is_list(column.type):
            inside = pa.table({name: pc.list_flatten(rows[name])})
            column = profile(inside, where).columns[name]
        values = "scores"
        if column.distinct <= _SHOWN:
            values = ", ".join(sorted(column.values))
        elif column.scale is not None:
            values = f"scores from {column.scale[0]:g} to {column.scale[1]:g}"
        raise UnsaidScoreError(
            f"{where}: column {name!r} holds {values}, as labels or grades, and rows of each would train as positives: give "
            f"{advice(column, list(of_table.columns))}; or, if all rows are pairs that belong together, data.metadata=[{name}]"
        )


def _score_columns(roles: Roles, names: Sequence[str]) -> list[str]:
    """Return the column of scores by an option, or the columns without a role with a usual name of
    scores."""
    if roles.score is not None:
        return [roles.score]
    taken = set(roles.metadata)
    for role in TABLE.usual:
        if role != "score":
            taken.update(named_columns(getattr(roles, role)))
    return TABLE.usual_columns("score", [name for name in names if name not in taken])


def _constants(roles: Roles, of_table: TableProfile) -> dict[str, str]:
    """Return the columns of scores, by usual names, with a single value in all rows, and the value.
    A value of texts that do not belong together is left out."""
    if roles.says_labels or roles.score is not None:
        return {}
    free = [name for name in of_table.columns if name not in roles.metadata]
    constants = {}
    for name in TABLE.usual_columns("score", free):
        column = of_table.columns[name]
        is_constant = column.distinct == 1 and column.whole and not column.blanks
        if is_constant and not is_wrong(column):
            constants[column.name] = column.values[0]
    return constants


def checked_constants(
    blocks: Iterable[TableBlock], constants: Mapping[str, str], where: str
) -> Iterator[TableBlock]:
    """Pass on blocks, and refuse a block with a second value in a column of a single value."""
    for block in blocks:
        for name, value in constants.items():
            if name not in block.table.column_names:
                continue
            values = pc.unique(block.table[name].cast(pa.large_string())).to_pylist()
            labels = as_labels(pa.array(values, pa.large_string())).to_pylist()
            if set(labels) - {value.lower()}:
                raise UnsaidScoreError(
                    f"{where}: column {name!r} holds {value} at first, and {', '.join(map(str, values))} in {block.file}: give "
                    f"data.min_score or data.positive_labels, or data.metadata=[{name}] if all rows are pairs"
                )
        yield block


def _prompt_note(prompt: str) -> str:
    return f"each query begins with {prompt}: so has a search to begin, since the saved model does not add it"


def _notes(pairs: Pairs, so_far: ColumnsSoFar, unfolding: Unfolding) -> list[str]:
    """Return sentences on the form of the files and the making of rows, and cautions about ids, and
    about texts that make the task too easy."""
    notes = list(so_far.notes)
    if any(name.endswith(".user") for name in so_far.columns.get("query", ())):
        notes.append("of each chat, the first question and the answer to it make a pair")
    if unfolding.repeated:
        notes.append(f"each record of {', '.join(unfolding.repeated)} is a row")
    sample = np.arange(len(pairs))[:: max(1, len(pairs) // _SOME)]
    queries = pairs.texts("query", sample)
    docs = pairs.texts("doc", sample)
    held = sum(query in doc for query, doc in zip(queries, docs, strict=True))
    if len(sample) > 1 and 2 * held > len(sample):
        notes.append(
            "caution: most documents hold their own query word for word, which makes it easy to find"
        )
    if _are_codes(queries) and _are_codes(docs):
        notes.append("caution: queries and documents look like ids, and texts are needed")
    return notes


def _are_codes(texts: Sequence[str]) -> bool:
    """Return True if more than 9 in 10 texts are a word with a digit."""
    codes = sum(_CODE.fullmatch(text) is not None for text in texts)
    return codes > 0.9 * len(texts)


def _hidden_texts(pairs: Pairs, columns: Columns) -> dict[str, int]:
    """Count the texts with the id of an earlier text; only the first text of an id is read."""
    counts: dict[str, int] = {}
    for role in TEXTS:
        id_role = IDS[role]
        if id_role not in columns:
            continue
        content = np.concatenate([content_ids(chunk) for chunk in pairs.table[role].chunks])
        first, which = pairs.distinct(role)
        hidden = len(np.unique(content[content != content[first[which]]]))
        if hidden:
            counts[f"texts whose {id_role} another text has"] = hidden
    return counts


def _all_usable(pairs: Pairs) -> tuple[Pairs, NDArray[np.bool_]]:
    """Return pairs, and True for each pair, because evaluation may use all pairs, [n]."""
    return pairs, np.ones(len(pairs), dtype=bool)
