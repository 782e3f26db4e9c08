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
from .claim import claimed, named_in
from .figures import csv_of
from .grid import axes_of
from .points import SweepPlan
from .record import Record, read_records, write_records
from .result import Sweep
from .runner import Runner, Worker
from .sweep_pictures import picture
from .template import Template, read_some

_POINTS, _ABOUT = "points.jsonl", "sweep.yaml"


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
    compare.

    The held-out queries are the same for all runs; a seed chooses weights and the order of the
    rows. Finished runs stay in `output`/points.jsonl: the same call resumes after a kill, retries
    failed runs, and adds seeds or points.

    Runs are compared by the validation of the weights that they would save: those of their best
    look (`train.keep_best`), or of the last step where nothing chooses between looks. The test
    stays for the point that is chosen. Fewer than 50 validation queries choose nothing: the table
    is shown, and no point is named the best. With `evaluation.validation=0` there is no validation;
    the last weights are compared on the test.

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
        metric: by which points are compared; None is ndcg@10 if it is measured, else the first one.
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
    plan = SweepPlan.of(
        template, axes, seeds, learned, [(first, last) for first, last in scheduled], yes
    )
    folder = template.folder(output, config, "sweep")
    runner = Runner(folder, jobs, plan.template.metric)
    read = [*template.base.read, *named_in(config, [axis.domain for axis in axes])]
    with claimed(
        folder,
        _ABOUT,
        plan.about,
        "sweep",
        overwrite,
        read,
        partial(read_some, [run.options for run in plan.runs]),
    ):
        template.tell()
        result = finished(plan, runner, "sweep")
        write_file(folder / "points.csv", csv_of(result.table))
        for suffix, content in picture(result).items():
            write_file(folder / f"sweep.{suffix}", content)
        return result


def finished(plan: SweepPlan, runner: Runner, what: str) -> Sweep:
    """Make all runs that are not done, and return the sweep of all.

    Raises:
        TemperaError: every run failed.
    """
    result = plan.result(_run(plan, runner, what), runner.folder)
    if not any(point.done for point in result.everything):
        error = result.records[0].error
        raise TemperaError(f"all {len(plan.runs)} runs have failed; the first error is: {error}")
    return result


def _run(plan: SweepPlan, runner: Runner, what: str) -> dict[str, Record]:
    """Make all runs that are not done, and return the records of all, by key."""
    folder = runner.folder
    records = {record.key: record for record in read_records(folder / _POINTS)}
    todo = [
        run
        for run in plan.runs
        if run.record.key not in records or not records[run.record.key].done
    ]
    done, metric, lock = len(plan.runs) - len(todo), plan.template.metric, Lock()
    points = len(plan.runs) // len(plan.seeds)
    logger.info(
        f"{what}: {quantity(len(plan.runs), 'runs')}, {quantity(points, 'points')} with {quantity(len(plan.seeds), 'seeds')} each; "
        f"{quantity(done, 'runs are done')}{'' if todo else '; data are not read again: after a change of them give --overwrite'}"
    )
    if others := len(records.keys() - {run.record.key for run in plan.runs}):
        logger.info(
            f"{folder / _POINTS} keeps {others} runs of other points, which this {what} leaves out"
        )
    for record in records.values():
        runner.know(record)
    numbered = enumerate(todo)
    # Of runs that were interrupted, or failed and are tried again.
    shutil.rmtree(runner.run_folder(""), ignore_errors=True)

    with progress_bar(what, len(plan.runs), "run", done) as bar:

        def loop(worker: Worker) -> None:
            nonlocal done
            for place, run in numbered:
                record = runner.make(worker, run, f"{place:04}")
                with lock:
                    records[record.key] = record
                    write_records(folder / _POINTS, records.values())
                    done += 1
                    bar.update()
                    if record.value is not None:
                        said = f"{label(metric)} {number(record.value)}"
                        bar.set_postfix_str(f"{record.name}: {said}")
                        logger.info(
                            f"run {done} of {len(plan.runs)}: {record.name}: {said}, {record.seconds or 0:.0f} s"
                        )
                    else:
                        logger.warning(f"failed: {record.name}: {record.error}")

        runner.all(loop)
    return records
