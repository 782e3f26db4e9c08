"""The distinct texts of the pairs, and the positions of each row's texts among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from ...arithmetic.ragged import Ragged
from ...engine.batches import Draws, Examples
from ...io.ids import Ids, content_ids
from ...io.texts import Texts
from ...tables.kept_columns import FirstValues, first_values
from ...tables.vector_files import COLUMNS
from ..read.pairs import GIVEN, KIND, Pairs, Rows, Text, distinct
from .samplers import keys_of

_BLOCK = 100_000  # texts whose features are in memory at once
_TOKENIZER_TEXTS = 500_000  # texts in memory for a tokenizer, which samples them further


@dataclass(frozen=True)
class Catalogue:
    """The distinct queries, [p], and documents, [u]: first the answers, then negatives without a
    query."""

    pairs: Pairs
    query_rows: Rows  # [p] a pair of each query
    query_of: Rows  # [n] the query of each pair
    # [u] where each document first stands among the documents of all pairs, then all negatives
    doc_first: Rows
    doc_of: Rows  # [n]
    negatives: Ragged  # n rows: documents

    @classmethod
    def of(cls, pairs: Pairs, withheld: NDArray[np.bool_] | None = None) -> Catalogue:
        """Return the distinct texts of pairs by their ids.

        Args:
            withheld: True for negatives without a row, though documents, [m]; None withholds
                nothing.

        >>> catalogue = Catalogue.of(Pairs.of(["a", "b", "a"], ["x", "x", "y"]))
        >>> catalogue.queries[:], catalogue.docs[:], catalogue.doc_of.tolist()
        (['a', 'b'], ['x', 'y'], [0, 0, 1])
        """
        ids, offsets = pairs.negatives
        docs = pairs.ids("doc")
        if len(ids):
            docs = np.concatenate([docs, ids])
        doc_first, position = distinct(docs)
        query_rows, query_of = pairs.distinct("query")
        kept = np.arange(len(ids))  # negatives that a row has
        if withheld is not None and len(withheld):
            kept = np.flatnonzero(~withheld)
        negatives = Ragged(
            torch.from_numpy(position[len(pairs) :][kept]),
            torch.from_numpy(np.searchsorted(kept, offsets)),
        )
        return cls(pairs, query_rows, query_of, doc_first, position[: len(pairs)], negatives)

    @cached_property
    def contents(self) -> dict[Text, Ids]:
        """The ids of the contents of the distinct queries, [p], and documents, [u], whatever ids
        the data have."""
        return {"query": self._contents("query"), "doc": self._contents("doc")}

    def _contents(self, role: Text) -> Ids:
        ids, texts = self.distinct(role)
        if self._has_own_ids(role):
            return content_ids(texts)
        return ids  # made of the content already

    def _has_own_ids(self, role: Text) -> bool:
        """Return True if the data have an id for a text of a role; a text without an id has the id
        of its content."""
        columns = [self.pairs.given(role)]
        if role == "doc":
            columns.append(self.pairs.negative_given)
        return any(each.null_count < len(each) for each in columns)

    @cached_property
    def alike(self) -> dict[Text, Rows]:
        """The first query of the text of each query, [p], and the first document of the text of
        each document, [u].

        Data may have several ids for equal texts. No tower tells equal texts apart: equal texts are
        the same text in training, and an answer to a query is no negative of an equal query.
        """
        return {"query": self._alike("query"), "doc": self._alike("doc")}

    def _alike(self, role: Text) -> Rows:
        contents = self.contents[role]
        if not self._has_own_ids(role):
            return np.arange(len(contents))
        first, position = distinct(contents)
        return first[position]

    def trained_on(self, rows: Rows) -> tuple[Rows, Rows, Ragged]:
        """Return the query, the document and the negatives of each pair; equal texts count as one
        text."""
        query = self.alike["query"][self.query_of[rows]]
        doc = self.alike["doc"][self.doc_of[rows]]
        negatives = self.negatives[torch.from_numpy(rows)]
        values = self.alike["doc"][negatives.values.numpy()]
        return query, doc, Ragged(torch.from_numpy(values), negatives.offsets)

    @property
    def queries(self) -> Texts:
        """Texts of the queries."""
        return self.pairs.view("query", self.query_rows)

    @property
    def docs(self) -> Texts:
        """Texts of the documents."""
        texts = self.pairs.table["doc"].chunks + self.pairs.negative_texts.chunks
        return Texts(pa.chunked_array(texts, pa.large_string()), self.doc_first)

    @cached_property
    def doc_ids(self) -> Ids:
        """Ids of the documents, [u]."""
        ids: Ids = np.concatenate([self.pairs.ids("doc"), self.pairs.negatives[0]])[self.doc_first]
        return ids

    def distinct(self, role: Text) -> tuple[Ids, Texts]:
        """Return the ids of the distinct queries, [p], or documents, [u], and their texts."""
        if role == "query":
            return self.pairs.ids("query")[self.query_rows], self.queries
        return self.doc_ids, self.docs

    def trained(self, rows: Rows) -> Texts:
        """Return texts for a tokenizer: of the training rows, and documents without a query; a
        sample of many texts, and no held-out text."""
        negatives = self.negatives[torch.from_numpy(rows)].values.numpy()
        docs = np.concatenate([self.doc_of[rows], negatives])
        if self.pairs.paired:  # else any two texts are a row
            docs = np.concatenate([docs, self.doc_of[self.pairs.unasked]])
        docs = np.unique(docs)
        queries = np.unique(self.query_of[rows])
        step = max(1, (len(queries) + len(docs)) // _TOKENIZER_TEXTS)
        return self.queries.chosen(queries[::step]).cat(self.docs.chosen(docs[::step]))

    def keys(self, rows: Rows) -> Ragged:
        """Return the ids of the query, the document and the negatives of each pair; equal texts
        have one id."""
        query, doc, negatives = self.trained_on(rows)
        query_ids = torch.from_numpy(self.distinct("query")[0])
        doc_ids = torch.from_numpy(self.doc_ids)
        return keys_of(query_ids[query], doc_ids[doc], negatives, doc_ids)

    def examples(self, rows: Rows, queries: Ragged, docs: Ragged, draws: Draws) -> Examples:
        """Return the chosen pairs as features of the distinct queries, [p], and documents, [u]."""
        query, doc, negatives = self.trained_on(rows)
        has_negatives = len(self.negatives.values) > 0
        weight = None
        if "weight" in self.pairs.table.column_names:
            # A row of a source without weights, in a mixture, counts 1.
            weights = pc.fill_null(self.pairs.table["weight"], 1.0).to_numpy()
            weight = torch.from_numpy(weights[rows])
        return Examples(
            queries,
            docs,
            query=torch.from_numpy(query),
            doc=torch.from_numpy(doc),
            query_ids=torch.from_numpy(self.distinct("query")[0][query]),
            doc_ids=torch.from_numpy(self.doc_ids[doc]),
            draws=draws,
            negatives=negatives if has_negatives else None,
            all_ids=torch.from_numpy(self.doc_ids) if has_negatives else None,
            weight=weight,
        )

    @cached_property
    def searched(self) -> Rows:
        """Positions of the documents in the index of a run, rising: all but documents that are made
        of other documents."""
        held = np.ones(len(self.doc_first), bool)
        held[self.doc_of] = False
        held[self.doc_of[self.pairs.searched]] = True
        return np.flatnonzero(held)

    def kept(self) -> FirstValues | None:
        """Return the kept columns of the documents, [u], from the first row with a value in each
        column; None if nothing is kept.

        Columns belong to documents: a column whose values differ between the rows of a document, as
        the date of a question may, keeps one of them. A document that is a negative alone has none.
        Repeated pairs are left out before, with their values.
        """
        columns = self.pairs.kept
        if columns is None:
            return None
        return first_values(columns, self.doc_of, len(self.doc_first))

    def table(self) -> pa.Table:
        """Return the searched documents as an index describes them: name, place, doc, doc_id,
        given_doc_id if the data have ids, and columns if any are kept.

        A negative has the place of its row.
        """
        pairs = self.pairs
        count = int(np.searchsorted(self.doc_first, len(pairs)))
        answers = self.doc_first[:count]
        negatives = self.doc_first[count:] - len(pairs)
        row = np.searchsorted(pairs.negatives[1], negatives, side="right") - 1
        empty = pa.array([""] * len(row), KIND)
        names = pairs.table["name"].take(pa.array(answers)).chunks
        columns = {
            "name": pa.chunked_array([*names, empty], KIND),
            "place": pairs.table["place"].take(pa.array(np.concatenate([answers, row]))),
        }
        table = pa.table(columns)
        own_ids = pa.chunked_array(pairs.given("doc").chunks + pairs.negative_given.chunks)
        if own_ids.null_count < len(own_ids):
            table = table.append_column(GIVEN["doc"], own_ids.take(pa.array(self.doc_first)))
        kept = self.kept()
        if kept is not None:
            table = table.append_column(COLUMNS, kept.columns)
        table = table.append_column("doc_id", pa.array(self.doc_ids)).take(pa.array(self.searched))
        return table.append_column("doc", self.docs.column(self.searched))


def stored(features: Callable[[Sequence[str]], Ragged], texts: Sequence[str], path: Path) -> Ragged:
    """Return the features of texts from a memory-mapped file of int32: only rows in use take
    memory.

    Args:
        features: a function from some texts to their token ids.
        path: the file to write; the ends of the rows stay in memory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = [torch.zeros(1, dtype=torch.int64)]
    with path.open("wb") as file:
        for start in range(0, len(texts), _BLOCK):
            stop = min(len(texts), start + _BLOCK)
            if isinstance(texts, Texts):
                part = features(texts.chosen(np.arange(start, stop)))
            else:
                part = features(texts[start:stop])
            lengths.append(part.lengths)
            file.write(part.values.numpy().astype(np.int32, copy=False).tobytes())
    offsets = torch.cat(lengths).cumsum(0)
    size = int(offsets[-1])
    if not size:  # an empty file cannot be mapped
        return Ragged(torch.empty(0, dtype=torch.int32), offsets)
    values = torch.from_file(str(path), shared=False, size=size, dtype=torch.int32)
    return Ragged(values, offsets)
