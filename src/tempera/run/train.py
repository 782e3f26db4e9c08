"""The main job: from a configuration to a trained, searchable retriever in one folder."""

from __future__ import annotations

import copy
import itertools
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from .. import config as configuration
from ..artifacts.run_folder import Run
from ..build import Config, build
from ..core.advice import cautions
from ..core.batch import Batch, Role, divide
from ..core.objective import Objective
from ..core.similarity import cosine
from ..engine import loop, outlook
from ..engine.cache import free_bytes
from ..engine.devices import Devices, one_voice, start
from ..engine.digest import digest
from ..engine.faults import broken
from ..engine.shards import gather, refuse_compiled, shard
from ..errors import DataError, TemperaError
from ..io.atomic import staged
from ..io.console import logger, progress_bar
from ..io.documents import JsonLines
from ..ranking.sample import Budget
from ..recommend.interactions import Handed, Interactions
from ..recommend.recommendation import Recommendation
from ..text.retrieval import SELF, Retrieval
from ..text.sources import Given
from .alarms import Alarms, explained, within_memory
from .publish import Leaving
from .resume import Checkpoints, Interruption, interruptible
from .task import Task, Verdict
from .trackers import Tell, tracked

CACHE = "cache"  # texts and tokens, mapped; removed with the last step


def train(
    config: Mapping[str, Any] | str | Path | None = None,
    output: str | Path = "runs/first",
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data: Any = None,
) -> Run:
    """Train a retriever and leave a run folder.

    A run that was interrupted has left its checkpoints in `output`.checkpoints; the same call goes on from the latest.

    Args:
        config: options as a mapping, a YAML file, or None for the default job: search in the installed Python's code.
        output: the folder to make: model/, index/, config.yaml, metrics.json, log.jsonl, report.html.
        overrides: dotted.key=value, as on the command line.
        overwrite: replace a run that `output` holds, once the new one is complete; forget one that was interrupted.
        data: rows to train on, in place of a source: a datasets.Dataset, a frame of pandas or polars, a table of pyarrow.
            The options of `data:` then say what its columns are; with `source: interactions` they are interactions.

    Raises:
        TemperaError: wrong options, no data, or an output that cannot be written.

    >>> run = train("pairs.yaml", "runs/second", ["objective.temperature=0.1"])
    >>> list(run.metrics)
    ['untrained', 'bm25', 'trained']
    """
    options = configuration.of(config, overrides)
    if data is not None:
        about = options.values.get("data", {})
        source = "interactions" if about.get("source") == "interactions" else "given"
        options.values["data"] = {**about, "source": source}
    resolved = build(options)
    if isinstance(resolved.data, Given) or (data is not None and isinstance(resolved.data, Interactions)):
        resolved = replace(resolved, data=resolved.data.hand(data))
    devices = start(resolved.train.mixed_precision, timeout=resolved.train.ddp_timeout)
    resolved.train.check(devices)
    folders = staged(Path(output), overwrite) if devices.group.main else TemporaryDirectory()
    place, training = Path(output).resolve(), resolved.train
    kept = Checkpoints(
        place.parent / f"{place.name}.checkpoints", resolved.resolved, training.save_total_limit, training.save_steps
    )
    with one_voice(devices.group), folders as folder, within_memory(kept):
        kept.begin(anew=overwrite)
        names = training.report_to if devices.group.main else ()
        with tracked(names, place, resolved.resolved, goes_on=kept.latest is not None) as tell:
            Job(resolved, Path(folder), devices, place.parent / "vectors", kept=kept, tell=tell).run()
    devices.group.wait()
    kept.forget()
    return Run(Path(output), there=devices.group.main)


class Job:
    """One run, from its data to its folder."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        devices: Devices,
        vectors: Path | None = None,
        prepared: Task | None = None,
        kept: Checkpoints | None = None,
        tell: Tell | None = None,
    ) -> None:
        self.config, self.folder, self.devices = config, folder, devices
        self.prepared = prepared  # of another run: its data is not read again
        self.kept = kept  # None neither goes on from a checkpoint nor leaves one
        self.tell = tell  # of what the log gets
        self.trained = False
        self.vectors = vectors or folder.parent / "vectors"  # of a guide, for all processes and runs beside this one
        self.seconds = {"data": 0.0, "train": 0.0, "evaluate": 0.0}
        self.budget = Budget(config.evaluation.budget)
        self.left_out = 0  # evaluations that it did not allow
        torch.manual_seed(config.train.seed)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the wall-clock seconds of a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    def run(self) -> None:
        """Read, train, judge, save."""
        with JsonLines(self.folder / "log.jsonl", self.tell) as self.log:
            try:
                verdicts = self.fit()
                if verdicts is not None:
                    self.leave(*verdicts)
            except (SystemExit, KeyboardInterrupt):
                if self.trained and self.devices.group.size == 1:
                    self.keep()
                raise

    def fit(self) -> tuple[Verdict, Verdict] | None:
        """Read, judge, train, judge: both verdicts, or None where another process judges."""
        with self.timed("data"):
            self.read()
        if not self.devices.group.main:  # one process judges and writes for all
            self.train()
            return None
        with self.timed("evaluate"):
            began = time.perf_counter()
            look = self.task.judge("validation")
            if self.config.evaluation.corpus is None:  # those on the way take as long
                self.budget.cost = time.perf_counter() - began
            before = self.task.judge("test")
            self.log.write(event="evaluation", step=0, metrics=look.ranking.metrics)
        with self.timed("train"):
            self.train()
        with self.timed("evaluate"):
            look, after = self.task.judge("validation"), self.task.judge("test")
            self.log.write(event="evaluation", step=self.steps, metrics=look.ranking.metrics)
            self.alarms.collapse(self.steps, after.spread)
        return before, after

    def leave(self, before: Verdict, after: Verdict) -> None:
        """Compare with other systems, and save."""
        with self.timed("evaluate"):
            others = self.task.baselines()
        self.alarms.regression(self.steps, before.ranking, after.ranking)
        Leaving(
            self.config,
            self.task,
            systems={"untrained": before.ranking, **others, "trained": after.ranking},
            spreads={"untrained": before.spread, "trained": after.spread},
            records=self.log.records,
            course={**self.alarms.told(), "evaluations_left_out": self.left_out},
            seconds=self.seconds,
            replaying=self.state.cache.replaying.seconds() / self.seconds["train"],
        ).save(self.folder)
        shutil.rmtree(self.folder / CACHE, ignore_errors=True)  # what is mapped stays readable

    def read(self) -> None:
        """The data, as something to train on and to judge by."""
        self.task: Task
        self.alarms = Alarms(self.log)
        if self.prepared is not None:
            self.task = self.prepared.fresh(self.config, self.folder / CACHE)
        elif isinstance(self.config.data, Interactions | Handed):
            self.task = Recommendation(self.config, self.folder / CACHE)
        else:
            anew = self.folder if self.kept is None else self.kept.folder
            self.task = Retrieval(
                self.config, self.folder / CACHE, self.vectors, anew / f"anew-{self.devices.group.rank}"
            )
        self.config.resolved["data"] = self.task.source
        for line in self.task.lines():
            logger.info(line)
        counts = self.task.counts()
        self.log.write(event="data", pairs=counts["pairs"], dropped=counts["dropped"])

    def train(self) -> None:
        """Optimiser steps, with the metrics on the way."""
        options, objective = self.config.train, self.config.objective
        base = self.settle()
        group, steps = self.devices.group, options.steps(self.task.sampler.batches_per_epoch)
        self.steps = steps
        objective.to(group.device)
        data = self.agree()
        self.state = loop.begin(self.placed(), objective, options, self.devices)
        self.resume(data)
        taken = self.state.step
        self.renew(taken)
        batches = self.batches(taken * options.gradient_accumulation_steps, steps * options.gradient_accumulation_steps)
        if not taken:
            first = next(batches)
            self.announce(base, first)
            batches = itertools.chain([first], batches)
        pauses = loop.moments(steps, options.evaluations)
        bar = progress_bar("training" if group.main else "", steps, "step", taken)
        stopping = interruptible() if self.kept else nullcontext(Interruption())
        together = options.gradient_accumulation_steps
        with explained(self.task, together, self.kept), stopping as asked, bar:
            for progress in loop.train(self.state, batches, steps, options, self.devices):
                self.alarms.step(progress, self.task, together)
                dial = f"{progress.temperature:.4g} (scale {1 / progress.temperature:.4g})"
                bar.set_postfix(loss=f"{progress.loss:.3f}", temperature=dial)
                bar.update()
                if progress.step in pauses:
                    self.gather()
                    if group.main:
                        self.pause(progress.step)
                if self.due(progress.step, asked):
                    self.keep()
                if asked.number:
                    break
                self.renew(progress.step)
                if options.fsdp:
                    self.task.tower.cpu()  # the device's memory is for the steps
        self.gather()
        self.trained, self.logged = True, len(self.log.records)

    def placed(self) -> Any:
        """The tower to train, on this process's device; with fsdp a copy, of which each process keeps a part."""
        group, options = self.devices.group, self.config.train
        if not options.fsdp:
            return self.task.tower.to(group.device)
        refuse_compiled([self.task.tower])  # a copy is not compiled any more
        towers: Any = copy.deepcopy(self.task.tower)
        roles: tuple[Role, ...] = ("query", "doc", "negatives", "sampled")
        shard([towers.of(role) for role in roles], group, torch.bfloat16 if options.mixed_precision == "bf16" else None)
        return towers

    def gather(self) -> None:
        """The weights that training has come to, in the tower that is judged and saved; on the device if that has room."""
        if not self.config.train.fsdp:
            return
        group, tower = self.devices.group, self.task.tower
        gather(self.state.modules["towers"], tower)
        if free_bytes(group.device) > 2 * sum(p.nbytes for p in tower.parameters()):
            tower.to(group.device)

    def resume(self, data: str) -> None:
        """Go on from the latest checkpoint, if there is one."""
        self.began = time.perf_counter()
        if self.kept is None:
            return
        self.position, log = self.kept.load(self.state, data)
        if not self.devices.group.alike(self.state.step):
            raise DataError(
                f"the processes see different checkpoints in {self.kept.folder}; --output has to be on a disk that all "
                "machines share"
            )
        if not self.state.step:
            return
        self.log.go_on(log)
        self.began -= self.position.training
        self.seconds["train"] += self.position.training
        self.budget.spent, self.left_out = self.position.evaluating, self.position.left_out
        logger.info(f"goes on after step {self.state.step:,} of {self.steps:,}, from {self.kept.latest}")

    def due(self, step: int, asked: Interruption) -> bool:
        """Whether all processes are to keep what they have come to: in time, before what follows it changes, or to end."""
        if self.kept is None:
            return False
        wanted = self.kept.due(step) or self.turn(step)
        code = self.devices.group.most(1 + asked.number if asked.number else int(wanted))
        asked.number = max(0, code - 1)  # of any process
        return code > 0

    def keep(self) -> None:
        """Leave a checkpoint."""
        if self.kept is None:
            return
        if name := broken(self.state.modules, self.devices.group):
            raise TemperaError(
                f"{name} is not finite after step {self.state.step}: lower train.learning_rate; such a state is not kept"
                + (f", {self.kept.latest} is left" if self.kept.latest else "")
            )
        records = self.log.records[: self.logged] if self.trained else self.log.records
        self.position.training = self.seconds["train"] if self.trained else time.perf_counter() - self.began
        self.position.evaluating, self.position.left_out = self.budget.spent, self.left_out
        self.kept.save(self.state, self.position, records)
        if self.devices.group.main:
            logger.info(f"checkpoint: {self.kept.latest}; the same command goes on from it")

    def pause(self, step: int) -> None:
        """Ask the validation queries after some steps, if the budget allows it."""
        if not self.budget.allows(time.perf_counter() - self.began - self.budget.spent):
            self.left_out += 1
            self.log.write(event="evaluation left out", step=step)
            return
        with self.budget.timed():
            found = self.task.judge("validation", whole=False)
        self.log.write(event="evaluation", step=step, metrics=found.ranking.metrics)
        self.alarms.collapse(step, found.spread)

    def renew(self, step: int) -> None:
        """What follows the model, before a step, counted from 0, draws its rows; behind the last step nothing does."""
        if step == self.steps:
            return
        turn = self.turn(step)
        if turn:
            self.gather()
        found = self.task.refresh(step, self.devices.group)
        if found and (turn or not step):  # a run that goes on takes up what it has logged already
            self.log.write(event="refresh", step=step, **found)

    def turn(self, step: int) -> bool:
        """Whether something is computed anew after so many steps."""
        guide = self.config.train.guide_every if self.config.train.guide == SELF else None
        return 0 < step < self.steps and any(step % every == 0 for every in (self.config.mining.every, guide) if every)

    def agree(self) -> str:
        """Refuse processes that do not begin alike: their gradients would be summed all the same; what they begin with."""
        found = digest((*self.task.tower.parameters(), *self.task.content()))
        if not self.devices.group.alike(found >> 11):
            raise DataError(
                "the processes do not begin with the same data and weights; give every machine the same files"
            )
        return f"{found:016x}"

    def settle(self) -> Objective:
        """The objective without its widths, its automatic temperature settled; what cannot work is said."""
        options, base = self.config.train, self.config.base
        base.temperature.settle(options.batch_size + options.sampled, normalised=base.similarity == cosine)
        for caution in cautions(base):
            logger.warning(f"caution: {caution}")
            self.log.write(event="caution", text=caution)
        return base

    def batches(self, first: int, last: int) -> Iterator[Batch[Any]]:
        """This process's part of each batch of the run from `first` to before `last`."""
        group = self.devices.group
        for number, rows in enumerate(self.task.sampler(first, last), first):
            yield divide(self.task.batch(rows, number), group.rank, group.size)

    def announce(self, objective: Objective, batch: Batch[Any]) -> None:
        """Say what the run is about to do, before its first step."""
        group, together = self.devices.group, self.config.train.gradient_accumulation_steps
        plan = self.state.cache.plan(self.state.modules["towers"], batch, group)
        sizes = outlook.memory(plan, [self.state.modules], objective.tile_elements, self.task.width)
        lines = [outlook.negatives(objective, batch, group), f"towers: {plan}", outlook.described(sizes)]
        if together > 1:
            lines.append(
                f"{together} batches a step: each is a softmax of its own, which averages gradients and adds no negatives"
            )
        if group.main:
            for line in lines:
                logger.info(line)
            self.log.write(event="plan", text=lines, expected_bytes=sizes, replayed=plan.replayed)
