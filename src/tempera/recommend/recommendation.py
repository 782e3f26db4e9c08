"""The task of recommendation: interactions of users with items, the later ones held out for
evaluation."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..errors import ConfigError, DataError, quantity
from ..ranking.ranking import LEAST_TO_CHOOSE
from ..task.config import Config
from ..task.evaluation import Evaluation, Part
from ..task.rounds import Race
from ..task.showcase import Compared, DataFacts, RefitPlan, Searched, compare_systems
from ..task.verdict import Verdict
from .judge.item_showcase import ItemShowcase
from .judge.later_events import LaterEvents, drawn
from .read.division import TEST, Division
from .read.timeline import Timeline
from .train.candidates import race_of
from .train.encoders import Elapsed
from .train.entity_tables import item_names
from .train.features import Features
from .train.training_events import EventData, TrainingEvents
from .train.withheld import Withheld, withhold

_NO_EVALUATION = "evaluation.queries and evaluation.validation are 0: all interactions are trained on, and nothing is evaluated"
_SCORES = 2_000_000_000  # most scores of a protocol: its test queries times all items


class InteractionTask:
    """Hold the parts of one run on interactions: training events, held-out events, and the
    showcase."""

    def __init__(self, config: Config, events: EventData) -> None:
        self.data = TrainingEvents(config, events)
        self.held_out = LaterEvents(config, self.data)
        self.showcase = ItemShowcase(self.data, self.held_out)

    @classmethod
    def read(cls, config: Config, cache: Path | None) -> InteractionTask:
        """Read and divide the interactions of a source, once; arrays are mapped in `cache`, if there
        is a cache."""
        tower = _features_of(config)
        options = config.evaluation
        timeline: Timeline = config.data.read(cache)
        _refuse_one_item(timeline)
        if Elapsed() in tower.query:
            _refuse_without_times(timeline)
        division: Division = timeline.source.split(timeline)
        if options.queries == 0 and options.validation == 0:
            division = replace(
                division.extended("test"),
                validation={},
                test={},
                counts={},
                notes=(_NO_EVALUATION,),
            )
        timeline = division.timeline or timeline
        if timeline.part is not None and timeline.target is not None:
            raise ConfigError(
                "data.targets needs events in their order and a split by it: set data.split=leave_last_out, global_time or none"
            )
        withheld: Withheld | None = None
        if options.cold_items:
            timeline, division, withheld = withhold(
                timeline, division, options.cold_items, options.seed
            )
        division = _limit_tests(division, options, len(timeline.item_ids))
        events = EventData.of(timeline, division, withheld)
        item_names(events.items.table)  # refuses bad names now, not after hours of training
        return cls(config, events)

    @property
    def refits(self) -> RefitPlan:
        """Validation before the test is evaluated, and the test after it; nothing if validation is
        too small to choose the length by."""
        division = self.data.events.division
        parts: tuple[Part, ...] = ("validation", "test")
        return RefitPlan(
            parts if self.held_out.chooses else (),
            lambda part: int(division.extended(part).train.sum()),
        )

    def race(self, config: Config) -> Race:
        """Return the towers to be tried by the recipe on the events."""
        events = self.data.events
        timeline = events.timeline
        timed = timeline.time is not None
        race = race_of(events.users, events.items, timeline.ordered, timed, events.happened)
        if not self.held_out.counts_in_races:
            return race
        # The trials have the same training events, which are counted once.
        held_out = self.held_out
        return replace(race, score=lambda task: task.held_out.served_scores(held_out.usual_counts))

    @cached_property
    def facts(self) -> DataFacts:
        """The interactions in numbers and sentences."""
        return self.showcase.facts()

    def compared(self, before: Verdict | None, after: Verdict | None) -> Compared:
        """Compare the trained towers with the untrained ones, baselines, and counts beside the
        vectors."""
        held_out = self.held_out
        return compare_systems(
            before, after, held_out.baselines, held_out.about, self.showcase.examples
        )

    def searched(self) -> Searched:
        """Return the items with vectors, and all histories."""
        return self.showcase.searched()

    def again(self, config: Config, part: Part | None = None) -> InteractionTask:
        """Return another run on the same timeline, before training. With a part, the new run trains
        on the events of the part, too, and is judged by the same choices of validation."""
        if part is None:
            return InteractionTask(config, self.data.events)
        task = InteractionTask(config, self.data.events.extended(part))
        task.held_out.follow(self.held_out)
        return task


def _features_of(config: Config) -> Features:
    """Return the options of the towers.

    Raises:
        ConfigError: options not for runs on interactions.
    """
    if not isinstance(config.tower, Features):
        raise ConfigError("tower.kind: interactions need kind: features")
    if config.train.max_pairs is not None:
        raise ConfigError(
            "train.max_pairs is for pairs of texts, and data has interactions: remove it"
        )
    if config.train.refit == "validation" and config.evaluation.cold_items:
        raise ConfigError(
            "train.refit is validation, whose events may hold what evaluation.cold_items withholds: give refit=all, which "
            "then trains again after the evaluation only"
        )
    return config.tower


def _refuse_one_item(timeline: Timeline) -> None:
    """Raise DataError if all interactions are with the same item."""
    if len(timeline.item_ids) < 2:
        raise DataError(
            f"all {len(timeline):,} interactions are with the item {timeline.item_ids[0].as_py()!r}, and a recommender "
            "needs several to choose from: give more data"
        )


def _refuse_without_times(timeline: Timeline) -> None:
    """Raise ConfigError if the times since a user's last event are not known."""
    if timeline.time is None:
        raise ConfigError(
            "tower.query: elapsed needs times, but the interactions have only an order: name a column of times with "
            "data.time=COLUMN, or leave elapsed out"
        )
    if not timeline.ordered:
        raise ConfigError(
            "tower.query: elapsed needs times, but data.ordered is false, which says that times mean nothing: leave out "
            "one of both"
        )


def _limit_tests(division: Division, options: Evaluation, items: int) -> Division:
    """Return a division without empty protocols, and with a limited number of test queries.

    The limit is `evaluation.queries`, or else a number of scores of all items.

    Raises:
        DataError: the split has protocols, but no test events.
    """
    validation = {name: events for name, events in division.validation.items() if len(events)}
    test = {name: events for name, events in division.test.items() if len(events)}
    if division.test and not test:
        raise DataError(
            "the split has no test events: no user has an event in the test part and others before it; give more events of each "
            "user, or set data.split=none to train on all without an evaluation"
        )
    silent = [name for name in division.test if name not in test]
    notes = [*division.notes, *(f"the protocol {name} has no test events" for name in silent)]
    if options.queries == 0 and test:
        count = int((division.part == TEST).sum())
        unused = quantity(count, "interactions of the test part are not used")
        notes.append(f"evaluation.queries is 0: {unused}")
        test = {}
    most = options.queries or max(LEAST_TO_CHOOSE, _SCORES // items)
    queries = {name: drawn(events, most, options.seed) for name, events in test.items()}
    for name, events in test.items():
        if len(queries[name]) < len(events):
            notes.append(
                f"{name} asks {len(queries[name]):,} of {len(events):,} test queries, drawn at random; "
                "evaluation.queries sets their number"
            )
    return replace(division, validation=validation, test=queries, notes=tuple(notes))
