"""Data facts, searchable items and example users of a run on interactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ...core.frame import Frame
from ...task.showcase import DataFacts, Example, Hit, Searched, Subject
from ...task.verdict import SystemScores, best_baseline
from ..read.timeline import CONTEXTS, HISTORIES, ITEMS, USERS
from ..train.entity_tables import documents_of, opened, titles_of, with_counts
from ..train.training_events import TrainingEvents
from ..train.visits_preview import visits_summary
from .counts import COUNTS
from .later_events import LaterEvents

RECOMMENDER = Subject(
    "A recommender",
    "A user tower, which reads a user's history and features, and an item tower, trained with Tempera by contrastive "
    "learning. They belong to the run folder around them, which holds the histories and the index of the items.",
    """import tempera

run = tempera.Run("path/to/the/run")  # the folder around this one
print(run.recommend(user="a user id", k=10))
print(run.recommend(history=["an item id", "a later item id"]))""",
    {"library_name": "tempera", "tags": ["recommendation", "two-tower", "tempera"]},
    report_title="Tempera run: a recommender",
    facts={
        "pairs": "interactions",
        "train": "training events",
        "queries": "test queries",
        "corpus": "items ranked",
    },
    examples="Test users and their recommendations",
    right="Held out",
    random="a user with a random item, blue a user with an item held out",
    whole="All items are ranked except those of the user's history.",
)


class ItemShowcase:
    """Show a run on interactions."""

    subject = RECOMMENDER

    def __init__(self, data: TrainingEvents, held_out: LaterEvents) -> None:
        self.data, self.held_out, self.events = data, held_out, data.events

    def facts(self) -> DataFacts:
        """Return counts of the data, and its source with the roles of its columns written down."""
        timeline, division = self.events.timeline, self.events.division
        counts = {
            "pairs": len(timeline),
            "dropped": {**timeline.dropped, **division.counts},
            "train": int(self.data.visits.train.sum()),
            "validation": len(next(iter(self.held_out.validation.values()), ())),
            "queries": len(division.test.get(self.events.protocol, ())),
            "corpus": len(timeline.item_ids),
            "users": len(timeline.user_ids),
        }
        tests = (
            ", ".join(f"{len(events):,} {name}" for name, events in division.test.items()) or "none"
        )
        text = "{pairs:,} interactions of {users:,} users with {corpus:,} items: {train:,} for training"
        headline = f"{text.format(**counts)}; test queries: {tests}"
        notes = tuple(f"note: {note}" for note in (*division.notes, *self._unseen()))
        return DataFacts(
            timeline.source,
            headline,
            counts,
            self.subject,
            self.held_out.chooses,
            self.held_out.looks,
            notes,
            timeline.about,
            tower=self.data.options,
        )

    def _unseen(self) -> Iterator[str]:
        """Yield a note if training has not seen most of the items to find, and they have no
        features."""
        test = self.events.division.test.get(self.events.protocol, np.empty(0, np.int64))
        unseen = int((self.events.items.count[self.events.targets(test)] == 0).sum())
        if 2 * unseen > len(test) and self.events.items.table.num_columns == 1:
            yield (
                f"{unseen:,} of {len(test):,} test queries look for an item without a training event, which no model of ids can "
                "find: give more data, or data.items with features"
            )

    def preview(self) -> dict[str, Any]:
        """Return three rows of the first batch, lengths, repeats, and negatives of a row."""
        (events,) = self.data.sampler(0, 1)
        summary = visits_summary(
            self.data.visits, events, self.titles, self.data.visits.contexts.last
        )
        return {**summary, "dropped": self.facts().counts["dropped"]}

    def searched(self) -> Searched:
        """Return the items with their vectors, and what is known of users and items, with all
        histories."""
        timeline, users, items = self.events.timeline, self.events.users, self.events.items
        whole = (
            timeline if self.events.withheld is None else self.events.withheld.whole
        ).chronological
        histories = pa.LargeListArray.from_arrays(whole.offsets, np.asarray(whole.item, np.int32))
        taken = {"id": whole.user_ids, "items": histories}
        timed = whole.time is not None and whole.ordered
        if timed:
            taken["times"] = _times(whole.offsets, whole.time, whole.dated)
        if (aside := whole.aside) is not None:
            taken["aside"] = pa.LargeListArray.from_arrays(aside.offsets, aside.item)
            if timed:
                taken["aside_times"] = _times(aside.offsets, aside.time, whole.dated)
        for name, values in (("targets", whole.target), ("contexts", whole.context)):
            if values is not None:
                taken[name] = pa.LargeListArray.from_arrays(whole.offsets, np.asarray(values))
        tables = {
            USERS: with_counts(users),
            ITEMS: with_counts(items),
            HISTORIES: pa.table(taken),
        }
        if self.events.contexts is not None:
            tables[CONTEXTS] = with_counts(self.events.contexts)
        if (counting := self.held_out.counting) is not None:
            tables[COUNTS] = counting.table()
        return Searched(
            self.data.item_vectors, documents_of(items), self.data.tower.normalised, tables
        )

    def reopened(self, folder: Path) -> float:
        """Save the towers and read them into others; return the largest difference in any number of
        a vector."""
        data, own = self.data, self.data.tower
        own.save(folder)
        weights = folder / "model.safetensors"
        other = opened(
            data.options,
            own.normalised,
            self.events.users,
            self.events.items,
            weights,
            self.events.contexts,
        )
        items = Frame({"item": torch.arange(min(8, len(self.events.timeline.item_ids)))})
        trained = np.flatnonzero(self.events.division.train)
        users = data.visits.frame(
            torch.from_numpy(self.events.division.test.get(self.events.protocol, trained)[:8])
        )
        pairs = [(tower.encode(items), tower.encode(users, "query")) for tower in (own, other)]
        return max(float((here - read).abs().max()) for here, read in zip(*pairs))

    @cached_property
    def titles(self) -> list[str]:
        """Names of the items."""
        return titles_of(self.events.items.table)

    def examples(
        self, systems: Mapping[str, SystemScores], count: int = 10, shown: int = 5
    ) -> list[Example]:
        """Return users at random: what they took last, and what was recommended."""
        protocol, timeline, every = (
            self.events.protocol,
            self.events.timeline,
            self.held_out.reached,
        )
        events, reached = self.events.division.test[protocol], every["trained"][protocol]
        other = every.get(best_baseline(systems) or "", {}).get(protocol)
        chosen = np.sort(np.random.default_rng(self.held_out.seed).permutation(len(events))[:count])
        scores = self.data.user_vectors(events[chosen]) @ self.data.item_vectors.T
        begin, stop = timeline.histories(events[chosen])
        examples = []
        for i, query in enumerate(chosen):
            past = timeline.item[max(begin[i], stop[i] - shown) : stop[i]]
            hits = [item for item in reached.ranks.top[query, :shown].tolist() if item >= 0]
            right, rank = reached.right(int(query))
            examples.append(
                Example(
                    query=" | ".join(self.titles[item] for item in past) or "no history",
                    answers=tuple(self.titles[item] for item in right),
                    hits=tuple(
                        Hit(self.titles[item], "", float(scores[i, item]), item in right)
                        for item in hits
                    ),
                    baseline_rank=None if other is None else other.right(int(query))[1],
                    rank=rank,
                )
            )
        return examples


def _times(offsets: NDArray[np.int64], times: NDArray[Any] | None, dated: bool) -> pa.Array:
    """Return the times of each user's events, [u]; as dates where the data had dates."""
    values = pa.array(times)
    if dated:
        values = values.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.LargeListArray.from_arrays(offsets, values)
