"""Pairs of a query and its document, as an Arrow table with ids and provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...io.ids import Ids, content_id, content_ids, form_ids, mixed, places
from ...io.texts import Texts
from ...tables.arrays import gathered
from ...tables.kept_columns import first_values
from ...tables.vector_files import COLUMNS
from ...task.run_files import GIVEN_ID

__all__ = ["Ids", "Pairs", "Rows", "Source", "content_id"]

Rows = NDArray[np.int64]
Text = Literal["query", "doc"]
TEXTS: tuple[Text, ...] = ("query", "doc")
REPEATED = "repeated pairs"
TRAIN, VALIDATION, TEST, RANKED = 0, 1, 2, 3  # of the column `part`
IDS = {"query": "query_id", "doc": "doc_id", "negatives": "negative_ids"}
# columns of ids as the source has them
GIVEN = {"query": "given_query_id", "doc": GIVEN_ID, "negatives": "given_negative_ids"}
# columns of ids of the forms of texts before their prompts, where they have prompts
FORM = {"query": "query_form", "doc": "doc_form", "negatives": "negative_forms"}
GRADE = "grade"  # column of judgements, where any is not 1
MADE_OF = "made_of"  # column of rows that are made of a document
KIND = pa.large_string()
_LABEL = 200  # letters of a document that has no name


@dataclass(frozen=True)
class Pairs:
    """Row i pairs `query[i]` with `doc[i]`; equal ids mean equal content, or an equal given id.

    Every table has these columns:

    - query, doc: the texts.
    - query_id, doc_id: ids of the content, or hashes of the ids of the source.
    - name: a name of the document, or empty.
    - place: file and row of the document.

    A table may have further columns:

    - given_query_id, given_doc_id: ids of the source.
    - query_form, doc_form: ids of the forms of texts before their prompts.
    - weight: of the row in the loss.
    - negatives, negative_ids, given_negative_ids, negative_forms: lists.
    - source: position of the source in a mixture.
    - grade: relevance of the document; empty is 1.
    - made_of: id of the whole document of a part; the index of a run holds the whole document.
    - columns: records of further values of the document, kept for search.
    - part: TRAIN, VALIDATION or TEST, where a user has named files of parts; RANKED for a document
      without a query, for search alone.

    Args:
        dropped: counts of rows and texts left out, by reason.
        source: the source of the pairs, with a value for every option.
        about: a sentence on the files read.
        paired: False where the rows to train on are any two texts.
        made: rows of documents without a query; training begins with `made`.
    """

    table: pa.Table
    dropped: Mapping[str, int] = field(default_factory=dict)
    source: Source | None = None
    about: str = ""
    paired: bool = True
    made: Pairs | None = None

    @classmethod
    def of(
        cls,
        query: Sequence[str] | pa.Array,
        doc: Sequence[str] | pa.Array,
        name: Sequence[str] | pa.Array | None = None,
        place: Sequence[str] | pa.Array | None = None,
        made_of: Sequence[int] | None = None,
        kept: pa.ChunkedArray | None = None,
    ) -> Pairs:
        """Give texts their content ids and keep the first of every repeated pair.

        >>> len(Pairs.of(["a", "a", "b"], ["x", "x ", "x"]))
        2
        """
        empty = [""] * len(query)
        columns = {
            "query": query,
            "doc": doc,
            "name": empty if name is None else name,
            "place": empty if place is None else place,
        }
        table = pa.table(columns, schema=pa.schema([(key, KIND) for key in columns]))
        for role in TEXTS:
            table = table.append_column(IDS[role], pa.array(content_ids(table[role])))
        if made_of is not None:
            table = table.append_column(MADE_OF, pa.array(made_of, pa.int64()))
        if kept is not None:
            table = table.append_column(COLUMNS, kept)
        return cls.distinct_of([table])

    @classmethod
    def distinct_of(
        cls,
        tables: Iterable[pa.Table],
        folder: Path | None = None,
        dropped: Mapping[str, int] | None = None,
        source: Source | None = None,
    ) -> Pairs:
        """Keep the first of every repeated row: same query, document and set of negatives.

        Args:
            tables: blocks of rows with ids; a column absent from a block is empty in the rows of
                the block.
            folder: where the rows are written and then memory-mapped; None keeps them in memory.
            dropped: counts by reason; the repeated rows are added.
        """
        table = with_shared_ids(gathered(tables, "the source", folder))
        _, first = np.unique(row_keys(table), return_index=True)
        counts = Counter(dropped or {})
        if len(first) < len(table):
            counts[REPEATED] += len(table) - len(first)
            keep = np.zeros(len(table), bool)
            keep[first] = True
            table = _filtered(table, keep, folder)
        return cls(table, dict(counts), source)

    def __len__(self) -> int:
        return len(self.table)

    def grades(self, rows: Rows) -> NDArray[np.float64]:
        """Return the relevance of the documents of some rows to their queries, [n]."""
        if GRADE not in self.table.column_names:
            return np.ones(len(rows))
        column = self.table[GRADE].take(pa.array(rows))
        grades: NDArray[np.float64] = column.fill_null(1.0).to_numpy()
        return grades

    def ids(self, role: Text) -> Ids:
        """Return the ids of the queries or documents, [n]."""
        ids: Ids = self.table[IDS[role]].to_numpy()
        return ids

    def texts(self, role: str, rows: Rows | None = None) -> list[str]:
        """Return a column of texts, of all rows or of some."""
        return self.view(role, rows)[:]

    @cached_property
    def forms(self) -> dict[str, Ids]:
        """Ids of the forms of all texts, by role; texts of equal form have equal ids.

        The form of a text is the text in lower case, with single spaces and without its prompt.
        Texts with one id all have the form of the first text of the id, because only the first text
        is read. The roles are query, doc and whole, [n], and negatives, [m]. The whole of a part of
        a document is the document; any other document is its own whole.

        >>> pairs = Pairs.of(["A  b"], ["x"], made_of=[content_id("of x")])
        >>> bool(pairs.forms["query"][0] == content_id("a b"))
        True
        >>> pairs.forms["whole"].tolist() == pairs.forms["doc"].tolist()
        True
        """
        column_names = self.table.column_names
        forms = {role: self.own_forms(role) for role in FORM}
        if GIVEN["query"] in column_names:
            forms["query"] = _of_first(self.ids("query"), forms["query"])
        if GIVEN["doc"] in column_names or GIVEN["negatives"] in column_names:
            # Documents and negatives share their ids.
            negative_ids, _ = self.negatives
            ids = np.concatenate([self.ids("doc"), negative_ids])
            read = _of_first(ids, np.concatenate([forms["doc"], forms["negatives"]]))
            forms["doc"] = read[: len(self)]
            forms["negatives"] = read[len(self) :]
        forms["whole"] = forms["doc"]
        if MADE_OF in column_names:
            at = places(self._whole_ids.to_numpy(), self.ids("doc"))
            forms["whole"] = np.where(at < 0, forms["doc"], forms["doc"][at])
        return forms

    def own_forms(self, role: str) -> Ids:
        """Return the ids of the forms of a role's texts without their prompts, row after row."""
        ids = form_ids(self.side(role).texts)
        column = FORM[role]
        if column not in self.table.column_names:
            return ids
        own = self.table[column]
        if role == "negatives":
            own = self._by_negative(column, pa.int64())
        forms: Ids = pc.coalesce(own, pa.array(ids)).to_numpy()
        return forms

    def holding(self, forms: Ids) -> NDArray[np.bool_]:
        """Return True for each row with a query, document or whole document of given forms, [n];
        negatives do not count."""
        holding = np.zeros(len(self), bool)
        for role in ("query", "doc", "whole"):
            holding |= np.isin(self.forms[role], forms)
        return holding

    def contents(self, role: Text, rows: Rows) -> Ids:
        """Return the ids of the contents of some rows' texts, [r], also where the source gives the
        texts ids."""
        return content_ids(self.view(role, rows))

    def without(self, forms: Ids) -> Pairs:
        """Return the rows without a query, document or whole document of given forms."""
        return Pairs(self.table.filter(pa.array(~self.holding(forms))))

    def labels(self, rows: Rows) -> list[str]:
        """Return the name of each row's document; a document without a name has the beginning of
        its text.

        >>> Pairs.of(["a", "b"], ["one\\n text", "x = 1"], name=["", "x"]).labels(np.arange(2))
        ['one text', 'x']
        """
        labels = []
        for name, doc in zip(self.texts("name", rows), self.texts("doc", rows), strict=True):
            labels.append(name or " ".join(doc.split())[:_LABEL])
        return labels

    def view(self, role: str, rows: Rows | None = None) -> Texts:
        """Return a view of a column of texts, each read from the table when it is used."""
        return Texts(self.table[role], rows)

    def distinct(self, role: Text) -> tuple[Rows, Rows]:
        """Return the first row of each distinct text, [u], and the position of each row's text
        among the distinct texts, [n]."""
        return distinct(self.ids(role))

    @property
    def part(self) -> NDArray[np.uint8]:
        """Part of each row as a user has named it, [n]; TRAIN by default."""
        if "part" not in self.table.column_names:
            return np.full(len(self), TRAIN, np.uint8)
        part: NDArray[np.uint8] = pc.fill_null(self.table["part"], TRAIN).to_numpy()
        return part

    @property
    def searched(self) -> NDArray[np.bool_]:
        """True for each document in the index of a run, [n]; in place of parts the index holds
        whole documents."""
        if MADE_OF not in self.table.column_names:
            return np.ones(len(self), bool)
        searched: NDArray[np.bool_] = self.table[MADE_OF].is_null().to_numpy()
        return searched

    def with_whole_documents(self, rows: NDArray[np.bool_]) -> Pairs:
        """Return some rows, with the id of the whole document in place of a part's id."""
        position = self.table.column_names.index("doc_id")
        table = self.table.set_column(position, "doc_id", self._whole_ids)
        return Pairs(table.filter(pa.array(rows)))

    @property
    def _whole_ids(self) -> pa.ChunkedArray:
        """Id of the whole document of each row, [n]."""
        own = self.table["doc_id"]
        if MADE_OF not in self.table.column_names:
            return own
        return pc.coalesce(self.table[MADE_OF], own)

    @property
    def kept(self) -> pa.ChunkedArray | None:
        """Records of the kept columns of each row's document, [n]; None if nothing is kept."""
        if COLUMNS not in self.table.column_names:
            return None
        return self.table[COLUMNS]

    def with_columns(self, ids: Ids, columns: pa.ChunkedArray) -> Pairs:
        """Return the rows with the kept columns of their whole documents.

        Args:
            ids: of documents, [d]; of equal ones, the first with a value counts.
            columns: of the documents, [d].
        """
        first, which = distinct(ids)
        values = first_values(columns, which, len(first)).columns
        at = places(self._whole_ids.to_numpy(), ids[first])
        table = self.table
        if COLUMNS in table.column_names:
            table = table.drop_columns([COLUMNS])
        of_rows = values.take(pa.array(at, mask=at < 0))
        return replace(self, table=table.append_column(COLUMNS, of_rows))

    @property
    def unasked(self) -> NDArray[np.bool_]:
        """True for each row of a document without a query, in training or held out, [n]."""
        unasked: NDArray[np.bool_] = self.part == RANKED
        if unasked.any():  # else the search among all documents is spared
            unasked &= ~np.isin(self.ids("doc"), self._whole_ids.to_numpy()[~unasked])
        return unasked

    @property
    def negatives(self) -> tuple[Ids, Rows]:
        """Ids of all negatives, row after row, [m], and the offsets of the rows, [n + 1]."""
        if "negatives" not in self.table.column_names:
            return np.empty(0, np.int64), np.zeros(len(self) + 1, np.int64)
        ids = []
        lengths = [np.zeros(1, np.int64)]
        for chunk in self.table["negative_ids"].chunks:
            ids.append(chunk.flatten().to_numpy())
            lengths.append(np.diff(chunk.offsets.to_numpy()))
        return np.concatenate(ids), np.concatenate(lengths).cumsum()

    def side(self, role: str) -> PairSide:
        """Return the texts of a role with their ids, row after row, [n] or [m]."""
        if role == "negatives":
            ids, _ = self.negatives
            return PairSide(ids, self.negative_given, self.negative_texts)
        return PairSide(self.table[IDS[role]].to_numpy(), self.given(role), self.table[role])

    def with_ids(self, role: str, ids: Ids, source_ids: pa.ChunkedArray) -> Pairs:
        """Return the rows with new ids of a role's texts.

        Args:
            ids: of all texts of the role, row after row, [n] or [m].
            source_ids: ids of the same texts in the source, or nulls.
        """
        table = self.table
        columns = {IDS[role]: pa.chunked_array([ids])}
        if GIVEN[role] in table.column_names or source_ids.null_count < len(source_ids):
            columns[GIVEN[role]] = source_ids
        for name, column in columns.items():
            values = column.combine_chunks()
            if role == "negatives":
                _, offsets = self.negatives
                values = pa.LargeListArray.from_arrays(pa.array(offsets), values)
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, values)
            else:
                table = table.append_column(name, values)
        return replace(self, table=table)

    @property
    def negative_texts(self) -> pa.ChunkedArray:
        """Texts of all negatives, row after row, [m]."""
        if "negatives" not in self.table.column_names:
            return _nulls(0)
        return pa.chunked_array([chunk.flatten() for chunk in self.table["negatives"].chunks], KIND)

    def given(self, role: str) -> pa.ChunkedArray:
        """Return the ids of the queries or documents in the source, [n]; null for a text without an
        id."""
        column = GIVEN[role]
        if column not in self.table.column_names:
            return _nulls(len(self))
        return self.table[column]

    @property
    def negative_given(self) -> pa.ChunkedArray:
        """Ids of all negatives in the source, row after row, [m]; null for a negative without an
        id."""
        column = GIVEN["negatives"]
        if column not in self.table.column_names:
            ids, _ = self.negatives
            return _nulls(len(ids))
        return self._by_negative(column, KIND)

    def _by_negative(self, column: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Return the values of a column of lists, row after row, [m]; null for each negative of a
        row without a list."""
        _, offsets = self.negatives
        known = np.repeat(self.table[column].is_valid().to_numpy(), np.diff(offsets))
        values = pa.chunked_array([chunk.flatten() for chunk in self.table[column].chunks], kind)
        return values.take(pa.array(known.cumsum() - 1, mask=~known))

    def shown_ids(self, role: Text, rows: Rows) -> pa.ChunkedArray:
        """Return ids of some queries or documents for a user: the ids of the source, or else of the
        content.

        >>> Pairs.of(["a"], ["x"]).shown_ids("doc", np.array([0])).to_pylist() == [str(content_id("x"))]
        True
        """
        at = pa.array(rows)
        source_ids = self.given(role).take(at)
        own = self.table[IDS[role]].take(at).cast(KIND)
        return pc.coalesce(source_ids, own)


class PairSide(NamedTuple):
    """Hold all texts of a role, row after row, with their ids, [k]."""

    ids: Ids
    source_ids: pa.ChunkedArray  # ids as the source has them; null for a text without an id
    texts: pa.ChunkedArray


def _of_first(ids: Ids, values: Ids) -> Ids:
    """Return the value of the first occurrence of each id, [n]."""
    first, which = distinct(ids)
    return values[first[which]]


def _nulls(count: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(count, KIND)])


def distinct(ids: Ids) -> tuple[Rows, Rows]:
    """Return the first position of each distinct id, [u], in rising order, and the index of each id
    among the distinct ids, [n].

    >>> distinct(np.array([7, 5, 7, 9]))
    (array([0, 1, 3]), array([0, 1, 0, 2]))
    """
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[inverse]


def with_shared_ids(table: pa.Table) -> pa.Table:
    """Return the rows with one id for equal texts, of which the source gives an id to some.

    A text without an id takes the id of an equal text with an id. Documents and negatives share
    ids.
    """
    pairs = Pairs(table)
    for roles in (("query",), ("doc", "negatives")):
        sides = [pairs.side(role) for role in roles]
        chunks: list[pa.Array] = []
        for side in sides:
            chunks += side.source_ids.cast(KIND).chunks
        source_ids = pa.chunked_array(chunks, KIND)
        known: NDArray[np.bool_] = source_ids.is_valid().to_numpy()
        if known.all() or not known.any():
            continue
        contents = np.concatenate([content_ids(side.texts) for side in sides])
        named, first = np.unique(contents[known], return_index=True)
        place = np.searchsorted(named, contents).clip(max=len(named) - 1)
        takes_id = ~known & (named[place] == contents)
        giver = np.where(takes_id, np.flatnonzero(known)[first[place]], np.arange(len(known)))
        ids = np.concatenate([side.ids for side in sides])[giver]
        source_ids = source_ids.take(pa.array(giver))
        start = 0
        for role, side in zip(roles, sides, strict=True):
            rows = slice(start, start + len(side.ids))
            if takes_id[rows].any():
                pairs = pairs.with_ids(role, ids[rows], source_ids[rows])
            start = rows.stop
    return pairs.table


def row_keys(table: pa.Table) -> Ids:
    """Return a key for each row: of its query, document, set of negatives and part, [n]."""
    keys = mixed(table["doc_id"].to_numpy(), table["query_id"].to_numpy())
    pairs = Pairs(table)
    if "part" in table.column_names:
        keys = mixed(keys, pairs.part.astype(np.int64))
    negatives, offsets = pairs.negatives
    if len(negatives):
        # The running sum may wrap around; a difference of two sums undoes that.
        sums = np.concatenate([[0], mixed(negatives, 1).cumsum()])
        keys = mixed(keys, sums[offsets[1:]] - sums[offsets[:-1]])
    return keys


def _filtered(table: pa.Table, keep: NDArray[np.bool_], folder: Path | None) -> pa.Table:
    """Return some rows; with a folder, the rows are written there in place of all rows."""
    if folder is None:
        return table.filter(pa.array(keep))
    written = gathered(_filtered_batches(table, keep), "pairs", folder, "pairs")
    for path in folder.glob("rows.*.arrow"):
        path.unlink()
    return written


def _filtered_batches(table: pa.Table, keep: NDArray[np.bool_]) -> Iterator[pa.Table]:
    """Return some rows of a table, batch after batch."""
    start = 0
    for batch in table.to_batches():
        stop = start + len(batch)
        yield pa.Table.from_batches([batch.filter(pa.array(keep[start:stop]))])
        start = stop


class Source(Protocol):
    """A source of pairs."""

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs, and True for each pair with a query and document for evaluation, [n].

        Large sources write rows into `folder`, if given, and map the written files.
        """
