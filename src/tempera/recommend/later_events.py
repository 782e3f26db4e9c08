"""Held-out later events of a run on interactions, as predicted by towers and baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ranking.ranking import LEAST_TO_CHOOSE, MOST, Part
from ..ranking.resolved import Config
from ..ranking.spread import spread
from ..ranking.verdict import OURS, SystemScores, Verdict
from .baselines import BASELINES, Observed, by_history
from .cold import ColdItems, Means
from .full_catalogue import Scores, inner
from .judgement import Recommended
from .popularity import Popularity
from .timeline import Events
from .training_events import TrainingEvents
from .withheld import Withheld


class LaterEvents:
    """Evaluate the current towers of a run, and the baselines, on later events."""

    def __init__(self, config: Config, data: TrainingEvents) -> None:
        self.options, self.seed, self.data, self.events = config.evaluation, config.train.seed, data, data.events
        self.evaluations = config.train.evaluations
        self.corpus: int | None = None  # items are never sampled
        self.reached: dict[str, dict[str, Recommended]] = {}  # by system and protocol
        self.cold: dict[str, Means] = {}  # what each system makes of withheld items

    @property
    def chooses(self) -> bool:
        """True if validation has enough events to choose by."""
        return len(next(iter(self.validation.values()), ())) >= LEAST_TO_CHOOSE

    @property
    def validation(self) -> Mapping[str, Events]:
        """The events to choose by, of each protocol; none where the split or `evaluation.validation` has none."""
        return {} if self.options.validation == 0 else self.events.division.validation

    @property
    def looks(self) -> bool:
        """True if there are events to judge by during training."""
        return bool(self.validation) or self.options.queries != 0

    def embed(self) -> None:
        """Do nothing: vectors of items cost little."""

    def follow(self, other: LaterEvents) -> None:
        """Take over what another run on the same events has reached."""
        self.reached, self.cold = dict(other.reached), dict(other.cold)

    def settle(self) -> None:
        """Do nothing: items are never sampled."""

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Evaluate the towers on the test by every protocol, or on some of the validation by the first.

        Without a validation its place is taken by some of the test. Items are never sampled, so `whole` changes nothing.
        """
        division, items = self.events.division, self.data.item_vectors
        if part == "validation":
            events = next(iter((self.validation or division.test).values()))
            return self._verdict(self._some(events, self.options.validation or MOST), items)[0]
        verdicts = {name: self._verdict(events, items) for name, events in division.test.items()}
        system = OURS[bool(self.reached)]
        self.reached[system] = {name: reached for name, (_, reached) in verdicts.items()}
        if self.events.withheld is not None:
            self._judge_cold(system, self.events.withheld, items)
        return verdicts[self.events.protocol][0]

    def _verdict(self, events: Events, items: NDArray[np.float32]) -> tuple[Verdict, Recommended]:
        users = self.data.user_vectors(events)
        reached = self._reached(inner(users, items), events)
        unit = [
            rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
            for rows in (users, items[reached.target])
        ]
        return Verdict(reached, spread(*unit)), reached

    def _reached(self, scores: Scores, events: Events) -> Recommended:
        """Evaluate scores of all items for events."""
        target, seen = self.events.targets(events), self.events.histories(events)
        users, popularity = self.events.timeline.user_of(events), Popularity(self.data.visits.counts)
        return Recommended.of(scores, target, seen, popularity, self.options.metrics, users)

    def _judge_cold(self, system: str, withheld: Withheld, items: NDArray[np.float32]) -> None:
        events, own = withheld.targets, self.events
        target, users = own.targets(events), own.timeline.user_of(events)
        queries = ColdItems(withheld.items, withheld.counts, target, own.histories(events), self.options.metrics, users)
        self.cold[system] = queries.model(self.data.user_vectors(events), items)
        self.cold |= {"popularity as if known": queries.popularity(), "random": queries.chance()}

    def _some(self, events: Events, most: int) -> Events:
        if len(events) <= most:
            return events
        chosen = np.random.default_rng(self.options.seed).choice(len(events), most, replace=False)
        return events[np.sort(chosen)]

    def baselines(self) -> dict[str, SystemScores]:
        """Rank by popularity, item-kNN, EASE and transition counts, if evaluation.baselines asks for them."""
        if not (self.options.baselines and self.options.queries != 0):
            return {}
        timeline, division = self.events.timeline, self.events.division
        observed = Observed(timeline.item, timeline.offsets, len(timeline.item_ids), division.train)
        for system, baseline in BASELINES.items():
            fitted = baseline.fit(observed)  # one at a time: each may hold a table of items by items
            self.reached[system] = {
                name: self._reached(by_history(fitted, self.events.histories(events)), events)
                for name, events in division.test.items()
            }
        return {system: self.reached[system][self.events.protocol] for system in BASELINES}

    def about(self) -> dict[str, Any]:
        """Return every protocol of every system, by tier and history length, and the metrics on withheld items."""
        return {
            **self._about_cold(),
            "protocols": {
                system: {name: reached.json() for name, reached in protocols.items()}
                for system, protocols in self.reached.items()
            },
        }

    def _about_cold(self) -> dict[str, Any]:
        if (withheld := self.events.withheld) is None:
            return {}
        systems = {
            system: {name: asdict(mean) for name, mean in means.items()} for system, means in sorted(self.cold.items())
        }
        counts = {"items": len(withheld.items), "queries": len(withheld.targets)}
        return {"cold": {**counts, "withheld": int(withheld.counts.sum()), "systems": systems}}
