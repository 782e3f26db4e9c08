"""Pairs from a block of a table: rows of a query, a document that answers it, and any number of
negatives.

Letters in shapes: r rows of the block, k texts of one role in all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import ConfigError, DataError
from ...io.ids import content_ids, form_ids, given_ids, mixed
from ...tables.columns import Columns
from ...tables.reader import BlockReader, Mask, Rows, is_list, is_text, missing
from ...tables.tables import TableBlock
from .pairs import FORM, GIVEN, KIND
from .roles import WHOLE, Roles

# Fields of the ids of texts in records, as Tevatron and DPR call them.
_OWN_IDS = ("docid", "psg_id", "passage_id")
_TELLING = 10  # of them are no chance
_NOTHING, _SPACE = (pa.scalar(text, KIND) for text in ("", " "))


@dataclass(frozen=True)
class RoleTexts:
    """The texts of one role, and the row of the block that each belongs to."""

    texts: pa.Array  # [k] large_string
    rows: Rows  # [k] in rising order
    ids: Rows  # [k]
    content: Rows  # [k] ids of the texts before their prompt
    scores: NDArray[np.float64] | None = None  # [k]
    own_ids: pa.Array | None = None  # [k] large_string, the ids as the table holds them
    # [k] ids of the forms of texts that have a prompt, before it
    forms: Rows | None = None

    def __getitem__(self, keep: Mask) -> RoleTexts:
        scores = None if self.scores is None else self.scores[keep]
        own_ids = None if self.own_ids is None else self.own_ids.filter(pa.array(keep))
        texts = self.texts.filter(pa.array(keep))
        forms = None if self.forms is None else self.forms[keep]
        return RoleTexts(
            texts, self.rows[keep], self.ids[keep], self.content[keep], scores, own_ids, forms
        )

    def at(self, rows: Rows) -> Rows:
        """Return the position of the first text of each of these rows."""
        return np.searchsorted(self.rows, rows)


def rows_of(block: TableBlock, roles: Roles, columns: Columns, dropped: Counter[str]) -> pa.Table:
    """Return the pairs of a block: query, doc, query_id, doc_id, name, place; if any, given ids,
    weight and negatives.

    Args:
        columns: the columns of each role.
        dropped: what is left out is added to these counts, by reason.

    Raises:
        DataError: a value that cannot be used, by file, row and column.
    """
    return PairReader(block, roles, columns, dropped).read()


def docs_of(block: TableBlock, columns: Columns) -> tuple[pa.Array, pa.Array]:
    """Return the texts of a column of documents, or of lists of them, and their ids, null if there
    are none.

    Raises as `rows_of` does.
    """
    side = PairReader(block, WHOLE, columns, Counter()).side("doc", "doc_id", "")
    return side.texts, pa.nulls(len(side.texts), KIND) if side.own_ids is None else side.own_ids


class PairReader(BlockReader):
    """Read the pairs of a block."""

    def __init__(
        self, block: TableBlock, roles: Roles, columns: Columns, dropped: Counter[str]
    ) -> None:
        super().__init__(block, columns, dropped)
        self.roles, self.remedy = roles, ""

    def read(self) -> pa.Table:
        """Return the pairs that are kept, each row's one after the other."""
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
            doc, wrong = self.judged(doc)
        self.refuse_empty("doc", doc)
        self.refuse("query", self.per_row(query) > 1, "has several texts; expected one")
        doc = doc[self.keep[doc.rows]]
        doc = doc[self.not_itself(query, doc)]
        queries, rows = query.at(doc.rows), pa.array(doc.rows)
        pairs = {
            "query": query.texts.take(pa.array(queries)),
            "doc": doc.texts,
            "name": pa.nulls(len(rows), pa.large_string()).fill_null(""),
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
        if "weight" in self.columns:
            pairs["weight"] = self.weights()[doc.rows]
        if "negatives" in self.columns or wrong is not None:
            negatives = self.lists(self.negatives(query, doc, wrong))
            pairs |= {name: lists.take(rows) for name, lists in negatives.items()}
        return pa.table(pairs)

    def leave_out_other_labels(self) -> None:
        """Leave out the rows whose score or label says that their texts do not belong together."""
        wanted, least = self.roles.positive_labels, self.roles.min_score
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

    def judged(self, docs: RoleTexts) -> tuple[RoleTexts, RoleTexts]:
        """Return the texts that answer their row's query, and those that do not, of lists of texts
        with a score for each."""
        assert docs.scores is not None
        least = -np.inf if self.roles.min_score is None else self.roles.min_score
        right, unscored = docs.scores >= least, replace(docs, scores=None)
        answers, wrong = unscored[right], unscored[~right]
        some = np.bincount(docs.rows, minlength=len(self.keep)) > 0
        self.leave_out("rows without a relevant text", (self.per_row(answers) == 0) & some)
        return answers, wrong

    def places(self, side: RoleTexts) -> pa.Array:
        """Return where each text stands, [k], with its id where the table holds one."""
        places = pa.array([self.block.place(row) for row in side.rows.tolist()], pa.large_string())
        if side.own_ids is None:
            return places
        return pc.binary_join_element_wise(places, side.own_ids, pa.scalar(", ", places.type))

    def refuse_empty(self, role: str, side: RoleTexts) -> None:
        """Refuse rows in which no text of a role is left, or leave them out."""
        empty = self.per_row(side) == 0
        if self.roles.missing_text == "drop":
            self.leave_out("rows without a text", empty)
        self.refuse(role, empty, f"has no text{self.remedy}")

    def per_row(self, side: RoleTexts) -> Rows:
        """Count the texts of each row, [r]."""
        return np.bincount(side.rows, minlength=len(self.keep))

    def side(self, role: str, ids: str, prompt: str, scores: str = "") -> RoleTexts:
        """Return the texts of a role, each behind its prompt, with ids that the table holds, or
        else of the content."""
        names = [name for name in self.columns[role] if name in self.block.table.column_names]
        parts = [self.texts(role, name) for name in names]
        texts = (
            pa.concat_arrays([text for text, _, _ in parts])
            if parts
            else pa.array([], pa.large_string())
        )
        rows = np.concatenate([row for _, row, _ in parts]) if parts else np.empty(0, np.int64)
        order = np.argsort(rows, kind="stable")
        texts, rows = texts.take(pa.array(order)), rows[order]
        every, kept = (
            rows,
            ~_blank(texts),
        )  # an empty cell is no negative, and a blank text is none of any role
        texts, rows = texts.filter(pa.array(kept)), rows[kept]
        content, own = content_ids(texts), [part for _, _, part in parts if part is not None]
        prompts = self.prompts(role, prompt, rows)
        own_ids = None
        if ids in self.columns:
            own_ids = self.ids(ids, self.flat(ids, rows, every, kept), rows)
        elif own and len(own) == len(parts):
            if len({part.type for part in own}) > 1:
                own = [part.cast(pa.large_string()) for part in own]
            own_ids = self.ids(role, pa.concat_arrays(own).take(pa.array(order[kept])), rows)
        if own_ids is not None:
            own_ids = own_ids.cast(pa.large_string()).fill_null("")
            keys = given_ids(own_ids)
        else:
            keys = content if prompts is None else mixed(content, content_ids(prompts))
        forms = None
        if prompts is not None:
            forms = form_ids(texts)
            texts = pc.binary_join_element_wise(prompts, texts, _NOTHING)
        numbers = None
        if scores in self.columns:
            numbers = self.numbers(scores, self.flat(scores, rows, every, kept), rows)
        return RoleTexts(texts, rows, keys, content, numbers, own_ids, forms)

    def prompts(self, role: str, prompt: str, rows: Rows) -> pa.Array | None:
        """Return the prompt of each text, [k]; None without prompts."""
        if role == "query" and "prompt" in self.columns:
            own = self.column("prompt")
            if not (is_text(own.type) or pa.types.is_null(own.type)):
                self.refuse_type(self.columns["prompt"][0], own.type, "texts")
            own = own.cast(pa.large_string()).fill_null("").take(pa.array(rows))
            return pc.binary_join_element_wise(pa.scalar(prompt, pa.large_string()), own, _NOTHING)
        return pa.array([prompt] * len(rows), pa.large_string()) if prompt else None

    def texts(self, role: str, name: str) -> tuple[pa.Array, Rows, pa.Array | None]:
        """Return the texts of a column, the row of each, and the ids that the column itself
        holds."""
        column = values = self.column(role, name)
        values, rows = _flattened(column)
        ids = None
        if pa.types.is_struct(values.type):
            fields = {field.name: values.field(i) for i, field in enumerate(values.type)}
            if "text" not in fields:
                fields_of = ", ".join(f"{name}.{field}" for field in fields)
                self.refuse_type(name, values.type, f"texts: name a field, data.{role}={fields_of}")
            values = fields["text"]
            ids = next((fields[name] for name in _OWN_IDS if name in fields), None)
            if ids is not None and missing(ids).any():
                ids = None
            if "title" in fields:
                title = fields["title"].cast(pa.large_string()).fill_null("")
                values = pc.utf8_trim_whitespace(
                    pc.binary_join_element_wise(title, values.cast(pa.large_string()), _SPACE)
                )
        if pa.types.is_null(values.type):
            values = values.cast(pa.large_string())
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
        return values.cast(pa.large_string()).fill_null(""), rows, ids

    def flat(self, role: str, rows: Rows, every: Rows, kept: Mask) -> pa.Array:
        """Return a column of as many values in each row as there are texts, [k]; a block without
        texts may lack it.

        Args:
            every: rows of all texts, with blank ones, which may have values, too.
            kept: which of them are not blank.
        """
        if not len(rows) and self.columns[role][0] not in self.block.table.column_names:
            return pa.nulls(0)
        values, own = _flattened(self.column(role))
        if np.array_equal(own, every):
            return values.filter(pa.array(kept))
        if not np.array_equal(own, rows):
            counts, texts = (np.bincount(x, minlength=len(self.keep)) for x in (own, rows))
            row = int((counts != texts).argmax())
            self.fail(
                self.columns[role][0], row, f"has {counts[row]} values for {texts[row]} texts"
            )
        return values

    def not_itself(self, query: RoleTexts, doc: RoleTexts) -> Mask:
        """Return which documents are not their own query, [k]."""
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
        """Return the negatives that are neither the query nor a document that answers it.

        Args:
            wrong: further ones, of the documents' own lists.
        """
        items = wrong
        if "negatives" in self.columns:
            items = self.side("negatives", "negative_ids", self.roles.doc_prompt, "negative_scores")
            if wrong is not None:
                items = both(wrong, items)
        assert items is not None
        items = items[self.keep[items.rows]]
        answers = np.isin(mixed(items.ids, items.rows), mixed(doc.ids, doc.rows))
        answers |= np.isin(
            mixed(items.content, items.rows), mixed(doc.content, doc.rows)
        )  # whatever their ids
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

    def lists(self, items: RoleTexts) -> dict[str, pa.Array]:
        """Return the negatives of each row as lists, [r]."""
        offsets = pa.array(np.concatenate([[0], self.per_row(items).cumsum()]), pa.int64())
        columns = {"negatives": items.texts, "negative_ids": pa.array(items.ids)}
        if items.own_ids is not None:
            columns[GIVEN["negatives"]] = items.own_ids
        if items.forms is not None:
            columns[FORM["negatives"]] = pa.array(items.forms)
        return {
            name: pa.LargeListArray.from_arrays(offsets, values) for name, values in columns.items()
        }


def _blank(texts: pa.Array) -> Mask:
    """Return which texts are missing, or nothing but white space, [k]."""
    blank: Mask = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True).to_numpy(
        zero_copy_only=False
    )
    return blank


def both(first: RoleTexts, second: RoleTexts) -> RoleTexts:
    """Return the texts of two sides as one, in the order of their rows; scores and ids of the
    source only where both have them."""
    rows = np.concatenate([first.rows, second.rows])
    order = np.argsort(rows, kind="stable")
    own_ids, scores = None, None
    if first.own_ids is not None and second.own_ids is not None:
        own_ids = pa.concat_arrays([first.own_ids, second.own_ids]).take(pa.array(order))
    if first.scores is not None and second.scores is not None:
        scores = np.concatenate([first.scores, second.scores])[order]
    return RoleTexts(
        pa.concat_arrays([first.texts, second.texts]).take(pa.array(order)),
        rows[order],
        np.concatenate([first.ids, second.ids])[order],
        np.concatenate([first.content, second.content])[order],
        scores,
        own_ids,
    )


def as_labels(values: pa.Array) -> pa.Array:
    """Return labels as texts that are compared: in lower case, and numbers as 1 whether they are
    written so or as 1.0.

    >>> as_labels(pa.array(["Yes ", "1.0", "-1", None])).to_pylist(), as_labels(pa.array([True])).to_pylist()
    (['yes', '1', '-1', None], ['true'])
    """
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(values.cast(pa.large_string())))
    return pc.replace_substring_regex(texts, r"^([-+]?\d+)\.0+$", r"\1")


def _are_lists(texts: pa.Array) -> bool:
    """Return True if every text that is there, of ten or more, is a list in brackets, as pandas,
    JSON and DuckDB write them to CSV: with quotes or commas in one of them, or empty.

    >>> _are_lists(pa.array(["['a', 'b']", '["c", null]'] * 5)), _are_lists(pa.array(["['a', 'b']", "c"] * 5))
    (True, False)
    >>> _are_lists(pa.array(["['a']"] * 9 + ["[]"])), _are_lists(pa.array(["[a text, another]"] * 10))
    (True, True)
    """
    whole = texts.drop_null()
    if len(whole) < _TELLING:
        return False
    listed = pc.match_substring_regex(whole, r"(?s)^\s*\[.*\]\s*$")
    signs = pc.match_substring_regex(whole, r"""['",]|\[\s*\]""")
    return bool(pc.all(listed).as_py() and pc.any(signs).as_py())


def _flattened(column: pa.Array) -> tuple[pa.Array, Rows]:
    """Return the values of a column of lists, or of single values, and the row of each."""
    if not is_list(column.type):
        return column, np.arange(len(column))
    return pc.list_flatten(column), pc.list_parent_indices(column).to_numpy().astype(np.int64)
