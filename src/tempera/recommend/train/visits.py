"""Batches of a training run from a timeline: events as rows, and each item once.

Letters in shapes: b events of a batch, u users, i items, m drawn items, d distinct items of a
    batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...arithmetic.ragged import Ragged, Shared, from_lengths
from ...core.batch import Batch, Side
from ...core.corrections import expected_logq, inclusion_logq
from ...core.frame import Column, Events, Frame
from ...engine.batches import Draws
from ..read.timeline import Timeline
from .disliked import Disliked
from .frequency import counted
from .segments import Contexts


@dataclass(frozen=True)
class Visits:
    """Hold event k as row k: the user with the earlier events, and the item.

    A batch holds each item once, however many rows have the item for an answer, with the log of the
    chance that the batch holds the item at all. Items drawn in addition are listed apart, without
    the items of the rows. Dislikes are listed for each row of a user with dislikes, and the
    expected number of dislikes is added to the chance. A user is listed once for each row, with the
    log of the expected count.

    Args:
        train: events to train on, [e].
        contexts: finds the history to predict each event from.
        draws: items drawn in addition to each batch, from the training items.
        knowing: True adds the items taken by each row's user, for masks and numerators.
        disliked: draws items disliked by a row's user, as hard negatives of the row.
    """

    timeline: Timeline
    train: NDArray[np.bool_]
    contexts: Contexts
    draws: Draws = field(default_factory=Draws)
    knowing: bool = True
    disliked: Disliked | None = None

    @cached_property
    def item(self) -> Tensor:
        """The item of each event, [e]."""
        return torch.from_numpy(np.asarray(self.timeline.item))

    @cached_property
    def context(self) -> Tensor | None:
        """The number of each event's context, [e]; None without contexts."""
        if self.timeline.context is None:
            return None
        return torch.from_numpy(np.asarray(self.timeline.context))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Training events of each item, [i]."""
        return counted(self.timeline.item, self.train, len(self.timeline.item_ids))

    @cached_property
    def frequency(self) -> Tensor:
        """Share of each item among the training events, [i]."""
        return torch.from_numpy(self.counts / self.counts.sum()).float()

    @cached_property
    def proposal(self) -> Tensor:
        """Chance of each item in one draw, [i]."""
        return self.draws.proposal(self.frequency)

    @cached_property
    def ends(self) -> Tensor:
        """The cumulated chances of the items in one draw, [i]."""
        return self.draws.ends(self.proposal)

    @cached_property
    def expected_dislikes(self) -> Tensor | None:
        """The expected number of times that a row of a batch has each item as a dislike, [i]."""
        if self.disliked is None:
            return None
        return self.disliked.expected(self.user_share, len(self.timeline.item_ids))

    @cached_property
    def user_share(self) -> Tensor:
        """Share of each user among the training events, [u]."""
        return self.known.lengths / len(self.known.values)

    @cached_property
    def known(self) -> Ragged:
        """The training items of each user, u rows."""
        lengths = np.add.reduceat(self.train, self.timeline.offsets[:-1], dtype=np.int64)
        items = self.item[torch.from_numpy(self.train)]
        return Ragged(items, from_lengths(torch.from_numpy(lengths)))

    def frame(self, events: Tensor) -> Frame:
        """Return the users of the events, with histories, [b]."""
        user = torch.from_numpy(self.timeline.user_of(events.numpy()))
        start, stop = self.contexts(events)
        columns: dict[str, Column] = {"user": user, "history": Events.of(self.item, start, stop)}
        if self.context is not None:
            columns["context"] = self.context[events].long()
            columns["contexts"] = Events.of(self.context, start, stop)
        if not self.timeline.ordered:
            columns["own"] = torch.where(events < stop, events - start, -1)
        elif self.timeline.time is not None:
            columns["elapsed"] = self._elapsed(events.numpy(), stop.numpy(), start.numpy())
        return Frame(columns)

    def _elapsed(
        self, events: NDArray[np.int64], stop: NDArray[np.int64], start: NDArray[np.int64]
    ) -> Tensor:
        """Return the time since the latest event of each history, [b]; nan where there is none."""
        time = self.timeline.time
        assert time is not None
        latest = time[np.maximum(stop - 1, 0)]
        passed = (time[events] - latest).astype(np.float32)
        return torch.from_numpy(np.where(stop > start, passed, np.float32(np.nan)))

    def batch(self, events: Tensor, step: int = 0) -> Batch[Frame]:
        """Return the chosen events, [b], with the items drawn in addition by step `step`."""
        rows = len(events)
        frame = self.frame(events)
        user = frame.columns["user"]
        assert isinstance(user, Tensor)
        answer = self.item[events].long()
        distinct = torch.unique(answer)  # [d]
        drawn = torch.empty(0, dtype=torch.int64)  # [m]
        sampled: Side[Frame] | None = None
        if self.draws.count:
            drawn = torch.unique(self.draws(self.ends, step))
            drawn = drawn[~torch.isin(drawn, distinct)]
            if len(drawn):
                sampled = self._items(drawn, rows)
        disliked = torch.empty(0, dtype=torch.int64)
        negatives: Side[Frame] | None = None
        if self.disliked is not None:
            disliked, owner = self.disliked(user, step)
            if len(disliked):
                negatives = replace(self._items(disliked, rows), owner=owner)
        known: Shared | None = None
        if self.knowing:
            known = self._known(user, torch.cat([distinct, drawn, disliked]))
        weight: Tensor | None = None
        if self.timeline.weight is not None:
            weight = torch.from_numpy(self.timeline.weight[events.numpy()])
        return Batch(
            query=Side(frame, ids=user, logq=expected_logq(rows, self.user_share[user])),
            doc=self._items(distinct, rows),
            negatives=negatives,
            sampled=sampled,
            weight=weight,
            known=known,
            answer=answer,
        )

    def _items(self, items: Tensor, rows: int) -> Side[Frame]:
        """Return items as a side of a batch of `rows` rows, with the log of the items' chance."""
        proposal: Tensor | None = None
        if self.draws.count:
            proposal = self.proposal[items]
        logq = inclusion_logq(rows, self.frequency[items], self.draws.count, proposal)
        if self.expected_dislikes is not None:
            logq = torch.logaddexp(logq, (rows * self.expected_dislikes[items]).log())
        return Side(Frame({"item": items}), ids=items, logq=logq)

    def _known(self, user: Tensor, present: Tensor) -> Shared:
        """Return the training items of each row's user, as far as the batch holds them, each once:
        only items in the batch need a mask.

        Args:
            user: of each row, [b].
            present: all items of the batch.
        """
        items = len(self.timeline.item_ids)
        here = torch.zeros(items, dtype=torch.bool)
        here[present] = True
        users, of = torch.unique(user, return_inverse=True)
        own = self.known[users]
        inside = here[own.values].nonzero()[:, 0]
        keys = torch.repeat_interleave(own.lengths)[inside] * items + own.values[inside]
        rising = torch.from_numpy(np.sort(keys.numpy()))
        distinct = torch.unique_consecutive(rising)  # once, however often an item was taken
        lengths = torch.bincount(distinct // items, minlength=len(users))
        return Shared(Ragged(distinct % items, from_lengths(lengths)), of)
