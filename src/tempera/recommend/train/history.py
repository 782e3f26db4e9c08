"""Histories of users as vectors: several ways to look back, side by side.

Letters in shapes: n rows, e events, P pools, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
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
    """The items taken by a user before: pools of the items' vectors, side by side.

    Args:
        pools: ways to look back.
        items: "shared" takes the items' vectors of the document tower; "own" a separate table for
            histories.
        targets: consecutive events of a user that share the reading of the history; more are faster
            and more alike.
        dropout: share of the numbers of the items' vectors dropped before the pools in training.
        context: features of the contexts of past events (data.context), added to the vectors of
            the events' items; the feature of the behaviour is always added, if there is a
            behaviour.

    Raises:
        ConfigError: no pools, or a context beside a bag, a pool of items alone.
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
        """Return the features of the contexts of past events.

        Raises:
            ConfigError: features without a context.
        """
        if self.context and contexts is None:
            raise ConfigError(
                "tower.history.context reads columns of events: name them in data.context"
            )
        features = list(self.context)
        columns = [getattr(feature, "column", "") for feature in features]
        behaves = contexts is not None and BEHAVIOUR in contexts.table.column_names
        if behaves and BEHAVIOUR not in columns:
            features.insert(0, Category(BEHAVIOUR))
        return features


class Past(nn.Module):
    """Map events of rows to [n, P D]: the pools of a history, side by side, means first; 0 for an
    empty history.

    Args:
        items: map codes of items, [e], to vectors, [e, D].
        happened: map codes of contexts, [e], to vectors to be added, [e, D].
    """

    def __init__(
        self,
        history: History,
        items: Callable[[Tensor], Tensor],
        width: int,
        happened: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.items = items
        self.happened = happened
        self.width = width * len(history.pools)
        self.drop = nn.Dropout(history.dropout)
        self.pools = nn.ModuleList()
        means = [pool for pool in history.pools if isinstance(pool, Mean)]
        if means:
            self.pools.append(Means(means))
        for pool in history.pools:
            if not isinstance(pool, Mean):
                self.pools.append(module_of(pool, width))

    def forward(
        self, events: Events, own: Tensor | None = None, contexts: Events | None = None
    ) -> Tensor:
        if not len(events):
            return self.items(events.items[:0]).new_zeros(0, self.width)
        if isinstance(self.pools[0], Others):
            codes, which = _distinct(events)
            vectors = self.items(codes)
            return _side_by_side(
                [pool(self.drop(vectors), which, events, own) for pool in self.pools]
            )
        sequences = Sequences(events)
        x = _vectors_of(events, self.items)
        if self.happened is not None and contexts is not None:
            x = x + _vectors_of(contexts, self.happened)
        # The last vector stands for no event.
        x = F.pad(self.drop(x), (0, 0, 0, 1))  # [e + 1, D]
        pooled = _side_by_side([pool(x, sequences) for pool in self.pools])
        return pooled.masked_fill((sequences.seen == 0)[:, None], 0)


def _side_by_side(pooled: Sequence[Tensor]) -> Tensor:
    """Return the vectors of several pools side by side, [n, P D]."""
    if len(pooled) == 1:
        return pooled[0]
    return torch.cat(list(pooled), 1)


def _vectors_of(events: Events, vectors_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the vectors of the events, [e, D], each distinct code embedded once."""
    codes, which = _distinct(events)
    return vectors_of(codes).index_select(0, which)


def _distinct(events: Events) -> tuple[Tensor, Tensor]:
    """Return the distinct codes of events, and the place of each event's code among the distinct
    codes, both computed on the host."""
    codes, which = distinct(events.on_host.items)
    device = events.items.device
    return sent(codes, device), sent(which, device)
