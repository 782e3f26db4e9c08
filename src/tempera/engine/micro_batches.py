"""The micro-batches of a batch: the rows that a tower embeds together, in the order in which it
does.

Letters in shapes: n rows of a tower, r rows of a micro-batch, D width.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..arithmetic.abilities import seeded, sent
from ..arithmetic.ragged import Ragged
from ..core.batch import Batch, Role
from ..core.frame import Frame
from ..errors import ConfigError, TemperaError, article
from ..layers.dropout import dropout_on
from ..layers.linear_layers import LinearLayers
from ..layers.lookup import adding_in_place
from ..parallel.distributed import Group
from ..parallel.shards import is_divided
from .plan import FeaturesLike, PlainFeatures, embeddings_of


@dataclass
class Work:
    """The part of a batch that one tower has to embed: the rows of its roles, one after the
    other."""

    tower: Any
    roles: list[Role]
    counts: list[int]  # rows of each role
    features: FeaturesLike
    padded: bool  # whether rows are padded to the longest of those that are embedded together
    modules: list[
        nn.Module
    ]  # of the tower, listed once a batch: walking through them takes its time
    parameters: list[nn.Parameter]
    linear: LinearLayers
    divided: bool  # whether the processes call the tower together
    embeddings: Tensor | None = None  # [n, D]
    grads: Tensor | None = None  # [n, D]
    drops: bool = True  # whether the tower may draw dropout

    @classmethod
    def of(cls, tower: Any, roles: list[Role], batch: Batch[Any]) -> Work:
        """Return what a tower embeds of a batch."""
        if not isinstance(tower, nn.Module):
            raise ConfigError(
                f"the tower of {roles[0]} is {article(type(tower).__name__)}: give an nn.Module, from features to [n, D]"
            )
        sides: list[Any] = [batch.sides()[role].rows for role in roles]
        sides = [PlainFeatures(side) if isinstance(side, Tensor) else side for side in sides]
        features = sides[0] if len(sides) == 1 else type(sides[0]).cat(sides)
        modules, padded, counts = (
            list(tower.modules()),
            getattr(tower, "padded", False),
            [*map(len, sides)],
        )
        parameters = list(
            dict.fromkeys(p for each in modules for p in each.parameters(recurse=False))
        )
        divided = any(map(is_divided, parameters))
        return cls(
            tower,
            roles,
            counts,
            features,
            padded,
            modules,
            parameters,
            LinearLayers(modules),
            divided,
        )

    @property
    def spare(self) -> FeaturesLike:
        """Return a row to embed only to keep pace: the shortest, or if there is none, one token or
        code 0."""
        if len(self.features):
            return self.features[self.features.lengths.argmin()[None]]
        if isinstance(self.features, Frame):
            return self.features.spare
        if not isinstance(self.features, Ragged):
            raise TemperaError(
                "this rank has no rows for a divided tower: increase train.batch_size, so that every rank has some"
            )
        return Ragged.of([[0]])


@dataclass
class Micro:
    """Rows of one tower that are embedded together; without rows, a call that is made because other
    processes make one."""

    work: Work
    index: Tensor  # [r] of the rows among the features
    tokens: int  # padding counted
    bytes: float  # that its graph is expected to keep
    # among the micro-batches of the batch, by which it finds its seed whether it is kept or not
    number: int = 0
    kept: bool = False
    seed: int = 0
    graph: Tensor | None = None

    @property
    def whole(self) -> bool:
        """True if these are all rows of the tower, in their order."""
        return not self.work.padded and len(self.index) == len(self.work.features)

    def embed(self, device: torch.device) -> Tensor:
        """Return the embeddings, [r, D]; every call draws the same random numbers."""
        features = self.work.features
        if not len(self.index):
            features = self.work.spare
        elif not self.whole:
            features = features[self.index]
        modules = self.work.modules
        in_place = adding_in_place(modules, device)
        cast = self.work.linear.cast_once(device)
        dropout = dropout_on(device, modules) if self.work.drops else nullcontext()
        with seeded(self.seed, device), in_place, cast, dropout:
            embeddings = embeddings_of(self.work.tower, features.to(device), len(features))
        return embeddings if len(self.index) else embeddings[:0]

    def put(self, embeddings: Tensor) -> None:
        """Write the embeddings, [r, D], to their rows of the tower's."""
        work = self.work
        if self.whole:
            work.embeddings = embeddings
            return
        if work.embeddings is None:
            work.embeddings = embeddings.new_empty(sum(work.counts), embeddings.shape[1])
        work.embeddings[sent(self.index, embeddings.device)] = embeddings

    def grads(self, device: torch.device) -> Tensor:
        """Return the gradients of the embeddings, [r, D]."""
        assert self.work.grads is not None
        return self.work.grads if self.whole else self.work.grads[sent(self.index, device)]


@dataclass
class Plan:
    """The micro-batches in which a batch is embedded, in this order."""

    works: list[Work]
    micros: list[Micro]  # those to be replayed first

    @property
    def kept_bytes(self) -> float:
        """Return the expected bytes of the kept graphs."""
        return sum(micro.bytes for micro in self.micros if micro.kept)

    @property
    def peak_bytes(self) -> float:
        """Return the expected bytes of all graphs that live at once, at the peak."""
        return max([self.kept_bytes, *(micro.bytes for micro in self.micros if not micro.kept)])

    @property
    def replayed(self) -> float:
        """Return the share of the tokens that is embedded twice."""
        tokens = sum(micro.tokens for micro in self.micros)
        return sum(micro.tokens for micro in self.micros if not micro.kept) / max(1, tokens)

    def __str__(self) -> str:
        kept = [micro.kept for micro in self.micros if len(micro.index)]
        several = "" if len(kept) == 1 else "es"
        fillers = len(self.micros) - len(kept)
        return (
            f"{len(kept):,} micro-batch{several}, {sum(kept):,} kept in {self.kept_bytes / 2**20:,.0f} MiB, "
            f"{len(kept) - sum(kept):,} replayed ({self.replayed:.0%} of the tokens)"
            + (f", {fillers:,} calls to keep pace with other processes" if fillers else "")
        )


def fillers(work: Work, own: list[Micro], group: Group) -> list[Micro]:
    """Return the calls that this process adds, to replay and to keep as many micro-batches as the
    rank with the most."""
    if not work.divided:
        return []
    group.keep_pace()
    count = {keeps: sum(micro.kept == keeps for micro in own) for keeps in (False, True)}
    most = {keeps: group.all_reduce_max(number) for keeps, number in count.items()}
    most[False] += not any(most.values())  # rows that nobody has are as wide as others
    nothing = torch.empty(0, dtype=torch.int64)
    return [
        Micro(work, nothing, 0, 0.0, kept=keeps)
        for keeps in most
        for _ in range(most[keeps] - count[keeps])
    ]
