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
    """Hold event k as row k: its user with the earlier events, and its item.

    A batch holds each item once, however many rows it answers, with the log of the chance that the
    batch holds it at all. Items that are drawn in addition are listed apart, without those of the
    rows; dislikes stand beside them for each row that brings them, and the expected number of these
    is added to the chance. A user is listed once for each row, with the log of the expected count.

    Args:
        train: events that are trained on, [e].
        contexts: what each event is predicted from.
        draws: items drawn in addition to each batch, from the training items.
        knowing: whether batches tell what else each user has taken, for masks and numerators that
            ask.
        disliked: draws items that a row's user does not like, as its hard negatives.
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
        """Number of what each event happened in, [e]."""
        context = self.timeline.context
        return None if context is None else torch.from_numpy(np.asarray(context))

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
        """Return those of the draws, [i]."""
        return self.draws.ends(self.proposal)

    @cached_property
    def expected_dislikes(self) -> Tensor | None:
        """Return how often a row of a batch is expected to bring each item as a dislike, [i]."""
        if self.disliked is None:
            return None
        return self.disliked.expected(
            self.known.lengths / len(self.known.values), len(self.timeline.item_ids)
        )

    @cached_property
    def known(self) -> Ragged:
        """The training items of each user, u rows."""
        lengths = np.add.reduceat(self.train, self.timeline.offsets[:-1], dtype=np.int64)
        return Ragged(
            self.item[torch.from_numpy(self.train)], from_lengths(torch.from_numpy(lengths))
        )

    def frame(self, events: Tensor) -> Frame:
        """Return the users of these events, and their histories, [b]."""
        user = torch.from_numpy(self.timeline.user_of(events.numpy()))
        start, stop = self.contexts(events)
        columns: dict[str, Column] = {"user": user, "history": Events.of(self.item, start, stop)}
        if self.context is not None:
            columns |= {
                "context": self.context[events].long(),
                "contexts": Events.of(self.context, start, stop),
            }
        if not self.timeline.ordered:
            columns["own"] = torch.where(events < stop, events - start, -1)
        elif self.timeline.time is not None:
            columns["elapsed"] = self._elapsed(events.numpy(), stop.numpy(), start.numpy())
        return Frame(columns)

    def _elapsed(
        self, events: NDArray[np.int64], stop: NDArray[np.int64], start: NDArray[np.int64]
    ) -> Tensor:
        """Return the time since the latest event of each history, [b]; nan where there is none."""
        assert self.timeline.time is not None
        passed = (self.timeline.time[events] - self.timeline.time[np.maximum(stop - 1, 0)]).astype(
            np.float32
        )
        return torch.from_numpy(np.where(stop > start, passed, np.float32(np.nan)))

    def batch(self, events: Tensor, step: int = 0) -> Batch[Frame]:
        """Return the chosen events, [b], with the items that step `step` draws in addition."""
        frame, answer = self.frame(events), self.item[events].long()
        user = frame.columns["user"]
        assert isinstance(user, Tensor)
        distinct = torch.unique(answer)  # [d]
        drawn = torch.empty(0, dtype=torch.int64)
        if self.draws.count:
            drawn = torch.unique(self.draws(self.ends, step))
            drawn = drawn[~torch.isin(drawn, distinct)]
        weight = self.timeline.weight
        disliked, owner = drawn[:0], drawn[:0]
        if self.disliked is not None:
            disliked, owner = self.disliked(user, step)
        return Batch(
            query=Side(
                frame,
                ids=user,
                logq=expected_logq(len(events), self.known.lengths[user] / len(self.known.values)),
            ),
            doc=self._items(distinct, len(events)),
            negatives=replace(self._items(disliked, len(events)), owner=owner)
            if len(disliked)
            else None,
            sampled=self._items(drawn, len(events)) if len(drawn) else None,
            weight=None if weight is None else torch.from_numpy(weight[events.numpy()]),
            known=self._known(user, torch.cat([distinct, drawn, disliked]))
            if self.knowing
            else None,
            answer=answer,
        )

    def _items(self, items: Tensor, rows: int) -> Side[Frame]:
        proposal = self.proposal[items] if self.draws.count else None
        logq = inclusion_logq(rows, self.frequency[items], self.draws.count, proposal)
        if self.expected_dislikes is not None:
            logq = torch.logaddexp(logq, (rows * self.expected_dislikes[items]).log())
        return Side(Frame({"item": items}), ids=items, logq=logq)

    def _known(self, user: Tensor, present: Tensor) -> Shared:
        """Return the training items of each row's user that the batch holds, each once: only these
        need a mask."""
        here = torch.zeros(len(self.timeline.item_ids), dtype=torch.bool)
        here[present] = True
        users, of = torch.unique(user, return_inverse=True)
        own = self.known[users]
        inside = here[own.values].nonzero()[:, 0]
        keys = torch.repeat_interleave(own.lengths)[inside] * len(here) + own.values[inside]
        distinct = torch.unique_consecutive(
            torch.from_numpy(np.sort(keys.numpy()))
        )  # once, however often it was taken
        lengths = torch.bincount(distinct // len(here), minlength=len(users))
        return Shared(Ragged(distinct % len(here), from_lengths(lengths)), of)
