"""A sweep: one configuration, trained at every point of a grid with several seeds."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from ..arguments import refuse_other_kinds
from ..artifacts.pictures import label, number
from ..errors import TemperaError, quantity
from ..io.atomic import write_file
from ..io.console import logger, progress_bar
from ..options.yaml_options import Options
from .claim import claimed, possible_paths
from .figures import csv_of
from .grid import axes_of
from .points import SweepPlan
from .record import Record, read_records, write_records
from .result import Sweep
from .runner import Runner, Worker
from .sweep_pictures import draw_sweep
from .template import Template, read_some

_POINTS = "points.jsonl"
_ABOUT = "sweep.yaml"


def sweep(
    config: Options | Mapping[str, Any] | str | Path | None = None,
    over: Mapping[str, Any] | str | Iterable[str] = ("objective.temperature=0.01:0.5:log:8",),
    seeds: int = 3,
    output: str | Path | None = None,
    overrides: str | Iterable[str] = (),
    learned: Sequence[float] = (),
    scheduled: Sequence[tuple[float, float]] = (),
    metric: str | None = None,
    overwrite: bool = False,
    jobs: int = 1,
    yes: bool = False,
) -> Sweep:
    """Train a configuration with every combination of some options' values, several times each, and
    compare the runs.

    The held-out queries are the same for all runs; a seed chooses weights and the order of the
    rows. Finished runs stay in `output`/points.jsonl: the same call resumes after a kill, retries
    failed runs, and adds seeds or points.

    Runs are compared by the validation of the weights that they would save: the weights of the best
    look (`train.keep_best`), or of the last step where nothing chooses between looks. The test is
    left for the chosen point. Fewer than 50 validation queries choose nothing: the table names no
    best point. With `evaluation.validation=0` there is no validation; the last weights are compared
    on the test.

    Args:
        config: options as a mapping, a YAML file, or None for the default job.
        over: one or two options, each with values or a range: {"objective.temperature":
            "0.005:1:log:20"}.
        seeds: runs of each point, with the seeds train.seed, train.seed + 1, ...
        output: the folder of points.jsonl, points.csv, sweep.svg and sweep.png; None is runs/, the
            name of the file, and -sweep.
        overrides: dotted.key=value, as on the command line.
        learned: first values of temperatures that are learned, beside the grid.
        scheduled: first and last values of temperatures that follow a schedule, beside the grid.
        metric: the metric by which points are compared; None is ndcg@10 if it is measured, else the
            first metric.
        overwrite: forget an earlier sweep in `output`; an interrupted one goes on.
        jobs: runs at once, each in a process of its own; the processes share the cores, and each of
            them reads the data.
        yes: make more than 1,000 runs.

    Raises:
        TemperaError: wrong options, in any point; no data; an output of something else; every run
            failed.

    >>> result = sweep("pairs.yaml", {"objective.temperature": [0.05, 0.5]}, seeds=1, output="runs/sweep")
    >>> [point.name for point in result.points], result.best in result.region
    (['0.05', '0.5'], True)
    """
    refuse_other_kinds(sweep, locals())
    axes = axes_of(over)
    template = Template.of(config, overrides, metric, [axis.field for axis in axes])
    schedules = [(first, last) for first, last in scheduled]
    plan = SweepPlan.of(template, axes, seeds, learned, schedules, yes)
    folder = template.folder(output, config, "sweep")
    runner = Runner(folder, jobs, template.metric)
    read = [*template.base.read, *possible_paths(config, [axis.domain for axis in axes])]
    check = partial(read_some, [run.options for run in plan.runs])
    with claimed(folder, _ABOUT, plan.about, "sweep", overwrite, read, check):
        template.log_kept_defaults()
        result = finish_sweep(plan, runner, "sweep")
        write_file(folder / "points.csv", csv_of(result.table))
        for suffix, content in draw_sweep(result).items():
            write_file(folder / f"sweep.{suffix}", content)
        return result


def finish_sweep(plan: SweepPlan, runner: Runner, what: str) -> Sweep:
    """Make all missing runs of a plan, and return the finished sweep.

    Args:
        what: "sweep" or "learning curve", for messages.

    Raises:
        TemperaError: every run failed.
    """
    records = _make_missing_runs(plan, runner, what)
    result = plan.result(records, runner.folder)
    if not any(point.done for point in result.everything):
        error = result.records[0].error
        raise TemperaError(f"all {len(plan.runs)} runs have failed; the first error is: {error}")
    return result


def _make_missing_runs(plan: SweepPlan, runner: Runner, what: str) -> dict[str, Record]:
    """Make all missing runs, and return the records of all runs, by key.

    points.jsonl is written anew after every run.
    """
    path = runner.folder / _POINTS
    records = {record.key: record for record in read_records(path)}
    missing = []
    for run in plan.runs:
        record = records.get(run.record.key)
        is_done = record is not None and record.done and plan.template.metric in record.metrics
        if not is_done:
            missing.append(run)
    total = len(plan.runs)
    done = total - len(missing)
    _log_start(plan, len(missing), what)
    planned_keys = {run.record.key for run in plan.runs}
    unplanned = len(records.keys() - planned_keys)
    if unplanned:
        logger.info(f"{path} keeps {unplanned} runs of other points, which this {what} leaves out")
    for record in records.values():
        runner.note_data(record)
    # Folders of runs that were interrupted, or that failed and are tried again.
    shutil.rmtree(runner.run_folder(""), ignore_errors=True)

    queue = enumerate(missing)  # all workers take their runs from this one iterator
    lock = Lock()
    with progress_bar(what, total, "run", done) as bar:

        def take_runs(worker: Worker) -> None:
            nonlocal done
            for index, run in queue:
                record = runner.make(worker, run, f"{index:04}")
                with lock:
                    records[record.key] = record
                    write_records(path, records.values())
                    done += 1
                    bar.update()
                    if record.value is None:
                        logger.warning(f"failed: {record.name}: {record.error}")
                        continue
                    score = f"{record.name}: {label(runner.metric)} {number(record.value)}"
                    bar.set_postfix_str(score)
                    logger.info(f"run {done} of {total}: {score}, {record.seconds or 0:.0f} s")

        runner.run_workers(take_runs)
    return records


def _log_start(plan: SweepPlan, missing: int, what: str) -> None:
    """Log the size of a sweep, and the number of runs that an earlier call has made."""
    points = len(plan.runs) // len(plan.seeds)
    size = (
        f"{quantity(len(plan.runs), 'runs')}, {quantity(points, 'points')} "
        f"with {quantity(len(plan.seeds), 'seeds')} each"
    )
    progress = f"{quantity(len(plan.runs) - missing, 'runs are done')}"
    if not missing:
        progress += "; data are not read again: after a change of them give --overwrite"
    logger.info(f"{what}: {size}; {progress}")
