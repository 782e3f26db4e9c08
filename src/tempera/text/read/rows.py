"""Pairs from a block of a table: rows of a query, its document, and any number of negatives.

Letters in shapes: r rows of the block, k texts of a role in all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import ConfigError, DataError
from ...forms.roles import TABLE, WHOLE, Roles
from ...io.ids import content_ids, form_ids, given_ids, mixed
from ...tables.columns import Columns
from ...tables.reader import BlockReader, Mask, Rows, is_list, is_text, missing
from ...tables.tables import TableBlock
from ...tables.vector_files import COLUMNS
from .keeper import Keeper
from .pairs import FORM, GIVEN, KIND

# Fields of the ids of texts in records, as Tevatron and DPR call them.
_OWN_IDS = ("docid", "psg_id", "passage_id")
_TELLING = 10  # lists in brackets, of as many texts, are no chance
_NOTHING = pa.scalar("", KIND)
_SPACE = pa.scalar(" ", KIND)


class ColumnTexts(NamedTuple):
    """The texts of some columns, blank texts included, and the row of the block of each text."""

    texts: pa.Array  # [k] large_string; empty where a text is missing
    rows: Rows  # [k]
    ids: pa.Array | None  # [k] ids that the column holds in its records


@dataclass(frozen=True)
class RoleTexts:
    """The texts of a role, and the row of the block of each text."""

    texts: pa.Array  # [k] large_string
    rows: Rows  # [k] in rising order
    ids: Rows  # [k]
    content: Rows  # [k] ids of the texts before their prompt
    scores: NDArray[np.float64] | None = None  # [k]
    own_ids: pa.Array | None = None  # [k] large_string, the ids as the table holds them
    # [k] ids of the forms of texts that have a prompt, before it
    forms: Rows | None = None

    def __getitem__(self, keep: Mask) -> RoleTexts:
        kept = RoleTexts(
            self.texts.filter(pa.array(keep)),
            self.rows[keep],
            self.ids[keep],
            self.content[keep],
        )
        if self.scores is not None:
            kept = replace(kept, scores=self.scores[keep])
        if self.own_ids is not None:
            kept = replace(kept, own_ids=self.own_ids.filter(pa.array(keep)))
        if self.forms is not None:
            kept = replace(kept, forms=self.forms[keep])
        return kept

    def at(self, rows: Rows) -> Rows:
        """Return the position of the first text of each given row."""
        return np.searchsorted(self.rows, rows)


def rows_of(
    block: TableBlock,
    roles: Roles,
    columns: Columns,
    dropped: Counter[str],
    keeper: Keeper | None = None,
) -> pa.Table:
    """Return the pairs of a block, with the columns of `Pairs`: query, doc, query_id, doc_id, name,
    place; if any, given ids, weight, negatives and kept columns.

    Args:
        columns: the columns of each role.
        dropped: counts by reason; the rows and texts left out are added.
        keeper: keeps columns beside the documents; None keeps none.

    Raises:
        DataError: a useless value, by file, row and column.
    """
    return PairReader(block, roles, columns, dropped).read(keeper)


def docs_of(block: TableBlock, columns: Columns) -> tuple[pa.Array, pa.Array]:
    """Return the texts and ids of a column of documents, or of lists of documents; ids are null in
    a table without ids.

    Raises as `rows_of` does.
    """
    docs = PairReader(block, WHOLE, columns, Counter()).side("doc", "doc_id", "")
    if docs.own_ids is None:
        return docs.texts, pa.nulls(len(docs.texts), KIND)
    return docs.texts, docs.own_ids


class PairReader(BlockReader):
    """Read the pairs of a block."""

    def __init__(
        self, block: TableBlock, roles: Roles, columns: Columns, dropped: Counter[str]
    ) -> None:
        super().__init__(block, columns, dropped)
        self.roles = roles
        self.remedy = ""

    def read(self, keeper: Keeper | None = None) -> pa.Table:
        """Return the kept pairs, in the order of their rows; each document has the kept columns of
        its row."""
        self.remedy = ": set data.missing_text=drop to leave such rows out"
        listed = "score" in self.columns and is_list(self.column("score").type)
        if not listed:
            self.leave_out_other_labels()
        query = self.side("query", "query_id", self.roles.query_prompt)
        self.refuse_empty("query", query)
        scores = "score" if listed else "positive_scores"
        doc = self.side("doc", "doc_id", self.roles.doc_prompt, scores)
        wrong = None
        if listed:
            doc, wrong = self.divide_by_score(doc)
        self.refuse_empty("doc", doc)
        self.refuse("query", self.per_row(query) > 1, "has several texts; expected one")
        doc = doc[self.keep[doc.rows]]
        doc = doc[self.differs_from_query(query, doc)]
        pairs = self.pair_columns(query, doc)
        if "weight" in self.columns:
            pairs["weight"] = self.weights()[doc.rows]
        if "negatives" in self.columns or wrong is not None:
            negatives = self.negatives(query, doc, wrong)
            for name, lists in self.negative_columns(negatives).items():
                pairs[name] = lists.take(pa.array(doc.rows))
        kept = None if keeper is None else self.kept(keeper)
        if kept is not None:
            pairs[COLUMNS] = kept.take(pa.array(doc.rows))
        return pa.table(pairs)

    def kept(self, keeper: Keeper) -> pa.StructArray | None:
        """Return the columns of each row to keep, [r]; None without any."""
        with_role = [name for of_role in self.columns.values() for name in of_role]
        return keeper.of(self.block, {*with_role, *TABLE.unread}, self.columns["doc"])

    def pair_columns(self, query: RoleTexts, doc: RoleTexts) -> dict[str, pa.Array | Rows]:
        """Return the columns of a pair for each document, [k]: texts, ids, name and place."""
        queries = query.at(doc.rows)
        pairs: dict[str, pa.Array | Rows] = {
            "query": query.texts.take(pa.array(queries)),
            "doc": doc.texts,
            "name": pa.nulls(len(doc.rows), KIND).fill_null(""),
            "place": self.places(doc),
            "query_id": query.ids[queries],
            "doc_id": doc.ids,
        }
        if query.own_ids is not None:
            pairs[GIVEN["query"]] = query.own_ids.take(pa.array(queries))
        if doc.own_ids is not None:
            pairs[GIVEN["doc"]] = doc.own_ids
        if query.forms is not None:
            pairs[FORM["query"]] = query.forms[queries]
        if doc.forms is not None:
            pairs[FORM["doc"]] = doc.forms
        return pairs

    def leave_out_other_labels(self) -> None:
        """Leave out the rows with a score or label of texts that do not belong together."""
        wanted = self.roles.positive_labels
        least = self.roles.min_score
        if least == -np.inf or "score" not in self.columns:
            return
        if wanted is None:
            self.leave_out_below("score", least)
            return
        if least is not None:
            raise ConfigError(
                "data.min_score and data.positive_labels both say which rows are pairs: give one of them"
            )
        labels = as_labels(self.column("score"))
        right = pc.is_in(labels, value_set=as_labels(pa.array([str(each) for each in wanted])))
        self.leave_out("rows of other labels", ~right.to_numpy(zero_copy_only=False))

    def divide_by_score(self, docs: RoleTexts) -> tuple[RoleTexts, RoleTexts]:
        """Return the documents with a score of an answer to the query, and the documents without.

        Rows with documents, but without an answer, are left out.
        """
        assert docs.scores is not None
        least = -np.inf if self.roles.min_score is None else self.roles.min_score
        right = docs.scores >= least
        unscored = replace(docs, scores=None)
        answers = unscored[right]
        has_docs = self.per_row(docs) > 0
        self.leave_out("rows without a relevant text", (self.per_row(answers) == 0) & has_docs)
        return answers, unscored[~right]

    def places(self, side: RoleTexts) -> pa.Array:
        """Return the file and row of each text, [k], with the id in the table, if any."""
        places = pa.array([self.block.place(row) for row in side.rows.tolist()], KIND)
        if side.own_ids is None:
            return places
        return pc.binary_join_element_wise(places, side.own_ids, pa.scalar(", ", KIND))

    def refuse_empty(self, role: str, side: RoleTexts) -> None:
        """Refuse the rows without a text of a role, or leave them out."""
        empty = self.per_row(side) == 0
        if self.roles.missing_text == "drop":
            self.leave_out("rows without a text", empty)
        self.refuse(role, empty, f"has no text{self.remedy}")

    def per_row(self, side: RoleTexts) -> Rows:
        """Return the number of texts of each row, [r]."""
        return np.bincount(side.rows, minlength=len(self.keep))

    def side(self, role: str, ids: str, prompt: str, scores: str = "") -> RoleTexts:
        """Return the texts of a role behind the prompts, with the ids of the table, or else of the
        content.

        Args:
            ids: the role of the column of ids.
            prompt: of every text of the role.
            scores: the role of the column of scores, for a role with scores.
        """
        every = self.texts_of_columns(role, with_ids=ids not in self.columns)
        # A blank text counts as none: a row of blank texts is empty, a blank cell is no negative.
        kept = ~_blank(every.texts)
        texts = every.texts.filter(pa.array(kept))
        rows = every.rows[kept]
        content = content_ids(texts)
        prompts = self.prompts(role, prompt, rows)
        own_ids = None
        if ids in self.columns:
            own_ids = self.ids(ids, self.value_of_each_text(ids, every.rows, kept), rows)
        elif every.ids is not None:
            own_ids = self.ids(role, every.ids.filter(pa.array(kept)), rows)
        if own_ids is not None:
            own_ids = own_ids.cast(KIND).fill_null("")
            keys = given_ids(own_ids)
        elif prompts is not None:
            keys = mixed(content, content_ids(prompts))
        else:
            keys = content
        forms = None
        if prompts is not None:
            forms = form_ids(texts)
            texts = pc.binary_join_element_wise(prompts, texts, _NOTHING)
        numbers = None
        if scores in self.columns:
            values = self.value_of_each_text(scores, every.rows, kept)
            numbers = self.numbers(scores, values, rows)
        return RoleTexts(texts, rows, keys, content, numbers, own_ids, forms)

    def prompts(self, role: str, prompt: str, rows: Rows) -> pa.Array | None:
        """Return the prompt of each text, [k]; None without prompts."""
        if role == "query" and "prompt" in self.columns:
            own = self.column("prompt")
            if not (is_text(own.type) or pa.types.is_null(own.type)):
                self.refuse_type(self.columns["prompt"][0], own.type, "texts")
            own = own.cast(KIND).fill_null("").take(pa.array(rows))
            return pc.binary_join_element_wise(pa.scalar(prompt, KIND), own, _NOTHING)
        if not prompt:
            return None
        return pa.array([prompt] * len(rows), KIND)

    def texts_of_columns(self, role: str, with_ids: bool) -> ColumnTexts:
        """Return the texts of all columns of a role, in the order of their rows.

        Args:
            with_ids: True for ids from the records of the columns, if every column holds ids.
        """
        names = [name for name in self.columns[role] if name in self.block.table.column_names]
        if not names:
            return ColumnTexts(pa.array([], KIND), np.empty(0, np.int64), None)
        columns = [self.texts(role, name) for name in names]
        rows = np.concatenate([column.rows for column in columns])
        order = np.argsort(rows, kind="stable")
        in_order = pa.array(order)
        texts = pa.concat_arrays([column.texts for column in columns]).take(in_order)
        ids = [column.ids for column in columns if column.ids is not None]
        if not with_ids or len(ids) < len(columns):
            return ColumnTexts(texts, rows[order], None)
        if len({part.type for part in ids}) > 1:
            ids = [part.cast(KIND) for part in ids]
        return ColumnTexts(texts, rows[order], pa.concat_arrays(ids).take(in_order))

    def texts(self, role: str, name: str) -> ColumnTexts:
        """Return the texts of a column of texts, of lists of texts, or of records with a text."""
        values, rows = _flattened(self.column(role, name))
        ids = None
        if pa.types.is_struct(values.type):
            fields = {field.name: values.field(i) for i, field in enumerate(values.type)}
            if "text" not in fields:
                paths = ", ".join(f"{name}.{field}" for field in fields)
                self.refuse_type(name, values.type, f"texts: name a field, data.{role}={paths}")
            values = _text_of_records(fields)
            ids = _ids_of_records(fields)
        if pa.types.is_null(values.type):
            values = values.cast(KIND)
        if not is_text(values.type):
            self.refuse_type(name, values.type, "texts")
        if _are_lists(values):
            self.fail(
                name,
                0,
                "holds lists that are written as text, as all rows do: write lists as JSON lines or Parquet",
            )
        if self.roles.missing_text == "refuse":
            blank = _blank(values)
            if role == "negatives":
                blank &= values.is_valid().to_numpy(zero_copy_only=False)
            self.refuse(role, blank, f"has no text{self.remedy}", rows, name)
        return ColumnTexts(values.cast(KIND).fill_null(""), rows, ids)

    def value_of_each_text(self, role: str, rows: Rows, kept: Mask) -> pa.Array:
        """Return the value of a column for each kept text, [k]; a block without texts may lack the
        column.

        A row holds as many values as texts, with or without values for blank texts.

        Args:
            role: of the column, such as positive_scores.
            rows: of all texts, blank texts included.
            kept: False for the blank texts.
        """
        name = self.columns[role][0]
        rows_kept = rows[kept]
        if not len(rows_kept) and name not in self.block.table.column_names:
            return pa.nulls(0)
        values, rows_of_values = _flattened(self.column(role))
        if np.array_equal(rows_of_values, rows):
            return values.filter(pa.array(kept))
        if not np.array_equal(rows_of_values, rows_kept):
            counts = np.bincount(rows_of_values, minlength=len(self.keep))
            texts = np.bincount(rows_kept, minlength=len(self.keep))
            row = int((counts != texts).argmax())
            self.fail(name, row, f"has {counts[row]} values for {texts[row]} texts")
        return values

    def differs_from_query(self, query: RoleTexts, doc: RoleTexts) -> Mask:
        """Return True for each kept document, [k]: documents equal to their query are left out,
        unless data.identical=keep."""
        same: Mask = query.content[query.at(doc.rows)] == doc.content
        if self.roles.identical == "keep":
            return np.ones(len(same), bool)
        if self.roles.identical == "refuse":
            self.refuse("doc", same, "equals its query: set data.identical=drop, or keep", doc.rows)
        self.count("rows whose document equals the query", same)
        return ~same

    def negatives(
        self, query: RoleTexts, doc: RoleTexts, wrong: RoleTexts | None = None
    ) -> RoleTexts:
        """Return the negatives, without texts of the query or of its documents.

        Args:
            wrong: documents of the rows without an answer, by their scores; further negatives.
        """
        items = wrong
        if "negatives" in self.columns:
            items = self.side("negatives", "negative_ids", self.roles.doc_prompt, "negative_scores")
            if wrong is not None:
                items = concatenated(wrong, items)
        assert items is not None
        items = items[self.keep[items.rows]]
        answers = np.isin(mixed(items.ids, items.rows), mixed(doc.ids, doc.rows))
        # An answer in words counts as the answer, whatever its id.
        answers |= np.isin(mixed(items.content, items.rows), mixed(doc.content, doc.rows))
        answers |= query.content[query.at(items.rows)] == items.content
        self.count("negatives that are a query or answer of the same row", answers)
        items = items[~answers]
        margin = self.roles.negative_margin
        if margin is None:
            return items
        if items.scores is None or doc.scores is None:
            raise DataError(
                f"{self.block.file}: data.negative_margin needs columns of positive_scores and negative_scores"
            )
        best = np.full(len(self.keep), np.inf)
        best[doc.rows] = -np.inf
        np.maximum.at(best, doc.rows, doc.scores)
        close = items.scores > best[items.rows] - margin
        self.count("negatives within negative_margin", close)
        return items[~close]

    def negative_columns(self, items: RoleTexts) -> dict[str, pa.Array]:
        """Return the columns of the negatives of each row, as lists, [r]."""
        columns = {"negatives": items.texts, "negative_ids": pa.array(items.ids)}
        if items.own_ids is not None:
            columns[GIVEN["negatives"]] = items.own_ids
        if items.forms is not None:
            columns[FORM["negatives"]] = pa.array(items.forms)
        offsets = pa.array(np.concatenate([[0], self.per_row(items).cumsum()]), pa.int64())
        for name, values in columns.items():
            columns[name] = pa.LargeListArray.from_arrays(offsets, values)
        return columns


def _text_of_records(fields: Mapping[str, pa.Array]) -> pa.Array:
    """Return the text of each record, behind the title if the records have titles."""
    texts = fields["text"]
    if "title" not in fields:
        return texts
    titles = fields["title"].cast(KIND).fill_null("")
    return pc.utf8_trim_whitespace(pc.binary_join_element_wise(titles, texts.cast(KIND), _SPACE))


def _ids_of_records(fields: Mapping[str, pa.Array]) -> pa.Array | None:
    """Return the id of each record; None without a field of ids, or with an id missing."""
    for name in _OWN_IDS:
        if name in fields:
            return None if missing(fields[name]).any() else fields[name]
    return None


def _blank(texts: pa.Array) -> Mask:
    """Return True for each missing text, and for each text of white space alone, [k]."""
    empty = pc.equal(pc.utf8_trim_whitespace(texts), "")
    blank: Mask = pc.fill_null(empty, True).to_numpy(zero_copy_only=False)
    return blank


def concatenated(first: RoleTexts, second: RoleTexts) -> RoleTexts:
    """Return the texts of two sides in the order of their rows; scores and ids of the source if
    both sides have some."""
    rows = np.concatenate([first.rows, second.rows])
    order = np.argsort(rows, kind="stable")
    in_order = pa.array(order)
    own_ids = None
    if first.own_ids is not None and second.own_ids is not None:
        own_ids = pa.concat_arrays([first.own_ids, second.own_ids]).take(in_order)
    scores = None
    if first.scores is not None and second.scores is not None:
        scores = np.concatenate([first.scores, second.scores])[order]
    return RoleTexts(
        pa.concat_arrays([first.texts, second.texts]).take(in_order),
        rows[order],
        np.concatenate([first.ids, second.ids])[order],
        np.concatenate([first.content, second.content])[order],
        scores,
        own_ids,
    )


def as_labels(values: pa.Array) -> pa.Array:
    """Return labels as texts to be compared: in lower case, and whole numbers without decimals.

    >>> as_labels(pa.array(["Yes ", "1.0", "-1", None])).to_pylist(), as_labels(pa.array([True])).to_pylist()
    (['yes', '1', '-1', None], ['true'])
    """
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(values.cast(KIND)))
    return pc.replace_substring_regex(texts, r"^([-+]?\d+)\.0+$", r"\1")


def _are_lists(texts: pa.Array) -> bool:
    """Return True if a column of texts holds lists, as pandas, JSON and DuckDB write lists to CSV.

    Of ten or more texts, every text is then in brackets, and some text has quotes or commas, or is
    an empty list.

    >>> _are_lists(pa.array(["['a', 'b']", '["c", null]'] * 5)), _are_lists(pa.array(["['a', 'b']", "c"] * 5))
    (True, False)
    >>> _are_lists(pa.array(["['a']"] * 9 + ["[]"])), _are_lists(pa.array(["[a text, another]"] * 10))
    (True, True)
    """
    present = texts.drop_null()
    if len(present) < _TELLING:
        return False
    listed = pc.match_substring_regex(present, r"(?s)^\s*\[.*\]\s*$")
    signs = pc.match_substring_regex(present, r"""['",]|\[\s*\]""")
    return bool(pc.all(listed).as_py() and pc.any(signs).as_py())


def _flattened(column: pa.Array) -> tuple[pa.Array, Rows]:
    """Return the values of a column of lists, or of single values, and the row of each value."""
    if not is_list(column.type):
        return column, np.arange(len(column))
    return pc.list_flatten(column), pc.list_parent_indices(column).to_numpy().astype(np.int64)
