"""A race: a few settings of temperature and learning rate, trained side by side for a while; validation chooses the one to train.

It knows no text: it trains and judges what `Prepared` holds. The race follows from the seed and the data alone, so that a run
which is interrupted finds the same winner again.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..build import describe
from ..core.temperature import Temperature
from ..engine.distributed import Group
from ..io.console import logger, progress_bar, silenced
from ..io.documents import JsonLines
from ..ranking.compare import Floats, bootstrap
from ..ranking.resolved import Config
from ..ranking.verdict import main_metric
from ..run.fit import fit
from ..run.prepare import Prepared, prepare

TEMPERATURE, LEARNING_RATE = "objective.temperature", "train.learning_rate"
TEMPERATURES = (0.05, 0.1)
FACTORS = (1.0, 10 / 3, 1 / 3)  # of the tower's own learning rate
ROUNDS = (6, 3)  # a candidate trains for this part of the run's steps: all of them, then the best third
# Above so many pairs a race costs minutes; on 119,094 pairs of code the higher rate had nDCG@10 0.503, the lower 0.495.
MOST_PAIRS = 20_000
LEAST_STEPS = 16  # of a run, for a sixth of it to tell anything
Values = dict[str, float]


@dataclass(frozen=True)
class Tried:
    """One candidate after one round.

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


def settle(prepared: Prepared, free: Sequence[str], store: Path, known: Mapping[str, Any] | None = None) -> Prepared:
    """Choose the options of `free` by a race and return the run with them, before its training; all processes call.

    More than `MOST_PAIRS` training pairs take the highest rate without a race.

    Args:
        free: which of objective.temperature and train.learning_rate the configuration leaves open.
        store: folder for what the candidates write; it is empty again afterwards.
        known: the record of the race that an interrupted run has left; it is not run again.
    """
    config, group = prepared.config, prepared.devices.group
    steps = config.train.steps(prepared.task.data.sampler.batches_per_epoch)
    candidates = candidates_of(config, free)
    if not config.tower.races or len(candidates) < 2:
        return prepared
    if prepared.task.showcase.facts().counts["train"] > MOST_PAIRS:
        rates = [each[LEARNING_RATE] for each in candidates if LEARNING_RATE in each]
        return replace(prepared, config=with_values(config, {LEARNING_RATE: max(rates)} if rates else {}))
    if steps < LEAST_STEPS or not prepared.task.held_out.chooses or config.train.fsdp:
        return (
            prepared  # too short or too few queries to tell candidates apart, or a tower that one process cannot hold
        )
    record = dict(known or {})
    if not record and group.main:
        with prepared.phases("race"):
            tried = race(prepared, candidates, steps, store)
        record = {"metric": main_metric(config.evaluation.metrics), "tried": [asdict(each) for each in tried]}
        record["chosen"] = max(tried, key=lambda each: (each.steps, each.score)).values
    if group.main:
        prepared.log.write(event="recipe", **record)
        logger.info(f"chosen on validation: {', '.join(f'{k}={v:g}' for k, v in record['chosen'].items())}")
    number = group.all_reduce_max(candidates.index(record["chosen"]) if group.main else -1)
    return replace(prepared, config=with_values(config, candidates[number]))


def candidates_of(config: Config, free: Sequence[str]) -> list[Values]:
    """Return the settings of a race, the default first."""
    rate = config.train.learning_rate
    values = {TEMPERATURE: TEMPERATURES, LEARNING_RATE: tuple(float(f"{rate * factor:.2g}") for factor in FACTORS)}
    names = [name for name in values if name in free]
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*(values[name] for name in names))]


def with_values(config: Config, values: Mapping[str, float]) -> Config:
    """Return the configuration with the values of a candidate, and an objective of its own."""
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


def race(prepared: Prepared, candidates: Sequence[Values], steps: int, store: Path) -> list[Tried]:
    """Train all candidates for a sixth of the steps, and those that may be the best, at most a third, for a third of them."""
    finalists = max(1, len(candidates) // 3)
    with progress_bar("choosing options", len(candidates) + (finalists if finalists > 1 else 0), "candidate") as bar:
        tried = _round(prepared, candidates, max(1, steps // ROUNDS[0]), store, bar)
        leaders = sorted(tried, key=lambda each: -each.score)[:finalists]
        runners = [each.values for each in leaders if each.high >= 0]
        if len(runners) > 1:
            tried += _round(prepared, runners, max(1, steps // ROUNDS[1]), store, bar)
    return tried


def _round(prepared: Prepared, runners: Sequence[Values], steps: int, store: Path, bar: Any) -> list[Tried]:
    """Train candidates for so many steps and compare each with the best of them."""
    scores = []
    for values in runners:
        scores.append(_score(prepared, values, steps, store))
        bar.update()
    best = max(scores, key=lambda each: float(each.mean()))
    gaps = [bootstrap(each, best, draws=2000) for each in scores]
    return [
        Tried(values, steps, float(each.mean()), gap.low, gap.high)
        for values, each, gap in zip(runners, scores, gaps, strict=True)
    ]


def _score(prepared: Prepared, values: Values, steps: int, store: Path) -> Floats:
    """Return the main metric of each validation query, [q], after a short run of its own with these values."""
    config = with_values(prepared.config, values)
    config = replace(config, train=replace(config.train, max_steps=steps))
    alone = replace(prepared.devices, group=Group(device=prepared.devices.group.device))
    with TemporaryDirectory(dir=store) as place, silenced(), JsonLines(Path(place) / "log.jsonl") as log:
        run = prepare(config, alone, Path(place), log, shared=prepared.task)
        fit(run, looks=False)
        ranking = run.task.held_out.judge("validation").ranking
        return ranking.per_query[main_metric(ranking.metrics)]
