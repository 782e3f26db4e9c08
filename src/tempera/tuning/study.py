"""The study of a tuning: Optuna chooses settings (TPE), for workers on a single machine or on
several.

A trial counts if the trial was finished, was pruned, or failed with a message. A trial of a worker
that disappeared (the process was killed, or the machine is gone) does not count. The values of the
lost trial are tried again: by the next process of the same folder at once, and by workers elsewhere
when Optuna's heartbeat has been silent for too long.
"""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, MissingLibrary, OutputError, TemperaError
from ..experiments.record import Record
from ..experiments.runner import Stopped
from ..io.documents import parsed
from ..io.require import require
from .space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as Asked

STARTUP = 10  # trials at random before the sampler learns from them, as Optuna has it
UNPRUNED = 5  # trials that are finished before any is pruned
FIRST = 2  # evaluation at which a trial may be pruned
_PATIENCE = 1.0  # seconds between two looks at the trials of others

# Called with the metric at an evaluation and the number of the evaluation; True ends the trial.
Report = Callable[[float, int], bool]
# Makes a trial from its setting and the values of its options.
Make = Callable[[Record, dict[str, Any], Report], Record]


class _Unfinished(Exception):
    """The trial has failed, or belongs to another worker now."""


def load_optuna() -> Any:
    """Return Optuna, set to log errors only.

    Raises:
        MissingLibrary: Optuna is not installed.
    """
    require("tune", "tuning")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@dataclass(eq=False)
class Tpe:
    """A worker of a study: asks for trials, and stores the records of the trials.

    Args:
        url: URL of the storage; None is a file in `folder`, for the worker alone.
        name: name of the study.
        about: the configuration, space and metric, equal for all workers.
        folder: output folder of the worker.
        space: the options to choose, with the values of each.
        budget: number of trials of all workers together.
        seed: seed of the sampler.
        lost_after: seconds without a heartbeat until another worker counts as lost.
        prune: stop bad trials on the way.

    Raises:
        ConfigError: there is no storage at the URL.
        OutputError: the study is of something else.
    """

    url: str | None
    name: str
    about: str
    folder: Path
    space: Space
    budget: int
    seed: int
    lost_after: float
    prune: bool

    def __post_init__(self) -> None:
        self.optuna = load_optuna()
        self.alone = self.url is None
        self.worker = f"{socket.gethostname()}:{self.folder.absolute()}"
        if self.prune:
            self.pruner = self.optuna.pruners.MedianPruner(UNPRUNED, FIRST)
        else:
            self.pruner = self.optuna.pruners.NopPruner()
        # By number of a trial that no worker has begun: when this process first saw the trial.
        self.since: dict[int, float] = {}
        self.study = self._open(self.url or f"sqlite:///{self.folder.absolute() / 'study.db'}")
        known = self.study.user_attrs.get("about", self.about)
        if known != self.about:
            raise OutputError(
                f"the study {self.name} in {public(self.url or str(self.folder))} is of another configuration, space or "
                "metric; give another --study"
            )
        self.study.set_user_attr("about", known)
        for trial in self._running():
            # An earlier process of this folder has left the trial.
            own = self.alone or trial.user_attrs.get("worker") == self.worker
            if own and self._fail(trial):
                self._again(self.study, trial)

    def _open(self, url: str) -> Study:
        """Open the study, or make a new study.

        Raises:
            ConfigError: the storage cannot be opened.
            MissingLibrary: the driver of the database is not installed.
        """
        for tries_left in reversed(range(5)):  # workers that begin at once make the same tables
            try:
                return self._open_once(url)
            except ModuleNotFoundError as error:
                driver = error.name or ""
                if driver.startswith("psycopg"):
                    driver = "'psycopg[binary]'"
                raise MissingLibrary(
                    f"--storage {public(url)} needs a driver: pip install {driver}"
                ) from None
            except Exception as error:  # drivers of databases raise errors of their own
                if not tries_left:
                    reason = _reason(error).replace(url, public(url))
                    raise ConfigError(
                        f"--storage {public(url)} cannot be opened: {reason}"
                    ) from None
                time.sleep(0.3)
        raise AssertionError("the last try returns or raises")

    def _open_once(self, url: str) -> Study:
        if self.alone:
            storage = self.optuna.storages.RDBStorage(url)
        else:
            storage = self.optuna.storages.RDBStorage(
                url,
                heartbeat_interval=max(1, int(self.lost_after / 5)),
                grace_period=max(1, int(self.lost_after)),
                heartbeat_stale_trial_callback=self._again,
            )
        storage.record_heartbeat = self._despite_losses(storage.record_heartbeat)
        study: Study = self.optuna.create_study(
            storage=storage, study_name=self.name, direction="maximize", load_if_exists=True
        )
        return study

    def _despite_losses(self, beat: Callable[[int], None]) -> Callable[[int], None]:
        """Return a heartbeat for Optuna, able to outlive a lost storage; else Optuna's thread would
        end and print the error."""

        def record(trial: int) -> None:
            with suppress(self.optuna.exceptions.StorageInternalError):
                beat(trial)

        return record

    @contextmanager
    def storage_errors_in_a_line(self) -> Iterator[None]:
        """Raise an error of a single clear line if the storage is lost in the block.

        Optuna writes the end of a trial in any case, and may fail there too: the error of the
        storage can be a cause of the final error.
        """
        try:
            yield
        except TemperaError:
            raise
        except Exception as error:
            lost = self._storage_error(error)
            if lost is None:
                raise
            raise TemperaError(
                f"the storage is lost: {_reason(lost)}; rerun the same command to resume when it is back"
            ) from None

    def _storage_error(self, error: BaseException) -> BaseException | None:
        """Return the first error of the storage among an error and the causes of the error; None
        without an error of the storage."""
        storage_error: type[BaseException] = self.optuna.exceptions.StorageInternalError
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, storage_error):
                return cause
            cause = cause.__cause__ or cause.__context__
        return None

    def work(self, make: Make, job: int = 0, closed: Callable[[], bool] = lambda: False) -> None:
        """Make trials until the trials of all workers fill the budget.

        Args:
            make: makes one trial.
            job: number of the caller among the callers at work in the process.
            closed: returns True when no trial is wanted any more.
        """
        with self.storage_errors_in_a_line():
            while len(self.finished) < self.budget and not closed():
                if len(self.finished) + len(self._running()) < self.budget:
                    self._try(make, job)
                else:
                    self._wait()

    def _try(self, make: Make, job: int) -> None:
        """Ask for a trial, and make the trial."""
        lost = False

        def objective(trial: Asked) -> float:
            nonlocal lost
            try:
                return self._made(trial, make)
            except self.optuna.exceptions.UpdateFinishedTrialError:
                lost = True  # other workers took this worker for lost, and ended the trial
                raise _Unfinished from None

        study = self.optuna.load_study(
            study_name=self.study.study_name,
            storage=self.study._storage,
            sampler=self._sampler(job),
            pruner=self.pruner,
        )
        try:
            study.optimize(objective, n_trials=1, catch=(_Unfinished,))
        except ValueError:
            if not lost:
                raise

    def _made(self, trial: Asked, make: Make) -> float:
        """Make a trial, store the record of the trial in the study, and return the trial's
        value."""
        earlier = 0
        for other in self._trials:
            if other.number < trial.number and not left_behind(other):
                earlier += 1
        if earlier >= self.budget:  # another worker asked at the same moment
            raise _Unfinished
        values = self.space.ask(lambda field: field.suggest(trial))
        trial.set_user_attr("worker", self.worker)

        def report(value: float, evaluation: int) -> bool:
            trial.report(value, evaluation)
            return bool(trial.should_prune())  # a bool of NumPy is not JSON

        setting = Record(trial.params, number=trial.number, worker=self.worker)
        try:
            record = make(setting, values, report)
        except Stopped:
            self._again(self.study, self._trials[trial.number])
            raise
        trial.set_user_attr("record", parsed(replace(record, per_query=()).json()))
        if record.error is not None:
            raise _Unfinished
        if record.pruned:
            raise self.optuna.TrialPruned
        assert record.value is not None
        return record.value

    def _sampler(self, job: int) -> Any:
        """Return a sampler with a seed that follows from the earlier trials.

        A worker alone asks for the same trial again after a kill. With several workers every trial
        counts, so no seed comes twice.
        """
        if self.alone and not job:
            tried = [sum(not left_behind(trial) for trial in self._trials)]
        else:
            tried = [len(self._trials), job, *self.worker.encode()]
        seeds = np.random.SeedSequence([self.seed, *tried])
        return self.optuna.samplers.TPESampler(
            n_startup_trials=STARTUP,
            multivariate=True,
            group=self.space.conditional,
            seed=int(seeds.generate_state(1)[0]),
        )

    def _wait(self) -> None:
        """Wait for trials of the remaining workers, and end the trials of lost workers."""
        time.sleep(_PATIENCE)
        self.optuna.storages.fail_stale_trials(self.study)
        for trial in self._running():
            if "worker" in trial.user_attrs:
                continue
            # A trial that was asked for and never begun has no heartbeat.
            now = time.monotonic()
            if now - self.since.setdefault(trial.number, now) > self.lost_after:
                self._fail(trial)

    def _fail(self, trial: FrozenTrial) -> bool:
        """Mark a running trial as failed; return False if another worker has ended the trial."""
        try:
            self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
        except (ValueError, self.optuna.exceptions.UpdateFinishedTrialError):
            return False
        return True

    def _again(self, study: Study, trial: FrozenTrial) -> None:
        """Enqueue the values of a lost trial; a trial never begun has no values."""
        if "worker" in trial.user_attrs and not _error(trial):
            self.optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)

    @property
    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _running(self) -> list[FrozenTrial]:
        return [trial for trial in self._trials if trial.state.name == "RUNNING"]

    @property
    def finished(self) -> list[FrozenTrial]:
        """Return the trials that count: finished, pruned, or failed with a message."""
        return [
            trial for trial in self._trials if trial.state.is_finished() and not left_behind(trial)
        ]

    @property
    def records(self) -> list[Record]:
        """Return the records of the finished trials, by number."""
        return [
            replace(Record(**trial.user_attrs["record"]), params=trial.params, number=trial.number)
            for trial in self.finished
        ]

    def importance(self) -> dict[str, float]:
        """Return the share of each option's name in the quality of trials.

        Empty if too few trials are finished.
        """
        if sum(record.done for record in self.records) < STARTUP:
            return {}
        evaluator = self.optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        shares: dict[str, float] = self.optuna.importance.get_param_importances(
            self.study, evaluator=evaluator
        )
        return shares


def left_behind(trial: FrozenTrial) -> bool:
    """Return True if a trial failed without a message: the worker of the trial is gone."""
    return trial.state.name == "FAIL" and not _error(trial)


def _error(trial: FrozenTrial) -> str | None:
    """Return the message of a failed trial; None without a message."""
    record: Mapping[str, Any] = trial.user_attrs.get("record", {})
    return record.get("error")


def public(url: str) -> str:
    """Return a URL without password and without query, since a query may hold a password too.

    >>> public("postgresql://me:secret@host/db?password=secret"), public("postgresql:me:secret@host")
    ('postgresql://me@host/db', 'postgresql:...')
    """
    scheme, slashes, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if not slashes or "?" in user:  # no URL, or an @ of a password
        scheme, colon, _ = url.partition(":")
        return f"{scheme}:..." if colon else url
    return f"{scheme}://{user.partition(':')[0]}{at}{place.partition('?')[0]}"


def _reason(error: BaseException) -> str:
    """Return the message of a database's driver, in a single line and without the SQL."""
    cause = error.__cause__ or error
    return " ".join(str(getattr(cause, "orig", None) or cause).split())
