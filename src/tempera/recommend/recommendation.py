"""The task of recommending: interactions of users with items, of which the later ones are asked about."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..artifacts.card import RECOMMENDER
from ..artifacts.recommender import ITEMS, USERS, called, index_items, opened, titles_of, write_entities
from ..artifacts.report import Example, Hit, Words
from ..artifacts.report_tables import Table, tables
from ..artifacts.run_folder import HISTORIES
from ..build import Config, describe
from ..core.batch import Batch
from ..core.frame import Frame
from ..engine.batches import Draws
from ..engine.distributed import ALONE, Group
from ..errors import ConfigError, DataError
from ..ranking.nearest import refuse_not_finite
from ..ranking.ranking import LEAST_TO_CHOOSE, MOST, Part
from ..ranking.spread import spread
from ..run.task import Judged, Sampler, Verdict
from ..text.preview import visits_summary
from .baselines import BASELINES, Observed, by_history, refuse_many
from .cold import ColdItems, Means
from .division import Division
from .encoders import Elapsed, Entities
from .features import Features, FeatureTowers
from .frequency import counted
from .full_catalogue import Histories, Scores, inner
from .interactions import Handed, Interactions
from .judgement import Recommended
from .popularity import Popularity
from .segments import Contexts, Segments
from .timeline import Events, Timeline
from .visits import Visits
from .withheld import Withheld, withhold

OURS = ("untrained", "trained")  # systems; the others are baselines
WORDS = Words(
    title="Tempera run: a recommender",
    facts={"pairs": "interactions", "train": "trained on", "queries": "asked at the end", "corpus": "items ranked"},
    examples="Users who were asked for, and what was recommended",
    right="Taken next",
    random="a user with a random item, blue with the item taken next",
    whole="All items are ranked but those of the user's history.",
)


class Recommendation:
    """Interactions of a source, divided by its split; arrays that are mapped lie in `cache`."""

    kind, words = RECOMMENDER, WORDS

    timeline: Timeline
    division: Division
    visits: Visits
    users: Entities
    items: Entities
    tower: FeatureTowers

    def __init__(self, config: Config, cache: Path) -> None:
        self.config = config
        assert isinstance(config.data, Interactions | Handed)
        if not isinstance(config.tower, Features):
            raise ConfigError("tower.kind: users and items are embedded by their features: take kind: features")
        self.timeline = timeline = config.data.read(cache)
        if config.evaluation.baselines:  # before hours of training
            refuse_many(len(timeline.item_ids), "evaluation.baselines")
        if timeline.time is None and Elapsed() in config.tower.query:
            raise ConfigError(
                "tower.query: elapsed needs times, and the interactions have an order only: name a column of times with "
                "data.time=COLUMN, or leave elapsed out"
            )
        ((name, found),) = describe(timeline.source).items()
        self.source = {"source": name, **found}
        self.division = timeline.source.split(timeline)
        self.withheld: Withheld | None = None
        if share := config.evaluation.cold_items:
            timeline, self.division, self.withheld = withhold(timeline, self.division, share, config.evaluation.seed)
            self.timeline = timeline
        self.division = _asking(self.division)
        train = self.division.train
        of_users = np.add.reduceat(train, timeline.offsets[:-1], dtype=np.int64)
        self.users = Entities(_features(timeline.user_ids, timeline.users), of_users)
        of_items = counted(timeline.item, train, len(timeline.item_ids))
        self.items = Entities(_features(timeline.item_ids, timeline.items), of_items)
        called(self.items.table)  # which is refused before hours of training, if at all
        self._begin()

    def fresh(self, config: Config, cache: Path) -> Recommendation:
        """The same timeline and division for another run."""
        other = copy.copy(self)
        other.config = config
        other._begin()
        return other

    def _begin(self) -> None:
        """Batches as the configuration has them, and towers before their training, which have reached nothing yet."""
        assert isinstance(self.config.tower, Features)
        timeline, train, history = self.timeline, self.division.train, self.config.tower.history
        options = self.config.train
        contexts = Contexts(timeline, history.last, history.targets) if history else Contexts(timeline, 1)
        draws = Draws(options.sampled, options.sampled_power, options.seed)
        self.visits = Visits(timeline, train, contexts, draws, self.config.base.asks_known)
        self.sampler: Sampler = Segments.of(timeline, train, options.batch_size, options.seed, contexts.targets)
        self.tower = self.config.tower.build(self.users, self.items)
        self.tower.normalised = self.config.similarity.name == "cosine"
        self.reached: dict[str, dict[str, Recommended]] = {}  # by system and protocol
        self.cold: dict[str, Means] = {}  # what each system makes of withheld items

    @property
    def protocol(self) -> str:
        """The first of the split's, by which systems are compared."""
        return next(iter(self.division.test))

    def counts(self) -> dict[str, Any]:
        """What there is."""
        return {
            "pairs": len(self.timeline),
            "dropped": {**self.timeline.dropped, **self.division.counts},
            "train": int(self.division.train.sum()),
            "validation": len(next(iter(self.validation.values()), ())),
            "queries": len(self.division.test[self.protocol]),
            "corpus": len(self.timeline.item_ids),
            "users": len(self.timeline.user_ids),
        }

    def lines(self) -> list[str]:
        """The same for people."""
        asked = ", ".join(f"{len(events):,} {name}" for name, events in self.division.test.items())
        counts = self.counts()
        return [
            "{pairs:,} interactions of {users:,} users with {corpus:,} items: {train:,} to train on".format(**counts)
            + f"; asked at the end: {asked}",
            *(f"left out: {count:,} {reason}" for reason, count in counts["dropped"].items() if count),
            *(f"note: {note}" for note in self.division.notes),
        ]

    def summary(self) -> dict[str, Any]:
        """Three rows of the first batch, lengths, repeats, negatives a row."""
        (events,) = self.sampler(0, 1)
        found = visits_summary(self.visits, events, self.titles, self.visits.contexts.last)
        return {**found, "dropped": self.counts()["dropped"]}

    def content(self) -> Iterable[Tensor]:
        """Items of all events, and which are trained on."""
        return torch.from_numpy(np.array(self.timeline.item)), torch.from_numpy(self.division.train)

    @property
    def width(self) -> int:
        """Of the embeddings."""
        return self.tower.width

    def batch(self, rows: Tensor, number: int) -> Batch[Frame]:
        """Chosen events."""
        return self.visits.batch(rows, number)

    def called(self, rows: Tensor) -> list[str]:
        """Users and items of events."""
        timeline, events = self.timeline, rows.numpy()
        users = timeline.user_ids.take(pa.array(timeline.user_of(events))).to_pylist()
        items = timeline.item_ids.take(pa.array(np.asarray(timeline.item[events]))).to_pylist()
        return [f"user {user!r} with item {item!r}" for user, item in zip(users, items, strict=True)]

    def refresh(self, step: int, group: Group = ALONE) -> dict[str, Any]:
        """Nothing follows the towers."""
        return {}

    @property
    def chooses(self) -> bool:
        """Return True if validation has enough events to choose by."""
        return len(next(iter(self.validation.values()), ())) >= LEAST_TO_CHOOSE

    @property
    def validation(self) -> Mapping[str, Events]:
        """The events to choose by, of each protocol; none where the split or `evaluation.validation` has none."""
        return {} if self.config.evaluation.validation == 0 else self.division.validation

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Ask the towers as they are now: the test by every protocol, or some of the validation by the first.

        Without a validation its place is taken by some of the test. Items are never sampled, so `whole` changes nothing.
        """
        if part == "validation":
            events = next(iter((self.validation or self.division.test).values()))
            return self._verdict(self._some(events, self.config.evaluation.validation or MOST), self.item_vectors)[0]
        items = self.item_vectors
        found = {name: self._verdict(events, items) for name, events in self.division.test.items()}
        system = OURS[bool(self.reached)]
        self.reached[system] = {name: reached for name, (_, reached) in found.items()}
        if self.withheld is not None:
            self._judge_cold(system, self.withheld, items)
        return found[self.protocol][0]

    def _verdict(self, events: Events, items: NDArray[np.float32]) -> tuple[Verdict, Recommended]:
        users = self.user_vectors(events)
        reached = self._reached(inner(users, items), events)
        unit = [
            rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
            for rows in (users, items[reached.target])
        ]
        return Verdict(reached, spread(*unit)), reached

    def _reached(self, scores: Scores, events: Events) -> Recommended:
        """What scores of all items make of events."""
        target = np.asarray(self.timeline.item[events], np.int64)
        users, popularity = self.timeline.user_of(events), Popularity(self.visits.counts)
        return Recommended.of(scores, target, self._seen(events), popularity, self.config.evaluation.metrics, users)

    def _judge_cold(self, system: str, withheld: Withheld, items: NDArray[np.float32]) -> None:
        events = withheld.targets
        target = np.asarray(self.timeline.item[events], np.int64)
        metrics, users = self.config.evaluation.metrics, self.timeline.user_of(events)
        asked = ColdItems(withheld.items, withheld.counts, target, self._seen(events), metrics, users)
        self.cold[system] = asked.model(self.user_vectors(events), items)
        self.cold |= {"popularity as if known": asked.popularity(), "random": asked.chance()}

    def _some(self, events: Events, most: int) -> Events:
        if len(events) <= most:
            return events
        chosen = np.random.default_rng(self.config.evaluation.seed).choice(len(events), most, replace=False)
        return events[np.sort(chosen)]

    def _seen(self, events: Events) -> Histories:
        return Histories(self.timeline.item, *self.timeline.histories(events))

    def user_vectors(self, events: Events) -> NDArray[np.float32]:
        """Of the users, as they stand before these events, [q, D]."""
        return _finite(self.tower.encode(self.visits.frame(torch.from_numpy(events)), "query"))

    @property
    def item_vectors(self) -> NDArray[np.float32]:
        """Of all items, [c, D]."""
        return _finite(self.tower.encode(Frame({"item": torch.arange(len(self.timeline.item_ids))})))

    def baselines(self) -> dict[str, Judged]:
        """Popularity, item-kNN, EASE and transition counts, if they are asked for."""
        if not self.config.evaluation.baselines:
            return {}
        timeline = self.timeline
        observed = Observed(timeline.item, timeline.offsets, len(timeline.item_ids), self.division.train)
        for system, baseline in BASELINES.items():
            fitted = baseline.fit(observed)  # one at a time: each may hold a table of items by items
            self.reached[system] = {
                name: self._reached(by_history(fitted, self._seen(events)), events)
                for name, events in self.division.test.items()
            }
        return {system: self.reached[system][self.protocol] for system in BASELINES}

    def about(self) -> dict[str, Any]:
        """Every protocol of every system, by tier and by history length; what each makes of withheld items."""
        return {
            **self._about_cold(),
            "protocols": {
                system: {name: reached.json() for name, reached in found.items()}
                for system, found in self.reached.items()
            },
        }

    def _about_cold(self) -> dict[str, Any]:
        if self.withheld is None:
            return {}
        counts = {"items": len(self.withheld.items), "queries": len(self.withheld.targets)}
        systems = {
            system: {name: asdict(mean) for name, mean in found.items()} for system, found in sorted(self.cold.items())
        }
        return {"cold": {**counts, "withheld": int(self.withheld.counts.sum()), "systems": systems}}

    def rival(self, systems: Mapping[str, Judged]) -> str | None:
        """The baseline that is best in nDCG@10, or else in the first metric, if any is asked for."""
        names = self.config.evaluation.metrics
        main = "ndcg@10" if "ndcg@10" in names else names[0]
        others = {name: found.metrics[main] for name, found in systems.items() if name not in OURS}
        return max(others, key=lambda name: others[name], default=None)

    def tables(self) -> list[Table]:
        """By protocol, by tier and by length of the history."""
        return tables(self.about())

    def write(self, folder: Path) -> None:
        """What is known of users and items, with all histories, and the items' vectors."""
        histories = pa.LargeListArray.from_arrays(self.timeline.offsets, np.asarray(self.timeline.item, np.int32))
        write_entities(folder / "model" / USERS, self.users)
        write_entities(folder / "model" / ITEMS, self.items)
        parquet.write_table(pa.table({"id": self.timeline.user_ids, "items": histories}), folder / HISTORIES)
        index_items(folder, self.items, self.item_vectors, self.tower.normalised)

    def reopened(self, folder: Path) -> float:
        """Save the towers, read them into others, and compare: the largest difference in any number of a vector."""
        self.tower.save(folder)
        other = opened(self.config, self.users, self.items, folder / "model.safetensors")
        items = Frame({"item": torch.arange(min(8, len(self.timeline.item_ids)))})
        users = self.visits.frame(torch.from_numpy(self.division.test[self.protocol][:8]))
        pairs = [(tower.encode(items), tower.encode(users, "query")) for tower in (self.tower, other)]
        return max(float((own - read).abs().max()) for own, read in zip(*pairs))

    @cached_property
    def titles(self) -> list[str]:
        """What items are called."""
        return titles_of(self.items.table)

    def examples(self, systems: Mapping[str, Judged], count: int = 10, shown: int = 5) -> list[Example]:
        """Users at random: what they took last, and what was recommended."""
        events, reached = self.division.test[self.protocol], self.reached["trained"][self.protocol]
        other = self.reached.get(self.rival(systems) or "", {}).get(self.protocol)
        chosen = np.sort(np.random.default_rng(self.config.train.seed).permutation(len(events))[:count])
        scores = self.user_vectors(events[chosen]) @ self.item_vectors.T
        begin, stop = self.timeline.histories(events[chosen])
        examples = []
        for i, query in enumerate(chosen):
            past = self.timeline.item[max(begin[i], stop[i] - shown) : stop[i]]
            hits = [item for item in reached.ranks.top[query, :shown].tolist() if item >= 0]
            target = int(reached.target[query])
            examples.append(
                Example(
                    query=" | ".join(self.titles[item] for item in past) or "no history",
                    answers=(self.titles[target],),
                    hits=tuple(Hit(self.titles[item], "", float(scores[i, item]), item == target) for item in hits),
                    baseline_rank=None if other is None else int(other.ranks.excluded[query]),
                    rank=int(reached.ranks.excluded[query]),
                )
            )
        return examples


def _features(ids: pa.Array, table: pa.Table | None) -> pa.Table:
    """Features with a first column of ids."""
    columns = {} if table is None else {name: table[name] for name in table.column_names if name != "id"}
    return pa.table({"id": ids, **columns})


def _asking(division: Division) -> Division:
    """Without the protocols that ask nothing, which are noted."""
    silent = [name for name, events in division.test.items() if not len(events)]
    if len(silent) == len(division.test):
        raise DataError("the split leaves no event to ask about: give data.split a larger test_share, or more data")
    notes = [f"no event is asked by the protocol {name}" for name in silent]
    validation, test = (
        {name: events for name, events in part.items() if len(events)} for part in (division.validation, division.test)
    )
    return replace(division, validation=validation, test=test, notes=(*division.notes, *notes))


def _finite(vectors: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = vectors.numpy()
    refuse_not_finite(found, "users and items")
    return found
