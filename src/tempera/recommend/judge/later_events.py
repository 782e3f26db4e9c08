"""Held-out later events of a run on interactions, as predicted by towers and baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...io.console import logger
from ...ranking.fusion import WEIGHTS, Fusion
from ...ranking.ranking import LEAST_TO_CHOOSE
from ...ranking.spread import spread
from ...task.config import Config
from ...task.evaluation import MOST, Part
from ...task.showcase import Looks
from ...task.verdict import COUNTED, OURS, SystemScores, Verdict, main_metric
from ..read.timeline import Events, Timeline
from ..train.encoders import Elapsed
from ..train.training_events import TrainingEvents, aside_of
from ..train.withheld import Withheld
from .baselines import BASELINES, COUNTING, UNORDERED, Baseline, Observed, by_history, grid, tuned
from .cold import ColdItems, Means
from .counts import Counting
from .full_catalogue import Histories, Scores, inner
from .judgement import Recommended
from .leads import protocols_of, winner
from .popularity import Popularity

# of validation events and items, to choose settings of baselines and the weight beside the vectors
# by
_SCORES = 30_000_000
MOMENT = (
    "the users' tower reads elapsed, the time from a user's last event to the question: "
    "tempera recommend --now TIME asks at another moment than the latest time of the data"
)


class LaterEvents:
    """Evaluate the current towers of a run, the baselines, and both together, on later events."""

    def __init__(self, config: Config, data: TrainingEvents) -> None:
        self.options, self.seed, self.data, self.events = (
            config.evaluation,
            config.train.seed,
            data,
            data.events,
        )
        self.reached: dict[str, dict[str, Recommended]] = {}  # by system and protocol
        self.cold: dict[str, Means] = {}  # what each system makes of withheld items
        self.chosen: dict[str, Any] = {}  # baselines with the settings that validation has chosen
        self.counting: Counting | None = None  # the baseline beside the vectors, once it is chosen

    @property
    def chooses(self) -> bool:
        """True if validation has enough events to choose by."""
        return len(next(iter(self.validation.values()), ())) >= LEAST_TO_CHOOSE

    @property
    def validation(self) -> Mapping[str, Events]:
        """The events to choose by, of each protocol; none where the split or
        `evaluation.validation` has none."""
        return {} if self.options.validation == 0 else self.events.division.validation

    @property
    def looks(self) -> bool:
        """True if there are events to judge by during training."""
        return bool(self.validation) or (
            self.options.queries != 0 and bool(self.events.division.test)
        )

    def follow(self, other: LaterEvents) -> None:
        """Take over what another run on the same events has reached, and what validation has chosen
        for it."""
        other.choose()
        self.reached, self.cold, self.chosen = dict(other.reached), dict(other.cold), other.chosen
        if other.counting is not None:
            fitted = self.chosen[other.counting.system].fit(self._observed)
            self.counting = replace(other.counting, fitted=fitted)

    def begin(self, config: Config, draws: bool) -> Looks:
        """Plan as many looks as the options say: looking up vectors costs little, and items are
        never sampled."""
        return Looks(config.train.evaluations)

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Evaluate the towers on the test by every protocol, or on some of the validation by the
        first.

        Without a validation its place is taken by some of the test. Items are never sampled, so
        `whole` changes nothing.
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
            for rows in (users, items[self.events.targets(events)])
        ]
        seen = unit[0].any(1) & unit[1].any(
            1
        )  # the vector of an unseen id is zero, which is no sign of a collapse
        known = (
            spread(*(rows[seen] for rows in unit))
            if seen.sum() > 1
            else replace(spread(*unit), sides=())
        )
        return Verdict(reached, known), reached

    def reached_again(self, about: Mapping[str, Any]) -> dict[str, dict[str, Recommended]]:
        """Return the ranks of the towers as they are, and of counts and vectors together, on the
        test of each protocol.

        Args:
            about: what was chosen for them, as `about` has returned it.
        """
        test, items = self.events.division.test, self.data.item_vectors
        reached = {
            OURS[1]: {
                name: self._reached(inner(self.data.user_vectors(events), items), events)
                for name, events in test.items()
            }
        }
        if "counting" in about:
            system = about["counting"]["system"]
            usual = (BASELINES if self.events.timeline.ordered else UNORDERED)[system]
            chosen: Any = replace(usual, **about["baselines"][system])  # type: ignore[type-var]
            fusion = Fusion(about["hybrid"]["weight"], about["hybrid"]["queries"])
            served = about["counting"]["served"]
            counting = Counting(system, chosen.fit(self._observed), fusion, served)
            reached[COUNTED] = {
                name: self._reached(self._fused(counting, events)(None), events)
                for name, events in test.items()
            }
        return reached

    def _reached(self, scores: Scores, events: Events) -> Recommended:
        """Evaluate scores of all items for events."""
        return judge_events(
            scores, events, self.events.timeline, self.events.items.count, self.options.metrics
        )

    def _judge_cold(self, system: str, withheld: Withheld, items: NDArray[np.float32]) -> None:
        events, own = withheld.targets, self.events
        target, users = own.targets(events), own.timeline.user_of(events)
        queries = ColdItems(
            withheld.items, withheld.counts, target, own.seen(events), self.options.metrics, users
        )
        self.cold[system] = queries.model(self.data.user_vectors(events), items)
        self.cold |= {"popularity as if known": queries.popularity(), "random": queries.chance()}

    def _some(self, events: Events, most: int) -> Events:
        return drawn(events, most, self.options.seed)

    def choose(self) -> None:
        """Choose, on validation, settings of the baselines, and the one beside the vectors, as they
        are now, with its weight."""
        for _ in self._settled(self._observed):
            pass

    def _settled(self, observed: Observed) -> Iterator[tuple[str, Baseline]]:
        """Yield each baseline with its settings, before the table it was tuned with is forgotten;
        the first time, choose them."""
        if self.chosen or not (self.options.baselines and self.looks and self.options.queries != 0):
            yield from self.chosen.items()
            return
        best, highest = "", -1.0
        ordered = self.events.timeline.ordered
        for system, usual in (BASELINES if ordered else UNORDERED).items():
            if observed.items > usual.most:
                logger.info(
                    f"{system} is left out: {observed.items:,} items are more than its {usual.most:,.0f}"
                )
                continue
            self.chosen[system], score = self._tuned(system, usual, observed)
            yield system, self.chosen[system]
            if system in COUNTING and score > highest:
                best, highest = system, score
        if best:
            self.counting = self._weighed(Counting(best, self.chosen[best].fit(observed)))

    @property
    def _observed(self) -> Observed:
        timeline = self.events.timeline
        return Observed(
            timeline.item, timeline.offsets, len(timeline.item_ids), self.events.division.train
        )

    def baselines(self) -> dict[str, SystemScores]:
        """Rank by popularity, item-kNN, EASE, transition counts, and counts and vectors, if
        evaluation.baselines asks for them."""
        observed, test = self._observed, self.events.division.test
        for system, baseline in self._settled(observed):
            fitted = baseline.fit(
                observed
            )  # one at a time: each may hold a table of items by items
            self.reached[system] = {
                name: self._reached(by_history(fitted, self.events.histories(events)), events)
                for name, events in test.items()
            }
        if self.counting is not None:
            self.reached[COUNTED] = {
                name: self._reached(self._fused(self.counting, events)(None), events)
                for name, events in test.items()
            }
        return {
            system: self.reached[system][self.events.protocol]
            for system in self.reached
            if system not in OURS[:2]
        }

    def _tuned(self, system: str, baseline: Baseline, observed: Observed) -> tuple[Baseline, float]:
        """Return a baseline with the settings that are best on validation, and its metric there; 0
        if nothing can be chosen."""
        if not self.chooses:
            return baseline, 0.0
        events = self._choosing(observed.items)
        seen = self.events.histories(events)

        def score(each: Baseline) -> float:
            return float(self._metric(by_history(each.fit(observed), seen), events).mean())

        baseline = tuned(baseline, grid(system, observed, self.events.timeline.ordered), score)
        return baseline, score(baseline)

    def _weighed(self, counting: Counting) -> Counting:
        """Return counts with the weight of the vectors beside them that is best on validation, or
        with the usual one."""
        if not self.chooses:
            return counting
        events = self._choosing(len(self.events.timeline.item_ids))
        fused = self._fused(counting, events)
        return counting.chosen({weight: self._metric(fused(weight), events) for weight in WEIGHTS})

    def _fused(self, counting: Counting, events: Events) -> Callable[[float | None], Scores]:
        """Return the scores by the weight of the vectors, which are embedded once; None is the
        weight that was chosen."""
        vectors, histories = (
            inner(self.data.user_vectors(events), self.data.item_vectors),
            self.events.histories(events),
        )
        return lambda weight: counting.by_history(vectors, histories, weight)

    def _choosing(self, items: int) -> Events:
        """Return the validation events of all protocols that settings are chosen on."""
        events = np.unique(np.concatenate(list(self.validation.values())))
        return self._some(events, max(LEAST_TO_CHOOSE, _SCORES // items))

    def _metric(self, scores: Scores, events: Events) -> NDArray[np.float64]:
        """Return the main metric of each event, [q]."""
        return self._reached(scores, events).per_query[main_metric(self.options.metrics)]

    def about(self) -> dict[str, Any]:
        """Return every protocol of every system, by tier and history length, and the metrics on
        withheld items."""
        return {
            **self._about_cold(),
            **(
                {"baselines": {name: asdict(each) for name, each in self.chosen.items()}}
                if self.chosen
                else {}
            ),
            **({"winner": self._winner()} if self.chosen else {}),
            **({} if self.counting is None else self.counting.about()),
            **({"moment": MOMENT} if Elapsed() in self.data.options.query else {}),
            "protocols": protocols_of(self.reached),
        }

    def _winner(self) -> str:
        """Return which system is best on the test, and by how much, in a sentence."""
        protocol = self.events.protocol
        return winner(
            {name: each[protocol] for name, each in self.reached.items() if name != OURS[0]},
            protocol,
        )

    def _about_cold(self) -> dict[str, Any]:
        if (withheld := self.events.withheld) is None:
            return {}
        systems = {
            system: {name: asdict(mean) for name, mean in means.items()}
            for system, means in sorted(self.cold.items())
        }
        counts = {"items": len(withheld.items), "queries": len(withheld.targets)}
        return {"cold": {**counts, "withheld": int(withheld.counts.sum()), "systems": systems}}


def drawn(events: Events, most: int, seed: int) -> Events:
    """Return the events, or so many of them at random."""
    if len(events) <= most:
        return events
    return events[np.sort(np.random.default_rng(seed).choice(len(events), most, replace=False))]


def judge_events(
    scores: Scores,
    events: Events,
    timeline: Timeline,
    counts: NDArray[np.int64],
    metrics: Sequence[str],
) -> Recommended:
    """Evaluate scores of all items for events of a timeline.

    Args:
        counts: training events of each item.
    """
    seen, aside = Histories(*timeline.taken(events)), aside_of(timeline, events)
    of, target = Histories(timeline.item, events, timeline.answers(events)).pairs()
    several = None
    if timeline.part is not None:  # an item that comes again is one to find
        first = np.sort(np.unique(of * len(timeline.item_ids) + target, return_index=True)[1])
        several, target = of[first], target[first]
    users = timeline.user_of(events)
    return Recommended.of(
        scores, target, seen, Popularity(counts), metrics, users, query=several, aside=aside
    )
