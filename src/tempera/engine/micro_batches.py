"""The micro-batches of a batch: the rows to embed together, in order.

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
    """The part of a batch for a tower: the rows of the tower's roles, concatenated."""

    tower: Any
    roles: list[Role]
    counts: list[int]  # rows of each role
    features: FeaturesLike
    padded: bool  # rows are padded to the longest row of their micro-batch
    modules: list[nn.Module]  # of the tower, listed once a batch: walking through them takes time
    parameters: list[nn.Parameter]
    linear: LinearLayers
    divided: bool  # the processes call the tower together
    embeddings: Tensor | None = None  # [n, D]
    grads: Tensor | None = None  # [n, D]
    drops: bool = True  # the tower may draw dropout

    @classmethod
    def of(cls, tower: Any, roles: list[Role], batch: Batch[Any]) -> Work:
        """Return the work of a tower for some roles of a batch."""
        if not isinstance(tower, nn.Module):
            raise ConfigError(
                f"the tower of {roles[0]} is {article(type(tower).__name__)}: give an nn.Module, from features to [n, D]"
            )
        sides: list[Any] = []
        for role in roles:
            rows = batch.sides()[role].rows
            sides.append(PlainFeatures(rows) if isinstance(rows, Tensor) else rows)
        features = sides[0] if len(sides) == 1 else type(sides[0]).cat(sides)
        modules = list(tower.modules())
        parameters: dict[nn.Parameter, None] = {}
        for module in modules:
            parameters.update(dict.fromkeys(module.parameters(recurse=False)))
        return cls(
            tower=tower,
            roles=roles,
            counts=[len(side) for side in sides],
            features=features,
            padded=getattr(tower, "padded", False),
            modules=modules,
            parameters=list(parameters),
            linear=LinearLayers(modules),
            divided=any(map(is_divided, parameters)),
        )

    @property
    def spare(self) -> FeaturesLike:
        """A row to embed only to keep pace with other processes: the shortest row, or without rows
        a token or code 0."""
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
    """Rows of a tower to embed together; without rows, a call to keep pace with other processes."""

    work: Work
    index: Tensor  # [r] positions of the rows among the features
    tokens: int  # padding counted
    bytes: float  # expected size of the graph
    number: int = 0  # among the micro-batches of the batch; its seed has the same number
    kept: bool = False
    seed: int = 0
    graph: Tensor | None = None

    @property
    def whole(self) -> bool:
        """True if the micro-batch holds all rows of the tower, in order."""
        return not self.work.padded and len(self.index) == len(self.work.features)

    def embed(self, device: torch.device) -> Tensor:
        """Return the embeddings, [r, D]; every call draws the same random numbers."""
        work = self.work
        keeps_pace = len(self.index) == 0
        if keeps_pace:
            features = work.spare
        elif self.whole:
            features = work.features
        else:
            features = work.features[self.index]
        in_place = adding_in_place(work.modules, device)
        cast = work.linear.cast_once(device)
        dropout = dropout_on(device, work.modules) if work.drops else nullcontext()
        with seeded(self.seed, device), in_place, cast, dropout:
            embeddings = embeddings_of(work.tower, features.to(device), len(features))
        if keeps_pace:
            return embeddings[:0]
        return embeddings

    def put(self, embeddings: Tensor) -> None:
        """Write the embeddings, [r, D], to their rows among the embeddings of the tower."""
        work = self.work
        if self.whole:
            work.embeddings = embeddings
            return
        if work.embeddings is None:
            work.embeddings = embeddings.new_empty(sum(work.counts), embeddings.shape[1])
        work.embeddings[sent(self.index, embeddings.device)] = embeddings

    def grads(self, device: torch.device) -> Tensor:
        """Return the gradients of the embeddings, [r, D]."""
        grads = self.work.grads
        assert grads is not None
        if self.whole:
            return grads
        return grads[sent(self.index, device)]


@dataclass
class Plan:
    """The micro-batches of a batch, in the order of embedding."""

    works: list[Work]
    micros: list[Micro]  # the replayed ones come before the kept ones

    @property
    def kept_bytes(self) -> float:
        """The expected bytes of the kept graphs."""
        return sum(micro.bytes for micro in self.micros if micro.kept)

    @property
    def peak_bytes(self) -> float:
        """The expected bytes of all simultaneous graphs, at the peak."""
        peak = self.kept_bytes
        for micro in self.micros:
            if not micro.kept:
                peak = max(peak, micro.bytes)
        return peak

    @property
    def replayed(self) -> float:
        """The share of tokens embedded twice."""
        tokens = sum(micro.tokens for micro in self.micros)
        twice = sum(micro.tokens for micro in self.micros if not micro.kept)
        return twice / max(1, tokens)

    def __str__(self) -> str:
        with_rows = [micro for micro in self.micros if len(micro.index)]
        count = len(with_rows)
        kept = sum(micro.kept for micro in with_rows)
        text = (
            f"{count:,} micro-batch{'' if count == 1 else 'es'}, "
            f"{kept:,} kept in {self.kept_bytes / 2**20:,.0f} MiB, "
            f"{count - kept:,} replayed ({self.replayed:.0%} of the tokens)"
        )
        fillers = len(self.micros) - count
        if fillers:
            text += f", {fillers:,} calls to keep pace with other processes"
        return text


def fillers(work: Work, own: list[Micro], group: Group) -> list[Micro]:
    """Return the additional calls of this process, to replay and keep as many micro-batches as the
    rank with the most."""
    if not work.divided:
        return []
    group.keep_pace()
    kept = sum(micro.kept for micro in own)
    replayed = len(own) - kept
    most_replayed = group.all_reduce_max(replayed)
    most_kept = group.all_reduce_max(kept)
    if most_replayed == 0 and most_kept == 0:
        most_replayed = 1  # a call, so that embeddings without rows have a width
    missing = [False] * (most_replayed - replayed) + [True] * (most_kept - kept)
    nothing = torch.empty(0, dtype=torch.int64)
    return [Micro(work, nothing, 0, 0.0, kept=keeps) for keeps in missing]
