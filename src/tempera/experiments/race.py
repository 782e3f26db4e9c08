"""A race: a few settings of temperature and learning rate, trained side by side for a while; validation chooses the one to train.

It knows no text: it trains and judges what `Prepared` holds. The race follows from the seed and the data alone, so that a run
which is interrupted finds the same winner again.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..build import describe
from ..core.temperature import Temperature
from ..engine.distributed import Group
from ..io.console import logger, progress_bar
from ..ranking.compare import Floats, bootstrap
from ..ranking.ranking import Part
from ..ranking.resolved import Config
from ..ranking.verdict import main_metric
from ..run.prepare import Prepared
from ..run.task import RunTask
from ..run.time_limit import short_run

TEMPERATURE, LEARNING_RATE = "objective.temperature", "train.learning_rate"
TEMPERATURES = (0.05, 0.1)
FACTORS = (1.0, 10 / 3, 1 / 3)  # of the tower's own learning rate
# One option after the other; each setting trains for this part of the run's steps.
ROUNDS = {LEARNING_RATE: 6, TEMPERATURE: 3}
# Above so many pairs a race costs minutes; on 119,094 pairs of code the higher rate had nDCG@10 0.503, the lower 0.495.
MOST_PAIRS = 20_000
LEAST_STEPS = 16  # of a run, for a sixth of it to tell anything
Values = dict[str, float]


@dataclass(frozen=True)
class Tried:
    """One setting after one round.

    Args:
        values: its setting.
        steps: that it was trained for.
        score: mean of the main metric over the validation queries.
        low: lower end of the 95 % interval of its difference from the best of the round, paired by query.
        high: and the upper end; both are 0 for the best.
    """

    values: Values
    steps: int
    score: float
    low: float
    high: float


def settle(prepared: Prepared, free: Sequence[str], known: Mapping[str, Any] | None = None) -> Prepared:
    """Choose the options of `free` by a race and return the run with them, before its training; all processes call.

    Without a race, more than `MOST_PAIRS` training pairs take the highest rate, and too few to choose by the lowest: on
    two samples each of six sets, 50 pairs then bring 0.021 nDCG@10 (0.008 at the tower's own rate), and 200 pairs 0.010 (-0.010).

    Args:
        free: which of objective.temperature and train.learning_rate the configuration leaves open.
        known: the record of the race that an interrupted run has left; it is not run again.
    """
    config, group = prepared.config, prepared.devices.group
    steps = config.train.steps(prepared.task.data.sampler.batches_per_epoch)
    values = values_of(config, free)
    if not config.tower.races or not values:
        return prepared
    many, chooses = prepared.task.showcase.facts().counts["train"] > MOST_PAIRS, prepared.task.held_out.chooses
    if many or not chooses:
        end = {name: (max if many else min)(each) for name, each in values.items() if name == LEARNING_RATE}
        return replace(prepared, config=with_values(config, end))
    if steps < LEAST_STEPS or config.train.fsdp:
        return prepared  # too short to tell settings apart, or a tower that one process cannot hold
    record = dict(known or {})
    if not record and group.main:
        with prepared.phases("race"):
            tried = race(prepared, values, steps)
        record = {"metric": main_metric(config.evaluation.metrics), "tried": [asdict(each) for each in tried]}
        record["chosen"] = winner(tried)
    if group.main:
        prepared.log.write(event="recipe", **record)
        logger.info(f"chosen on validation: {', '.join(f'{k}={v:g}' for k, v in record['chosen'].items())}")
    settings = [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]
    number = group.all_reduce_max(settings.index(record["chosen"]) if group.main else -1)
    return replace(prepared, config=with_values(config, settings[number]))


def values_of(config: Config, free: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return the values of each option of a race, its default first."""
    rate = config.train.learning_rate
    values = {TEMPERATURE: TEMPERATURES, LEARNING_RATE: tuple(float(f"{rate * factor:.2g}") for factor in FACTORS)}
    return {name: each for name, each in values.items() if name in free}


def with_values(config: Config, values: Mapping[str, float]) -> Config:
    """Return the configuration with the values of a setting, and an objective of its own."""
    objective, train = copy.deepcopy(config.objective), config.train
    made = replace(config, objective=objective)
    resolved = {name: dict(section) for name, section in config.resolved.items()}
    if TEMPERATURE in values:
        made.base.temperature = Temperature(values[TEMPERATURE])
        resolved["objective"]["temperature"] = describe(made.base.temperature)
    if LEARNING_RATE in values:
        train = replace(train, learning_rate=values[LEARNING_RATE])
        resolved["train"]["learning_rate"] = values[LEARNING_RATE]
    return replace(made, train=train, resolved=resolved)


def race(prepared: Prepared, values: Mapping[str, Sequence[float]], steps: int) -> list[Tried]:
    """Train all learning rates for a sixth of the steps, then all temperatures at the best of them for a third."""
    tried, chosen = list[Tried](), {name: each[0] for name, each in values.items()}
    with progress_bar("choosing options", sum(map(len, values.values())), "setting") as bar:
        for name, part in ROUNDS.items():
            if name in values:
                settings = [{**chosen, name: value} for value in values[name]]
                tried += _round(prepared, settings, max(1, steps // part), bar)
                chosen = winner(tried)
    return tried


def winner(tried: Sequence[Tried]) -> Values:
    """Return the best setting of the last round.

    A lead that may be chance counts, too: to keep the default unless it is shown to be worse loses on the test (docs/towers.md).
    """
    return max(tried, key=lambda each: (each.steps, each.score)).values


def _round(prepared: Prepared, settings: Sequence[Values], steps: int, bar: Any) -> list[Tried]:
    """Train settings for so many steps and compare each with the best of them."""
    scores = []
    for values in settings:
        scores.append(score(trained(prepared, values, steps)))
        bar.update()
    best = max(scores, key=lambda each: float(each.mean()))
    gaps = [bootstrap(each, best, draws=2000) for each in scores]
    return [
        Tried(values, steps, float(each.mean()), gap.low, gap.high)
        for values, each, gap in zip(settings, scores, gaps, strict=True)
    ]


def trained(prepared: Prepared, values: Values, steps: int) -> RunTask:
    """Return the task of a prepared run after so many steps of training, of its own, with these values; one process calls."""
    config = with_values(prepared.config, values)
    config = replace(config, train=replace(config.train, max_steps=steps))
    alone = replace(prepared.devices, group=Group(device=prepared.devices.group.device))
    return short_run(prepared, config, alone)[0]


def score(task: RunTask, part: Part = "validation") -> Floats:
    """Return the main metric of each query of a part, [q]."""
    ranking = task.held_out.judge(part).ranking
    return ranking.per_query[main_metric(ranking.metrics)]
