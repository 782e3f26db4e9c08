"""A tuning: Optuna chooses settings, and the best setting stays."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from ..arguments import refuse_other_kinds
from ..artifacts.pictures import label, number
from ..errors import ConfigError, TemperaError
from ..experiments.claim import claimed, possible_paths
from ..experiments.figures import csv_of
from ..experiments.record import Record
from ..experiments.runner import Runner, Worker
from ..experiments.template import Template, read_some
from ..io.atomic import write_file
from ..io.console import logger, progress_bar
from ..options import yaml_options as configuration
from ..options.yaml_options import Options
from .space import Space
from .study import Report, Tpe, public
from .trials import Tuning, eligible, ranked
from .tune_pictures import draw_tuning

_ABOUT = "tune.yaml"


def tune(
    config: Options | Mapping[str, Any] | str | Path | None = None,
    space: Mapping[str, Any] | str | Path = "space.yaml",
    trials: int = 25,
    output: str | Path | None = None,
    overrides: str | Iterable[str] = (),
    metric: str | None = None,
    jobs: int = 1,
    keep: int = 1,
    storage: str | None = None,
    study: str = "tempera",
    prune: bool = True,
    lost_after: float = 60.0,
    overwrite: bool = False,
) -> Tuning:
    """Search the best configuration by Bayesian optimisation (TPE, Bergstra et al. 2011).

    A trial is stopped if worse than the median of the earlier trials at the same evaluation on the
    way. The same call resumes after a kill: the interrupted trial is repeated, finished trials are
    not. Trials are compared by the validation of the weights to be saved, as in `sweep`.

    Args:
        config: options as a mapping, a YAML file, or None for the default job.
        space: the values of each option, as a mapping or a YAML file, see `Space.of`.
        trials: total number of trials, of all workers and all calls.
        output: the folder of trials.csv, tune.svg, tune.png and, if validation asks enough to
            choose, best.yaml and the best runs in trials/; None is runs/, the name of the file, and
            -tune.
        overrides: dotted.key=value, as on the command line.
        metric: the metric to maximise; None is ndcg@10 if measured, else the first metric.
        jobs: trials at once, each in a separate process. With one job, the same call gives the same
            result.
        keep: number of best trials to keep with run folders.
        storage: URL of an Optuna storage, shared by workers on several machines with an output
            each; None is a file in `output`.
        study: name of the study in the storage.
        prune: stop bad trials on the way.
        lost_after: seconds without a heartbeat until another worker counts as lost, and the lost
            trial is repeated.
        overwrite: forget an earlier tuning in `output`; an interrupted tuning goes on.

    Raises:
        TemperaError: wrong options, in any corner of the space; an output of something else; every
            trial failed.

    >>> result = tune("pairs.yaml", {"train.learning_rate": "0.01:0.1:log"}, trials=1, output="runs/tune")
    >>> [trial.state for trial in result.trials], list(result.best.params)
    (['finished'], ['train.learning_rate'])
    """
    refuse_other_kinds(tune, locals())
    _refuse_below("--trials", trials, 1)
    _refuse_below("--keep", keep, 0)
    _refuse_below("--lost-after", lost_after, 3)
    _check_storage(storage, overwrite)
    chosen = Space.of(space)
    template = Template.of(config, overrides, metric, [field.field for field in chosen.fields])
    folder = template.folder(output, config, "tune")
    corners = chosen.corners()
    checked = [template.config(values, chosen.written_at(values)).resolved for values in corners]
    about = configuration.dump(
        {"metric": template.metric, "space": chosen.written, "config": template.base.resolved}
    )
    runner = Runner(folder, jobs, template.metric)
    if storage is None:
        folder_about = about
        kinds = "configuration"
    else:  # a folder has the runs of one study
        folder_about = configuration.dump({"storage": public(storage), "study": study}) + about
        kinds = "configuration, storage or study"
        runner.remedy = "the trials of all workers are in --storage: give another --study"
    read = [*template.base.read, *possible_paths(config, space, chosen.written)]
    check = partial(read_some, checked)
    with claimed(folder, _ABOUT, folder_about, "tuning", overwrite, read, check, kinds):
        template.log_kept_defaults()
        seed = template.base.train.seed
        asker = Tpe(storage, study, about, folder, chosen, trials, seed, lost_after, prune)
        with asker.storage_errors_in_a_line():
            batch = template.smallest_batch(corners)
            return _Search(template, asker, runner, keep, batch).run()


def _refuse_below(name: str, value: float, least: int) -> None:
    """Raise ConfigError for a number below the least allowed number."""
    if value < least:
        raise ConfigError(f"{name} is {value}; give at least {least}")


def _check_storage(storage: str | None, overwrite: bool) -> None:
    """Raise ConfigError for a storage with `overwrite`, or of a kind not to be shared by
    workers."""
    if storage is None:
        return
    if not storage.strip():
        raise ConfigError("--storage is empty: give a postgresql:// URL, or leave it out")
    if storage.lower().startswith(("sqlite:", "sqlite+")):
        raise ConfigError(
            "--storage sqlite: is a file for one tempera tune alone; leave --storage out (the file is study.db in --output), or "
            "give a postgresql:// that several share"
        )
    if overwrite:
        raise ConfigError(
            "--overwrite forgets what is in --output, and the trials are in --storage: give another --study"
        )


class _Search:
    """Makes the trials of a study, and keeps the run folders of the best trials."""

    def __init__(
        self,
        template: Template,
        asker: Tpe,
        runner: Runner,
        keep: int,
        batch: int | Literal["auto"],
    ) -> None:
        self.template = template
        self.asker = asker
        self.runner = runner
        self.keep = keep
        self.batch = batch
        # Numbers of trials that are made here, and whose records the study does not have yet.
        self.running: set[int] = set()
        # Numbers of trials whose data the runner has taken note of.
        self.noted: set[int] = set()
        self.lock = Lock()

    def run(self) -> Tuning:
        """Make all missing trials, then write and return the result."""
        self._note_data(self.asker.records)
        with progress_bar("tune", self.asker.budget, "trial") as self.bar:
            self._keep_best()
            self.runner.run_workers(self._work)
            self.running.clear()
            records = self._keep_best()
            self._note_data(records)
            for record in records:
                self.runner.refuse_other_data(record)
            self._log_missing_runs(records)
            with suppress(OSError):  # the folder holds runs that stay
                self.runner.run_folder("").rmdir()
            return self._result(records)

    def _work(self, worker: Worker) -> None:
        """Make trials in a worker process, until no more are wanted."""
        job = self.runner.workers.index(worker)
        self.asker.work(partial(self._make, worker), job, lambda: worker.closed)

    def _make(
        self, worker: Worker, trial: Record, values: dict[str, Any], report: Report
    ) -> Record:
        """Make a trial, and return the record of the trial."""
        with self.lock:
            self.running.add(trial.number)
            records = self._keep_best()
            self._note_data(records)
        try:
            config = self.template.config(values, self.asker.space.written_at(values))
            run = self.template.run(config, values, trial, self.batch)
        except TemperaError as error:
            # Values that are refused only together are in no corner of the space.
            record = replace(trial, error=str(error))
        else:
            publish = self.keep > 0
            bar = self._bar(records)
            record = self.runner.make(worker, run, f"{trial.number:04}", report, publish, bar)
            with self.lock:
                self.noted.add(trial.number)
                # Other workers may have begun at the same time, on other data.
                self._note_data(self.asker.records)
                self.runner.refuse_other_data(record)
        self._log_end(record)
        return record

    def _bar(self, records: Sequence[Record]) -> float | None:
        """Return the bar: a trial with a higher value leaves a run folder; None is no limit."""
        best = ranked(records)[: self.keep]
        if self.keep == 0 or len(best) < self.keep:
            return None
        return best[-1].value

    def _log_end(self, record: Record) -> None:
        """Log how a trial ended."""
        if record.error is not None:
            logger.warning(f"trial {record.number} failed: {record.error}")
        elif record.value is not None:
            ending = "pruned at" if record.pruned else "ended with"
            score = f"{label(self.template.metric)} {number(record.value)}"
            logger.info(f"trial {record.number} {ending} {score}: {record.name}")

    def _note_data(self, records: Sequence[Record]) -> None:
        """Take note of the data of trials, also of trials by further workers, each trial once."""
        for record in records:
            if record.number not in self.noted:
                self.runner.note_data(record)
        self.noted.update(record.number for record in records)

    def _keep_best(self) -> list[Record]:
        """Bring folder and progress bar up to date with the study, and return all records.

        Run folders stay for the best trials and for trials under way; best.yaml has the
        configuration of the best trial.
        """
        records = self.asker.records
        self.running.difference_update(record.number for record in records)
        self.bar.update(len(records) - self.bar.n)
        best = eligible(records)
        kept = self.running | {trial.number for trial in best[: self.keep]}
        names = {f"{number:04}" for number in kept}
        for folder in self.runner.run_folder("").glob("*/"):
            if folder.name not in names:
                shutil.rmtree(folder)
        if best:
            score = f"{label(self.template.metric)} {number(best[0].value or 0.0)}"
            self.bar.set_postfix_str(f"best {score}")
            text = configuration.dump(self._resolved(best[0]))
            write_file(self.runner.folder / "best.yaml", text.encode())
        return records

    def _log_missing_runs(self, records: Sequence[Record]) -> None:
        """Log the best trials without a run folder here, made by another worker, or by an earlier
        call with a lower `keep`."""
        own = []
        elsewhere = []
        for trial in eligible(records)[: self.keep]:
            if self.runner.run_folder(f"{trial.number:04}").exists():
                continue
            if self.asker.alone or trial.worker == self.asker.worker:
                own.append(trial)
            else:
                elsewhere.append(trial)
        for trial in sorted(elsewhere, key=lambda trial: trial.number):
            logger.info(
                f"the run of trial {trial.number:04}, one of the best {self.keep}, is with its worker: {trial.worker}"
            )
        if own:
            names = ", ".join(f"{trial.number:04}" for trial in own)
            logger.warning(
                f"an earlier call has not kept the runs of trials {names}, which are among the best {self.keep}"
            )

    def _resolved(self, trial: Record) -> dict[str, Any]:
        """Return the options of a trial, with every default."""
        return self.template.config(self.asker.space.values(trial.params)).resolved

    def _result(self, records: list[Record]) -> Tuning:
        """Write the table and the picture, and return the tuning."""
        if not ranked(records):
            errors = [record.error for record in records if record.error]
            error = errors[0] if errors else "all were pruned"
            raise TemperaError(
                f"none of {len(records)} trials has succeeded; the first error is: {error}"
            )
        best = eligible(records)
        result = Tuning(
            folder=self.runner.folder,
            metric=self.template.metric,
            space=self.asker.space,
            trials=tuple(records),
            importance=self.asker.importance(),
            config=self._resolved(best[0]) if best else self.template.base.resolved,
        )
        write_file(result.folder / "trials.csv", csv_of(result.table))
        for suffix, content in draw_tuning(result).items():
            write_file(result.folder / f"tune.{suffix}", content)
        return result
