"""From rows of features and ids to the batches of a training run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..arithmetic.ragged import Ragged, from_lengths
from ..core.batch import Batch, Role, Side, X, divide
from ..core.corrections import expected_logq
from ..errors import ConfigError
from ..parallel.distributed import Group

Vectors = Callable[[Role, Tensor], Tensor]
_STREAM = 1 << 21  # part of the seed: draws differ from the random numbers that order the rows


class Sampler(Protocol):
    """Choose the rows of each batch."""

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one pass over the data."""

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield the rows of the batches first, first + 1, ... last - 1 of the whole run, without
        drawing earlier batches."""


class DealtSampler(ABC):
    """Deal the rows of each batch out to processes: a batch has the rows of one process alone."""

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int:
        """Number of batches in one pass over the data, the same for all processes."""

    @abstractmethod
    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield the rows of the process in the batches first, first + 1, ... last - 1 of the whole
        run, without drawing earlier batches."""

    @abstractmethod
    def of_process(self, rank: int, processes: int) -> DealtSampler:
        """Return the sampler of one of several processes."""


def own_part(batch: Batch[X], sampler: Sampler | DealtSampler, group: Group) -> Batch[X]:
    """Return the rows of a batch for this process: all of them, where the sampler has dealt the rows
    out."""
    if isinstance(sampler, DealtSampler):
        return batch
    return divide(batch, group.rank, group.size)


@dataclass(frozen=True)
class Draws:
    """Documents drawn apart from the pairs, with replacement, by training frequency to a power.

    Args:
        count: documents a batch.
        power: 0 is uniform over the distinct training documents, 1 by frequency.
        seed: the seed and the number of the step fix the documents.
    """

    count: int = 0
    power: float = 0.0
    seed: int = 0

    def proposal(self, frequency: Tensor) -> Tensor:
        """Return the chance of each document in one draw, [u]; 0 for a document without training
        pairs."""
        weight = torch.where(frequency > 0, frequency**self.power, 0.0)
        return weight / weight.sum()

    def ends(self, proposal: Tensor) -> Tensor:
        """Return the cumulative chances of the documents, [u], in float64.

        torch.multinomial adds in float32: with a million documents, the chances are wrong by
        percents, and many rare documents are never drawn.
        """
        return proposal.cumsum(0, dtype=torch.float64)

    def __call__(self, ends: Tensor, step: int) -> Tensor:
        """Return the documents drawn in step `step`, [count]."""
        random = np.random.default_rng((self.seed, step, _STREAM))
        positions = torch.from_numpy(random.random(self.count)) * ends[-1]
        return torch.searchsorted(ends, positions, right=True)


@dataclass(frozen=True)
class Examples:
    """Pairs as features: row i is the distinct query `query[i]` and the distinct document `doc[i]`.

    A batch carries everything for the parts of an objective: ids, logq, and every known answer of
    the queries. The logq of a text is the log of the expected number of times that a batch holds
    the text, as part of a pair, as a negative or as a draw.
    """

    queries: Ragged  # features of every distinct query, [p]
    docs: Ragged  # features of every distinct document, [u]
    query: Tensor  # [n]
    doc: Tensor  # [n]
    query_ids: Tensor  # [n]
    doc_ids: Tensor  # [n]
    draws: Draws = Draws()
    negatives: Ragged | None = None  # n rows: documents that do not answer
    all_ids: Tensor | None = None  # [u] ids of the distinct documents, for masks of negatives
    weight: Tensor | None = None  # [n]
    chance: Tensor | None = None  # [n] of each row in one draw of the sampler, 1/n if None
    guide: Vectors | None = None  # a guide's vectors of k texts of a role, [k, G]
    teacher: Vectors | None = None  # a teacher's vectors of k texts of a role, [k, T]
    # The temperature of a batch of some rows; None is the temperature of the objective.
    temperature: Callable[[Tensor], float | None] | None = None
    processes: int = 1  # each brings as many pairs and draws to a batch; 1 has the whole batch

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
        """Expected number of times that a pair brings each document, as answer or negative, [u]."""
        if self.negatives is None:
            return self.doc_frequency
        rows = torch.repeat_interleave(self.negatives.lengths)
        return self.doc_frequency + self._share(self.negatives.values, len(self.docs), rows)

    def _share(self, texts: Tensor, count: int, rows: Tensor | None = None) -> Tensor:
        """Return the expected number of times that a drawn pair brings each text, [count].

        Args:
            texts: numbers of texts, [m].
            rows: the pair of each entry of `texts`, [m]; None where entry i belongs to pair i.
        """
        if self.chance is None:
            return torch.bincount(texts, minlength=count) / len(self)
        chance = self.chance if rows is None else self.chance[rows]
        return torch.bincount(texts, chance.double(), minlength=count).float()

    @cached_property
    def proposal(self) -> Tensor:
        """Chance of each document in one draw, [u]."""
        return self.draws.proposal(self.doc_frequency)

    @cached_property
    def ends(self) -> Tensor:
        """Cumulative chances of the documents in one draw, [u]."""
        return self.draws.ends(self.proposal)

    @cached_property
    def id_of_doc(self) -> Tensor:
        """The id of each distinct document of the pairs, [u]; 0 for other documents."""
        ids = torch.zeros(len(self.docs), dtype=torch.int64)
        return ids.index_put_((self.doc,), self.doc_ids)

    @cached_property
    def known(self) -> Ragged:
        """Ids of every document paired with each distinct query, p rows."""
        order = self.query.argsort(stable=True)
        lengths = torch.bincount(self.query, minlength=len(self.queries))
        return Ragged(self.doc_ids[order], from_lengths(lengths))

    def batch(self, rows: Tensor, step: int = 0) -> Batch[Ragged]:
        """Return the batch of the chosen rows, with the documents drawn in step `step`."""
        query = self.query[rows]
        doc = self.doc[rows]
        pairs = len(rows) * self.processes
        sampled = None
        if self.draws.count:
            drawn = self.draws(self.ends, step)
            sampled = self._documents("sampled", drawn, self.id_of_doc[drawn], pairs)
        logq = expected_logq(pairs, self.query_frequency[query])
        query_side = Side(self.queries[query], self.query_ids[rows], logq)
        return Batch(
            query=self._with_vectors(query_side, "query", query),
            doc=self._documents("doc", doc, self.doc_ids[rows], pairs),
            negatives=self._negatives(rows),
            sampled=sampled,
            weight=None if self.weight is None else self.weight[rows],
            known=self.known[query],
            temperature=None if self.temperature is None else self.temperature(rows),
        )

    def _negatives(self, rows: Tensor) -> Side[Ragged] | None:
        """Return the negatives of the rows, in the order of the rows."""
        if self.negatives is None:
            return None
        negatives = self.negatives[rows]
        docs = negatives.values
        ids = None if self.all_ids is None else self.all_ids[docs]
        side = self._documents("negatives", docs, ids, len(rows) * self.processes)
        return replace(side, owner=torch.repeat_interleave(negatives.lengths))

    def _documents(self, role: Role, docs: Tensor, ids: Tensor | None, pairs: int) -> Side[Ragged]:
        """Return documents in a role, with ids, logq and vectors of other models, for a batch of so
        many pairs."""
        drawn = self.proposal[docs] if self.draws.count else None
        count = self.draws.count * self.processes
        logq = expected_logq(pairs, self.doc_visits[docs], count, drawn)
        return self._with_vectors(Side(self.docs[docs], ids, logq), role, docs)

    def _with_vectors(self, side: Side[Ragged], role: Role, texts: Tensor) -> Side[Ragged]:
        """Return a side with the vectors of the guide and the teacher."""
        guide = None if self.guide is None else self.guide(role, texts)
        teacher = None if self.teacher is None else self.teacher(role, texts)
        return replace(side, guide=guide, teacher=teacher)


@dataclass(frozen=True)
class Shuffled:
    """Every row once an epoch, in a new random order, in as few batches as `batch_size` allows.

    The rows are divided evenly, and batches of one epoch differ by at most one row: batches of full
    size would leave a small last batch with few negatives. With a batch size of 2 and an odd number
    of rows, one batch of each epoch is a single row, without in-batch negatives.

    >>> [rows.tolist() for rows in Shuffled(7, 3, seed=0)(0, 3)]
    [[2, 4], [3, 6], [5, 0, 1]]

    Raises:
        ConfigError: `batch_size` is larger than the data, or below 2.
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
        drawing earlier batches."""
        count = self.batches_per_epoch
        for step in range(first, last):
            epoch, position = divmod(step, count)
            if position == 0 or step == first:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.rows)
            begin = position * self.rows // count
            end = (position + 1) * self.rows // count
            yield torch.from_numpy(order[begin:end])


def refuse_size(rows: int, batch_size: int) -> None:
    """Refuse a batch larger than the data, or too small to hold a negative."""
    if batch_size > rows:
        if rows > 1:
            remedy = f"give a batch_size of at most {rows}, or more data"
        else:
            remedy = "in-batch negatives need at least 2: give more data"
        pairs = "1 pair" if rows == 1 else f"{rows} pairs"
        raise ConfigError(
            f"train.batch_size is {batch_size} and the data has {pairs} to train on: {remedy}"
        )
    if batch_size < 2:
        raise ConfigError(
            f"train.batch_size is {batch_size}, but in-batch negatives need at least 2 rows"
        )
