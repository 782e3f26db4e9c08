"""From a block of a table to rows of one query, one document that answers it, and any number that do not.

Letters in shapes: r rows of the block, k texts of one role in all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError
from ..io.ids import content_ids, given_ids, mixed
from ..io.tables import Block
from .roles import Roles

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
_HEAVIEST = float(np.finfo(np.float32).max)
_NOTHING, _SPACE = (pa.scalar(text, pa.large_string()) for text in ("", " "))


@dataclass(frozen=True)
class Items:
    """The texts of one role, and the row of the block that each belongs to."""

    texts: pa.Array  # [k] large_string
    rows: Rows  # [k] in rising order
    ids: Rows  # [k]
    content: Rows  # [k] ids of the texts before their prompt
    scores: NDArray[np.float64] | None = None  # [k]

    def __getitem__(self, keep: Mask) -> Items:
        scores = None if self.scores is None else self.scores[keep]
        return Items(self.texts.filter(pa.array(keep)), self.rows[keep], self.ids[keep], self.content[keep], scores)


def rows_of(block: Block, roles: Roles, columns: dict[str, tuple[str, ...]], dropped: Counter[str]) -> pa.Table:
    """Pairs of a block: query, doc, query_id, doc_id, name, place; with them weight, negatives and negative_ids if there.

    Args:
        columns: the columns of each role.
        dropped: what is left out is added to these counts, by reason.

    Raises:
        DataError: the file, row and column of what cannot be used.
    """
    return _Reader(block, roles, columns, dropped).read()


def docs_of(block: Block, column: str) -> list[str]:
    """Texts of a column of documents, or of lists of them.

    Raises:
        DataError: the file, row and column of what cannot be used.
    """
    reader = _Reader(block, Roles(doc=column), {"doc": (column,)}, Counter())
    texts: list[str] = reader.side("doc", "doc_id", "").texts.to_pylist()
    return texts


class _Reader:
    def __init__(self, block: Block, roles: Roles, columns: dict[str, tuple[str, ...]], dropped: Counter[str]) -> None:
        self.block, self.roles, self.columns, self.dropped = block, roles, columns, dropped

    def read(self) -> pa.Table:
        keep = self.scored()
        self.count("rows below min_score", ~keep)
        query = self.side("query", "query_id", self.roles.query_prompt)
        doc = self.side("doc", "doc_id", self.roles.doc_prompt, "positive_scores")
        self.every_row("query", query)
        self.every_row("doc", doc)
        if len(query.texts) > len(self.block.table):
            self.fail(
                "query", int(query.rows[1:][np.diff(query.rows) == 0][0]), "has several texts, and one is expected"
            )
        doc = doc[keep[doc.rows] & self.not_itself(query, doc)]
        pairs = {
            "query": query.texts.take(pa.array(doc.rows)),
            "doc": doc.texts,
            "name": pa.nulls(len(doc.rows), pa.large_string()).fill_null(""),
            "place": pa.array([self.block.place(row) for row in doc.rows.tolist()], pa.large_string()),
            "query_id": query.ids[doc.rows],
            "doc_id": doc.ids,
            "weight": self.weights()[doc.rows] if "weight" in self.columns else None,
        }
        table = pa.table({name: value for name, value in pairs.items() if value is not None})
        if "negatives" not in self.columns:
            return table
        lists = self.lists(self.negatives(query, doc))
        for name, values in lists.items():
            table = table.append_column(name, values.take(pa.array(doc.rows)))
        return table

    def side(self, role: str, ids: str, prompt: str, scores: str = "") -> Items:
        """The texts of a role, each row's behind its prompt; ids are given or of the content."""
        found = [self.texts(role, name) for name in self.columns[role] if name in self.block.table.column_names]
        texts = pa.concat_arrays([text for text, _, _ in found]) if found else pa.array([], pa.large_string())
        rows = np.concatenate([row for _, row, _ in found]) if found else np.empty(0, np.int64)
        order = np.argsort(rows, kind="stable")
        texts, rows = texts.take(pa.array(order)), rows[order]
        content = content_ids(texts)
        prompts = self.prompts(role, prompt, rows)
        own = [ids for _, _, ids in found if ids is not None]
        if ids in self.columns or own:
            numbers = self.flat(ids, rows) if ids in self.columns else pa.concat_arrays(own).take(pa.array(order))
            try:
                keys = given_ids(numbers)
            except pa.ArrowException:
                name = self.columns[ids if ids in self.columns else role][0]
                raise DataError(
                    f"{self.block.file}: column {name!r} holds {numbers.type}, and ids are texts or integers"
                ) from None
        else:
            keys = content if prompts is None else mixed(content, content_ids(prompts))
        texts = texts if prompts is None else pc.binary_join_element_wise(prompts, texts, _NOTHING)
        return Items(texts, rows, keys, content, self.floats(scores, rows))

    def prompts(self, role: str, prompt: str, rows: Rows) -> pa.Array | None:
        """What is put before each text, [k]; None for nothing."""
        if role == "query" and "prompt" in self.columns:
            own = self.prompted().cast(pa.large_string()).fill_null("").take(pa.array(rows))
            return pc.binary_join_element_wise(pa.scalar(prompt, pa.large_string()), own, _NOTHING)
        return pa.array([prompt] * len(rows), pa.large_string()) if prompt else None

    def prompted(self) -> pa.Array:
        """The column of prompts, which are texts."""
        own = self.column("prompt")
        if not (pa.types.is_null(own.type) or pa.types.is_string(own.type) or pa.types.is_large_string(own.type)):
            self.fail_column(self.columns["prompt"][0], own.type)
        return own

    def texts(self, role: str, name: str) -> tuple[pa.Array, Rows, pa.Array | None]:
        """Texts of a column, the row of each, and the ids that the column itself holds."""
        values, rows = self.flatten(self.column(role, name))
        numbers = None
        if pa.types.is_struct(values.type):
            fields = {field.name: values.field(i) for i, field in enumerate(values.type)}
            if "text" not in fields:
                self.fail_column(name, values.type)
            values, numbers = fields["text"], fields.get("docid")
            if "title" in fields:
                title = fields["title"].cast(pa.large_string()).fill_null("")
                values = pc.utf8_trim_whitespace(
                    pc.binary_join_element_wise(title, values.cast(pa.large_string()), _SPACE)
                )
        if pa.types.is_null(values.type):
            values = values.cast(pa.large_string())
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            self.fail_column(name, values.type)
        many = role == "negatives" and numbers is None
        absent = values.is_null().to_numpy(zero_copy_only=False) if many else np.zeros(len(values), bool)
        blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values), ""), True).to_numpy(zero_copy_only=False)
        blank &= ~absent
        if blank.any():
            self.fail(name, int(rows[blank.argmax()]), f"has no text ({int(blank.sum())} such rows)")
        kept = pa.array(~absent)
        return (
            values.filter(kept).cast(pa.large_string()),
            rows[~absent],
            None if numbers is None else numbers.filter(kept),
        )

    def flatten(self, column: pa.Array) -> tuple[pa.Array, Rows]:
        """The values of a column of lists, or of single values, and the row of each."""
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            return column, np.arange(len(column))
        return pc.list_flatten(column), pc.list_parent_indices(column).to_numpy().astype(np.int64)

    def flat(self, role: str, rows: Rows) -> pa.Array:
        """A column of as many values in each row as there are texts."""
        name = self.columns[role][0]
        values, mine = self.flatten(self.column(role))
        if not np.array_equal(mine, rows):
            counts = [np.bincount(x, minlength=len(self.block.table)) for x in (mine, rows)]
            row = int((counts[0] != counts[1]).argmax())
            self.fail(name, row, f"has {counts[0][row]} values for {counts[1][row]} texts")
        absent = values.is_null().to_numpy(zero_copy_only=False)
        if absent.any():
            self.fail(name, int(rows[absent.argmax()]), f"has no value ({int(absent.sum())} such rows)")
        return values

    def floats(self, role: str, rows: Rows) -> NDArray[np.float64] | None:
        """A column of finite numbers, one for each text."""
        if role not in self.columns:
            return None
        name, values = self.columns[role][0], self.flat(role, rows)
        try:
            numbers: NDArray[np.float64] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowException:
            raise DataError(
                f"{self.block.file}: column {name!r} holds {values.type}, and numbers are expected"
            ) from None
        if not np.isfinite(numbers).all():
            at = int(np.isfinite(numbers).argmin())
            self.fail(name, int(rows[at]), f"is {numbers[at]}, and a finite number is expected")
        return numbers

    def scored(self) -> Mask:
        """Rows that score enough, [r]."""
        scores = self.floats("score", np.arange(len(self.block.table)))
        least = self.roles.min_score
        return np.ones(len(self.block.table), bool) if scores is None or least is None else scores >= least

    def weights(self) -> NDArray[np.float32]:
        """How much each row counts, [r]."""
        weights = self.floats("weight", np.arange(len(self.block.table)))
        assert weights is not None
        if (weights < 0).any():
            at = int((weights < 0).argmax())
            self.fail(self.columns["weight"][0], at, f"is {weights[at]:g}, and a weight is at least 0")
        if (weights > _HEAVIEST).any():
            at = int((weights > _HEAVIEST).argmax())
            self.fail(self.columns["weight"][0], at, f"is {weights[at]:g}, and more than a number of 32 bits holds")
        return weights.astype(np.float32)

    def every_row(self, role: str, items: Items) -> None:
        """Refuse rows without a text."""
        held = np.bincount(items.rows, minlength=len(self.block.table)) > 0
        if not held.all():
            self.fail(self.columns[role][0], int(held.argmin()), f"has no text ({int((~held).sum())} such rows)")

    def not_itself(self, query: Items, doc: Items) -> Mask:
        """Documents that are not their own query, [k]."""
        same: Mask = query.content[doc.rows] == doc.content
        if self.roles.identical == "keep" or not same.any():
            return np.ones(len(same), bool)
        if self.roles.identical == "refuse":
            why = f"is its own query ({int(same.sum())} such rows): take data.identical=drop, or keep"
            self.fail(self.columns["doc"][0], int(doc.rows[same.argmax()]), why)
        self.count("queries that are their own document", same)
        return ~same

    def negatives(self, query: Items, doc: Items) -> Items:
        """Negatives that are neither the query nor a document that answers it."""
        items = self.side("negatives", "negative_ids", self.roles.doc_prompt, "negative_scores")
        answers = np.isin(mixed(items.ids, items.rows), mixed(doc.ids, doc.rows))
        answers |= query.content[items.rows] == items.content
        self.count("negatives that are their row's query or answer", answers)
        items = items[~answers]
        margin = self.roles.negative_margin
        if margin is None:
            return items
        if items.scores is None or doc.scores is None:
            raise DataError(
                f"{self.block.file}: data.negative_margin compares scores, and the columns positive_scores and "
                "negative_scores are not both there"
            )
        best = np.full(len(self.block.table), np.inf)
        best[doc.rows] = -np.inf
        np.maximum.at(best, doc.rows, doc.scores)
        close = items.scores > best[items.rows] - margin
        self.count("negatives within negative_margin", close)
        return items[~close]

    def lists(self, items: Items) -> dict[str, pa.Array]:
        """The negatives of each row, [r]."""
        lengths = np.bincount(items.rows, minlength=len(self.block.table))
        offsets = pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int64())
        columns = {"negatives": items.texts, "negative_ids": pa.array(items.ids)}
        return {name: pa.LargeListArray.from_arrays(offsets, values) for name, values in columns.items()}

    def column(self, role: str, name: str | None = None) -> pa.Array:
        """A column of the block as one array; without one where this block of a file lacks it."""
        name = name or self.columns[role][0]
        table = self.block.table
        if name not in table.column_names:
            return pa.nulls(len(table))
        column = table[name]
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    def count(self, reason: str, which: Mask) -> None:
        """Remember what is left out."""
        if which.any():
            self.dropped[reason] += int(which.sum())

    def fail(self, name: str, row: int, text: str) -> NoReturn:
        raise DataError(f"{self.block.file}, row {self.block.first + row}: column {name!r} {text}")

    def fail_column(self, name: str, given: Any) -> NoReturn:
        raise DataError(f"{self.block.file}: column {name!r} holds {given}, and texts are expected")
