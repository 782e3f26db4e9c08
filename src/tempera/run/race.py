"""A race: a few settings of options, trained side by side for a while; validation chooses the
setting of the run.

A race knows neither texts nor interactions: the task names the settings, and the race trains and
judges the tower of `Prepared`. The race follows from the seed and the data alone, so that an
interrupted run finds the same winner again.
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
from ..task.rounds import LEARNING_RATE, TEMPERATURE, Race, Setting, Values
from ..task.verdict import main_metric
from .prepare import Prepared, move_tower, reading_of, resolve_temperature
from .resume import Checkpoints
from .task import RunTask
from .time_limit import short_run, step_seconds

# The scores of a setting after some steps, and their CPU seconds.
Known = dict[str, tuple[Floats, float]]
LEAST_STEPS = 16  # of a run, for a sixth of the run to tell anything
_RACE = "race"  # the name of its scores among the notes of a run
_MEASURED = 3  # steps of a setting that tell its time
_SHARE = 0.02  # largest share of a setting's steps that may be spent on telling its time


@dataclass(frozen=True)
class Tried:
    """A setting after a round.

    Args:
        name: of the setting; empty if its values say enough.
        values: options of the setting, trained with `Race.trial` of the values.
        steps: of the training.
        score: mean of the main metric over the validation queries.
        low: lower end of the 95 % interval of the difference from the best setting of the round,
            paired by query; 0 for the best.
        high: upper end of the interval.
        seconds: CPU seconds of training and evaluation.
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
    """Choose the options of `free` by a race, and return the run with the chosen options, before
    the training; all processes call.

    Args:
        free: names of the open options.
        known: the record of the race of an interrupted run, which is not run again.
        checkpoints: keep the scores of the race on the way; None keeps no scores.
    """
    if not free:
        return prepared
    config = prepared.config
    group = prepared.devices.group
    task = prepared.task
    race = task.race(config).among(free)
    settings = race.settings()
    if len(settings) == 1:
        return with_setting(prepared, race.start)
    if not task.facts.chooses:
        if group.main:
            _announce_unproven(race, settings, task.facts.has_looks)
        return with_setting(prepared, race.unproven or {})
    steps = config.train.steps(task.data.sampler.batches_per_epoch)
    if not known and (steps < LEAST_STEPS or config.train.divides):
        return prepared  # too short to tell settings apart, or a tower that one process cannot hold
    record = dict(known or {})
    if not record and group.main:
        with prepared.phases("race"):
            progress = RaceProgress.of(prepared, checkpoints)
            tried, winner = run_race(prepared, race, min(steps, race.most_steps), progress)
        record["metric"] = main_metric(config.evaluation.metrics)
        record["tried"] = [asdict(each) for each in tried]
        record["chosen"] = winner.values
        record["factors"] = race.factors
    values = [each.values for each in settings]
    place = -1
    if group.main:
        prepared.log.write(event="recipe", **record)
        logger.info(_choice_text(record))
        place = values.index(record["chosen"])
    return with_setting(prepared, values[group.all_reduce_max(place)])


def _announce_unproven(race: Race, settings: Sequence[Setting], has_looks: bool) -> None:
    """Log the setting of a run whose validation is too small to choose."""
    name = ""
    for each in settings:
        if each.values == race.unproven:
            name = each.name
            break
    if not name:
        return
    left = []
    for later in race.rounds[1:]:
        left += [each.name for each in later.variations if each.name]
    if left:
        name += f" without {' and '.join(left)}"
    why = "without validation nothing is chosen"
    if has_looks:
        why = f"validation has fewer than {LEAST_TO_CHOOSE} queries or events, which choose nothing"
    logger.info(f"{why}: {name}")


def _choice_text(record: Mapping[str, Any]) -> str:
    """Return a line with the chosen values, apart from the values that all settings share."""
    tried = record["tried"]
    chosen = record["chosen"]
    for each in tried:
        if each["values"] == chosen:
            if each["name"]:
                return f"chosen on validation: {each['name']}"
            break
    shared = {}
    raced = {}
    for name, value in chosen.items():
        if all(each["values"].get(name) == value for each in tried):
            shared[name] = value
        else:
            raced[name] = value
    text = f"chosen on validation: {setting({'values': raced})}"
    if shared:
        text += f"; by the data: {setting({'values': shared})}"
    return text


def with_setting(prepared: Prepared, values: Values) -> Prepared:
    """Return a prepared run with other values of some options, and with a new tower where the
    options of the tower differ."""
    if not values:
        return prepared
    config = with_options(prepared.config, values)
    if {*values} <= {TEMPERATURE, LEARNING_RATE}:
        resolve_temperature(config)
        return replace(prepared, config=config)
    torch.manual_seed(config.train.seed)
    task = prepared.task.again(reading_of(config, prepared.devices))
    move_tower(config, task, prepared.devices)
    config = config.settled(task.facts.counts["train"])
    resolve_temperature(config)
    return replace(prepared, config=config, task=task)


@dataclass
class RaceProgress:
    """Hold the scores of a race on its way, and keep the scores for a process that resumes.

    Args:
        checkpoints: where scores are kept; None keeps none.
        data: digest of the training data, since scores on other data are of no use.
        known: the scores of each setting after some steps.
    """

    checkpoints: Checkpoints | None = None
    data: str = ""
    known: Known = field(default_factory=Known)

    @classmethod
    def of(cls, prepared: Prepared, checkpoints: Checkpoints | None) -> RaceProgress:
        """Return the progress of an interrupted run on the same data, or an empty progress."""
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
        """Add and keep the scores of a setting after some steps."""
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
    """Train the settings of each round for their part of the run's steps, and go on with the best.

    A lead counts even if due to chance: to keep the default until the default is shown to be worse
    loses on the test (docs/results/text-recipe.md). Where the best value is at an edge, and shown
    to be the best, the race goes on beyond the edge. One process calls.

    Args:
        progress: settings already tried; None is no setting.

    Returns:
        All tried settings, and the winner.
    """
    devices = replace(prepared.devices, group=Group(device=prepared.devices.group.device))
    alone = replace(prepared, devices=devices)
    tried: list[Tried] = []
    kept = [Setting(race.start)]
    progress = progress or RaceProgress()
    for each in race.rounds:
        kept = each.settings(kept)
        part = max(1, steps // each.part)
        if len(kept) == 1:
            continue
        scores = compare(alone, race, kept, part, progress)
        best = best_first(scores)
        while each.beyond and best[1].high < 0:
            further = each.next(*[one.setting for one in best])
            if further is None:
                break
            kept = [*kept, further]
            scores = compare(alone, race, kept, part, progress)
            best = best_first(scores)
        tried += scores
        kept = [one.setting for one in best[: each.keep]]
    return tried, kept[0]


def best_first(scores: Sequence[Tried]) -> list[Tried]:
    """Return settings by falling score."""
    return sorted(scores, key=lambda each: -each.score)


def compare(
    prepared: Prepared, race: Race, settings: Sequence[Setting], steps: int, progress: RaceProgress
) -> list[Tried]:
    """Train settings of a race for some steps, unless their scores are known, and compare each
    setting with the best."""
    known = progress.known
    places = [f"{steps} {json.dumps(each.values, sort_keys=True)}" for each in settings]
    new: dict[str, Setting] = {}
    for place, each in zip(places, settings, strict=True):
        if place not in known:
            new[place] = each
    if _SHARE * steps >= _MEASURED:
        seconds = 0.0
        for each in new.values():
            trial = with_setting(prepared, race.trial(each.values))
            seconds += mean(step_seconds(trial, _MEASURED)[1:])
        names = "; ".join(setting(asdict(each)) for each in new.values())
        logger.info(
            f"trying {names}: {steps:,} steps each, about {steps * seconds:,.0f} s together"
        )
    failed: dict[str, tuple[NotFinite, float]] = {}
    with progress_bar("choosing options", len(new), "setting") as bar:
        for place, each in new.items():
            began = time.process_time()
            try:
                task = trained(prepared, race.trial(each.values), steps)
                scores = scores_of(race, task)
                progress.add(place, scores, round(time.process_time() - began, 3))
            except NotFinite as error:
                failed[place] = error, round(time.process_time() - began, 3)
            bar.update()
    for place, (fault, cpu) in failed.items():  # a setting that diverges finds nothing
        if not known:
            raise fault
        logger.info(f"{setting({'values': new[place].values})} diverges")
        some_scores, _ = next(iter(known.values()))
        progress.add(place, np.zeros_like(some_scores), cpu)
    tried = [known[place] for place in places]
    best = max((values for values, _ in tried), key=lambda values: float(values.mean()))
    compared = []
    for each, (values, cpu) in zip(settings, tried, strict=True):
        gap = bootstrap(values, best, draws=2000)
        mean_score = float(values.mean())
        compared.append(Tried(each.name, each.values, steps, mean_score, gap.low, gap.high, cpu))
    return compared


def trained(prepared: Prepared, values: Values, steps: int) -> RunTask:
    """Return a new task of a prepared run, trained for some steps with these values."""
    config = with_options(prepared.config, values)
    config = replace(config, train=replace(config.train, max_steps=steps))
    task, _ = short_run(prepared, config, prepared.devices)
    return task


def scores_of(race: Race, task: RunTask) -> Floats:
    """Return the main metric of each validation query by a trained task, [q]."""
    if race.score is not None:
        return race.score(task)
    ranking = task.held_out.judge("validation").ranking
    return ranking.per_query[main_metric(ranking.metrics)]
