"""A race: a few settings of options, trained side by side for a while; validation chooses the one
to train.

It knows neither texts nor interactions: the task says what is tried, and it trains and judges what
`Prepared` holds. The race follows from the seed and the data alone, so that a run which is
interrupted finds the same winner again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean
from typing import Any

import numpy as np
import torch

from ..artifacts.pictures import setting
from ..engine.faults import NotFinite
from ..errors import quantity
from ..io.console import logger, progress_bar
from ..options.build import with_options
from ..parallel.digest import digest
from ..parallel.distributed import Group
from ..ranking.compare import Floats, bootstrap
from ..ranking.ranking import LEAST_TO_CHOOSE
from ..task.evaluation import Part
from ..task.rounds import LEARNING_RATE, TEMPERATURE, Race, Setting, Values
from ..task.verdict import main_metric
from .prepare import Prepared, move_tower, reading_of, settle_temperature
from .resume import Checkpoints
from .task import RunTask
from .time_limit import short_run, step_seconds

Known = dict[
    str, tuple[Floats, float]
]  # the scores of a setting after some steps, and the CPU seconds that they took
LEAST_STEPS = 16  # of a run, for a sixth of it to tell anything
# of a run, of which a part tells settings apart: on more data they differ by more than chance
# sooner
MOST_STEPS = 6_000
_RACE = "race"  # the name of its scores among the notes of a run
_MEASURED, _SHARE = (
    3,
    0.02,
)  # steps of a setting that tell its time, where they are at most this share of its steps


@dataclass(frozen=True)
class Tried:
    """One setting after one round.

    Args:
        name: of the setting; empty if its values say enough.
        values: its options; it was trained with `Race.trial` of them.
        steps: that it was trained for.
        score: mean of the main metric over the validation queries.
        low: lower end of the 95 % interval of its difference from the best of the round, paired by
            query.
        high: and the upper end; both are 0 for the best.
        seconds: CPU seconds of its training and evaluation.
    """

    name: str
    values: Values
    steps: int
    score: float
    low: float
    high: float
    seconds: float

    @property
    def setting(self) -> Setting:
        """The setting."""
        return Setting(self.values, self.name)


def choose_by_race(
    prepared: Prepared,
    free: Sequence[str],
    known: Mapping[str, Any] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Prepared:
    """Choose the options of `free` by a race and return the run with them, before its training; all
    processes call.

    Args:
        free: the options that the configuration leaves open.
        known: the record of the race that an interrupted run has left; it is not run again.
        checkpoints: keep the scores of the race as far as it has come; None keeps none.
    """
    if not free:
        return prepared
    config, group, task = prepared.config, prepared.devices.group, prepared.task
    race = task.race(config).among(free)
    settings = race.settings()
    if len(settings) == 1:
        return with_setting(prepared, race.start)
    if not task.facts.chooses:
        name = next((each.name for each in settings if each.values == race.unproven), "")
        left = [each.name for later in race.rounds[1:] for each in later.variations if each.name]
        name += f" without {' and '.join(left)}" if name and left else ""
        if group.main and name:
            few = f"validation has fewer than {LEAST_TO_CHOOSE} queries or events, which choose nothing"
            logger.info(
                f"{few if task.facts.has_looks else 'without validation nothing is chosen'}: {name}"
            )
        return with_setting(prepared, race.unproven or {})
    steps = config.train.steps(task.data.sampler.batches_per_epoch)
    if not known and (steps < LEAST_STEPS or config.train.divides):
        return prepared  # too short to tell settings apart, or a tower that one process cannot hold
    record = dict(known or {})
    if not record and group.main:
        with prepared.phases("race"):
            progress = RaceProgress.of(prepared, checkpoints)
            tried, winner = run_race(prepared, race, min(steps, MOST_STEPS), progress)
        record = {
            "metric": main_metric(config.evaluation.metrics),
            "tried": [asdict(each) for each in tried],
        }
        record |= {"chosen": winner.values, "factors": race.factors}
    if group.main:
        prepared.log.write(event="recipe", **record)
        logger.info(_said(record))
    values = [each.values for each in settings]
    return with_setting(
        prepared, values[group.all_reduce_max(values.index(record["chosen"]) if group.main else -1)]
    )


def _said(record: Mapping[str, Any]) -> str:
    """Return what was chosen, and apart from it what no setting had another value of."""
    tried, chosen = record["tried"], record["chosen"]
    won = next(each for each in tried if each["values"] == chosen)
    if won["name"]:
        return f"chosen on validation: {won['name']}"
    alike = {
        name: value
        for name, value in chosen.items()
        if all(each["values"].get(name) == value for each in tried)
    }
    raced = setting(
        {"values": {name: value for name, value in chosen.items() if name not in alike}}
    )
    return f"chosen on validation: {raced}" + (
        f"; by the data: {setting({'values': alike})}" if alike else ""
    )


def with_setting(prepared: Prepared, values: Values) -> Prepared:
    """Return a prepared run with other values of some options; its tower is another one where that
    follows from them."""
    if not values:
        return prepared
    config = with_options(prepared.config, values)
    if {*values} <= {TEMPERATURE, LEARNING_RATE}:
        settle_temperature(config)
        return replace(prepared, config=config)
    torch.manual_seed(config.train.seed)
    task = prepared.task.again(reading_of(config, prepared.devices))
    move_tower(config, task, prepared.devices)
    config = config.settled(task.facts.counts["train"])
    settle_temperature(config)
    return replace(prepared, config=config, task=task)


@dataclass
class RaceProgress:
    """Hold the scores of a race as far as it has come, and keep them for a process that goes on.

    Args:
        checkpoints: where they are kept; None keeps none.
        data: digest of what is trained on: scores on other data are of no use.
        known: the scores of each setting after some steps.
    """

    checkpoints: Checkpoints | None = None
    data: str = ""
    known: Known = field(default_factory=Known)

    @classmethod
    def of(cls, prepared: Prepared, checkpoints: Checkpoints | None) -> RaceProgress:
        """Return the progress that an interrupted run on the same data has kept, or none."""
        if checkpoints is None:
            return cls()
        task = prepared.task.data
        data = f"{digest((*task.tower.parameters(), *task.content())):016x}"
        kept = checkpoints.notes.get(_RACE, {})
        known = Known()
        if kept.get("data") == data:
            for place, (kind, scores, seconds) in kept["known"].items():
                known[place] = np.array(scores, kind), seconds
        if known:
            logger.info(f"the race goes on: {quantity(len(known), 'settings have')} been tried")
        return cls(checkpoints, data, known)

    def add(self, place: str, scores: Floats, seconds: float) -> None:
        """Add the scores of a setting after some steps, and keep them."""
        self.known[place] = scores, seconds
        if self.checkpoints is not None:
            known = {
                place: (scores.dtype.str, scores.tolist(), seconds)
                for place, (scores, seconds) in self.known.items()
            }
            self.checkpoints.note(_RACE, {"data": self.data, "known": known})


def run_race(
    prepared: Prepared, race: Race, steps: int, progress: RaceProgress | None = None
) -> tuple[list[Tried], Setting]:
    """Train the settings of each round for their part of the run's steps, and go on with the best;
    return the winner, too.

    A lead that may be chance counts: to keep the default unless it is shown to be worse loses on
    the test (docs/results/text-recipe.md). Where the best value is at an edge, and shown to be the
    best, the race goes on beyond it. One process calls.

    Args:
        progress: settings that have been tried already; None has none.
    """
    alone = replace(
        prepared,
        devices=replace(prepared.devices, group=Group(device=prepared.devices.group.device)),
    )
    tried, kept = list[Tried](), [Setting(race.start)]
    progress = progress or RaceProgress()
    for each in race.rounds:
        kept, part = each.settings(kept), max(1, steps // each.part)
        if len(kept) > 1:
            best = best_first(scores := compare(alone, race, kept, part, progress))
            while (
                each.beyond
                and best[1].high < 0
                and (more := each.next(*(one.setting for one in best)))
            ):
                best = best_first(
                    scores := compare(alone, race, kept := [*kept, more], part, progress)
                )
            tried += scores
            kept = [one.setting for one in best[: each.keep]]
    return tried, kept[0]


def best_first(scores: Sequence[Tried]) -> list[Tried]:
    """Return settings by falling score."""
    return sorted(scores, key=lambda each: -each.score)


def compare(
    prepared: Prepared, race: Race, settings: Sequence[Setting], steps: int, progress: RaceProgress
) -> list[Tried]:
    """Train settings of a race for so many steps, unless their scores are known, and compare each
    with the best of them."""
    known = progress.known
    places = [f"{steps} {json.dumps(each.values, sort_keys=True)}" for each in settings]
    new = {place: each for place, each in zip(places, settings, strict=True) if place not in known}
    trials = {place: race.trial(each.values) for place, each in new.items()}
    if _SHARE * steps >= _MEASURED:
        seconds = sum(
            mean(step_seconds(with_setting(prepared, each), _MEASURED)[1:])
            for each in trials.values()
        )
        names = "; ".join(setting(asdict(each)) for each in new.values())
        logger.info(
            f"trying {names}: {steps:,} steps each, about {steps * seconds:,.0f} s together"
        )
    failed: dict[str, tuple[NotFinite, float]] = {}
    with progress_bar("choosing options", len(new), "setting") as bar:
        for place, values in trials.items():
            began = time.process_time()
            try:
                scores = score(trained(prepared, values, steps))
                progress.add(place, scores, round(time.process_time() - began, 3))
            except NotFinite as error:
                failed[place] = error, round(time.process_time() - began, 3)
            bar.update()
    for place, (fault, cpu) in failed.items():  # a setting that diverges finds nothing
        if not known:
            raise fault
        logger.info(f"{setting({'values': new[place].values})} diverges")
        progress.add(place, np.zeros_like(next(iter(known.values()))[0]), cpu)
    tried = [known[place] for place in places]
    best = max((values for values, _ in tried), key=lambda values: float(values.mean()))
    gaps = [bootstrap(values, best, draws=2000) for values, _ in tried]
    return [
        Tried(each.name, each.values, steps, float(values.mean()), gap.low, gap.high, cpu)
        for each, (values, cpu), gap in zip(settings, tried, gaps, strict=True)
    ]


def trained(prepared: Prepared, values: Values, steps: int) -> RunTask:
    """Return the task of a prepared run after so many steps of training, of its own, with these
    values."""
    config = with_options(prepared.config, values)
    return short_run(
        prepared, replace(config, train=replace(config.train, max_steps=steps)), prepared.devices
    )[0]


def score(task: RunTask, part: Part = "validation") -> Floats:
    """Return the main metric of each query of a part, [q]."""
    ranking = task.held_out.judge(part).ranking
    return ranking.per_query[main_metric(ranking.metrics)]
