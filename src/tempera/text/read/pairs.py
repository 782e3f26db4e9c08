"""Pairs of a query and a document that answers it, as an Arrow table with ids and provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...io.ids import Ids, content_id, content_ids, form_ids, mixed, places
from ...io.texts import Texts
from ...tables.arrays import gathered

__all__ = ["Ids", "Pairs", "Rows", "Source", "content_id"]

Rows = NDArray[np.int64]
Text = Literal["query", "doc"]
TEXTS: tuple[Text, ...] = ("query", "doc")
REPEATED = "repeated pairs"
TRAIN, VALIDATION, TEST, RANKED = 0, 1, 2, 3  # of the column `part`
IDS = {"query": "query_id", "doc": "doc_id", "negatives": "negative_ids"}
# columns of ids as the source has them
GIVEN = {"query": "given_query_id", "doc": "given_doc_id", "negatives": "given_negative_ids"}
# columns of ids of the forms of texts before their prompts, where they have prompts
FORM = {"query": "query_form", "doc": "doc_form", "negatives": "negative_forms"}
GRADE = "grade"  # column of judgements, where any is not 1
MADE_OF = "made_of"  # column of rows that are made of a document
KIND = pa.large_string()
_LABEL = 200  # letters of a document that has no name


@dataclass(frozen=True)
class Pairs:
    """Row i pairs `query[i]` with `doc[i]`; equal ids are the same content, or the same given id.

    Columns of the table: query, doc, query_id, doc_id, name (what to call the document), place
    (where it stands); where the source has them also given_query_id and given_doc_id (as the source
    has them, of which the ids are hashes), query_form and doc_form (ids of the forms of texts
    before their prompts), weight, negatives with their ids and given ids (lists), source (its
    position in a mixture), grade (how relevant the document is; empty is 1), made_of (the id of the
    document that this one is made of, which the index of a run holds in its place), and part
    (TRAIN, VALIDATION or TEST, where a user has named files for them; RANKED for a document without
    a query, which is only searched).
    """

    table: pa.Table
    dropped: Mapping[str, int] = field(
        default_factory=dict
    )  # what was left out on the way, by reason
    source: Source | None = None  # where it is from, with what its options left open decided
    about: str = ""  # a sentence on what was read
    paired: bool = True  # False where the rows to train on are any two texts
    made: Pairs | None = (
        None  # rows of documents that no query asks for, which training begins with
    )

    @classmethod
    def of(
        cls,
        query: Sequence[str] | pa.Array,
        doc: Sequence[str] | pa.Array,
        name: Sequence[str] | pa.Array | None = None,
        place: Sequence[str] | pa.Array | None = None,
        made_of: Sequence[int] | None = None,
    ) -> Pairs:
        """Give texts their content ids and keep the first of every repeated pair.

        >>> len(Pairs.of(["a", "a", "b"], ["x", "x ", "x"]))
        2
        """
        texts = {"query": query, "doc": doc, "name": name, "place": place}
        columns = {
            key: [""] * len(query) if value is None else value for key, value in texts.items()
        }
        table = pa.table(columns, schema=pa.schema([(key, pa.large_string()) for key in columns]))
        for role in ("query", "doc"):
            table = table.append_column(f"{role}_id", pa.array(content_ids(table[role])))
        if made_of is not None:
            table = table.append_column(MADE_OF, pa.array(made_of, pa.int64()))
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
            tables: rows with their ids, some at a time; a column that only some have is empty in
                the others.
            folder: where the rows are written, to be memory-mapped from then on; None keeps them in
                memory.
            dropped: counts to which the repeated rows are added.
        """
        table = named_alike(gathered(tables, "the source", folder))
        keys = row_keys(table)
        first = np.sort(np.unique(keys, return_index=True)[1])
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
        """Return how relevant the documents of some rows are to their queries, [n]."""
        if GRADE not in self.table.column_names:
            return np.ones(len(rows))
        grades: NDArray[np.float64] = (
            self.table[GRADE].take(pa.array(rows)).fill_null(1.0).to_numpy()
        )
        return grades

    def ids(self, role: Text) -> Ids:
        """Return ids of the queries or documents, [n]."""
        ids: Ids = self.table[f"{role}_id"].to_numpy()
        return ids

    def texts(self, role: str, rows: Rows | None = None) -> list[str]:
        """Return a column of texts, of all rows or of some."""
        return self.view(role, rows)[:]

    @cached_property
    def forms(self) -> dict[str, Ids]:
        """Return the ids of the forms of all texts as they are read, by role: equal ids are the
        same text.

        Of several texts with one id the first is read. Roles are query, doc, whole, [n], and
        negatives, [m]. The whole is what a document is made of, or the document itself.

        >>> pairs = Pairs.of(["A  b"], ["x"], made_of=[content_id("of x")])
        >>> bool(pairs.forms["query"][0] == content_id("a b"))
        True
        >>> pairs.forms["whole"].tolist() == pairs.forms["doc"].tolist()
        True
        """
        forms = {role: self._forms(role) for role in FORM}
        if GIVEN["query"] in self.table.column_names:
            forms["query"] = _of_first(self.ids("query"), forms["query"])
        if {GIVEN["doc"], GIVEN["negatives"]} & {*self.table.column_names}:
            ids = np.concatenate([self.ids("doc"), self.negatives[0]])
            read = _of_first(ids, np.concatenate([forms["doc"], forms["negatives"]]))
            forms["doc"], forms["negatives"] = np.split(read, [len(self)])
        forms["whole"] = forms["doc"]
        if MADE_OF in self.table.column_names:
            at = places(self._whole_ids.to_numpy(), self.ids("doc"))
            forms["whole"] = np.where(at < 0, forms["doc"], forms["doc"][at])
        return forms

    def _forms(self, role: str) -> Ids:
        """Return the ids of the forms of a role's texts without their prompts, row after row."""
        ids, column = form_ids(self.side(role)[2]), FORM[role]
        if column not in self.table.column_names:
            return ids
        own = self.table[column]
        if role == "negatives":
            own = self._by_negative(column, pa.int64())
        forms: Ids = pc.coalesce(own, pa.array(ids)).to_numpy()
        return forms

    def holding(self, forms: Ids) -> NDArray[np.bool_]:
        """Return which rows hold one of some texts as their query, their document or what that is
        made of, [n]; their negatives are left out one by one."""
        holding = np.zeros(len(self), bool)
        for role in ("query", "doc", "whole"):
            holding |= np.isin(self.forms[role], forms)
        return holding

    def contents(self, role: Text, rows: Rows) -> Ids:
        """Return the ids of the contents of some rows' texts, [r], whatever ids were given to
        them."""
        return content_ids(self.view(role, rows))

    def without(self, forms: Ids) -> Pairs:
        """Return the rows that hold none of some texts, by the ids of their forms."""
        return Pairs(self.table.filter(pa.array(~self.holding(forms))))

    def labels(self, rows: Rows) -> list[str]:
        """Return the name of each row's document, or the beginning of its text where it has none.

        >>> Pairs.of(["a", "b"], ["one\\n text", "x = 1"], name=["", "x"]).labels(np.arange(2))
        ['one text', 'x']
        """
        texts = zip(self.texts("name", rows), self.texts("doc", rows), strict=True)
        return [name or " ".join(doc.split())[:_LABEL] for name, doc in texts]

    def view(self, role: str, rows: Rows | None = None) -> Texts:
        """Return a view of a column of texts, each read from the table when it is used."""
        return Texts(self.table[role], rows)

    def distinct(self, role: Text) -> tuple[Rows, Rows]:
        """Return the first row of each distinct text, [u], and the position of each row's text
        among them, [n]."""
        return distinct(self.ids(role))

    @property
    def part(self) -> NDArray[np.uint8]:
        """Part that each row is named for, [n]; TRAIN by default."""
        if "part" not in self.table.column_names:
            return np.full(len(self), TRAIN, np.uint8)
        part: NDArray[np.uint8] = pc.fill_null(self.table["part"], TRAIN).to_numpy()
        return part

    @property
    def searched(self) -> NDArray[np.bool_]:
        """Return True for each document that the index of a run holds, [n]; for the others it holds
        what they are made of."""
        if MADE_OF not in self.table.column_names:
            return np.ones(len(self), bool)
        searched: NDArray[np.bool_] = self.table[MADE_OF].is_null().to_numpy()
        return searched

    def whole(self, rows: NDArray[np.bool_]) -> Pairs:
        """Return some rows, with the ids of the documents that the index of a run holds."""
        table = self.table.set_column(
            self.table.column_names.index("doc_id"), "doc_id", self._whole_ids
        )
        return Pairs(table.filter(pa.array(rows)))

    @property
    def _whole_ids(self) -> pa.ChunkedArray:
        """Ids of the documents, or of what they are made of, [n]."""
        own, made_of = self.table["doc_id"], MADE_OF in self.table.column_names
        return pc.coalesce(self.table[MADE_OF], own) if made_of else own

    @property
    def unasked(self) -> NDArray[np.bool_]:
        """Return True for each row of a document that no query asks for, in training or held out,
        [n]."""
        unasked: NDArray[np.bool_] = self.part == RANKED
        if unasked.any():  # else nothing need be looked for among all documents
            unasked &= ~np.isin(self.ids("doc"), self._whole_ids.to_numpy()[~unasked])
        return unasked

    @property
    def negatives(self) -> tuple[Ids, Rows]:
        """Ids of all negatives, row after row, [m], and the offsets of the rows, [n + 1]."""
        if "negatives" not in self.table.column_names:
            return np.empty(0, np.int64), np.zeros(len(self) + 1, np.int64)
        lists = self.table["negative_ids"]
        ids = [chunk.flatten().to_numpy() for chunk in lists.chunks]
        lengths = [np.diff(chunk.offsets.to_numpy()) for chunk in lists.chunks]
        return np.concatenate(ids), np.concatenate([[0], *lengths]).cumsum()

    def side(self, role: str) -> tuple[Ids, pa.ChunkedArray, pa.ChunkedArray]:
        """Return the ids of a role's texts, their ids as the source has them, and the texts, row
        after row, [n] or [m]."""
        if role == "negatives":
            return self.negatives[0], self.negative_given, self.negative_texts
        return self.table[IDS[role]].to_numpy(), self.given(role), self.table[role]

    def renamed(self, role: str, ids: Ids, own: pa.ChunkedArray) -> Pairs:
        """Return the rows with other ids of a role's texts and, where there are any, as the source
        has them, row after row."""
        table, columns = self.table, {IDS[role]: pa.chunked_array([ids])}
        if GIVEN[role] in table.column_names or own.null_count < len(own):
            columns[GIVEN[role]] = own
        for name, column in columns.items():
            values = column.combine_chunks()
            if role == "negatives":
                values = pa.LargeListArray.from_arrays(pa.array(self.negatives[1]), values)
            known = name in table.column_names
            table = (
                table.set_column(table.column_names.index(name), name, values)
                if known
                else table.append_column(name, values)
            )
        return replace(self, table=table)

    @property
    def negative_texts(self) -> pa.ChunkedArray:
        """Texts of all negatives, row after row, [m]."""
        if "negatives" not in self.table.column_names:
            return _nulls(0)
        return pa.chunked_array([chunk.flatten() for chunk in self.table["negatives"].chunks], KIND)

    def given(self, role: str) -> pa.ChunkedArray:
        """Return the ids of the queries or documents as the source has them, [n]; null for one that
        has none."""
        column = GIVEN[role]
        return self.table[column] if column in self.table.column_names else _nulls(len(self))

    @property
    def negative_given(self) -> pa.ChunkedArray:
        """Ids of all negatives as the source has them, row after row, [m]; null for one that has
        none."""
        column = GIVEN["negatives"]
        if column not in self.table.column_names:
            return _nulls(len(self.negatives[0]))
        return self._by_negative(column, KIND)

    def _by_negative(self, column: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Return a column of lists that some rows lack, row after row, [m]; null for negatives of
        those rows."""
        known = np.repeat(self.table[column].is_valid().to_numpy(), np.diff(self.negatives[1]))
        values = pa.chunked_array([chunk.flatten() for chunk in self.table[column].chunks], kind)
        return values.take(pa.array(known.cumsum() - 1, mask=~known))

    def shown_ids(self, role: Text, rows: Rows) -> pa.ChunkedArray:
        """Return ids of some queries or documents as a user knows them: those that the source has,
        else those of their content.

        >>> Pairs.of(["a"], ["x"]).shown_ids("doc", np.array([0])).to_pylist() == [str(content_id("x"))]
        True
        """
        at = pa.array(rows)
        return pc.coalesce(self.given(role).take(at), self.table[f"{role}_id"].take(at).cast(KIND))


def _of_first(ids: Ids, values: Ids) -> Ids:
    """Return for each id the value of its first occurrence, [n]."""
    first, which = distinct(ids)
    return values[first[which]]


def _nulls(count: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(count, KIND)])


def distinct(ids: Ids) -> tuple[Rows, Rows]:
    """Return the first position of each distinct id, [u], in rising order, and the index of each id
    among them, [n].

    >>> distinct(np.array([7, 5, 7, 9]))
    (array([0, 1, 3]), array([0, 1, 0, 2]))
    """
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[inverse]


def named_alike(table: pa.Table) -> pa.Table:
    """Return rows in which a text that the source gives no id has the id of an equal text that it
    gives one.

    A document and a negative are named alike, too.
    """
    pairs = Pairs(table)
    for roles in (("query",), ("doc", "negatives")):
        sides = [pairs.side(role) for role in roles]
        own = pa.chunked_array(
            [chunk for _, own, _ in sides for chunk in own.cast(KIND).chunks], KIND
        )
        known: NDArray[np.bool_] = own.is_valid().to_numpy()
        if known.all() or not known.any():
            continue
        contents = np.concatenate([content_ids(texts) for _, _, texts in sides])
        named, first = np.unique(contents[known], return_index=True)
        place = np.searchsorted(named, contents).clip(max=len(named) - 1)
        alike = ~known & (named[place] == contents)
        taken = np.where(alike, np.flatnonzero(known)[first[place]], np.arange(len(known)))
        ids, own, start = (
            np.concatenate([ids for ids, _, _ in sides])[taken],
            own.take(pa.array(taken)),
            0,
        )
        for role, (before, _, _) in zip(roles, sides, strict=True):
            rows = slice(start, start + len(before))
            if alike[rows].any():
                pairs = pairs.renamed(role, ids[rows], own[rows])
            start = rows.stop
    return pairs.table


def row_keys(table: pa.Table) -> Ids:
    """Return one key for each row: of its query, its document, the set of its negatives and its
    part, [n]."""
    keys = mixed(table["doc_id"].to_numpy(), table["query_id"].to_numpy())
    if "part" in table.column_names:
        keys = mixed(keys, Pairs(table).part.astype(np.int64))
    negatives, offsets = Pairs(table).negatives
    if len(negatives):
        sums = np.concatenate(
            [[0], mixed(negatives, 1).cumsum()]
        )  # wraps around, which a difference undoes
        keys = mixed(keys, sums[offsets[1:]] - sums[offsets[:-1]])
    return keys


def _filtered(table: pa.Table, keep: NDArray[np.bool_], folder: Path | None) -> pa.Table:
    """Return some rows; with a folder, they are written there in place of all."""
    if folder is None:
        return table.filter(pa.array(keep))
    starts = np.cumsum([0, *(len(batch) for batch in table.to_batches())])
    parts = (
        pa.Table.from_batches([batch.filter(pa.array(keep[start : start + len(batch)]))])
        for batch, start in zip(table.to_batches(), starts)
    )
    written = gathered(parts, "pairs", folder, "pairs")
    for path in folder.glob("rows.*.arrow"):
        path.unlink()
    return written


class Source(Protocol):
    """A source of pairs."""

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs, and a mask of those whose query and document evaluation may use.

        Large sources write their rows into `folder`, if given, and map them.
        """
