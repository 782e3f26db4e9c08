"""From rows of features and ids to the batches of a training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..arithmetic.ragged import Ragged, from_lengths
from ..core.batch import Batch, Role, Side
from ..core.corrections import expected_logq
from ..errors import ConfigError

Vectors = Callable[[Role, Tensor], Tensor]
_STREAM = 1 << 21  # of random numbers, apart from those that order the rows


class Sampler(Protocol):
    """Choose which rows stand in which batch."""

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield the rows of the batches first, first + 1, ... last - 1 of the whole run, without
        drawing those before."""


@dataclass(frozen=True)
class Draws:
    """Documents drawn apart from the pairs, with replacement, by training frequency to a power.

    Args:
        count: documents a batch.
        power: 0 is uniform over the distinct training documents, 1 by frequency.
        seed: with the step it fixes what is drawn.
    """

    count: int = 0
    power: float = 0.0
    seed: int = 0

    def proposal(self, frequency: Tensor) -> Tensor:
        """Chance of each document in one draw, [u]; what is not trained on is never drawn."""
        weight = torch.where(frequency > 0, frequency**self.power, 0.0)
        return weight / weight.sum()

    def ends(self, proposal: Tensor) -> Tensor:
        """Return where each document's stretch of a line as long as all chances ends, [u], in
        float64.

        In float32, as torch.multinomial adds, the stretches of a million documents differ by
        percents from their chances, and many of those of a catalogue by frequency are empty.
        """
        return proposal.cumsum(0, dtype=torch.float64)

    def __call__(self, ends: Tensor, step: int) -> Tensor:
        """Return the documents that step `step` draws, [count]."""
        at = (
            torch.from_numpy(np.random.default_rng((self.seed, step, _STREAM)).random(self.count))
            * ends[-1]
        )
        return torch.searchsorted(ends, at, right=True)


@dataclass(frozen=True)
class Examples:
    """Pairs as features: row i is the distinct query `query[i]` and the distinct document `doc[i]`.

    A batch carries all that parts of an objective may ask for: ids, logq (the log of how often a
    batch is expected to hold each query and document, over the pairs, their negatives and the
    draws), and every known answer of its queries.
    """

    queries: Ragged  # features of every distinct query, [p]
    docs: Ragged  # and document, [u]
    query: Tensor  # [n]
    doc: Tensor  # [n]
    query_ids: Tensor  # [n]
    doc_ids: Tensor  # [n]
    draws: Draws = Draws()
    negatives: Ragged | None = None  # n rows: documents that do not answer
    all_ids: Tensor | None = None  # [u] ids of the distinct documents, which negatives need
    weight: Tensor | None = None  # [n]
    chance: Tensor | None = None  # [n] of each row in one draw of the sampler, 1/n if None
    guide: Vectors | None = None  # a guide's vectors of distinct queries or documents, [n, G]
    teacher: Vectors | None = None  # a teacher's, [n, T]
    temperature: Callable[[Tensor], float | None] | None = (
        None  # of a batch of some rows; None is the objective's
    )

    def __len__(self) -> int:
        return len(self.query)

    @cached_property
    def query_frequency(self) -> Tensor:
        """Share of each distinct query among the pairs, [p]."""
        return self._share(self.query, len(self.queries))

    @cached_property
    def doc_frequency(self) -> Tensor:
        """Share of each distinct document among the pairs, [u]."""
        return self._share(self.doc, len(self.docs))

    @cached_property
    def doc_visits(self) -> Tensor:
        """Return how often a pair brings each document, as its answer or among its negatives,
        [u]."""
        if self.negatives is None:
            return self.doc_frequency
        rows = torch.repeat_interleave(self.negatives.lengths)
        return self.doc_frequency + self._share(self.negatives.values, len(self.docs), rows)

    def _share(self, of: Tensor, count: int, rows: Tensor | None = None) -> Tensor:
        """Chance that a pair that is drawn is, or has, each of `count` texts; `rows` are the pairs
        of `of`."""
        if self.chance is None:
            return torch.bincount(of, minlength=count) / len(self)
        chance = self.chance if rows is None else self.chance[rows]
        return torch.bincount(of, chance.double(), minlength=count).float()

    @cached_property
    def proposal(self) -> Tensor:
        """Chance of each document in one draw, [u]."""
        return self.draws.proposal(self.doc_frequency)

    @cached_property
    def ends(self) -> Tensor:
        """Return those of the draws, [u]."""
        return self.draws.ends(self.proposal)

    @cached_property
    def id_of_doc(self) -> Tensor:
        """The id of each distinct document that is trained on, [u]."""
        return torch.zeros(len(self.docs), dtype=torch.int64).index_put_((self.doc,), self.doc_ids)

    @cached_property
    def known(self) -> Ragged:
        """Ids of every document paired with each distinct query, p rows."""
        order = self.query.argsort(stable=True)
        lengths = torch.bincount(self.query, minlength=len(self.queries))
        return Ragged(self.doc_ids[order], from_lengths(lengths))

    def batch(self, rows: Tensor, step: int = 0) -> Batch[Ragged]:
        """Return the chosen rows, and the documents that step `step` draws."""
        query, doc, drawn = self.query[rows], self.doc[rows], None
        if self.draws.count:
            chosen = self.draws(self.ends, step)
            drawn = self._docs("sampled", chosen, self.id_of_doc[chosen], len(rows))
        logq = expected_logq(len(rows), self.query_frequency[query])
        return Batch(
            query=self._judged(
                "query", query, Side(self.queries[query], self.query_ids[rows], logq)
            ),
            doc=self._docs("doc", doc, self.doc_ids[rows], len(rows)),
            negatives=self._negatives(rows),
            sampled=drawn,
            weight=None if self.weight is None else self.weight[rows],
            known=self.known[query],
            temperature=None if self.temperature is None else self.temperature(rows),
        )

    def _logq(self, docs: Tensor, rows: int) -> Tensor:
        """Return the log of how often a batch of `rows` pairs is expected to hold each document."""
        drawn = self.proposal[docs] if self.draws.count else None
        return expected_logq(rows, self.doc_visits[docs], self.draws.count, drawn)

    def _negatives(self, rows: Tensor) -> Side[Ragged] | None:
        """Return the rows' own negatives, one row's after the other's."""
        if self.negatives is None:
            return None
        own = self.negatives[rows]
        docs, owner = own.values, torch.repeat_interleave(own.lengths)
        ids = None if self.all_ids is None else self.all_ids[docs]
        return replace(self._docs("negatives", docs, ids, len(rows)), owner=owner)

    def _docs(self, role: Role, docs: Tensor, ids: Tensor | None, rows: int) -> Side[Ragged]:
        """Return documents in a role, with everything known about them, in a batch of `rows`
        pairs."""
        return self._judged(role, docs, Side(self.docs[docs], ids, self._logq(docs, rows)))

    def _judged(self, role: Role, rows: Tensor, side: Side[Ragged]) -> Side[Ragged]:
        """Return a side with the vectors of other models."""
        guide, teacher = (
            None if of is None else of(role, rows) for of in (self.guide, self.teacher)
        )
        return replace(side, guide=guide, teacher=teacher)


@dataclass(frozen=True)
class Shuffled:
    """Every row once an epoch, in a fresh random order, in as few batches of at most `batch_size`
    rows as hold them all.

    Batches of one epoch differ by at most one row: a last batch of what is left over would have few
        negatives.

    >>> [rows.tolist() for rows in Shuffled(7, 3, seed=0)(0, 3)]
    [[2, 4], [3, 6], [5, 0, 1]]

    Raises:
        ConfigError: a batch that is larger than the data, or too small to hold a negative.
    """

    rows: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        refuse_size(self.rows, self.batch_size)

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""
        return -(-self.rows // self.batch_size)

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield the rows of the batches first, first + 1, ... last - 1 of the whole run, without
        drawing those before."""
        count = self.batches_per_epoch
        for step in range(first, last):
            epoch, position = divmod(step, count)
            if position == 0 or step == first:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.rows)
            yield torch.from_numpy(
                order[position * self.rows // count : (position + 1) * self.rows // count]
            )


def refuse_size(rows: int, batch_size: int) -> None:
    """Refuse a batch that is larger than the data, or too small to hold a negative."""
    if batch_size > rows:
        remedy = "in-batch negatives need at least 2: give more data"
        if rows > 1:
            remedy = f"give a batch_size of at most {rows}, or more data"
        raise ConfigError(
            f"train.batch_size is {batch_size} and the data has {rows} pair{'s' * (rows != 1)} to train on: {remedy}"
        )
    if batch_size < 2:
        raise ConfigError(
            f"train.batch_size is {batch_size}, but in-batch negatives need at least 2 rows"
        )
