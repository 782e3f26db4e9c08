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

_SAMPLE = 10_000  # training events; their contexts show which feature suits each column


@dataclass(frozen=True)
class EventData:
    """Hold the divided interactions of a source, shared by runs on the same data.

    Args:
        timeline: the events of all users, in the order of users and of time.
        division: the part of each event: training, validation or test.
        users: features and training counts of the users.
        items: features and training counts of the items.
        withheld: items left out of training, if there are any.
        contexts: the distinct contexts of events, if the source has any.
    """

    timeline: Timeline
    division: Division
    users: Entities
    items: Entities
    withheld: Withheld | None
    contexts: Entities | None = None

    @classmethod
    def of(
        cls, timeline: Timeline, division: Division, withheld: Withheld | None = None
    ) -> EventData:
        """Return divided events with the features and training counts of users and items."""
        train = division.train
        of_users = np.add.reduceat(train, timeline.offsets[:-1], dtype=np.int64)
        users = Entities(_features(timeline.user_ids, timeline.users), of_users)
        of_items = counted(timeline.item, train, len(timeline.item_ids))
        first = Cooccurrence(timeline, train)
        items = Entities(_features(timeline.item_ids, timeline.items), of_items, first)
        contexts: Entities | None = None
        if timeline.contexts is not None and timeline.context is not None:
            number = pa.array(range(len(timeline.contexts)))
            of_contexts = counted(timeline.context, train, len(number))
            contexts = Entities(_features(number, timeline.contexts), of_contexts)
        return cls(timeline, division, users, items, withheld, contexts)

    def extended(self, part: Part) -> EventData:
        """Return the same events with more events for training: the events of `part`, and of all
        parts before `part`.

        With withheld items, the events of the withheld items are left out, all other events are for
        training, and nothing is held out.
        """
        timeline = self.timeline
        division = self.division.extended(part)
        if self.withheld is not None:
            timeline = timeline.kept(~np.isin(timeline.item, self.withheld.items))
            division = Division(np.zeros(len(timeline), np.uint8), {}, {})
        if timeline.part is not None:
            timeline = timeline.arranged(division.part)
        return EventData.of(timeline, division, self.withheld)

    @property
    def protocol(self) -> str:
        """First protocol of the split, to compare systems by; empty without an evaluation."""
        return next(iter(self.division.test), "")

    @property
    def happened(self) -> Entities | None:
        """The contexts of the first training events, a row for each event; or None."""
        if self.contexts is None or self.timeline.context is None:
            return None
        train = np.flatnonzero(self.division.train)
        sample = self.timeline.context[train[:_SAMPLE]]
        table = self.contexts.table.take(pa.array(sample))
        if BEHAVIOUR in table.column_names:  # a question need not name a behaviour
            table = table.drop_columns(BEHAVIOUR)
        return Entities(table, np.ones(len(sample), np.int64))

    def histories(self, events: Events) -> Histories:
        """Return the histories before events."""
        return Histories(self.timeline.item, *self.timeline.histories(events))

    def taken(self, events: Events) -> Histories:
        """Return the targets before events: the items that users have taken, not only looked at."""
        return Histories(*self.timeline.taken(events))

    def seen(self, events: Events) -> Histories:
        """Return the items that users had taken, disliked or rated low before events."""
        taken = self.taken(events)
        aside = aside_of(self.timeline, events)
        if aside is None:
            return taken
        return taken.joined(aside)

    def targets(self, events: Events) -> NDArray[np.int64]:
        """Return the items of events."""
        return np.asarray(self.timeline.item[events], np.int64)


def aside_of(timeline: Timeline, events: Events) -> Histories | None:
    """Return the items set aside before each event, from `Timeline.aside_of`; None if no item of
    the timeline is set aside."""
    aside = timeline.aside_of(events)
    if aside is None:
        return None
    items, starts, stops = aside
    return Histories(items, starts, stops)


def _features(ids: pa.Array, table: pa.Table | None) -> pa.Table:
    """Return features with a first column of ids."""
    columns = {"id": ids}
    if table is not None:
        for name in table.column_names:
            if name != "id":
                columns[name] = table[name]
    return pa.table(columns)


class TrainingEvents:
    """Make the batches of a run, and the vectors of users and items by the run's tower."""

    def __init__(self, config: Config, events: EventData) -> None:
        self.events = events
        timeline = events.timeline
        train = events.division.train
        if timeline.target is not None:
            train = train & (timeline.target > 0)
        self.options: Features = config.tower.suited(timeline.ordered)
        history = self.options.history
        options = replace(config, tower=self.options).settled(int(train.sum())).train
        contexts = Contexts(timeline, last=1)
        if history is not None:
            contexts = Contexts(timeline, history.last, history.targets)
        draws = Draws(options.sampled, options.sampled_power, options.seed)
        disliked = self._disliked(config, events.division.train, options.seed)
        self.visits = Visits(timeline, train, contexts, draws, config.base.asks_known, disliked)
        self.sampler: Sampler = Segments.of(
            timeline, train, options.size, options.seed, contexts.targets
        )
        self.tower: FeatureTowers = self.options.build(events.users, events.items, events.contexts)
        self.tower.normalised = config.base.similarity.name == "cosine"

    def _disliked(self, config: Config, train: NDArray[np.bool_], seed: int) -> Disliked | None:
        """Return the draws of dislikes as negatives; None if training knows of no dislikes."""
        known = known_dislikes(self.events.timeline, train)
        if known is None:
            return None
        if not config.base.uses_negatives:
            raise ConfigError(
                "data.dislikes are negatives, but no pool of the objective uses them: add negatives"
            )
        return Disliked(known, self.events.timeline.source.negatives, seed)

    def batch(self, rows: Tensor, number: int) -> Batch[Frame]:
        """Return the batch of chosen events, with the items drawn for batch `number` in
        addition."""
        return self.visits.batch(rows, number)

    def batches(self, rows: Tensor, number: int, progress: float = 1.0) -> list[Batch[Frame]]:
        """Return the batch alone: no events are made."""
        return [self.batch(rows, number)]

    def content(self) -> Iterable[Tensor]:
        """Yield the training data as tensors, for the checksum of a run.

        The tensors are the columns of the timeline and of the events set aside, the part of each
        event, and the features read by the tower.
        """
        timeline = self.events.timeline
        numbers = [timeline.offsets, *timeline.columns.values(), self.events.division.part]
        if timeline.aside is not None:
            numbers += vars(timeline.aside).values()
        for values in numbers:
            if values is not None and len(values):
                yield torch.from_numpy(np.array(values))
        yield from self.tower.buffers()

    def origin(self) -> Iterable[Tensor]:
        """Yield the counts of events of each user, and of each item, in the data before items are
        withheld, for the checksum of the source."""
        whole = self.events.timeline
        if self.events.withheld is not None:
            whole = self.events.withheld.whole
        yield torch.from_numpy(whole.lengths)
        yield torch.from_numpy(np.bincount(whole.item))

    def called(self, rows: Tensor) -> list[str]:
        """Return the users and items of events."""
        timeline = self.events.timeline
        events = rows.numpy()
        users = timeline.user_ids.take(pa.array(timeline.user_of(events))).to_pylist()
        items = timeline.item_ids.take(pa.array(self.events.targets(events))).to_pylist()
        return [
            f"user {user!r} with item {item!r}" for user, item in zip(users, items, strict=True)
        ]

    def user_vectors(self, events: Events) -> NDArray[np.float32]:
        """Return vectors of the users before the events, [q, D].

        The history of each event has at most the length of the option, like the history of a
        question to a saved run. In training, several events of a user share one pass of the tower,
        and late events of the pass have longer histories.
        """
        contexts = replace(self.visits.contexts, targets=1)
        frame = replace(self.visits, contexts=contexts).frame(torch.from_numpy(events))
        return self._encoded(frame, "query")

    @property
    def item_vectors(self) -> NDArray[np.float32]:
        """Vectors of all items, [c, D]."""
        items = torch.arange(len(self.events.timeline.item_ids))
        return self._encoded(Frame({"item": items}), "doc")

    def _encoded(self, frame: Frame, role: Role) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self.tower.encode(frame, role).numpy()
        refuse_not_finite(vectors, "users and items")
        return vectors
