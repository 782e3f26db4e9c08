"""A tuning: Optuna chooses settings, and the best one stays."""

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
from ..experiments.claim import claimed, named_in
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
from .tune_pictures import picture

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

    A trial that is worse than the median of those before, at the same evaluation on the way, is
    stopped. The same call resumes after a kill: finished trials are not repeated, the interrupted
    one is. Trials are compared by the validation of the weights that they would save, as in
    `sweep`.

    Args:
        config: options as a mapping, a YAML file, or None for the default job.
        space: the values of each option, as a mapping or a YAML file, see `Space.of`.
        trials: total number of trials, over all workers and with those of earlier calls.
        output: the folder of trials.csv, tune.svg, tune.png and, if validation asks enough to
            choose, best.yaml and the best runs in trials/; None is runs/, the name of the file, and
            -tune.
        overrides: dotted.key=value, as on the command line.
        metric: the metric to maximise; None is ndcg@10 if it is measured, else the first one.
        jobs: trials at once, each in a process of its own. With one, the same call gives the same
            result.
        keep: number of best trials whose run folder is kept.
        storage: URL of an Optuna storage that workers on several machines share, each with an
            output of its own; None is a file in `output`.
        study: its name there.
        prune: stop bad trials on the way.
        lost_after: seconds without a heartbeat after which another worker is taken for lost, and
            its trial is repeated.
        overwrite: forget an earlier tuning in `output`; an interrupted one goes on.

    Raises:
        TemperaError: wrong options, in any corner of the space; an output of something else; every
            trial failed.

    >>> result = tune("pairs.yaml", {"train.learning_rate": "0.01:0.1:log"}, trials=1, output="runs/tune")
    >>> [trial.state for trial in result.trials], list(result.best.params)
    (['finished'], ['train.learning_rate'])
    """
    refuse_other_kinds(tune, locals())
    for name, value, least in (
        ("--trials", trials, 1),
        ("--keep", keep, 0),
        ("--lost-after", lost_after, 3),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value}; give at least {least}")
    if storage is not None and not storage.strip():
        raise ConfigError("--storage is empty: give a postgresql:// URL, or leave it out")
    if (storage or "").lower().startswith(("sqlite:", "sqlite+")):
        raise ConfigError(
            "--storage sqlite: is a file for one tempera tune alone; leave --storage out (the file is study.db in --output), or "
            "give a postgresql:// that several share"
        )
    if storage is not None and overwrite:
        raise ConfigError(
            "--overwrite forgets what is in --output, and the trials are in --storage: give another --study"
        )
    fields = Space.of(space)
    template = Template.of(config, overrides, metric, [each.field for each in fields.fields])
    folder = template.folder(output, config, "tune")
    corners = fields.corners()
    made = [template.config(values, fields.places(values)).resolved for values in corners]
    about = configuration.dump(
        {"metric": template.metric, "space": fields.written, "config": template.base.resolved}
    )
    own, of = about, "configuration"
    if storage is not None:  # a folder has runs of one study
        own = configuration.dump({"storage": public(storage), "study": study}) + about
        of = "configuration, storage or study"
    runner = Runner(folder, jobs, template.metric)
    if storage is not None:
        runner.elsewhere = "the trials of all workers are in --storage: give another --study"
    read = [*template.base.read, *named_in(config, space, fields.written)]
    with claimed(folder, _ABOUT, own, "tuning", overwrite, read, partial(read_some, made), of):
        template.tell()
        seed = template.base.train.seed
        asker = Tpe(storage, study, about, folder, fields, trials, seed, lost_after, prune)
        with asker.reaching():
            return _Search(template, asker, runner, keep, template.smallest_batch(corners)).run()


class _Search:
    """Makes the trials that a study asks for, and keeps the run folders of the best."""

    def __init__(
        self,
        template: Template,
        asker: Tpe,
        runner: Runner,
        keep: int,
        batch: int | Literal["auto"],
    ) -> None:
        self.template, self.asker, self.runner, self.keep, self.batch = (
            template,
            asker,
            runner,
            keep,
            batch,
        )
        self.running: set[int] = (
            set()
        )  # numbers of trials whose records the study does not have yet
        self.known: set[int] = set()  # numbers of trials whose data are
        self.lock = Lock()

    def run(self) -> Tuning:
        """Make all trials that are missing, and write the result."""
        self._know(self.asker.records)
        with progress_bar("tune", self.asker.budget, "trial") as self.bar:
            self._tidy()
            self.runner.all(self._loop)
            self.running.clear()
            records = self._tidy()
            self._know(records)
            for record in records:
                self.runner.refuse_other_data(record)
            self._tell_missing(records)
            with suppress(OSError):  # it holds runs that stay
                self.runner.run_folder("").rmdir()
            return self._result(records)

    def _loop(self, worker: Worker) -> None:
        self.asker.work(
            partial(self._make, worker), self.runner.workers.index(worker), lambda: worker.closed
        )

    def _make(
        self, worker: Worker, trial: Record, values: dict[str, Any], report: Report
    ) -> Record:
        with self.lock:
            self.running.add(trial.number)
            self._know(records := self._tidy())
            best = ranked(records)[: self.keep]
        bar = best[-1].value if 0 < len(best) == self.keep else None
        try:
            config = self.template.config(values, self.asker.space.places(values))
            run = self.template.run(config, values, trial, self.batch)
        except (
            TemperaError
        ) as error:  # a setting that only together is refused, in no corner of the space
            record = replace(trial, error=str(error))
        else:
            record = self.runner.make(worker, run, f"{trial.number:04}", report, self.keep > 0, bar)
            with self.lock:
                self.known.add(trial.number)
                self._know(
                    self.asker.records
                )  # of other workers, which have begun at the same time
                self.runner.refuse_other_data(record)
        if record.error is not None:
            logger.warning(f"trial {trial.number} failed: {record.error}")
        elif record.value is not None:
            said = "pruned at" if record.pruned else "ended with"
            logger.info(
                f"trial {trial.number} {said} {label(self.template.metric)} {number(record.value)}: {record.name}"
            )
        return record

    def _know(self, records: Sequence[Record]) -> None:
        """Take note of the data of trials, also those of other workers."""
        for record in records:
            if record.number not in self.known:
                self.runner.know(record)
        self.known |= {record.number for record in records}

    def _tidy(self) -> list[Record]:
        """Show how far the search is, keep the folders of the best trials and of those under way,
        and return all records."""
        records = self.asker.records
        self.running -= {record.number for record in records}
        self.bar.update(len(records) - self.bar.n)
        best = eligible(records)
        kept = {
            f"{number:04}"
            for number in {*self.running, *(trial.number for trial in best[: self.keep])}
        }
        for folder in self.runner.run_folder("").glob("*/"):
            if folder.name not in kept:
                shutil.rmtree(folder)
        if best:
            self.bar.set_postfix_str(
                f"best {label(self.template.metric)} {number(best[0].value or 0.0)}"
            )
            write_file(
                self.runner.folder / "best.yaml",
                configuration.dump(self._resolved(best[0])).encode(),
            )
        return records

    def _tell_missing(self, records: Sequence[Record]) -> None:
        """Say which of the best trials have no run folder here: another worker made them, or an
        earlier call kept fewer."""
        best = {f"{record.number:04}": record for record in eligible(records)[: self.keep]}
        missing = {name: best[name] for name in best if not self.runner.run_folder(name).exists()}
        others = {
            name
            for name, each in missing.items()
            if not self.asker.alone and each.worker != self.asker.worker
        }
        for name in sorted(others):
            logger.info(
                f"the run of trial {name}, one of the best {self.keep}, is with its worker: {best[name].worker}"
            )
        if own := [name for name in missing if name not in others]:
            logger.warning(
                f"an earlier call has not kept the runs of trials {', '.join(own)}, which are among the best {self.keep}"
            )

    def _resolved(self, trial: Record) -> dict[str, Any]:
        return self.template.config(self.asker.space.values(trial.params)).resolved

    def _result(self, records: list[Record]) -> Tuning:
        """Write the tables and the picture."""
        if not ranked(records):
            error = next((record.error for record in records if record.error), "all were pruned")
            raise TemperaError(
                f"none of {len(records)} trials has succeeded; the first error is: {error}"
            )
        folder, best = self.runner.folder, eligible(records)
        config = self._resolved(best[0]) if best else self.template.base.resolved
        result = Tuning(
            *(folder, self.template.metric, self.asker.space, tuple(records)),
            self.asker.importance(),
            config,
        )
        write_file(folder / "trials.csv", csv_of(result.table))
        for suffix, content in picture(result).items():
            write_file(folder / f"tune.{suffix}", content)
        return result
