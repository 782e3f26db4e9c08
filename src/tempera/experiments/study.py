"""A study that several workers share: what is to be tried next, what has been, and what was left behind.

A trial counts if it has come to an end of its own: finished, pruned, or failed with a message. One that its worker has left behind
(killed, machine gone) does not: whoever notices marks it as failed, without a message, and puts its values up to be tried again.
"""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, MissingLibrary, OutputError
from ..io.require import require
from .space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as Asked

STARTUP = 10  # trials at random before the sampler learns from them, as Optuna has it
UNPRUNED = 5  # trials that are finished before any is pruned
FIRST = 2  # evaluation at which a trial may be pruned


def load_optuna() -> Any:
    """Return Optuna, silenced.

    Raises:
        MissingLibrary: it is not installed.
    """
    require("tune", "tuning")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Shared:
    """The trials of one study, as one of its workers sees them.

    Args:
        url: of the storage.
        name: of the study.
        about: what has to be alike for all workers.
        worker: who this is: machine and folder.
        budget: trials that are to be made, of all workers together.
        seed: of the sampler.
        lost_after: seconds after which another worker that has not been heard of is taken for gone.

    Raises:
        ConfigError: no such storage.
        OutputError: a study of something else.
    """

    def __init__(
        self, url: str, name: str, about: str, worker: str, budget: int, seed: int, lost_after: float, prune: bool
    ) -> None:
        self.optuna = load_optuna()
        self.worker, self.budget, self.seed, self.lost_after = worker, budget, seed, lost_after
        self.alone = url.startswith("sqlite:")
        self.study: Study = self._open(url, name, prune)
        self.seen: dict[int, tuple[Any, float]] = {}  # beats of others' trials, and since when they stand so
        known = self.study.user_attrs.get("about")
        if known is None:
            self.study.set_user_attr("about", about)
        elif known != about:
            raise OutputError(
                f"the study {name} in {_public(url)} is of another configuration, space or metric; give another --study"
            )

    def _open(self, url: str, name: str, prune: bool, attempts: int = 5) -> Study:
        optuna = self.optuna
        pruner = optuna.pruners.MedianPruner(UNPRUNED, FIRST) if prune else optuna.pruners.NopPruner()
        for left in reversed(range(attempts)):  # workers that begin at one moment make the same tables
            try:
                storage = optuna.storages.RDBStorage(url)
                study: Study = optuna.create_study(
                    storage=storage, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
                )
            except ModuleNotFoundError as error:
                driver = "'psycopg[binary]'" if (error.name or "").startswith("psycopg") else str(error.name)
                raise MissingLibrary(f"--storage {_public(url)} needs a driver: pip install {driver}") from None
            except Exception as error:  # whatever drivers of databases raise
                if not left:
                    reason = " ".join(str(error.__cause__ or error).split())
                    raise ConfigError(f"--storage {_public(url)} cannot be opened: {reason}") from None
                time.sleep(0.3)
            else:
                break
        return study

    # ---- what there is

    @property
    def trials(self) -> list[FrozenTrial]:
        """All of them, by number."""
        return self.study.get_trials(deepcopy=False)

    @property
    def finished(self) -> list[FrozenTrial]:
        """Trials that have come to an end of their own."""
        return [trial for trial in self.trials if trial.state.is_finished() and not left_behind(trial)]

    # ---- what is next

    def ask(self, space: Space) -> tuple[Asked, dict[str, Any]] | None:
        """A trial to be made, and its options; None if others make those that are left.

        What a trial tries follows from the seed, from how many there are before it, and from what they came to: one that is asked
        again after a kill is the same.
        """
        trials = self.trials
        live = [trial for trial in trials if not left_behind(trial)]
        waiting = any(trial.state == self.optuna.trial.TrialState.WAITING for trial in trials)
        if len(live) >= self.budget and not waiting:
            return None
        own = () if self.alone else (np.frombuffer(self.worker.encode(), np.uint8).tolist(),)
        seeds = np.random.SeedSequence([self.seed, len(live), *(value for part in own for value in part)])
        with _silent():
            self.study.sampler = self.optuna.samplers.TPESampler(
                n_startup_trials=STARTUP,
                multivariate=True,
                group=space.conditional,
                seed=int(seeds.generate_state(1)[0]),
            )
            trial = self.study.ask()
            before = [t for t in self.trials if t.number < trial.number and not left_behind(t)]
            if len(before) >= self.budget:  # others have asked at the same moment
                self._end(trial.number)
                return None
            values = space.ask(lambda field: field.domain.suggest(trial, field.name))
        trial.set_user_attr("worker", self.worker)
        return trial, values

    def beat(self, trial: Asked, count: int) -> None:
        """Say that a trial is being made."""
        with suppress(self.optuna.exceptions.UpdateFinishedTrialError):  # another worker makes it; its end will tell
            trial.set_user_attr("beat", count)

    def frozen(self, trial: Asked) -> FrozenTrial:
        """A trial as the study has it."""
        return next(found for found in self.trials if found.number == trial.number)

    def importance(self) -> dict[str, float]:
        """The share of each name in what makes trials good; empty where too few are finished to tell."""
        if sum(trial.state.name == "COMPLETE" for trial in self.trials) < STARTUP:
            return {}
        evaluator = self.optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        with _silent():
            found: dict[str, float] = self.optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        return found

    # ---- what it came to

    def report(self, trial: Asked, value: float, evaluation: int) -> bool:
        """Note an evaluation on the way; whether the trial is to be given up, for it is bad, or for another worker makes it."""
        try:
            trial.report(value, evaluation)
        except self.optuna.exceptions.UpdateFinishedTrialError:
            return True
        return trial.should_prune()

    def finish(self, trial: Asked, found: Mapping[str, Any]) -> bool:
        """Note how a trial has ended; False if it was given to another worker meanwhile."""
        state = self.optuna.trial.TrialState
        try:
            trial.set_user_attr("outcome", {name: value for name, value in found.items() if name != "value"})
            if "error" in found:
                self.study.tell(trial, state=state.FAIL)
            elif "value" not in found:
                self.study.tell(trial, state=state.PRUNED)
            else:
                self.study.tell(trial, found["value"])
        except (ValueError, self.optuna.exceptions.UpdateFinishedTrialError):
            return False
        return True

    # ---- what was left behind

    def recover(self, mine: set[int]) -> int:
        """Take up the trials that nobody makes any more; how many.

        Args:
            mine: numbers of those that this worker is making.
        """
        running = [t for t in self.trials if t.state == self.optuna.trial.TrialState.RUNNING and t.number not in mine]
        return sum(self.give_back(trial) for trial in running if self._gone(trial))

    def _gone(self, trial: FrozenTrial) -> bool:
        if self.alone or trial.user_attrs.get("worker") == self.worker:
            return True  # of a process that was here before
        # By this machine's clock: those of others may say anything.
        beat, now = trial.user_attrs.get("beat"), time.monotonic()
        known, since = self.seen.setdefault(trial.number, (beat, now))
        if known != beat:
            self.seen[trial.number] = (beat, now)
            return False
        return now - since > self.lost_after

    def give_back(self, trial: FrozenTrial) -> bool:
        """Mark a running trial as left behind, and its values as to be tried again; False if another worker did."""
        if not self._end(trial.number):
            return False
        if "worker" in trial.user_attrs and "error" not in trial.user_attrs.get("outcome", {}):
            self.study.add_trial(
                self.optuna.create_trial(
                    state=self.optuna.trial.TrialState.WAITING,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={"again": trial.number},
                )
            )
        return True

    def _end(self, number: int) -> bool:
        try:
            self.study.tell(number, state=self.optuna.trial.TrialState.FAIL)
        except (ValueError, self.optuna.exceptions.UpdateFinishedTrialError):
            return False
        return True


def left_behind(trial: FrozenTrial) -> bool:
    """Whether a trial has failed without a message: its worker is gone."""
    return trial.state.name == "FAIL" and "error" not in trial.user_attrs.get("outcome", {})


def name_of(folder: Path) -> str:
    """This worker, on all machines."""
    return f"{socket.gethostname()}:{folder.absolute()}"


def stored(folder: Path) -> str:
    """The storage that a folder holds: SQLite writes whole transactions or none, and leaves no lock behind a kill."""
    return f"sqlite:///{folder.absolute() / 'study.db'}"


@contextmanager
def _silent() -> Iterator[None]:
    """Without warnings that parts of Optuna are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _public(url: str) -> str:
    """Without a password."""
    before, at, after = url.rpartition("@")
    scheme, colon, rest = before.partition("://")
    return f"{scheme}{colon}{rest.partition(':')[0]}{at}{after}" if at else url
