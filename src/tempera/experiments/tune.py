"""A tuning: Optuna chooses settings, every trial is a training in a process of its own, and the best one stays."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from .. import config as configuration
from ..artifacts.pictures import label, number
from ..build import Config, build
from ..engine.devices import launched
from ..errors import ConfigError, OutputError, TemperaError
from ..io.atomic import write_file
from ..io.console import logger, progress_bar
from ..io.documents import parsed
from ..text.sources import Given
from .claim import claimed
from .drawing import picture
from .points import as_yaml, reading_of
from .process import Worker, cores, outcome_of
from .result import csv_of
from .space import Space
from .study import Shared, name_of, stored
from .trials import Trial, Tuning, ranked
from .worker import MESSAGES

if TYPE_CHECKING:
    from optuna.trial import Trial as Asked

_ABOUT, _TRIALS = "tune.yaml", "trials"
_TICK = 0.05  # seconds between two looks at the trials
_PATIENCE = 1.0  # between two looks at the study while others work


def tune(
    config: Mapping[str, Any] | str | Path | None = None,
    space: Mapping[str, Any] | str | Path = "space.yaml",
    trials: int = 25,
    output: str | Path = "runs/tune",
    overrides: Sequence[str] = (),
    metric: str | None = None,
    workers: int = 1,
    keep: int = 1,
    storage: str | None = None,
    study: str = "tempera",
    prune: bool = True,
    lost_after: float = 60.0,
    overwrite: bool = False,
) -> Tuning:
    """Look for the best configuration by Bayesian search (TPE, Bergstra et al. 2011), every trial in a process of its own.

    Trials that are worse than the median of those before, at the same evaluation on the way, are given up. The same call goes on
    after a kill: what was finished is not made again, what was left behind is. Recommenders are judged by their
    validation, so that the test stays for the one that is chosen.

    Args:
        config: options as a mapping, a YAML file, or None for the default job.
        space: of each field what it may be, as a mapping or a YAML file, see `Space.of`.
        trials: how many are to come to an end, of all workers together; those of an earlier call count.
        output: the folder of best.yaml, trials.csv, tune.svg, tune.png, and of the best runs in trials/.
        overrides: dotted.key=value, as on the command line.
        metric: what is to be high; None is ndcg@10 if it is measured, else the first one.
        workers: trials at once. With one, the same call comes to the same result.
        keep: the best so many trials keep their run folder.
        storage: URL of an Optuna storage that workers on several machines share, each with an output of its own; None is a file in
            `output`.
        study: its name there.
        prune: whether bad trials are given up on the way.
        lost_after: seconds after which another worker that has not been heard of is taken for gone, and its trial is made again.
        overwrite: forget what `output` holds of an earlier tuning.

    Raises:
        TemperaError: wrong options, in any corner of the space; an output of something else; not one trial that succeeds.

    >>> found = tune("pairs.yaml", {"train.learning_rate": "0.01:0.1:log"}, trials=1, output="runs/tune")
    >>> [trial.state for trial in found.trials], found.config["train"]["learning_rate"] == found.best.params["train.learning_rate"]
    (['finished'], True)
    """
    plan = _Plan.of(config, space, overrides, metric)
    for name, value in (("--trials", trials), ("--workers", workers), ("--keep", keep), ("--lost-after", lost_after)):
        if value < (0 if name == "--keep" else 1):
            raise ConfigError(f"{name} is {value}, and at least {0 if name == '--keep' else 1} is expected")
    if (storage or "").startswith("sqlite:"):
        raise ConfigError(
            "--storage sqlite: is a file, and belongs to one tempera tune: leave --storage out (it is study.db in "
            "--output), or give several a postgresql://"
        )
    folder = Path(output)
    with claimed(folder, _ABOUT, plan.about, "tuning", overwrite):
        about = (storage or stored(folder), study, plan.about, name_of(folder))
        shared = Shared(*about, budget=trials, seed=plan.base.train.seed, lost_after=lost_after, prune=prune)
        search = _Search(plan, shared, folder, keep, [Worker() for _ in range(workers)])
        try:
            search.run()
        except shared.optuna.exceptions.StorageInternalError as error:
            reason = " ".join(str(error.__cause__ or error).split())
            raise TemperaError(f"the storage is lost: {reason}; the same command goes on when it is back") from None
        return search.leave()


@dataclass(frozen=True)
class _Plan:
    """A configuration and what may be chosen of it, checked."""

    given: Mapping[str, Any] | str | Path | None
    overrides: tuple[str, ...]
    base: Config
    space: Space
    metric: str

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any] | str | Path | None,
        space: Mapping[str, Any] | str | Path,
        overrides: Sequence[str],
        metric: str | None,
    ) -> _Plan:
        """Build every corner of the space once.

        Raises:
            ConfigError: options that a corner cannot have, or a metric that is not measured.
        """
        if launched():
            raise ConfigError("a tuning starts its processes itself: start it without a launcher")
        read = configuration.of(given, overrides)
        base = build(configuration.of(given, overrides))
        if isinstance(base.data, Given):
            raise ConfigError("data.source: every trial reads its data in a process of its own: give a file, data.path")
        names = base.evaluation.metrics
        if metric is not None and metric not in names:
            raise ConfigError(f"--metric {metric} is not measured; evaluation.metrics has {', '.join(names)}")
        chosen = metric or ("ndcg@10" if "ndcg@10" in names else names[0])
        plan = cls(read.values, tuple(overrides), base, Space.of(space), chosen)
        for values in plan.space.corners():
            if chosen not in plan.config(values).evaluation.metrics:
                raise ConfigError(f"evaluation.metrics: the space leaves out {chosen}, by which trials are compared")
        return plan

    def config(self, values: Mapping[str, Any]) -> Config:
        """The configuration of one trial."""
        changed = [f"{name}={as_yaml(value)}" for name, value in values.items()]
        options = configuration.of(self.given, changed)
        options.places.update(self.space.places(values))
        return build(options)

    @property
    def about(self) -> str:
        """What has to be alike when a tuning is taken up again."""
        return configuration.dump({"metric": self.metric, "space": self.space.given, "config": self.base.resolved})


@dataclass
class _Running:
    """A trial that is being made."""

    trial: Asked
    values: Mapping[str, Any]
    config: Config
    folder: Path
    worker: Worker
    log: _Log
    began: float = field(default_factory=time.monotonic)
    beats: int = 0
    evaluations: int = 0


class _Log:
    """What a run has written since it was asked last."""

    def __init__(self, path: Path) -> None:
        self.path, self.at, self.steps = path, 0, 0

    def evaluations(self) -> list[dict[str, Any] | None]:
        """Metrics of the evaluations on the way; None for one that the budget has left out."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.at += len(whole)
        found: list[dict[str, Any] | None] = []
        for record in map(parsed, whole.splitlines()):
            self.steps = record["steps"] if record["event"] == "step" else self.steps
            if record["event"] == "evaluation" and 0 < record["step"] < self.steps:  # not those of the whole test
                found.append(record["metrics"])
            elif record["event"] == "evaluation left out":
                found.append(None)
        return found


class _Search:
    """The trials that this process makes."""

    def __init__(self, plan: _Plan, shared: Shared, folder: Path, keep: int, workers: list[Worker]) -> None:
        self.plan, self.shared, self.folder, self.keep = plan, shared, folder, keep
        self.workers, self.free = workers, list(workers)
        self.running: list[_Running] = []
        self.threads = None if len(workers) == 1 else max(1, cores() // len(workers))

    def run(self) -> None:
        """Make trials until all are there, of whichever worker."""
        self.shared.recover(set())
        self.tidy()
        with progress_bar("tune", self.shared.budget, "trial") as bar:
            try:
                self._until_all(bar)
            finally:
                for run in self.running:  # of an end that was not expected: others need not wait for these
                    run.worker.stop()
                    self.shared.give_back(self.shared.frozen(run.trial))
                for worker in self.workers:
                    worker.close()

    def _until_all(self, bar: Any) -> None:
        looked = -_PATIENCE
        while True:
            ended = self._look()
            if ended or (self.free and time.monotonic() - looked >= _PATIENCE):
                looked = time.monotonic()
                if self._show(bar) >= self.shared.budget and not self.running:
                    return
                self._fill()
            time.sleep(_TICK)

    def _fill(self) -> None:
        """Give every free worker something to do, if there is anything."""
        self.shared.recover({run.trial.number for run in self.running})
        while self.free and (found := self.shared.ask(self.plan.space)) is not None:
            self._start(*found)

    def _start(self, trial: Asked, values: Mapping[str, Any]) -> None:
        try:
            config = self.plan.config(values)
        except TemperaError as error:  # in no corner of the space, but here
            self.shared.finish(trial, {"error": str(error)})
            self._say(trial.number, str(error))
            return
        folder = self.folder / _TRIALS / f"{trial.number:04}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        best = ranked(self.trials)
        job = {
            "options": config.resolved,
            "folder": str(folder),
            "vectors": str(self.folder / "vectors"),
            "metric": self.plan.metric,
            "keep": self.keep > 0,
            "bar": best[self.keep - 1].value if 0 < self.keep <= len(best) else None,
            "threads": self.threads,
        }
        worker = self.free.pop()
        worker.start(job)
        self.running.append(_Running(trial, values, config, folder, worker, _Log(folder / "log.jsonl")))

    def _look(self) -> bool:
        """See to the trials under way; whether one has ended."""
        ended = False
        for run in tuple(self.running):
            code = run.worker.ended()
            pruned = self._follow(run)  # what it wrote before its end
            if pruned and code is None:
                run.worker.stop()
            if pruned or code is not None:
                self._end(run, {} if pruned else outcome_of(run.folder, code or 0))
                ended = True
            elif time.monotonic() - run.began > (run.beats + 1) * self.shared.lost_after / 5:
                run.beats += 1
                self.shared.beat(run.trial, run.beats)
        return ended

    def _follow(self, run: _Running) -> bool:
        """Pass on the evaluations on the way; whether the trial is to be given up."""
        for metrics in run.log.evaluations():
            run.evaluations += 1
            if metrics is not None and self.shared.report(run.trial, metrics[self.plan.metric], run.evaluations):
                return True
        return False

    def _end(self, run: _Running, found: dict[str, Any]) -> None:
        """Note what a trial came to, and keep of it what is to be kept."""
        found.setdefault("seconds", round(time.monotonic() - run.began, 3))
        if "data" in found:
            found["asked"] = xxhash.xxh3_64_hexdigest("".join(reading_of(run.config)).encode())
            self._refuse_other(found)
        if found.get("error"):
            messages = run.folder / MESSAGES
            if messages.is_file():
                messages.replace(run.folder.with_suffix(".txt"))
        noted = self.shared.finish(run.trial, found)
        self.running.remove(run)
        self.free.append(run.worker)
        if noted and found.get("error"):
            self._say(run.trial.number, found["error"])
        self.tidy()

    def _refuse_other(self, found: Mapping[str, Any]) -> None:
        """Trials on other data cannot be compared."""
        others = [trial.user_attrs.get("outcome", {}) for trial in self.shared.finished]
        alike = [told["data"] == found["data"] for told in others if told.get("asked") == found["asked"]]
        if not all(alike):
            raise OutputError(
                f"{alike.count(False)} trials were made on other data than there are now, although the options are the same; "
                "give another folder, or --overwrite"
            )

    def _say(self, number: int, error: str) -> None:
        logger.warning(f"trial {number} failed: {error}")

    @property
    def trials(self) -> list[Trial]:
        """Everything that has come to an end."""
        return [Trial.of(trial) for trial in self.shared.finished]

    def tidy(self) -> None:
        """Keep the folders of the best trials, and of those under way."""
        best = ranked(self.trials)[: self.keep]
        kept = {f"{number:04}" for number in [t.number for t in best] + [run.trial.number for run in self.running]}
        for folder in (self.folder / _TRIALS).glob("*/"):
            if folder.name not in kept:
                shutil.rmtree(folder)
        if best:
            write_file(self.folder / "best.yaml", configuration.dump(self._resolved(best[0])).encode())

    def _resolved(self, trial: Trial) -> dict[str, Any]:
        return self.plan.config(self.plan.space.values(trial.params)).resolved

    def _show(self, bar: Any) -> int:
        """Move the bar; how many trials have come to an end."""
        trials = self.trials
        bar.update(len(trials) - bar.n)
        if best := ranked(trials)[:1]:
            bar.set_postfix_str(f"best {label(self.plan.metric)} {number(best[0].value or 0.0)}")
        return len(trials)

    def leave(self) -> Tuning:
        """The tables and the picture."""
        trials = self.trials
        if not (best := ranked(trials)):
            first = next((trial.error for trial in trials if trial.error), "all were pruned")
            raise TemperaError(f"none of {len(trials)} trials has succeeded; the first says: {first}")
        config, importance = self._resolved(best[0]), self.shared.importance()
        found = Tuning(self.folder, self.plan.metric, self.plan.space, tuple(trials), importance, config)
        write_file(self.folder / "trials.csv", csv_of(found.table).encode())
        for suffix, content in picture(found).items():
            write_file(self.folder / f"tune.{suffix}", content)
        return found
