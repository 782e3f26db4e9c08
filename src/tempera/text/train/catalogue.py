"""The distinct texts of the pairs, each once, as towers read them and an index holds them, with
their positions by row."""

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
from ..read.pairs import GIVEN, TEXTS, Pairs, Rows, Text, distinct
from .samplers import keys_of

_BLOCK = 100_000  # texts whose features are in memory at once
_TOKENIZER_TEXTS = 500_000  # texts in memory for a tokenizer, which samples them further


@dataclass(frozen=True)
class Catalogue:
    """The distinct queries, [p], and documents, [u]: first those that answer, then those that are
    only negatives."""

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
            withheld: negatives that no row has, though they are documents, [m]; None are none.

        >>> catalogue = Catalogue.of(Pairs.of(["a", "b", "a"], ["x", "x", "y"]))
        >>> catalogue.queries[:], catalogue.docs[:], catalogue.doc_of.tolist()
        (['a', 'b'], ['x', 'y'], [0, 0, 1])
        """
        ids, offsets = pairs.negatives
        first, which = distinct(
            np.concatenate([pairs.ids("doc"), ids]) if len(ids) else pairs.ids("doc")
        )
        # Where the negatives of all pairs stand that a row has.
        listed = np.arange(len(ids))
        if withheld is not None and len(withheld):
            listed = np.flatnonzero(~withheld)
        offsets = np.searchsorted(listed, offsets)
        negatives = Ragged(torch.from_numpy(which[len(pairs) :][listed]), torch.from_numpy(offsets))
        return cls(pairs, *pairs.distinct("query"), first, which[: len(pairs)], negatives)

    @cached_property
    def contents(self) -> dict[Text, Ids]:
        """Return the ids of the contents of the distinct queries, [p], and documents, [u], whatever
        ids were given to them."""
        return {
            role: content_ids(self.distinct(role)[1])
            if self._named(role)
            else self.distinct(role)[0]
            for role in TEXTS
        }

    def _named(self, role: Text) -> bool:
        """Return whether the data give a text of a role its id; others have that of their
        content."""
        own = [self.pairs.given(role), *([self.pairs.negative_given] if role == "doc" else [])]
        return any(each.null_count < len(each) for each in own)

    @cached_property
    def alike(self) -> dict[Text, Rows]:
        """Return the first query of the text of each query, [p], and the first document of the text
        of each document, [u].

        Data may give equal texts several ids. No tower tells them apart, so that in training they
        are one, and what answers one of them is no negative of another.
        """
        return {"query": self._alike("query"), "doc": self._alike("doc")}

    def _alike(self, role: Text) -> Rows:
        if not self._named(role):
            return np.arange(len(self.contents[role]))
        first, which = distinct(self.contents[role])
        return first[which]

    def trained_on(self, rows: Rows) -> tuple[Rows, Rows, Ragged]:
        """Return the query of each of these pairs, its document, and its negatives; equal texts are
        one."""
        negatives, doc = self.negatives[torch.from_numpy(rows)], self.alike["doc"]
        values = torch.from_numpy(doc[negatives.values.numpy()])
        return (
            self.alike["query"][self.query_of[rows]],
            doc[self.doc_of[rows]],
            Ragged(values, negatives.offsets),
        )

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

    def trained(self, rows: Rows) -> list[str]:
        """Return the distinct texts of the training rows, and documents that nothing asks for, for
        a tokenizer; a sample of many.

        It sees nothing that is held out.
        """
        docs = np.concatenate(
            [self.doc_of[rows], self.negatives[torch.from_numpy(rows)].values.numpy()]
        )
        if self.pairs.paired:  # else any two texts are a row
            docs = np.concatenate([docs, self.doc_of[self.pairs.unasked]])
        sides = [(self.queries, np.unique(self.query_of[rows])), (self.docs, np.unique(docs))]
        step = max(1, sum(len(which) for _, which in sides) // _TOKENIZER_TEXTS)
        return [text for texts, which in sides for text in texts.take(which[::step])]

    def keys(self, rows: Rows) -> Ragged:
        """Return the ids of every text of each of these pairs: query, document, negatives; equal
        texts have one."""
        query, doc, negatives = self.trained_on(rows)
        queries, docs = (torch.from_numpy(self.distinct(role)[0]) for role in TEXTS)
        return keys_of(queries[query], docs[doc], negatives, docs)

    def examples(self, rows: Rows, queries: Ragged, docs: Ragged, draws: Draws) -> Examples:
        """Return the chosen pairs as features of the distinct queries, [p], and documents, [u]."""
        pairs, weight = self.pairs, None
        query, doc, negatives = self.trained_on(rows)
        if (
            "weight" in pairs.table.column_names
        ):  # sources of a mixture may have none: such a row counts 1
            weight = torch.from_numpy(pc.fill_null(pairs.table["weight"], 1.0).to_numpy()[rows])
        return Examples(
            queries,
            docs,
            query=torch.from_numpy(query),
            doc=torch.from_numpy(doc),
            query_ids=torch.from_numpy(self.distinct("query")[0][query]),
            doc_ids=torch.from_numpy(self.doc_ids[doc]),
            draws=draws,
            negatives=negatives if len(self.negatives.values) else None,
            all_ids=torch.from_numpy(self.doc_ids) if len(self.negatives.values) else None,
            weight=weight,
        )

    @cached_property
    def searched(self) -> Rows:
        """Positions of the documents that the index of a run holds, rising: all but those that are
        made of others."""
        held = np.ones(len(self.doc_first), bool)
        held[self.doc_of] = False
        held[self.doc_of[self.pairs.searched]] = True
        return np.flatnonzero(held)

    def table(self) -> pa.Table:
        """Return the documents that are searched as an index describes them: doc_id, name, place,
        doc; given_doc_id if any has one.

        A negative has the place of its row.
        """
        count = int(np.searchsorted(self.doc_first, len(self.pairs)))
        row = (
            np.searchsorted(
                self.pairs.negatives[1], self.doc_first[count:] - len(self.pairs), side="right"
            )
            - 1
        )
        places = self.pairs.texts("place", np.concatenate([self.doc_first[:count], row]))
        names = self.pairs.texts("name", self.doc_first[:count]) + [""] * len(row)
        columns = {"name": names, "place": places, "doc": self.docs[:]}
        table = pa.table(
            {name: pa.array(column, pa.large_string()) for name, column in columns.items()}
        )
        own = pa.chunked_array([*self.pairs.given("doc").chunks, *self.pairs.negative_given.chunks])
        if own.null_count < len(own):
            table = table.append_column(GIVEN["doc"], own.take(pa.array(self.doc_first)))
        return table.append_column("doc_id", pa.array(self.doc_ids)).take(pa.array(self.searched))


def stored(features: Callable[[Sequence[str]], Ragged], texts: Sequence[str], path: Path) -> Ragged:
    """Return features of texts, written to a file as int32 and memory-mapped, so that only the rows
    in use take memory.

    Args:
        features: token ids of some texts.
        path: the file to write; the ends of the rows stay in memory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = [torch.zeros(1, dtype=torch.int64)]
    with path.open("wb") as file:
        for start in range(0, len(texts), _BLOCK):
            part = features(texts[start : start + _BLOCK])
            lengths.append(part.lengths)
            file.write(part.values.numpy().astype(np.int32, copy=False).tobytes())
    offsets = torch.cat(lengths).cumsum(0)
    if not int(offsets[-1]):
        return Ragged(torch.empty(0, dtype=torch.int32), offsets)
    return Ragged(
        torch.from_file(str(path), shared=False, size=int(offsets[-1]), dtype=torch.int32), offsets
    )
