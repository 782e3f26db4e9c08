"""Rows made of documents, in batches beside those of the pairs in the first steps: the query is a
span of a text, or a function's name, and the answer is the rest.

Letters in shapes: b pairs of a batch, r made rows, u documents, m rows made by a source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...arithmetic.ragged import Ragged, from_lengths, spread
from ...core.batch import Batch, Side
from ...core.corrections import LogQ
from ...io.ids import mixed
from ...task.config import Config
from ..read.pairs import Rows
from .catalogue import Catalogue
from .mixture import Mixture
from .samplers import Order

# Least tokens of the median document for "auto" to make spans: rows of shorter ones do harm.
LONG = 64
ENOUGH = 1_000  # training pairs from which "auto" does so: fewer show no gain
# Training pairs above which rows of a source are taken: they brought nothing beside 8,300 pairs,
# and 0.011 nDCG@10 on validation beside 119,000.
MANY = 20_000
_SPAN = (8, 40)  # tokens of a span, which is never more than half of its document
# Most pairs and spans of a step. With rows of a source a step may have twice as many: these rows
# have no more tokens than pairs.
_MOST = 2048
_STREAM = 1 << 20  # a stream of random numbers apart from the samplers of the same seed


def obstacle(config: Config) -> str | None:
    """Return the option against making rows, as a clause; None without an obstacle."""
    if not config.suited_rows:
        return "only a static tower reads a part of a text's tokens alone"
    if config.train.guide is not None:
        return "train.guide has no vectors of them"
    if config.train.teacher is not None:
        return "train.teacher has not compared them"
    if any(isinstance(each, LogQ) for each in config.base.corrections):
        return "log_q counts how often pairs bring a document"
    if isinstance(config.data, Mixture) and config.data.batches == "single":
        return "data.batches=single takes each batch from one source"
    return None


def wanted(config: Config) -> bool:
    """Return True if a run may have made rows."""
    return config.train.made_rows != 0 and obstacle(config) is None


class Kind(Protocol):
    """A way to make rows."""

    until: float  # share of the training with made rows, from its beginning
    most: int  # rows of a batch of pairs and of the batch beside it, together
    about: str  # a clause for the user

    def suits(self) -> bool:
        """Return True if "auto" makes rows of this kind."""

    def choices(self) -> Rows:
        """Return the numbers of the documents or rows that made rows can be drawn from."""

    def made(self, chosen: Rows, number: int) -> tuple[Ragged, Ragged, Tensor, Tensor]:
        """Return the tokens of queries and of documents, [r], the ids of the queries and of the
        documents, [r], for batch `number`."""


@dataclass(frozen=True)
class Spans:
    """A random span of a document's tokens asks for the rest.

    The task is the inverse cloze task (Lee et al. 2019) on spans instead of sentences (Izacard et
    al. 2022). Spans have 8 to 40 tokens, at most half of a document. A row has a query id of its
    own and the id of its document.

    Args:
        tokens: tokens of every document, [u].
        train: training pairs; rows are made of documents of at least 16 tokens.
    """

    tokens: Ragged
    catalogue: Catalogue
    train: Rows
    seed: int
    until = 0.15
    most = _MOST
    about = "a span of one asks for the rest of it"

    @cached_property
    def ids(self) -> Tensor:
        """Ids of every document, [u]; equal texts have one id."""
        return torch.from_numpy(self.catalogue.doc_ids[self.catalogue.alike["doc"]])

    @cached_property
    def docs(self) -> Rows:
        """Positions of the documents of the training pairs."""
        return np.unique(self.catalogue.doc_of[self.train])

    @property
    def length(self) -> float:
        """Tokens of the median document of the training pairs."""
        return float(np.median(self.tokens.lengths.numpy()[self.docs]))

    def suits(self) -> bool:
        """Return True if there are enough pairs, and documents are long."""
        return len(self.train) >= ENOUGH and self.length >= LONG

    def choices(self) -> Rows:
        """Return the positions of documents that are long enough."""
        return self.docs[self.tokens.lengths.numpy()[self.docs] >= 2 * _SPAN[0]]

    def made(self, chosen: Rows, number: int) -> tuple[Ragged, Ragged, Tensor, Tensor]:
        """Return a row of each chosen document, with a query id that no other row has."""
        docs = torch.from_numpy(chosen)
        generator = np.random.default_rng((self.seed, number, _STREAM))
        spans, rests = cut(self.tokens[docs], generator)
        doc_ids = self.ids[docs]
        query_ids = torch.from_numpy(mixed(doc_ids.numpy(), number + 1))
        return spans, rests, query_ids, doc_ids


@dataclass(frozen=True)
class SourceRows:
    """Rows made by the source of documents without a query.

    Args:
        queries: tokens, [m].
        docs: tokens, [m].
        query_ids: [m].
        doc_ids: [m].
    """

    queries: Ragged
    docs: Ragged
    query_ids: Tensor
    doc_ids: Tensor
    until = 0.28
    most = 2 * _MOST
    about = "the name or the comments of a function without a docstring ask for its code"

    def suits(self) -> bool:
        """Return True: a run without rows of its source does not read the rows."""
        return True

    def choices(self) -> Rows:
        """Return all rows."""
        return np.arange(len(self.queries))

    def made(self, chosen: Rows, number: int) -> tuple[Ragged, Ragged, Tensor, Tensor]:
        """Return the chosen rows."""
        rows = torch.from_numpy(chosen)
        return self.queries[rows], self.docs[rows], self.query_ids[rows], self.doc_ids[rows]


@dataclass(frozen=True)
class MadeRows:
    """Make a batch of rows beside each of the first batches of pairs; each pass over the documents
    has a fresh random order.

    Made rows are compared among themselves: with the pairs, too, a step takes twice the time and
    brings no more (docs/results/text-recipe.md).

    Args:
        beside: made rows beside each pair; 0 for none. A batch has fewer where both batches would
            become too large together, or where fewer can be made.
        size: pairs of a batch.
    """

    kind: Kind
    beside: int
    size: int
    seed: int

    @classmethod
    def of(cls, config: Config, kind: Kind) -> MadeRows:
        """Return the made rows of a run: the number in the configuration, or with "auto" a number
        by the tower and the data."""
        train = config.train
        if train.made_rows != "auto":
            return cls(kind, train.made_rows, train.size, train.seed)
        made = cls(kind, config.suited_rows, train.size, train.seed)
        if wanted(config) and kind.suits() and made.count:
            return made
        return replace(made, beside=0)

    @cached_property
    def choices(self) -> Rows:
        """Numbers of the documents or rows that made rows can be drawn from."""
        if not self.beside:
            return np.empty(0, np.int64)
        return self.kind.choices()

    @cached_property
    def count(self) -> int:
        """The largest number of made rows of a batch."""
        room = self.kind.most - self.size
        return max(0, min(self.beside * self.size, room, len(self.choices)))

    @cached_property
    def order(self) -> Order:
        """The endless sequence of the choices."""
        return Order(self.choices, (self.seed, _STREAM))

    def note(self) -> str:
        """Return a line on the made rows; "" for a run without made rows."""
        if not self.beside:
            return ""
        if not self.count:
            return (
                f"train.made_rows={self.beside}: no rows can be made, or batches leave them no room"
            )
        return (
            f"in the first {100 * self.kind.until:.0f} % of the steps, up to {self.count:,} rows a batch are made of documents: "
            f"{self.kind.about} (train.made_rows={self.beside})"
        )

    def batch(self, pairs: Batch[Ragged], number: int, progress: float) -> Batch[Ragged] | None:
        """Return the made rows beside batch `number` of pairs, [r]; None behind the first part of
        the training.

        Args:
            pairs: the batch, [b].
            progress: progress of the training, from 0 to 1.
        """
        if not self.count or progress >= self.kind.until:
            return None
        chosen = np.unique(self.order.take(number * self.count, self.count))
        queries, docs, query_ids, doc_ids = self.kind.made(chosen, number)
        # One row of each document.
        _, first = np.unique(doc_ids.numpy(), return_index=True)
        rows = torch.from_numpy(np.sort(first))
        doc_ids = doc_ids[rows]
        known = None
        if pairs.known is not None:
            known = Ragged(doc_ids, torch.arange(len(rows) + 1))
        # No correction reads the zeros, but a memory holds logq for all or none.
        logq = None if pairs.doc.logq is None else torch.zeros(len(rows))
        return Batch(
            query=Side(queries[rows], query_ids[rows], logq),
            doc=Side(docs[rows], doc_ids, logq),
            known=known,
            temperature=pairs.temperature,
        )


def takes_source(config: Config, pairs: int) -> bool:
    """Return True if a run takes the rows that its source has made, by the number of training
    pairs."""
    return wanted(config) and pairs > MANY


def cut(rows: Ragged, draw: np.random.Generator) -> tuple[Ragged, Ragged]:
    """Return a random span of each row, and the rest of it.

    >>> span, rest = cut(Ragged.of([list(range(20))]), np.random.default_rng(0))
    >>> len(span.values), sorted([*span.values.tolist(), *rest.values.tolist()]) == list(range(20))
    (10, True)
    """
    lengths = rows.lengths
    shortest, longest = _SPAN
    drawn = torch.from_numpy(draw.integers(shortest, longest + 1, len(rows)))
    sizes = torch.minimum(drawn, lengths // 2)
    shift = torch.from_numpy(draw.random(len(rows))) * (lengths - sizes + 1)
    start = shift.long() + rows.offsets[:-1]
    inside = torch.zeros(len(rows.values), dtype=torch.bool)
    inside[spread(start, sizes)] = True
    spans = Ragged(rows.values[inside], from_lengths(sizes))
    return spans, Ragged(rows.values[~inside], from_lengths(lengths - sizes))
