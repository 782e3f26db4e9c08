"""Rows made of documents, beside the pairs of the first steps: a span of a text, or a function's
name, asks for the rest.

Letters in shapes: b pairs of a batch, r made rows, u documents, m rows that a source has made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...arithmetic.ragged import Ragged, Shared, from_lengths, spread
from ...core.batch import Batch, Side
from ...core.corrections import LogQ
from ...io.ids import mixed
from ...task.config import Config
from ..read.pairs import Rows
from .catalogue import Catalogue
from .mixture import Mixture
from .samplers import Order

LONG = 64  # tokens of the median document that "auto" cuts up: rows of shorter ones do harm
ENOUGH = 1_000  # training pairs beside which it does so: fewer show nothing
# pairs above which rows of a source are taken: they brought nothing to 8,300, and 0.011 to 119,000
# on validation
MANY = 20_000
_SPAN = (8, 40)  # tokens of a span, which is never more than half of its document
# rows of a batch with spans; rows of a source, which are no longer than pairs, double the largest
# batch
_MOST = 2048
_STREAM = 1 << 20  # of random numbers, apart from those of samplers with the same seed


def obstacle(config: Config) -> str | None:
    """Return what keeps a run from making rows; None if nothing does."""
    log_q = any(isinstance(each, LogQ) for each in config.base.corrections)
    single = isinstance(config.data, Mixture) and config.data.batches == "single"
    causes = {
        "only a static tower reads a part of a text's tokens alone": not config.suited_rows,
        "train.guide has no vectors of them": config.train.guide is not None,
        "train.teacher has not compared them": config.train.teacher is not None,
        "log_q counts how often pairs bring a document": log_q,
        "data.batches=single takes each batch from one source": single,
    }
    return next((cause for cause, holds in causes.items() if holds), None)


def wanted(config: Config) -> bool:
    """Return whether a run may have made rows."""
    return config.train.made_rows != 0 and obstacle(config) is None


class Kind(Protocol):
    """A way to make rows."""

    until: float  # share of the training that has them
    most: int  # rows of a batch with them
    about: str  # what asks for what

    def suits(self) -> bool:
        """Return whether "auto" makes such rows."""

    def choices(self) -> Rows:
        """Return what rows can be made of, by number."""

    def made(self, chosen: Rows, number: int) -> tuple[Ragged, Ragged, Tensor, Tensor]:
        """Return tokens of the queries and of the documents, [r], and their ids, [r], for batch
        `number`."""


@dataclass(frozen=True)
class Spans:
    """A random span of a document's tokens asks for the others.

    This is the inverse cloze task (Lee et al. 2019) on spans instead of sentences (Izacard et al.
    2022). Spans have 8 to 40 tokens, at most half of a document. A row has a query id of its own
    and the id of its document.

    Args:
        tokens: of every document, [u].
        train: pairs that are trained on; rows are made of those of their documents that have 16
            tokens or more.
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
        """Ids of every document, [u]; equal texts have one."""
        return torch.from_numpy(self.catalogue.doc_ids[self.catalogue.alike["doc"]])

    @cached_property
    def docs(self) -> Rows:
        """Positions of the documents that are trained on."""
        return np.unique(self.catalogue.doc_of[self.train])

    @property
    def length(self) -> float:
        """Tokens of the median document that is trained on."""
        return float(np.median(self.tokens.lengths.numpy()[self.docs]))

    def suits(self) -> bool:
        """Return True if there are enough pairs, and documents are long."""
        return len(self.train) >= ENOUGH and self.length >= LONG

    def choices(self) -> Rows:
        """Return positions of documents."""
        return self.docs[self.tokens.lengths.numpy()[self.docs] >= 2 * _SPAN[0]]

    def made(self, chosen: Rows, number: int) -> tuple[Ragged, Ragged, Tensor, Tensor]:
        """Return a row of each document."""
        docs = torch.from_numpy(chosen)
        spans, rests = cut(self.tokens[docs], np.random.default_rng((self.seed, number, _STREAM)))
        ids = self.ids[docs]
        return spans, rests, torch.from_numpy(mixed(ids.numpy(), number + 1)), ids


@dataclass(frozen=True)
class SourceRows:
    """Rows that the source has made of documents which no query asks for.

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
    until = 0.4
    most = 2 * _MOST
    about = "the name or the comments of a function without a docstring ask for its code"

    def suits(self) -> bool:
        """Return True: those that a run does not take are not read."""
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
    """Put made rows behind the pairs of the first batches; what they are made of comes in a fresh
    random order each time.

    Args:
        beside: rows beside each pair; 0 for none. Fewer stand there where a batch would become too
            large, or there are fewer.
        size: pairs of a batch.
    """

    kind: Kind
    beside: int
    size: int
    seed: int

    @classmethod
    def of(cls, config: Config, kind: Kind) -> MadeRows:
        """Return the rows of a run: as many as its configuration says, or as suit its tower and
        data."""
        train = config.train
        if train.made_rows != "auto":
            return cls(kind, train.made_rows, train.size, train.seed)
        made = cls(kind, config.suited_rows, train.size, train.seed)
        return made if wanted(config) and kind.suits() and made.count else replace(made, beside=0)

    @cached_property
    def choices(self) -> Rows:
        """Numbers of what rows can be made of."""
        return self.kind.choices() if self.beside else np.empty(0, np.int64)

    @cached_property
    def count(self) -> int:
        """The most made rows of a batch."""
        return max(0, min(self.beside * self.size, self.kind.most - self.size, len(self.choices)))

    @cached_property
    def order(self) -> Order:
        """The endless sequence of what rows are made of."""
        return Order(self.choices, (self.seed, _STREAM))

    def note(self) -> str:
        """Return a line on them; "" if there are none."""
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

    def batch(self, pairs: Batch[Ragged], number: int, progress: float) -> Batch[Ragged]:
        """Return batch `number`, [b], followed by made rows, [b + r], none of its own documents, if
        training has just begun.

        Args:
            progress: of the training, from 0 to 1.
        """
        if not self.count or progress >= self.kind.until:
            return pairs
        chosen = np.unique(self.order.take(number * self.count, self.count))
        queries, docs, query_ids, doc_ids = self.kind.made(chosen, number)
        assert pairs.doc.ids is not None and not isinstance(pairs.known, Shared)
        rows = torch.from_numpy(np.sort(np.unique(doc_ids.numpy(), return_index=True)[1]))
        rows = rows[~torch.isin(doc_ids[rows], pairs.doc.ids)]
        ids = doc_ids[rows]
        known = (
            None
            if pairs.known is None
            else Ragged.cat([pairs.known, Ragged(ids, torch.arange(len(ids) + 1))])
        )
        # Each counts as the mean pair, in whatever unit these are weighed.
        weight = (
            None
            if pairs.weight is None
            else torch.cat([pairs.weight, pairs.weight.mean().expand(len(ids))])
        )
        query, doc = (
            _side(pairs.query, queries[rows], query_ids[rows]),
            _side(pairs.doc, docs[rows], ids),
        )
        return replace(pairs, query=query, doc=doc, known=known, weight=weight)


def takes_source(config: Config, pairs: int) -> bool:
    """Return whether a run takes the rows that its source has made, beside so many training
    pairs."""
    return wanted(config) and pairs > MANY


def cut(rows: Ragged, draw: np.random.Generator) -> tuple[Ragged, Ragged]:
    """Return a random span of each row, and the rest of it.

    >>> span, rest = cut(Ragged.of([list(range(20))]), np.random.default_rng(0))
    >>> len(span.values), sorted([*span.values.tolist(), *rest.values.tolist()]) == list(range(20))
    (10, True)
    """
    lengths = rows.lengths
    sizes = torch.minimum(
        torch.from_numpy(draw.integers(_SPAN[0], _SPAN[1] + 1, len(rows))), lengths // 2
    )
    start = (
        torch.from_numpy(draw.random(len(rows))) * (lengths - sizes + 1)
    ).long() + rows.offsets[:-1]
    inside = torch.zeros(len(rows.values), dtype=torch.bool)
    inside[spread(start, sizes)] = True
    spans = Ragged(rows.values[inside], from_lengths(sizes))
    return spans, Ragged(rows.values[~inside], from_lengths(lengths - sizes))


def _side(side: Side[Ragged], rows: Ragged, ids: Tensor) -> Side[Ragged]:
    """Return a side with rows behind its own; their logq is read by no part, but a memory holds it
    for all or for none."""
    assert side.ids is not None
    logq = None if side.logq is None else torch.cat([side.logq, side.logq.new_zeros(len(ids))])
    return Side(Ragged.cat([side.rows, rows]), torch.cat([side.ids, ids]), logq)
