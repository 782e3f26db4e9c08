"""Histories of users as vectors: several ways to look back, side by side.

Letters in shapes: n rows, s sequences, L events of the longest, P pools, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ...arithmetic.abilities import sent
from ...arithmetic.ragged import distinct
from ...core.frame import Events
from ...errors import ConfigError
from ..read.events import BEHAVIOUR
from .encoders import Category, Entities, Feature
from .pooled import Means, Others, module_of
from .pooling import WINDOWS, BagOfOthers, Count, Mean, Pooling
from .sequences import Sequences


@dataclass(frozen=True)
class History:
    """The items that a user has taken before: pools of the vectors of these items, side by side.

    Args:
        pools: ways to look back.
        items: "shared" takes the items' vectors of the document tower; "own" a table that only
            histories use.
        targets: consecutive events of a user that share the reading of their history; more are
            faster and more alike.
        dropout: share of the numbers of the items' vectors that the pools lose in training.
        context: features of what past events happened in (data.context), added to their items'
            vectors; that of the behaviour is always there, if there is one.

    Raises:
        ConfigError: no pools, or a context beside a bag, which reads items alone.
    """

    pools: Sequence[Pooling] = WINDOWS
    items: Literal["shared", "own"] = "shared"
    targets: Count = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    context: Sequence[Feature] = ()

    def __post_init__(self) -> None:
        if self.context and any(isinstance(pool, BagOfOthers) for pool in self.pools):
            raise ConfigError("context is for pools of an order: the bag reads items alone")
        if not self.pools:
            raise ConfigError(
                "pools is empty: give at least one, such as mean, or leave history out"
            )

    @property
    def last(self) -> int:
        """Events that the pools look back on."""
        return max(pool.last for pool in self.pools)

    def features(self, contexts: Entities | None) -> list[Feature]:
        """Return the features of past events beside their items, where these contexts are known.

        Raises:
            ConfigError: features without a context.
        """
        if self.context and contexts is None:
            raise ConfigError(
                "tower.history.context reads columns of events: name them in data.context"
            )
        named = [getattr(feature, "column", "") for feature in self.context]
        behaves = (
            contexts is not None
            and BEHAVIOUR in contexts.table.column_names
            and BEHAVIOUR not in named
        )
        return [*([Category(BEHAVIOUR)] if behaves else []), *self.context]


class Past(nn.Module):
    """Map events of rows to [n, P D]: the pools of a history, side by side, means before others; 0
    for an empty history.

    Args:
        items: codes [e] to vectors [e, D].
        happened: the same of what events happened in, which is added to them.
    """

    def __init__(
        self,
        history: History,
        items: Callable[[Tensor], Tensor],
        width: int,
        happened: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.items, self.happened, self.width = items, happened, width * len(history.pools)
        self.drop = nn.Dropout(history.dropout)
        means = [pool for pool in history.pools if isinstance(pool, Mean)]
        self.pools = nn.ModuleList([Means(means)] if means else [])
        self.pools.extend(
            module_of(pool, width) for pool in history.pools if not isinstance(pool, Mean)
        )

    def forward(
        self, events: Events, own: Tensor | None = None, contexts: Events | None = None
    ) -> Tensor:
        if not len(events):
            return self.items(events.items[:0]).new_zeros(0, self.width)
        if isinstance(self.pools[0], Others):
            codes, which = _distinct(events)
            vectors = self.items(codes)
            return _beside([pool(self.drop(vectors), which, events, own) for pool in self.pools])
        sequences = Sequences(events)
        x = _looked_up(self.items, events, sequences.places)
        if self.happened is not None and contexts is not None:
            x = x + _looked_up(self.happened, contexts, sequences.places)
        x = self.drop(x)  # [s, L, D]
        pooled = _beside([pool(x, sequences) for pool in self.pools])
        return pooled.masked_fill((sequences.seen == 0)[:, None], 0)


def _beside(pooled: Sequence[Tensor]) -> Tensor:
    """Return the vectors of several pools as one, [n, P D]."""
    return torch.cat(list(pooled), 1) if len(pooled) > 1 else pooled[0]


def _looked_up(vectors_of: Callable[[Tensor], Tensor], events: Events, places: Tensor) -> Tensor:
    """Return vectors of the events at some places, [s, L, D], each distinct code embedded once; 0
    at the place -1."""
    codes, which = _distinct(events)
    vectors = vectors_of(codes)
    vectors = torch.cat(
        [vectors, vectors.new_zeros(1, vectors.shape[1])]
    )  # the last stands for no event
    which = torch.cat([which, which.new_full((1,), len(codes))])
    return vectors.index_select(0, which[places].flatten()).view(*places.shape, vectors.shape[1])


def _distinct(events: Events) -> tuple[Tensor, Tensor]:
    """Return the distinct codes of events, and the place of each event's among them; found on the
    host."""
    codes, which = distinct(events.on_host.items)
    return sent(codes, events.items.device), sent(which, events.items.device)
