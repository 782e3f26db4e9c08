"""Held-out later events of a run on interactions, as predicted by towers and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...io.console import logger
from ...parallel.distributed import ALONE, Group
from ...ranking.fusion import WEIGHTS, Fusion
from ...ranking.ranking import LEAST_TO_CHOOSE
from ...ranking.spread import Spread, spread
from ...task.config import Config
from ...task.evaluation import MOST, Part
from ...task.showcase import Looks
from ...task.verdict import COUNTED, SystemScores, Verdict, main_metric
from ..read.timeline import Events, Timeline
from ..train.encoders import Elapsed
from ..train.training_events import TrainingEvents, aside_of
from ..train.withheld import Withheld
from .baselines import (
    BASELINES,
    COUNTING,
    SOLVED,
    UNORDERED,
    Baseline,
    Ease,
    Observed,
    Transitions,
    by_history,
    grid,
    tuned,
)
from .cold import ColdItems, Means
from .counts import Counting
from .full_catalogue import Histories, Scores, inner, query_blocks
from .judgement import DEPTH, Recommended
from .leads import TRAINED, UNTRAINED, protocols_of, winner
from .popularity import Popularity

# most scores by which settings of baselines and the weight beside the vectors are chosen:
# validation events times items
_SCORES = 30_000_000
_TRANSITIONS = "transitions"
_TRIED_WEIGHTS = (0.4, 0.6, 0.8, 1.0)  # of the vectors, in a race of towers
MOMENT = (
    "the users' tower reads elapsed, the time from a user's last event to the question: "
    "tempera recommend --now TIME asks at another moment than the latest time of the data"
)


class LaterEvents:
    """Evaluate the current towers of a run, the baselines, and both together, on later events."""

    def __init__(self, config: Config, data: TrainingEvents) -> None:
        self.options = config.evaluation
        self.seed = config.train.seed
        self.data = data
        self.events = data.events
        self.reached: dict[str, dict[str, Recommended]] = {}  # by system and protocol
        self.cold: dict[str, Means] = {}  # by system: the metrics on withheld items
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
        """Take over the judgements of another run on the same events, and the settings chosen by
        the run's validation."""
        other.choose()
        self.reached = dict(other.reached)
        self.cold = dict(other.cold)
        self.chosen = other.chosen
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

        Without a validation, some events of the test take the place of the validation. Items are
        never sampled, so `whole` changes nothing.
        """
        if part == "test":
            return self._judge_test()
        items = self.data.item_vectors
        protocols = self.validation or self.events.division.test
        events = self._some(next(iter(protocols.values())), self.options.validation or MOST)
        users = self.data.user_vectors(events)
        reached = self._reached(inner(users, items), events)
        return Verdict(reached, self._spread(users, items, events))

    @property
    def _towers(self) -> str:
        """The name of the towers as a system on the test: a run judges the towers before training,
        and again after training."""
        if UNTRAINED in self.reached:
            return TRAINED
        return UNTRAINED

    def _judge_test(self) -> Verdict:
        """Evaluate the towers on the test by every protocol, and on withheld items."""
        items = self.data.item_vectors
        reached: dict[str, Recommended] = {}
        verdicts: dict[str, Verdict] = {}
        for name, events in self.events.division.test.items():
            users = self.data.user_vectors(events)
            reached[name] = self._reached(inner(users, items), events)
            verdicts[name] = Verdict(reached[name], self._spread(users, items, events))
        system = self._towers
        self.reached[system] = reached
        if self.events.withheld is not None:
            self._judge_cold(system, self.events.withheld, items)
        return verdicts[self.events.protocol]

    def _spread(
        self, users: NDArray[np.float32], items: NDArray[np.float32], events: Events
    ) -> Spread:
        """Return the cosines of users and the items of the same event, beside the cosines of random
        pairs."""
        users = _unit(users)
        answers = _unit(items[self.events.targets(events)])
        # The vector of an unseen id is zero, which is no sign of a collapse.
        seen = users.any(1) & answers.any(1)
        if seen.sum() > 1:
            return spread(users[seen], answers[seen])
        return replace(spread(users, answers), sides=())

    def reached_again(
        self, about: Mapping[str, Any], group: Group = ALONE
    ) -> dict[str, dict[str, Recommended]]:
        """Return the ranks of the towers, and of counts and vectors together, on the test of each
        protocol.

        Args:
            about: the document of a run, from `about`, with the chosen settings.
            group: processes that divide the events, if all of them call this.
        """
        items = self.data.item_vectors
        towers: dict[str, Recommended] = {}
        for name, events in self.events.division.test.items():
            users = self.data.user_vectors(events)
            towers[name] = self._reached(inner(users, items), events, group)
        if "counting" not in about:
            return {TRAINED: towers}
        system = about["counting"]["system"]
        usual: Any = self._usual[system]
        chosen = replace(usual, **about["baselines"][system])
        fusion = Fusion(about["hybrid"]["weight"], about["hybrid"]["queries"])
        fitted = chosen.fit(self._observed)
        counting = Counting(system, fitted, fusion, about["counting"]["served"])
        return {TRAINED: towers, COUNTED: self._judge_counting(counting, group)}

    def _reached(self, scores: Scores, events: Events, group: Group = ALONE) -> Recommended:
        """Evaluate scores of all items for events."""
        return judge_events(
            scores,
            events,
            self.events.timeline,
            self.events.items.count,
            self.options.metrics,
            group=group,
        )

    def _judge_cold(self, system: str, withheld: Withheld, items: NDArray[np.float32]) -> None:
        """Evaluate the towers on withheld items, beside popularity and chance."""
        events = withheld.targets
        queries = ColdItems(
            withheld.items,
            withheld.counts,
            self.events.targets(events),
            self.events.seen(events),
            self.options.metrics,
            self.events.timeline.user_of(events),
        )
        self.cold[system] = queries.model(self.data.user_vectors(events), items)
        self.cold["popularity as if known"] = queries.popularity()
        self.cold["random"] = queries.chance()

    def _some(self, events: Events, most: int) -> Events:
        return drawn(events, most, self.options.seed)

    @property
    def counts_in_races(self) -> bool:
        """True if a race judges its towers beside counts: of events with an order, in a run with
        `evaluation.baselines`."""
        is_compared = self.options.baselines and self.events.timeline.ordered and self.chooses
        return is_compared and len(self.events.timeline.item_ids) <= Transitions.most

    @cached_property
    def usual_counts(self) -> Counting:
        """Transition counts of the training events, with the usual settings."""
        return Counting(_TRANSITIONS, Transitions().fit(self._observed))

    def served_scores(self, counting: Counting) -> NDArray[np.float64]:
        """Return the main metric of validation events by what would be served, [q]: the vectors,
        or vectors and counts together at the best of a few weights.

        Towers whose vectors are as good alone differ beside counts.
        """
        by_weight = self._by_weight(counting, _TRIED_WEIGHTS)
        return max(by_weight.values(), key=lambda values: float(values.mean()))

    def choose(self) -> None:
        """Choose settings of the baselines on validation, and the baseline beside the vectors with
        a weight, unless chosen already."""
        self._choose(self._observed, judged=False)

    def _choose(self, observed: Observed, judged: bool) -> None:
        """Choose as `choose` does.

        Args:
            judged: evaluate each baseline on the test as soon as it is chosen, while the baseline's
                table is still held.
        """
        compares = self.options.baselines and self.looks and self.options.queries != 0
        if self.chosen or not compares:
            return
        best, highest = "", -1.0
        for system, usual in self._usual.items():
            if observed.items > usual.most:
                logger.info(
                    f"{system} is left out: {observed.items:,} items are more than its {usual.most:,.0f}"
                )
                continue
            baseline, score = self._tuned(system, usual, observed)
            self.chosen[system] = baseline
            if judged:
                self._judge_baseline(system, baseline, observed)
            if system in COUNTING and score > highest:
                best, highest = system, score
        if best:
            self.counting = self._weighed(Counting(best, self.chosen[best].fit(observed)))

    @property
    def _usual(self) -> Mapping[str, Baseline]:
        """The baselines for the events, with the usual settings."""
        return BASELINES if self.events.timeline.ordered else UNORDERED

    @property
    def _observed(self) -> Observed:
        timeline = self.events.timeline
        return Observed(
            timeline.item, timeline.offsets, len(timeline.item_ids), self.events.division.train
        )

    def baselines(self) -> dict[str, SystemScores]:
        """Rank by popularity, item-kNN, EASE, transition counts, and counts and vectors, if
        `evaluation.baselines` is set."""
        observed = self._observed
        if self.chosen:
            for system, baseline in self.chosen.items():
                self._judge_baseline(system, baseline, observed)
        else:
            self._choose(observed, judged=True)
        if self.counting is not None:
            self.reached[COUNTED] = self._judge_counting(self.counting)
        protocol = self.events.protocol
        return {
            system: reached[protocol]
            for system, reached in self.reached.items()
            if system not in (UNTRAINED, TRAINED)
        }

    def _judge_baseline(self, system: str, baseline: Baseline, observed: Observed) -> None:
        """Evaluate a baseline on the test, and forget the table: the table may be of items by
        items."""
        fitted = baseline.fit(observed)
        self.reached[system] = {}
        for name, events in self.events.division.test.items():
            scores = by_history(fitted, self.events.histories(events))
            self.reached[system][name] = self._reached(scores, events)

    def _judge_counting(self, counting: Counting, group: Group = ALONE) -> dict[str, Recommended]:
        """Return the ranks of counts and vectors together on the test of each protocol."""
        reached = {}
        for name, events in self.events.division.test.items():
            histories = self.events.histories(events)
            scores = counting.by_history(self._vector_scores(events), histories)
            reached[name] = self._reached(scores, events, group)
        return reached

    def _tuned(self, system: str, baseline: Baseline, observed: Observed) -> tuple[Baseline, float]:
        """Return a baseline with the best settings on validation, and the metric there; 0 if
        nothing can be chosen."""
        if not self.chooses:
            return baseline, 0.0
        events = self._choosing(observed.items)
        histories = self.events.histories(events)

        @cache  # the best settings so far are among the candidates of each option
        def score(each: Baseline) -> float:
            scores = by_history(each.fit(observed), histories)
            return float(self._metric(scores, events).mean())

        settings = grid(system, observed, self.events.timeline.ordered)
        if isinstance(baseline, Ease):
            chosen = tuned(replace(baseline, items=SOLVED), settings, score)
            return replace(chosen, items=None), score(chosen)
        chosen = tuned(baseline, settings, score)
        return chosen, score(chosen)

    def _weighed(self, counting: Counting) -> Counting:
        """Return counts with the weight of the vectors that is best on validation, or with the
        usual weight."""
        if not self.chooses:
            return counting
        return counting.chosen(self._by_weight(counting, WEIGHTS))

    def _by_weight(
        self, counting: Counting, weights: Sequence[float]
    ) -> dict[float, NDArray[np.float64]]:
        """Return the main metric of validation events, [q], by counts and vectors together with
        each weight of the vectors."""
        events = self._choosing(len(self.events.timeline.item_ids))
        vectors = self._vector_scores(events)
        histories = self.events.histories(events)
        metric: dict[float, list[NDArray[np.float64]]] = {weight: [] for weight in weights}
        for rows in query_blocks(len(events), len(self.events.timeline.item_ids)):
            comparable = counting.comparable(vectors(rows), histories[rows])
            for weight, parts in metric.items():
                parts.append(self._metric_of_block(comparable.fused(weight), events[rows]))
        return {weight: np.concatenate(parts) for weight, parts in metric.items()}

    def _vector_scores(self, events: Events) -> Scores:
        """Return the scores of all items by the towers' vectors."""
        return inner(self.data.user_vectors(events), self.data.item_vectors)

    def _choosing(self, items: int) -> Events:
        """Return the validation events of all protocols, to choose settings on."""
        events = np.unique(np.concatenate(list(self.validation.values())))
        return self._some(events, max(LEAST_TO_CHOOSE, _SCORES // items))

    def _metric(self, scores: Scores, events: Events) -> NDArray[np.float64]:
        """Return the main metric of each event, [q]."""
        name = main_metric(self.options.metrics)
        counts = self.events.items.count
        reached = judge_events(scores, events, self.events.timeline, counts, [name], depth=0)
        return reached.per_query[name]

    def _metric_of_block(self, scores: NDArray[np.float32], events: Events) -> NDArray[np.float64]:
        """Return the main metric of each event of a block, [q], from the scores of the events."""
        return self._metric(lambda rows: scores[rows], events)

    def about(self) -> dict[str, Any]:
        """Return every protocol of every system, by tier and history length, and the metrics on
        withheld items."""
        document: dict[str, Any] = {}
        if self.events.withheld is not None:
            document["cold"] = self._about_cold(self.events.withheld)
        if self.chosen:
            document["baselines"] = {name: asdict(each) for name, each in self.chosen.items()}
            document["winner"] = self._winner()
        if self.counting is not None:
            document |= self.counting.about()
        if Elapsed() in self.data.options.query:
            document["moment"] = MOMENT
        document["protocols"] = protocols_of(self.reached)
        return document

    def _winner(self) -> str:
        """Return a sentence: the best system on the test, and the system's lead."""
        protocol = self.events.protocol
        systems = {
            name: reached[protocol] for name, reached in self.reached.items() if name != UNTRAINED
        }
        return winner(systems, protocol)

    def _about_cold(self, withheld: Withheld) -> dict[str, Any]:
        """Return the metrics of each system on withheld items, by name."""
        systems: dict[str, Any] = {}
        for system, means in sorted(self.cold.items()):
            systems[system] = {name: asdict(mean) for name, mean in means.items()}
        return {
            "items": len(withheld.items),
            "queries": len(withheld.targets),
            "withheld": int(withheld.counts.sum()),
            "systems": systems,
        }


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
    return unit


def drawn(events: Events, most: int, seed: int) -> Events:
    """Return the events, or `most` of them at random in rising order."""
    if len(events) <= most:
        return events
    chosen = np.random.default_rng(seed).choice(len(events), most, replace=False)
    return events[np.sort(chosen)]


def judge_events(
    scores: Scores,
    events: Events,
    timeline: Timeline,
    counts: NDArray[np.int64],
    metrics: Sequence[str],
    depth: int = DEPTH,
    group: Group = ALONE,
) -> Recommended:
    """Evaluate scores of all items for events of a timeline.

    Where the events lie in parts, all items of the user's part are to be found.

    Args:
        counts: training events of each item.
        depth: of the lists; 0 for no lists.
        group: processes that divide the events, if all of them call this.
    """
    items, starts, stops = timeline.taken(events)
    seen = Histories(items, starts, stops)
    query, target = Histories(timeline.item, events, timeline.answers(events)).pairs()
    if timeline.part is not None:  # an item that comes again in a part is one item to find
        keys = query * len(timeline.item_ids) + target
        first = np.sort(np.unique(keys, return_index=True)[1])
        query, target = query[first], target[first]
    return Recommended.of(
        scores,
        target,
        seen,
        Popularity(counts),
        metrics,
        users=timeline.user_of(events),
        k=depth,
        query=None if timeline.part is None else query,
        aside=aside_of(timeline, events),
        group=group,
    )
