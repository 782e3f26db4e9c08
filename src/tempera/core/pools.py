"""Candidate pools: the candidates in the denominator of a row's softmax.

A pool is a choice of (anchor, candidate) roles, and nothing else:

    docs            query > doc             every row's document: the in-batch negatives, and the positive itself
    negatives       query > negatives       hard negatives, of the own row and of all others
    sampled         query > sampled         documents drawn apart from the pairs (mixed negatives, Yang et al. 2020)
    memory          query > memory          documents of past batches (He et al. 2020)
    queries         query > query           the other rows' queries (GTE, Li et al. 2023, eq. 2)
    back_queries    doc > query             the backward direction (CLIP, Radford et al. 2021)
    back_docs       doc > doc, negatives    the other rows' documents, against the document (GTE)
    back_positives  doc > doc               the same without negatives (GISTEmbed, Solatorio 2024)

>>> from tempera import Objective, pools
>>> Objective(pools=[pools.docs, pools.back_queries]).partition
'joint'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import ConfigError, refuse_unknown
from .batch import ROLES, Batch, Role, Side
from .matches import Index, Matches, match

Exclusion = Callable[[slice], Index]


@dataclass(frozen=True)
class Pool:
    """Pairs of roles: each pair is a block of anchors against candidates."""

    name: str
    blocks: tuple[tuple[Role, Role], ...]

    def __post_init__(self) -> None:
        for block in self.blocks:
            if not (isinstance(block, tuple) and len(block) == 2):
                raise ConfigError(
                    f"pool {self.name!r}: a block is (anchor, candidate), ('query', 'doc'), not {block!r}"
                )
            refuse_unknown(f"pool {self.name!r}: the anchor", block[0], "query", "doc")
            refuse_unknown(f"pool {self.name!r}: the candidate", block[1], *ROLES)


docs = Pool("docs", (("query", "doc"),))
negatives = Pool("negatives", (("query", "negatives"),))
sampled = Pool("sampled", (("query", "sampled"),))
memory = Pool("memory", (("query", "memory"),))
queries = Pool("queries", (("query", "query"),))
back_queries = Pool("back_queries", (("doc", "query"),))
back_docs = Pool("back_docs", (("doc", "doc"), ("doc", "negatives")))
back_positives = Pool("back_positives", (("doc", "doc"),))

POOLS = (docs, negatives, sampled, memory, queries, back_queries, back_docs, back_positives)


def direction(anchor: Role, candidate: Role) -> str:
    """Return the kinds compared: query>doc, query>query, doc>query or doc>doc."""
    return f"{anchor}>{'query' if candidate == 'query' else 'doc'}"


def refuse_twice(pools: Sequence[Pool]) -> None:
    """Refuse pools with a common block: a softmax would count the candidates twice.

    `back_docs` and `back_positives`, in presets the parts of two losses, may stand side by side:
    other rows' documents then count twice, in `tempera verify` as in training.

    Raises:
        ConfigError: any further common block.
    """
    names: dict[tuple[Role, Role], list[str]] = {}
    for pool in pools:
        for block in pool.blocks:
            names.setdefault(block, []).append(pool.name)
    for block, holders in names.items():
        holders.sort()
        if len(holders) > 1 and holders != [back_docs.name, back_positives.name]:
            raise ConfigError(
                f"the pools {' and '.join(holders)} hold the same block, {'>'.join(block)}, and a softmax counts each candidate "
                "once: drop one of them"
            )


def holds_positive(anchor: Role, candidate: Role) -> bool:
    """Return True if a row's positive stands among the candidates."""
    return (anchor, candidate) in (("query", "doc"), ("doc", "query"))


@dataclass(frozen=True)
class Block:
    """The candidates of a role for the rows of this device, and the relations of candidates and
    rows.

    Letters in shapes: b anchors, c candidates.
    """

    batch: Batch[Tensor]
    anchor: Role
    candidate: Role

    @property
    def direction(self) -> str:
        """Kinds compared."""
        return direction(self.anchor, self.candidate)

    @cached_property
    def candidates(self) -> Side[Tensor]:
        """All candidates, [c]."""
        return self.batch.sides()[self.candidate]

    @property
    def device(self) -> torch.device:
        """The device of the embeddings; positions of rows and candidates are on the host."""
        return self.candidates.rows.device

    @cached_property
    def rows(self) -> Tensor:
        """The row of each anchor, [b]."""
        span = self.batch.local
        return torch.arange(span.start, span.stop)

    @property
    def paired(self) -> bool:
        """Return True if every candidate is the query or the document of rows."""
        return self.candidate in ("query", "doc")

    @cached_property
    def own(self) -> Tensor:
        """The column of each row's own query or document among paired candidates, [b]."""
        if self.candidate == "query":
            return self.rows
        return self.batch.answers[self.batch.local]

    @property
    def positive(self) -> Tensor | None:
        """The column of each row's positive, [b]; None in a block without positives."""
        return self.own if holds_positive(self.anchor, self.candidate) else None

    @cached_property
    def anchor_rows(self) -> Tensor | None:
        """Return the position of each row's anchor among the vectors of its role, [b]; None if the
        rows themselves are anchors."""
        if self.anchor == "doc" and self.batch.answer is not None:
            return self.batch.answers[self.batch.local]
        return None

    @cached_property
    def owner(self) -> Tensor:
        """The row each candidate came with, [c]; -1 for none, or for a document that rows share."""
        if self.paired and (self.candidate == "query" or self.batch.answer is None):
            return torch.arange(len(self.candidates))
        owner = self.candidates.owner
        return torch.full((len(self.candidates),), -1) if owner is None else owner

    @cached_property
    def lists(self) -> Tensor:
        """Return the columns of each row's own document, or of its own negatives, [b, k]; -1 fills
        up shorter lists."""
        if self.paired:
            return self.own[:, None]
        local = self.batch.local
        owner = self.owner.cpu()
        mine = ((owner >= local.start) & (owner < local.stop)).nonzero()[:, 0]
        order = mine[owner[mine].argsort(stable=True)]
        row = owner[order] - local.start
        counts = torch.bincount(row, minlength=len(self.rows))
        lists = torch.full((len(self.rows), max([1, *counts.tolist()])), -1)
        first = counts.cumsum(0) - counts  # of each row in `order`
        lists[row, torch.arange(len(row)) - first[row]] = order
        return lists

    @property
    def itself(self) -> tuple[Matches, ...]:
        """Return the anchors among candidates of their own kind."""
        if self.anchor != self.candidate:
            return ()
        return (match(self.own, torch.arange(len(self.candidates))),)

    @property
    def own_kind(self) -> tuple[Matches, ...]:
        """Return the pairs that are no candidates: among its own kind, the anchor itself; for a
        document, its row's negatives."""
        if self.anchor == self.candidate:
            return self.itself
        if self.anchor == "doc" and self.candidate == "negatives":
            return (match(self.rows, self.owner),)
        return ()


def within(exclusion: Exclusion, lists: Tensor, candidates: int) -> Exclusion:
    """Return an exclusion from all candidates as an exclusion from lists of candidates: an addend
    or booleans, [tile, k].

    Args:
        lists: columns of each row's candidates, [b, k], on the device of the exclusion.
        candidates: number of all columns.
    """

    def left_out(tile: slice) -> Tensor:
        index = exclusion(tile)
        own = lists[tile]
        if isinstance(index, Tensor):
            return index.gather(1, own)
        rows = torch.arange(len(own), device=own.device)[:, None] * candidates
        excluded = torch.isin(rows + own, index[0] * candidates + index[1])
        return torch.zeros(own.shape, device=own.device).masked_fill_(excluded, -torch.inf)

    return left_out
