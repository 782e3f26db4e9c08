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
from ...task.run_files import CONTEXTS, HISTORIES, ITEMS, USERS
from ...task.showcase import DataFacts, Example, Hit, Searched, Subject
from ...task.verdict import SystemScores, best_baseline
from ..train.entity_tables import documents_of, open_towers, titles_of, with_counts
from ..train.training_events import TrainingEvents
from ..train.visits_preview import visits_summary
from .counts import COUNTS
from .judgement import Recommended
from .later_events import LaterEvents
from .leads import TRAINED

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
        """Return counts of the data, and the source of the data with the roles of all columns
        written down."""
        timeline = self.events.timeline
        division = self.events.division
        counts = {
            "pairs": len(timeline),
            "dropped": {**timeline.dropped, **division.counts},
            "train": int(self.data.visits.train.sum()),
            "validation": len(next(iter(self.held_out.validation.values()), ())),
            "queries": len(division.test.get(self.events.protocol, ())),
            "corpus": len(timeline.item_ids),
            "users": len(timeline.user_ids),
        }
        tests = ", ".join(f"{len(events):,} {name}" for name, events in division.test.items())
        text = "{pairs:,} interactions of {users:,} users with {corpus:,} items: {train:,} for training"
        headline = f"{text.format(**counts)}; test queries: {tests or 'none'}"
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
        visits = self.data.visits
        summary = visits_summary(visits, events, self.titles, visits.contexts.last)
        summary["dropped"] = self.facts().counts["dropped"]
        return summary

    def searched(self) -> Searched:
        """Return the items with vectors, and the tables of users, items, histories, contexts and
        counts."""
        items = self.events.items
        tables = {
            USERS: with_counts(self.events.users),
            ITEMS: with_counts(items),
            HISTORIES: self._histories(),
        }
        if self.events.contexts is not None:
            tables[CONTEXTS] = with_counts(self.events.contexts)
        if self.held_out.counting is not None:
            tables[COUNTS] = self.held_out.counting.table()
        return Searched(
            self.data.item_vectors, documents_of(items), self.data.tower.normalised, tables
        )

    def _histories(self) -> pa.Table:
        """Return all events of each user, also the events outside training."""
        whole = self.events.timeline
        if self.events.withheld is not None:
            whole = self.events.withheld.whole
        whole = whole.chronological
        timed = whole.time is not None and whole.ordered
        items = np.asarray(whole.item, np.int32)
        columns = {
            "id": whole.user_ids,
            "items": pa.LargeListArray.from_arrays(whole.offsets, items),
        }
        if timed:
            columns["times"] = _times(whole.offsets, whole.time, whole.dated)
        aside = whole.aside
        if aside is not None:
            columns["aside"] = pa.LargeListArray.from_arrays(aside.offsets, aside.item)
            if timed:
                columns["aside_times"] = _times(aside.offsets, aside.time, whole.dated)
        for name, values in (("targets", whole.target), ("contexts", whole.context)):
            if values is not None:
                columns[name] = pa.LargeListArray.from_arrays(whole.offsets, np.asarray(values))
        return pa.table(columns)

    def reopened(self, folder: Path) -> float:
        """Save the towers and read the files into new towers; return the largest difference in any
        number of a vector."""
        own = self.data.tower
        own.save(folder)
        read = open_towers(
            self.data.options,
            own.normalised,
            self.events.users,
            self.events.items,
            folder / "model.safetensors",
            self.events.contexts,
        )
        items = Frame({"item": torch.arange(min(8, len(self.events.timeline.item_ids)))})
        trained = np.flatnonzero(self.events.division.train)
        events = self.events.division.test.get(self.events.protocol, trained)[:8]
        users = self.data.visits.frame(torch.from_numpy(events))
        of_items = (own.encode(items) - read.encode(items)).abs().max()
        of_users = (own.encode(users, "query") - read.encode(users, "query")).abs().max()
        return max(float(of_items), float(of_users))

    @cached_property
    def titles(self) -> list[str]:
        """Names of the items."""
        return titles_of(self.events.items.table)

    def examples(
        self, systems: Mapping[str, SystemScores], count: int = 10, shown: int = 5
    ) -> list[Example]:
        """Return users at random, with the items taken last and the recommendations."""
        protocol = self.events.protocol
        timeline = self.events.timeline
        events = self.events.division.test[protocol]
        trained = self.held_out.reached[TRAINED][protocol]
        baseline = best_baseline(systems)
        other: Recommended | None = None
        if baseline is not None:
            other = self.held_out.reached.get(baseline, {}).get(protocol)
        chosen = np.sort(np.random.default_rng(self.held_out.seed).permutation(len(events))[:count])
        scores = self.data.user_vectors(events[chosen]) @ self.data.item_vectors.T
        begin, stop = timeline.histories(events[chosen])
        examples = []
        for i, query in enumerate(chosen.tolist()):
            past = timeline.item[max(begin[i], stop[i] - shown) : stop[i]]
            right, rank = trained.right(query)
            top = trained.ranks.top[query, :shown]
            hits = [
                Hit(self.titles[item], "", float(scores[i, item]), item in right)
                for item in top[top >= 0].tolist()
            ]
            examples.append(
                Example(
                    query=" | ".join(self.titles[item] for item in past) or "no history",
                    answers=tuple(self.titles[item] for item in right),
                    hits=tuple(hits),
                    baseline_rank=None if other is None else other.right(query)[1],
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
