"""The study of a tuning: Optuna chooses settings (TPE), on one machine or for workers on several.

A trial counts if it came to an end of its own: finished, pruned, or failed with a message. One
whose worker disappeared (killed, or its machine) does not: its values are tried again, by the next
process of this folder at once, and by other workers when Optuna's heartbeat has been silent for too
long.
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

Report = Callable[
    [float, int], bool
]  # the metric at an evaluation, and its number; True ends the trial
Make = Callable[[Record, dict[str, Any], Report], Record]  # a trial's setting, and its options


class _Unfinished(Exception):
    """A trial that failed, or is another worker's now."""


def load_optuna() -> Any:
    """Return Optuna, which then keeps quiet.

    Raises:
        MissingLibrary: it is not installed.
    """
    require("tune", "tuning")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@dataclass(eq=False)
class Tpe:
    """Asks for the trials of one study, as one of its workers.

    Args:
        url: of the storage; None is a file in `folder`, which is this worker's alone.
        name: of the study.
        about: what has to be alike for all workers.
        folder: of this worker.
        space: what is chosen.
        budget: trials to be made, by all workers together.
        seed: of the sampler.
        lost_after: seconds without a heartbeat after which another worker is taken for lost.
        prune: stop bad trials on the way.

    Raises:
        ConfigError: no such storage.
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
        self.alone, self.worker = (
            self.url is None,
            f"{socket.gethostname()}:{self.folder.absolute()}",
        )
        pruners = self.optuna.pruners
        self.pruner = pruners.MedianPruner(UNPRUNED, FIRST) if self.prune else pruners.NopPruner()
        self.since: dict[
            int, float
        ] = {}  # when this process first saw a trial that nobody has begun
        self.study = self._open(
            self.url or f"sqlite:///{self.folder.absolute() / 'study.db'}", self.name
        )
        known = self.study.user_attrs.get("about", self.about)
        if known != self.about:
            raise OutputError(
                f"the study {self.name} in {public(self.url or str(self.folder))} is of another configuration, space or "
                "metric; give another --study"
            )
        self.study.set_user_attr("about", known)
        for trial in self._running():  # of a process that was here before
            if (self.alone or trial.user_attrs.get("worker") == self.worker) and self._fail(trial):
                self._again(self.study, trial)

    def _open(self, url: str, name: str) -> Study:
        beats: dict[str, Any] = {
            "heartbeat_interval": max(1, int(self.lost_after / 5)),
            "grace_period": max(1, int(self.lost_after)),
            "heartbeat_stale_trial_callback": self._again,
        }
        for left in reversed(range(5)):  # workers that begin at one moment make the same tables
            try:
                storage: Any = self.optuna.storages.RDBStorage(url, **({} if self.alone else beats))
                storage.record_heartbeat = self._despite_losses(storage.record_heartbeat)
                study: Study = self.optuna.create_study(
                    storage=storage, study_name=name, direction="maximize", load_if_exists=True
                )
            except ModuleNotFoundError as error:
                driver = (
                    "'psycopg[binary]'"
                    if (error.name or "").startswith("psycopg")
                    else str(error.name)
                )
                raise MissingLibrary(
                    f"--storage {public(url)} needs a driver: pip install {driver}"
                ) from None
            except Exception as error:  # whatever drivers of databases raise
                if not left:
                    reason = _reason(error).replace(url, public(url))
                    raise ConfigError(
                        f"--storage {public(url)} cannot be opened: {reason}"
                    ) from None
                time.sleep(0.3)
            else:
                break
        return study

    def _despite_losses(self, beat: Callable[[int], None]) -> Callable[[int], None]:
        """Return a heartbeat that goes on when the storage is there again; its thread would end,
        and print why."""

        def record(trial: int) -> None:
            with suppress(self.optuna.exceptions.StorageInternalError):
                beat(trial)

        return record

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Say in one line that the storage is lost in the block.

        Optuna, which writes the end of a trial in any case, may stumble over what it could not
        write, and raise that.
        """
        try:
            yield
        except Exception as error:
            causes = (
                each
                for each in _chain(error)
                if isinstance(each, self.optuna.exceptions.StorageInternalError)
            )
            if isinstance(error, TemperaError) or (lost := next(causes, None)) is None:
                raise
            raise TemperaError(
                f"the storage is lost: {_reason(lost)}; rerun the same command to resume when it is back"
            ) from None

    def work(self, make: Make, job: int = 0, closed: Callable[[], bool] = lambda: False) -> None:
        """Make trials until as many as the budget allows have come to an end, of whichever worker.

        Args:
            make: makes one.
            job: number of this caller, of those of this process that work at once.
            closed: tells that no trial is wanted any more.
        """
        with self.reaching():
            while len(self.finished) < self.budget and not closed():
                if len(self.finished) + len(self._running()) < self.budget:
                    self._try(make, job)
                else:
                    self._wait()

    def _try(self, make: Make, job: int) -> None:
        lost = []

        def objective(trial: Asked) -> float:
            try:
                return self._made(trial, make)
            except (
                self.optuna.exceptions.UpdateFinishedTrialError
            ):  # this worker was taken for lost
                lost.append(trial.number)
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
        earlier = [
            other
            for other in self._trials
            if other.number < trial.number and not left_behind(other)
        ]
        if len(earlier) >= self.budget:  # another worker asked at the same moment
            raise _Unfinished
        values = self.space.ask(lambda field: field.suggest(trial))
        trial.set_user_attr("worker", self.worker)

        def report(value: float, evaluation: int) -> bool:
            trial.report(value, evaluation)
            return bool(trial.should_prune())  # NumPy's, which is not JSON

        try:
            record = make(
                Record(trial.params, number=trial.number, worker=self.worker), values, report
            )
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
        """Return a sampler whose seed follows from what was tried before.

        Alone, a trial asked again after a kill is the same. Beside others every trial counts, so
        that no seed comes twice.
        """
        if self.alone and not job:
            tried = [sum(not left_behind(trial) for trial in self._trials)]
        else:
            tried = [len(self._trials), job, *self.worker.encode()]
        return self.optuna.samplers.TPESampler(
            n_startup_trials=STARTUP,
            multivariate=True,
            group=self.space.conditional,
            seed=int(np.random.SeedSequence([self.seed, *tried]).generate_state(1)[0]),
        )

    def _wait(self) -> None:
        """Wait for the trials of others, and take up what those have lost."""
        time.sleep(_PATIENCE)
        self.optuna.storages.fail_stale_trials(self.study)
        for trial in self._running():  # one that was asked for and never begun has no heartbeat
            waited = time.monotonic() - self.since.setdefault(trial.number, time.monotonic())
            if "worker" not in trial.user_attrs and waited > self.lost_after:
                self._fail(trial)

    def _fail(self, trial: FrozenTrial) -> bool:
        """Mark a running trial as failed; False if another worker did."""
        try:
            self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
        except (ValueError, self.optuna.exceptions.UpdateFinishedTrialError):
            return False
        return True

    def _again(self, study: Study, trial: FrozenTrial) -> None:
        """Put up a lost trial to be tried again; one that was never begun has no values to try."""
        if "worker" in trial.user_attrs and not _error(trial):
            self.optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)

    @property
    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _running(self) -> list[FrozenTrial]:
        return [trial for trial in self._trials if trial.state.name == "RUNNING"]

    @property
    def finished(self) -> list[FrozenTrial]:
        """Return the trials that came to an end of their own."""
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
        """Return each name's share in what makes trials good; empty if too few are finished to
        know."""
        if sum(record.done for record in self.records) < STARTUP:
            return {}
        evaluator = self.optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        shares: dict[str, float] = self.optuna.importance.get_param_importances(
            self.study, evaluator=evaluator
        )
        return shares


def left_behind(trial: FrozenTrial) -> bool:
    """Tell if a trial failed without a message: its worker is gone."""
    return trial.state.name == "FAIL" and not _error(trial)


def _error(trial: FrozenTrial) -> str | None:
    record: Mapping[str, Any] = trial.user_attrs.get("record", {})
    return record.get("error")


def public(url: str) -> str:
    """Return a URL without its password, and without what follows "?", where one may stand, too.

    >>> public("postgresql://me:secret@host/db?password=secret"), public("postgresql:me:secret@host")
    ('postgresql://me@host/db', 'postgresql:...')
    """
    scheme, slashes, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if not slashes or "?" in user:  # no URL, or an @ of a password
        scheme, colon, _ = url.partition(":")
        return f"{scheme}:..." if colon else url
    return f"{scheme}://{user.partition(':')[0]}{at}{place.partition('?')[0]}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that have led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """Return what a database's driver says, in one line and without the SQL."""
    cause = error.__cause__ or error
    return " ".join(str(getattr(cause, "orig", None) or cause).split())
