"""The training of a run: optimiser steps, with looks at the validation set and checkpoints between
them."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import xxhash
from torch import Tensor

from ..arithmetic.abilities import free_bytes
from ..core.batch import Batch, Role, divide
from ..engine import loop
from ..engine.batches import DealtSampler, own_part
from ..engine.checkpoint import State
from ..engine.faults import broken
from ..engine.training_options import OF_A_MACHINE
from ..errors import ConfigError, DataError, TemperaError
from ..io.console import logger, progress_bar
from ..parallel.digest import digest
from ..parallel.distributed import Group
from ..parallel.divided_tables import divided, release
from ..parallel.shards import gather, refuse_compiled, shard
from ..ranking.ranking import LEAST_TO_CHOOSE
from ..ranking.sample import Budget
from ..task.config import READ
from ..towers.pair import Encoder
from .alarms import Alarms, explained
from .announcement import announce
from .best_weights import BestWeights
from .prepare import Prepared
from .resume import AGAIN, Checkpoints, Interruption, Position, Weights, interruptible
from .task import Data

# Options that may differ between processes: names of files (their contents are compared), what fits
# a machine, and what the main process alone does.
_OWN = {*READ, *OF_A_MACHINE, "report_to", "card"}


@dataclass(frozen=True)
class Fitted:
    """Hold a run after its last step; the tower has the saved weights.

    Args:
        step: number of the step of the saved weights.
        taken: number of taken steps.
        best: the choice of the weights, for metrics.json; empty if nothing was chosen.
        replaying: share of training's time in which rows were embedded a second time.
        looks_left_out: number of looks left out because of evaluation.budget.
        keep: leaves a checkpoint, from which the same command repeats only the stages after
            training.
    """

    step: int
    taken: int
    best: Mapping[str, Any]
    replaying: float
    looks_left_out: int
    keep: Callable[[], None]


def fit(prepared: Prepared, checkpoints: Checkpoints | None = None, looks: bool = True) -> Fitted:
    """Train the tower of a prepared run, or resume its training.

    Args:
        checkpoints: to resume from, and to leave on the way; None is neither.
        looks: evaluate on the validation set before the first step, on the way and after the last;
            without looks, no weights are chosen.
    """
    with prepared.phases("train"):
        return _fitted(prepared, checkpoints, looks)


def _fitted(prepared: Prepared, checkpoints: Checkpoints | None, looks: bool) -> Fitted:
    began = time.perf_counter()
    config = prepared.config
    facts = prepared.task.facts
    group = prepared.devices.group
    config.objective.to(group.device)
    deal(prepared.task.data, group)
    start = _common_start(prepared)
    state = loop.begin(_trained_tower(prepared), config.objective, config.train, prepared.devices)
    has_looks = looks and facts.has_looks
    with prepared.phases("evaluate"):
        plan = prepared.task.held_out.begin(config, draws=has_looks and group.main)
    position = Position(start)
    weights: Weights | None = None
    records: list[dict[str, Any]] = []
    if checkpoints is not None:
        position, records, weights = checkpoints.load(state, start)
        prepared.phases.add(position.spent)
        if not group.all_equal(state.step):
            raise DataError(
                f"the processes see different checkpoints in {checkpoints.folder}: put --output on "
                "a disk that all machines share"
            )
    steps = config.train.steps(prepared.task.data.sampler.batches_per_epoch)
    is_guarded = prepared.task.data.tower.guarded and config.train.keep_best
    if has_looks and is_guarded and not facts.chooses:
        steps = 0  # the tower must not get worse, and validation is too small to show it
    if checkpoints is not None and state.step:
        prepared.log.go_on(records)
        logger.info(
            f"resuming after step {state.step:,} of {steps:,}, from {checkpoints.latest}; remove "
            f"{checkpoints.folder} to begin anew"
        )
    best = BestWeights(prepared, position, has_looks and facts.chooses, weights)
    course = _Course(prepared, state, steps, position, checkpoints, best)
    course.began = began - position.training
    if has_looks:
        course.pauses = {0, steps, *loop.moments(steps, plan.number)}
    course.run()
    seconds = course.end()
    return Fitted(
        step=best.step(state.step),
        taken=state.step,
        best=best.choice(state.step),
        replaying=state.cache.replaying.seconds() / seconds,
        looks_left_out=position.looks_left_out,
        keep=course.keep,
    )


def deal(data: Data, group: Group) -> None:
    """Give a process its own rows, where rows are dealt out to processes."""
    if isinstance(data.sampler, DealtSampler):
        data.sampler = data.sampler.of_process(group.rank, group.size)


def _common_start(prepared: Prepared) -> str:
    """Return the digest of the data and weights at the start, equal on all processes.

    Gradients of processes that begin differently would be summed all the same.

    Raises:
        ConfigError: the processes have different options.
        DataError: the processes have different data or weights.
    """
    group = prepared.devices.group
    for section, options in prepared.config.resolved.items():
        if section in _OWN:
            continue
        written = json.dumps(_without_own(options), sort_keys=True, default=str)
        if not group.all_equal(xxhash.xxh3_64_intdigest(written.encode()) >> 11):
            raise ConfigError(
                f"the processes start with different options of {section}: give all of them the "
                "same command and configuration"
            )
    data = prepared.task.data
    content = digest((*data.tower.parameters(), *data.content()))
    if not group.all_equal(content >> 11):
        raise DataError(
            "the processes start with different data or weights: give every machine the same files"
        )
    return f"{content:016x}"


def _without_own(options: Any) -> Any:
    """Return options without the options that may differ between processes."""
    if isinstance(options, Mapping):
        return {name: _without_own(value) for name, value in options.items() if name not in _OWN}
    if isinstance(options, list | tuple):
        return [_without_own(each) for each in options]
    return options


def _trained_tower(prepared: Prepared) -> Any:
    """Return the tower to train, on the device of this process; a copy where each process keeps
    only a part of the tower."""
    group = prepared.devices.group
    options = prepared.config.train
    tower = prepared.task.data.tower
    if not options.divides:
        return tower.to(group.device)
    # A copy would no longer be compiled.
    refuse_compiled([tower], "fsdp" if options.fsdp else "divide_tables")
    if options.divide_tables:
        return divided(tower, group)
    copied: Encoder = copy.deepcopy(tower)
    roles: tuple[Role, ...] = ("query", "doc", "negatives", "sampled")
    modules: Any = [copied.of(role) for role in roles]
    dtype = torch.bfloat16 if prepared.devices.mixed_precision == "bf16" else None
    shard(modules, group, dtype)
    return copied


class _Course:
    """Train a run step by step, with looks and checkpoints between the steps."""

    def __init__(
        self,
        prepared: Prepared,
        state: State,
        steps: int,
        position: Position,
        checkpoints: Checkpoints | None,
        best: BestWeights,
    ) -> None:
        self.prepared = prepared
        self.state = state
        self.steps = steps
        self.position = position
        self.checkpoints = checkpoints
        self.best = best
        self.options = prepared.config.train
        self.group = prepared.devices.group
        self.data = prepared.task.data
        self.budget = Budget(prepared.config.evaluation.budget, position.evaluating, position.look)
        self.alarms = Alarms(prepared.log)
        self.began = 0.0  # seconds; earlier by the training of an interrupted run
        self.pauses = set[int]()  # steps after which validation is judged
        self.seconds: float | None = None  # of training, once it has ended
        self.records = 0  # of the log, when training has ended

    def run(self) -> None:
        """Take the steps, each with a look and a checkpoint where they are due; stop at a
        signal."""
        together = self.options.gradient_accumulation_steps
        first = self.state.step * together
        last = self.steps * together
        rows = enumerate(self.data.sampler(first, last), first)
        title = "training" if self.group.main else ""
        bar = progress_bar(title, self.steps, "step", self.state.step)
        stopping = interruptible() if self.checkpoints else nullcontext(Interruption())
        if not self.state.step:
            self.look()
        with explained(self.data, together, self.checkpoints), stopping as interruption, bar:
            while self.state.step < self.steps:
                if self.best.is_stale or interruption.agreed:
                    break
                if not self.state.step:
                    announce(self.prepared, self.state, self.steps)
                self.clear()
                batches = self.batches(islice(rows, together))
                progress = loop.take(
                    self.state, batches, self.steps, self.options, self.prepared.devices
                )
                self.alarms.step(progress, self.data, together)
                dial = f"{progress.temperature:.4g} (scale {1 / progress.temperature:.4g})"
                bar.set_postfix(loss=f"{progress.loss:.3f}", temperature=dial)
                bar.update()
                self.look()
                if self.due(progress.step, interruption):
                    self.keep()
        # Before a refit, all processes choose settings by the trained tower.
        self.gather(everyone=self.options.refit != "none")

    def batches(self, rows: Iterator[tuple[int, Tensor]]) -> Iterator[Batch[Any]]:
        """Yield this process's part of numbered batches, and then of the batches beside them."""
        last = self.steps * self.options.gradient_accumulation_steps
        beside = []
        for number, chosen in rows:
            batch, *made = self.data.batches(chosen, number, number / last)
            beside += made
            yield own_part(batch, self.data.sampler, self.group)
        for made_batch in beside:
            yield divide(made_batch, self.group.rank, self.group.size)

    def end(self) -> float:
        """Bring the best weights back and say which weights are saved; return the seconds of
        training."""
        self.seconds = time.perf_counter() - self.began
        self.records = len(self.prepared.log.records)
        # No step follows, also none from a checkpoint that is left from here on. The moments take
        # twice the memory of the weights.
        self.state.optimizer.state.clear()
        if not self.group.main:
            return self.seconds
        self.best.restore(self.state.step)
        if not self.steps:
            self.alarms.caution(
                0,
                f"nothing is trained: validation has fewer than {LEAST_TO_CHOOSE} queries, too few "
                "to show that trained queries are better; give more pairs, raise "
                "evaluation.validation, or set train.keep_best=false",
            )
        elif self.pauses:
            logger.info(self.best.explanation(self.state.step, self.steps))
            if self.best.weights is not None and not self.best.step(self.state.step):
                self.alarms.caution(
                    0,
                    "training did not help: validation was best before the first step, so the "
                    "untrained weights are saved; lower train.learning_rate, or give more data",
                )
        return self.seconds

    def gather(self, everyone: bool = False) -> None:
        """Bring the trained weights into the task's tower, onto the device if the device has room.

        Args:
            everyone: on all processes, where only tables are divided; else on the main process
                alone, which judges and saves.
        """
        if not self.options.divides:
            return
        tower: Any = self.data.tower
        gather(self.state.modules["towers"], tower, self.group, everyone or self.options.fsdp)
        if free_bytes(self.group.device) > 2 * sum(p.nbytes for p in tower.parameters()):
            tower.to(self.group.device)

    def clear(self) -> None:
        """Leave the memory to the steps: where the trained tower is a copy, the task's tower waits
        on the CPU, without divided tables."""
        if self.options.divides:
            self.data.tower.cpu()
        if self.options.divide_tables:
            release(self.data.tower, self.state.modules["towers"])

    def look(self) -> None:
        """Judge the tower by validation if a look is due after this step."""
        if self.state.step not in self.pauses:
            return
        self.gather()
        if self.group.main:
            with self.prepared.phases("evaluate"):
                self.judge()
        if self.options.patience is not None:
            since = 0
            if self.group.main:  # only the main process weighs
                since = self.position.looks_since
            self.position.looks_since = self.group.all_reduce_max(since)

    def judge(self) -> None:
        """Judge the tower by validation; between the first step and the last only if the budget
        allows."""
        step = self.state.step
        start = time.perf_counter()
        is_on_the_way = 0 < step < self.steps
        if is_on_the_way and not self.budget.allows(start - self.began - self.budget.spent):
            self.position.looks_left_out += 1
            self.prepared.log.write(event="evaluation left out", step=step)
            return
        verdict = self.prepared.task.held_out.judge("validation", whole=False)
        metrics = verdict.ranking.metrics
        self.prepared.log.write(event="evaluation", step=step, metrics=metrics)
        if step:
            self.alarms.collapse(step, verdict.spread)
        if self.best.chooses:
            self.best.weigh(step, metrics)
        seconds = time.perf_counter() - start
        if is_on_the_way:
            self.budget.spend(seconds)
        else:  # a look on the way takes as long
            self.budget.cost = seconds

    def due(self, step: int, interruption: Interruption) -> bool:
        """Return True if all processes are to leave a checkpoint: in time, or to end."""
        if self.checkpoints is None:
            return False
        wanted = self.checkpoints.due(step)
        received = interruption.number  # once, since another signal may come meanwhile
        code = self.group.all_reduce_max(received + 1 if received else int(wanted))
        interruption.agreed = max(0, code - 1)  # of any process
        return code > 0

    def keep(self) -> None:
        """Leave a checkpoint; its time and its log end with the training.

        Raises:
            TemperaError: a weight is not finite.
        """
        if self.checkpoints is None:
            return
        latest = self.checkpoints.latest
        name = broken(self.state.modules, self.group)
        if name:
            left = f"; last good checkpoint: {latest}" if latest else ""
            raise TemperaError(
                f"{name} is not finite after step {self.state.step}, so no checkpoint is saved: "
                f"lower train.learning_rate{left}"
            )
        records = self.prepared.log.records
        if self.seconds is None:
            self.position.training = time.perf_counter() - self.began
        else:
            self.position.training = self.seconds
            records = records[: self.records]
        self.position.evaluating = self.budget.spent
        self.position.look = self.budget.cost
        self.position.spent = self.prepared.phases.seconds()
        self.checkpoints.save(self.state, self.position, records, self.best.weights)
        if self.group.main:
            logger.info(f"saved checkpoint {self.checkpoints.latest}; run {AGAIN} to resume")
