"""A sweep: one configuration, trained at every point of a grid with several seeds, on data that are read once."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from ..artifacts.pictures import label, number
from ..engine.devices import start
from ..engine.digest import digest
from ..errors import ConfigError, OutputError, TemperaError
from ..io.atomic import write_file
from ..io.console import logger, progress_bar
from . import parallel
from .claim import claimed
from .grid import axes_of
from .outcome import Outcome, attempt, moving, prepare, read_outcomes, write_outcomes
from .points import Plan
from .result import Sweep, csv_of
from .sweep_pictures import picture

_POINTS, _ABOUT, _CACHE = "points.jsonl", "sweep.yaml", "cache"


def sweep(
    config: Mapping[str, Any] | str | Path | None = None,
    over: Mapping[str, Any] | Iterable[str] = ("objective.temperature=0.01:0.5:log:8",),
    seeds: int = 3,
    output: str | Path = "runs/sweep",
    overrides: Sequence[str] = (),
    learned: Sequence[float] = (),
    scheduled: Sequence[tuple[float, float]] = (),
    metric: str | None = None,
    overwrite: bool = False,
    jobs: int = 1,
) -> Sweep:
    """Train a configuration with every combination of some options' values, several times each, and compare.

    What is held out is the same for all; a seed chooses weights and the order of the rows. Finished runs stay in
    `output`/points.jsonl: the same call goes on after a kill, tries again what failed, and adds seeds or points.
    Recommenders are judged by their validation, so that the test stays for the one that is chosen.

    Args:
        config: options as a mapping, a YAML file, or None for the default job.
        over: one or two options, each with values or a range: {"objective.temperature": "0.005:1:log:20"}.
        seeds: runs of each point, with the seeds train.seed, train.seed + 1, ...
        output: the folder of points.jsonl, points.csv, sweep.svg and sweep.png.
        overrides: dotted.key=value, as on the command line.
        learned: starting values of temperatures that are learned, beside the grid.
        scheduled: first and last values of temperatures that follow a schedule, beside the grid.
        metric: by which points are compared; None is ndcg@10 if it is measured, else the first one.
        overwrite: forget what `output` holds of an earlier sweep.
        jobs: runs at once, on CPUs, each in a process with one thread.

    Raises:
        TemperaError: wrong options, in any point; no data; an output of something else; not one run that succeeds.

    >>> found = sweep("pairs.yaml", {"objective.temperature": [0.05, 0.5]}, seeds=1, output="runs/sweep")
    >>> [point.name for point in found.points], found.best in found.region
    (['0.05', '0.5'], True)
    """
    parallel.check(jobs)
    plan = Plan.of(config, axes_of(over), seeds, overrides, learned, scheduled, metric)
    if start(plan.base.train.mixed_precision).group.size > 1:
        raise ConfigError("a sweep runs in one process: start it without a launcher")
    folder = Path(output)
    with claimed(folder, _ABOUT, plan.about, "sweep", overwrite):
        try:
            outcomes = _run(plan, folder, jobs)
        finally:
            shutil.rmtree(folder / _CACHE, ignore_errors=True)
        return _left(plan, outcomes, folder)


def _left(plan: Plan, outcomes: Mapping[str, Outcome], folder: Path) -> Sweep:
    """The result, as table and picture."""
    found = plan.result(outcomes, folder)
    if not any(point.done for point in found.everything):
        first = next(run.error for point in found.everything for run in point.outcomes)
        raise TemperaError(f"none of {len(plan.runs)} runs has succeeded; the first says: {first}")
    write_file(folder / "points.csv", csv_of(found.table).encode())
    for suffix, content in picture(found).items():
        write_file(folder / f"sweep.{suffix}", content)
    return found


def _run(plan: Plan, folder: Path, jobs: int) -> dict[str, Outcome]:
    """Everything that has not been done."""
    outcomes = {outcome.key: outcome for outcome in read_outcomes(folder / _POINTS)}
    asked = {run.key for run in plan.runs}
    done = {key for key, outcome in outcomes.items() if outcome.error is None and key in asked}
    if others := len(outcomes.keys() - asked):
        logger.info(f"{folder / _POINTS}: {others} runs of other points stay there and are left out")
    cache = folder / _CACHE
    shutil.rmtree(cache, ignore_errors=True)  # of a sweep that was killed
    with progress_bar("sweep", len(plan.runs), "run", len(done)) as bar:
        for reading, members in groupby(plan.runs, key=lambda run: plan.readings[run.key]):
            together = list(members)
            todo = [run for run in together if run.key not in done]
            if not todo:
                continue
            task = prepare(plan.references[reading], cache / "data", folder / "vectors")
            data = f"{digest(task.data.content()):016x}"
            _refuse_other(folder, data, [outcomes[run.key] for run in together if run.key in done])
            rows = next(iter(task.data.sampler(0, 1)))
            attempts = [
                partial(
                    attempt,
                    run.config,
                    task,
                    rows,
                    plan.metric,
                    cache / f"run-{place}",
                    Outcome(run.over, run.start, run.seed, data, run.final),
                )
                for place, run in enumerate(todo)
            ]
            for place, outcome in parallel.outcomes(attempts, jobs):
                outcomes[todo[place].key] = outcome
                write_outcomes(folder / _POINTS, outcomes.values())
                _tell(bar, outcome, plan.metric)
            shutil.rmtree(cache)
    return outcomes


def _refuse_other(folder: Path, data: str, done: Sequence[Outcome]) -> None:
    """Runs on other data cannot be compared."""
    other = sum(outcome.data != data for outcome in done)
    if other:
        raise OutputError(
            f"{folder / _POINTS}: {other} runs were made on other data than there are now, although the options are the "
            "same; give another folder, or --overwrite"
        )


def _name(run: Outcome) -> str:
    over = ", ".join(f"{field}={value}" for field, value in run.over.items()) or moving(run.start, run.final)
    return f"{over}, seed {run.seed}"


def _tell(bar: Any, outcome: Outcome, metric: str) -> None:
    bar.update()
    if outcome.error is None:
        bar.set_postfix_str(f"{_name(outcome)}: {label(metric)} {number(outcome.metrics[metric])}")
    else:
        logger.warning(f"failed: {_name(outcome)}: {outcome.error}")
