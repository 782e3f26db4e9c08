"""Pairs of a query and a document that answers it, as an Arrow table with ids and provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..errors import DataError

Ids = NDArray[np.int64]
Rows = NDArray[np.int64]
Text = Literal["query", "doc"]


def content_id(text: str) -> int:
    """The id of a text: a 64-bit hash of it with runs of white space as one space.

    >>> content_id("a  b") == content_id(" a b\\n"), content_id("a b") == content_id("A b")
    (True, False)
    """
    return xxhash.xxh3_64_intdigest(" ".join(text.split()).encode("utf-8", "surrogatepass")) - (1 << 63)


@dataclass(frozen=True)
class Pairs:
    """Row i pairs `query[i]` with `doc[i]`; equal ids are the same normalised content.

    Columns of the table: query, doc, query_id, doc_id, name (what to call the document), place (where it stands).
    """

    table: pa.Table

    @classmethod
    def of(
        cls,
        query: Sequence[str] | pa.Array,
        doc: Sequence[str] | pa.Array,
        name: Sequence[str] | pa.Array | None = None,
        place: Sequence[str] | pa.Array | None = None,
    ) -> Pairs:
        """Give texts their content ids and keep the first of every repeated pair.

        >>> len(Pairs.of(["a", "a", "b"], ["x", "x ", "x"]))
        2
        """
        given = {"query": query, "doc": doc, "name": name, "place": place}
        columns = {key: [""] * len(query) if value is None else value for key, value in given.items()}
        table = pa.table(columns, schema=pa.schema([(key, pa.large_string()) for key in columns]))
        for role in ("query", "doc"):
            ids = np.fromiter((content_id(text) for text in table[role].to_pylist()), np.int64, len(table))
            table = table.append_column(f"{role}_id", pa.array(ids))
        _, codes = np.unique(table["query_id"].to_numpy(), return_inverse=True)
        by_doc, doc_codes = np.unique(table["doc_id"].to_numpy(), return_inverse=True)
        first = np.unique(codes * len(by_doc) + doc_codes, return_index=True)[1]
        return cls(table if len(first) == len(table) else table.take(np.sort(first)))

    def __len__(self) -> int:
        return len(self.table)

    def ids(self, role: Text) -> Ids:
        """Ids of the queries or documents, [n]."""
        ids: Ids = self.table[f"{role}_id"].to_numpy()
        return ids

    def texts(self, role: str, rows: Rows | None = None) -> list[str]:
        """A column of texts, of all rows or of some."""
        column = self.table[role]
        texts: list[str] = (column if rows is None else column.take(pa.array(rows))).to_pylist()
        return texts

    def distinct(self, role: Text) -> tuple[Rows, Rows]:
        """The first row of each distinct text, [u], and which of them each row has, [n]."""
        _, first, inverse = np.unique(self.ids(role), return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return first[order], place[inverse]


class Source(Protocol):
    """Where pairs come from."""

    def read(self) -> tuple[Pairs, NDArray[np.bool_]]:
        """All pairs, and for each whether evaluation may ask its query and rank its document."""


@dataclass(frozen=True)
class Split:
    """Rows to train on, and what evaluation asks and ranks.

    No row of `train` has the query or the document of a row of `asked`.
    """

    pairs: Pairs
    train: Rows
    asked: Rows  # held-out pairs, at least one a query
    corpus: Rows  # one row for every distinct document that evaluation ranks


def hold_out(pairs: Pairs, candidates: NDArray[np.bool_], queries: int, seed: int) -> Split:
    """Hold out `queries` distinct queries of the candidate rows, half of them at most.

    Every pair that shares a query or a document with a held-out pair is left out of training. The corpus to rank is
    every distinct document of the candidate rows.

    Raises:
        DataError: nothing is left to train on or to ask.
    """
    query_ids, doc_ids = pairs.ids("query"), pairs.ids("doc")
    distinct = np.unique(query_ids[candidates])
    chosen = np.random.default_rng(seed).permutation(distinct)[: min(queries, len(distinct) // 2)]
    is_chosen = np.isin(query_ids, chosen)
    asked = candidates & is_chosen
    closed = is_chosen | np.isin(doc_ids, doc_ids[asked])
    ranked = np.flatnonzero(candidates)
    corpus = ranked[np.sort(np.unique(doc_ids[ranked], return_index=True)[1])]
    if not asked.any() or closed.all():
        raise DataError(
            f"{len(pairs)} pairs with {len(distinct)} distinct queries cannot be divided into training and evaluation: "
            "give more data"
        )
    return Split(pairs, np.flatnonzero(~closed), np.flatnonzero(asked), corpus)
