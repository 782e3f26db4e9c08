"""Batches of one run on interactions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.batch import Batch, Role
from ...core.frame import Frame
from ...engine.batches import Draws, Sampler
from ...errors import ConfigError
from ...ranking.nearest import refuse_not_finite
from ...task.config import Config
from ...task.evaluation import Part
from ..judge.full_catalogue import Histories
from ..read.division import Division
from ..read.events import BEHAVIOUR
from ..read.timeline import Events, Timeline
from .cooccurrence import Cooccurrence
from .disliked import Disliked, known_dislikes
from .encoders import Entities
from .features import Features, FeatureTowers
from .frequency import counted
from .segments import Contexts, Segments
from .visits import Visits
from .withheld import Withheld

_SOME = 10_000  # events by which the kinds of their columns are told


@dataclass(frozen=True)
class EventData:
    """Hold the interactions of a source, divided. Runs on the same data share it.

    Args:
        withheld: items that are not trained on, if there are any.
    """

    timeline: Timeline
    division: Division
    users: Entities
    items: Entities
    withheld: Withheld | None
    contexts: Entities | None = None  # what events happened in

    @classmethod
    def of(
        cls, timeline: Timeline, division: Division, withheld: Withheld | None = None
    ) -> EventData:
        """Return divided events with what training knows of users and items."""
        of_users = np.add.reduceat(division.train, timeline.offsets[:-1], dtype=np.int64)
        of_items = counted(timeline.item, division.train, len(timeline.item_ids))
        users = Entities(_features(timeline.user_ids, timeline.users), of_users)
        first = Cooccurrence(timeline, division.train)
        items = Entities(_features(timeline.item_ids, timeline.items), of_items, first)
        contexts: Entities | None = None
        if timeline.contexts is not None and timeline.context is not None:
            number = pa.array(range(len(timeline.contexts)))
            of_contexts = counted(timeline.context, division.train, len(number))
            contexts = Entities(_features(number, timeline.contexts), of_contexts)
        return cls(timeline, division, users, items, withheld, contexts)

    def extended(self, part: Part) -> EventData:
        """Return the same events, trained on also where they are of this part or before it, without
        those of withheld items."""
        division, timeline = self.division.extended(part), self.timeline
        if self.withheld is not None:
            timeline = timeline.kept(~np.isin(timeline.item, self.withheld.items))
            division = Division(np.zeros(len(timeline), np.uint8), {}, {})
        if timeline.part is not None:
            timeline = timeline.arranged(division.part)
        return EventData.of(timeline, division, self.withheld)

    @property
    def protocol(self) -> str:
        """First protocol of the split, by which systems are compared; empty where nothing is
        evaluated."""
        return next(iter(self.division.test), "")

    @property
    def happened(self) -> Entities | None:
        """Return contexts of some training events, a row for each of them."""
        if self.contexts is None or self.timeline.context is None:
            return None
        some = self.timeline.context[np.flatnonzero(self.division.train)[:_SOME]]
        table = self.contexts.table.take(pa.array(some))
        columns = [
            name for name in table.column_names if name != BEHAVIOUR
        ]  # which the one who asks need not name
        return Entities(table.select(columns), np.ones(len(some), np.int64))

    def histories(self, events: Events) -> Histories:
        """Return the histories before events."""
        return Histories(self.timeline.item, *self.timeline.histories(events))

    def taken(self, events: Events) -> Histories:
        """Return the targets before events: what their users have taken, not only looked at."""
        return Histories(*self.timeline.taken(events))

    def seen(self, events: Events) -> Histories:
        """Return what the users of events had taken before them, disliked or rated low."""
        aside = aside_of(self.timeline, events)
        return self.taken(events) if aside is None else self.taken(events).joined(aside)

    def targets(self, events: Events) -> NDArray[np.int64]:
        """Return the items of events."""
        return np.asarray(self.timeline.item[events], np.int64)


def aside_of(timeline: Timeline, events: Events) -> Histories | None:
    """Return what `Timeline.aside_of` does, as rows."""
    rows = timeline.aside_of(events)
    return None if rows is None else Histories(*rows)


def _features(ids: pa.Array, table: pa.Table | None) -> pa.Table:
    """Return features with a first column of ids."""
    columns = (
        {} if table is None else {name: table[name] for name in table.column_names if name != "id"}
    )
    return pa.table({"id": ids, **columns})


class TrainingEvents:
    """Make the batches of one run."""

    def __init__(self, config: Config, events: EventData) -> None:
        self.events = events
        timeline, train = events.timeline, events.division.train
        if timeline.target is not None:
            train = train & (timeline.target > 0)
        self.options: Features = config.tower.suited(timeline.ordered)
        history = self.options.history
        options = replace(config, tower=self.options).settled(int(train.sum())).train
        contexts = (
            Contexts(timeline, history.last, history.targets) if history else Contexts(timeline, 1)
        )
        draws = Draws(options.sampled, options.sampled_power, options.seed)
        disliked = self._disliked(config, events.division.train, options.seed)
        self.visits = Visits(timeline, train, contexts, draws, config.base.asks_known, disliked)
        self.sampler: Sampler = Segments.of(
            timeline, train, options.size, options.seed, contexts.targets
        )
        self.tower: FeatureTowers = self.options.build(events.users, events.items, events.contexts)
        self.tower.normalised = config.base.similarity.name == "cosine"

    def _disliked(self, config: Config, train: NDArray[np.bool_], seed: int) -> Disliked | None:
        known = known_dislikes(self.events.timeline, train)
        if known is None:
            return None
        if not config.base.uses_negatives:
            raise ConfigError(
                "data.dislikes are negatives, but no pool of the objective uses them: add negatives"
            )
        return Disliked(known, self.events.timeline.source.negatives, seed)

    def batch(self, rows: Tensor, number: int, progress: float = 1.0) -> Batch[Frame]:
        """Return chosen events, with the items that batch `number` draws in addition."""
        return self.visits.batch(rows, number)

    def content(self) -> Iterable[Tensor]:
        """Yield all that is known of events, those set aside, and features, as the tower has read
        these."""
        timeline, division = self.events.timeline, self.events.division
        aside = {} if timeline.aside is None else vars(timeline.aside)
        each = [timeline.offsets, *timeline.columns.values(), division.part, *aside.values()]
        yield from (
            torch.from_numpy(np.array(values))
            for values in each
            if values is not None and len(values)
        )
        yield from self.tower.buffers()

    def source(self) -> Iterable[Tensor]:
        """Yield how many events each user and each item has."""
        whole = self.events.timeline if self.events.withheld is None else self.events.withheld.whole
        yield from (torch.from_numpy(whole.lengths), torch.from_numpy(np.bincount(whole.item)))

    def called(self, rows: Tensor) -> list[str]:
        """Return the users and items of events."""
        timeline, events = self.events.timeline, rows.numpy()
        users = timeline.user_ids.take(pa.array(timeline.user_of(events))).to_pylist()
        items = timeline.item_ids.take(pa.array(self.events.targets(events))).to_pylist()
        return [
            f"user {user!r} with item {item!r}" for user, item in zip(users, items, strict=True)
        ]

    def user_vectors(self, events: Events) -> NDArray[np.float32]:
        """Return vectors of the users, as they stand before these events, [q, D].

        Each has a history of its own, as whoever asks a saved run has: events that share a pass
        would have a longer one.
        """
        contexts = replace(self.visits.contexts, targets=1)
        frame = replace(self.visits, contexts=contexts).frame(torch.from_numpy(events))
        return self._encoded(frame, "query")

    @property
    def item_vectors(self) -> NDArray[np.float32]:
        """Return vectors of all items, [c, D]."""
        return self._encoded(
            Frame({"item": torch.arange(len(self.events.timeline.item_ids))}), "doc"
        )

    def _encoded(self, frame: Frame, role: Role) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self.tower.encode(frame, role).numpy()
        refuse_not_finite(vectors, "users and items")
        return vectors
