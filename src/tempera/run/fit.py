"""The second of a run's four functions: optimiser steps, with looks at the validation set and
checkpoints between them."""

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
from torch import Tensor, nn

from ..arithmetic.abilities import free_bytes
from ..core.batch import Batch, Role, divide
from ..core.tiles import SCORE_BYTES
from ..engine import loop, outlook
from ..engine.checkpoint import State
from ..engine.curation import as_many
from ..engine.faults import broken
from ..engine.training_options import OF_A_MACHINE
from ..errors import ConfigError, DataError, TemperaError, quantity
from ..io.console import logger, progress_bar
from ..parallel.digest import digest
from ..parallel.divided_tables import divided, release
from ..parallel.shards import gather, refuse_compiled, shard
from ..ranking.ranking import LEAST_TO_CHOOSE
from ..ranking.sample import Budget
from ..task.config import READ
from ..task.showcase import Looks
from ..task.verdict import main_metric
from ..towers.pair import Encoder
from .alarms import Alarms, explained
from .prepare import Prepared
from .resume import AGAIN, Checkpoints, Interruption, Position, Weights, interruptible

# Options of each process: files, whose contents are compared, what fits its machine, and what the
# first one alone does.
_OWN = {*READ, *OF_A_MACHINE, "report_to", "card"}


@dataclass(frozen=True)
class Fitted:
    """Hold a run after its last step; its tower has the weights that are saved.

    Args:
        step: number of the step whose weights are saved.
        taken: steps that were taken.
        best: the choice of the weights, for metrics.json; empty if nothing was chosen.
        replaying: share of training's time in which rows were embedded a second time.
        looks_left_out: looks on the way that evaluation.budget did not allow.
        keep: leaves a checkpoint from which the same command repeats only what follows training.
    """

    step: int
    taken: int
    best: Mapping[str, Any]
    replaying: float
    looks_left_out: int
    keep: Callable[[], None]


def fit(prepared: Prepared, checkpoints: Checkpoints | None = None, looks: bool = True) -> Fitted:
    """Train the tower of a prepared run, or what is left of its training.

    Args:
        checkpoints: where to resume and what to leave on the way; None does neither.
        looks: evaluate on the validation set before the first step, on the way and after the last;
            without, nothing is chosen.
    """
    with prepared.phases("train"):
        return _fitted(prepared, checkpoints, looks)


def _fitted(prepared: Prepared, checkpoints: Checkpoints | None, looks: bool) -> Fitted:
    began = time.perf_counter()
    config, devices, data = prepared.config, prepared.devices, prepared.task.data
    config.objective.to(devices.group.device)
    start = _agreed(prepared)
    state = loop.begin(_placed(prepared), config.objective, config.train, devices)
    looks = looks and prepared.task.facts.has_looks
    with prepared.phases("evaluate"):
        plan = prepared.task.held_out.begin(config, draws=looks and devices.group.main)
    position, best, records = Position(start), None, list[dict[str, Any]]()
    if checkpoints is not None:
        position, records, best = checkpoints.load(state, start)
        prepared.phases.add(position.spent)
        if not devices.group.all_equal(state.step):
            raise DataError(
                f"the processes see different checkpoints in {checkpoints.folder}: put --output on a disk that all machines "
                "share"
            )
    steps = (
        0 if looks and _untrained(prepared) else config.train.steps(data.sampler.batches_per_epoch)
    )
    if checkpoints is not None and state.step:
        prepared.log.go_on(records)
        logger.info(
            f"resuming after step {state.step:,} of {steps:,}, from {checkpoints.latest}; remove "
            f"{checkpoints.folder} to begin anew"
        )
    course = _Course(
        prepared,
        state,
        steps,
        position,
        checkpoints,
        plan if looks else None,
        best,
        began - position.training,
    )
    course.run()
    seconds = course.end()
    return Fitted(
        course.step,
        state.step,
        course.choice,
        state.cache.replaying.seconds() / seconds,
        position.looks_left_out,
        course.keep,
    )


def _untrained(prepared: Prepared) -> bool:
    """Return True if the tower must not get worse and validation is too small to see it."""
    guarded = prepared.task.data.tower.guarded
    return guarded and prepared.config.train.keep_best and not prepared.task.facts.chooses


def _agreed(prepared: Prepared) -> str:
    """Refuse processes that do not begin alike, whose gradients would be summed all the same;
    return what they begin with."""
    group = prepared.devices.group
    for section, options in prepared.config.resolved.items():
        written = json.dumps(_shared(options), sort_keys=True, default=str)
        if section not in _OWN and not group.all_equal(
            xxhash.xxh3_64_intdigest(written.encode()) >> 11
        ):
            raise ConfigError(
                f"the processes start with different options of {section}: give all of them the same command and configuration"
            )
    content = digest((*prepared.task.data.tower.parameters(), *prepared.task.data.content()))
    if not group.all_equal(content >> 11):
        raise DataError(
            "the processes start with different data or weights: give every machine the same files"
        )
    return f"{content:016x}"


def _shared(options: Any) -> Any:
    """Return options without those that may differ between machines."""
    if isinstance(options, Mapping):
        return {name: _shared(value) for name, value in options.items() if name not in _OWN}
    return [_shared(each) for each in options] if isinstance(options, list | tuple) else options


def _placed(prepared: Prepared) -> Any:
    """Return the tower to train, on this process's device; a copy if each process keeps only a part
    of it."""
    group, options, tower = prepared.devices.group, prepared.config.train, prepared.task.data.tower
    if not options.divides:
        return tower.to(group.device)
    refuse_compiled(
        [tower], "fsdp" if options.fsdp else "divide_tables"
    )  # a copy is not compiled any more
    if options.divide_tables:
        return divided(tower, group)
    towers: Encoder = copy.deepcopy(tower)
    roles: tuple[Role, ...] = ("query", "doc", "negatives", "sampled")
    modules: Any = [towers.of(role) for role in roles]
    shard(modules, group, torch.bfloat16 if prepared.devices.mixed_precision == "bf16" else None)
    return towers


class _Course:
    """Train a run step by step, and know what is due between two steps."""

    def __init__(
        self,
        prepared: Prepared,
        state: State,
        steps: int,
        position: Position,
        checkpoints: Checkpoints | None,
        looks: Looks | None,
        best: Weights | None,
        began: float,
    ) -> None:
        self.prepared, self.state, self.steps = prepared, state, steps
        self.position, self.checkpoints, self.began = position, checkpoints, began
        self.options, self.group = prepared.config.train, prepared.devices.group
        self.data, self.held_out = prepared.task.data, prepared.task.held_out
        self.looks = looks
        self.pauses = set[int]()
        if looks is not None:
            self.pauses = {0, steps, *loop.moments(steps, looks.number)}
        self.chooses = looks is not None and prepared.task.facts.chooses
        self.best = best  # weights of the best look
        self.ended: tuple[float, int] | None = (
            None  # seconds of training, and records of the log then
        )
        self.budget = Budget(prepared.config.evaluation.budget, position.evaluating, position.look)
        self.alarms = Alarms(prepared.log)

    def run(self) -> None:
        """Take the steps. Each one: draw, step, look, keep; then end if a signal has come."""
        together, devices = self.options.gradient_accumulation_steps, self.prepared.devices
        first, last = self.state.step * together, self.steps * together
        rows = enumerate(self.data.sampler(first, last), first)
        bar = progress_bar(
            "training" if self.group.main else "", self.steps, "step", self.state.step
        )
        stopping = interruptible() if self.checkpoints else nullcontext(Interruption())
        if not self.state.step:
            self.look()
        with explained(self.data, together, self.checkpoints), stopping as interruption, bar:
            while self.state.step < self.steps and not self.stale and not interruption.agreed:
                if not self.state.step:
                    self.announce()
                self.clear()
                batches = self.batches(islice(rows, together))
                progress = loop.take(self.state, batches, self.steps, self.options, devices)
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
        """Yield this process's part of numbered batches."""
        last = self.steps * self.options.gradient_accumulation_steps
        for number, chosen in rows:
            yield divide(
                self.data.batch(chosen, number, number / last), self.group.rank, self.group.size
            )

    def end(self) -> float:
        """Bring the best weights back, and note that training has ended; return the seconds that it
        took."""
        self.ended = time.perf_counter() - self.began, len(self.prepared.log.records)
        if self.best is not None and self.group.main and self.step != self.state.step:
            self._saved().load_state_dict(self.best, strict=False)
        if self.group.main and not self.steps:
            self.alarms.caution(
                0,
                f"nothing is trained: validation has fewer than {LEAST_TO_CHOOSE} queries, too few to show that trained queries "
                "are better; give more pairs, raise evaluation.validation, or set train.keep_best=false",
            )
        elif self.group.main and self.pauses:
            logger.info(self.choice_text())
            if self.best is not None and not self.step:
                self.alarms.caution(
                    self.step,
                    "training did not help: validation was best before the first step, so the untrained weights are saved; "
                    "lower train.learning_rate, or give more data",
                )
        return self.ended[0]

    def choice_text(self) -> str:
        """Say which weights are saved, and why."""
        if self.best is not None:
            return "saved: the weights of step {step:,} of {taken:,}, with the best validation, {metric} {value:.3f}".format(
                **self.choice
            )
        why = (
            "train.keep_best is off"
            if self.chooses
            else f"validation has fewer than {LEAST_TO_CHOOSE} queries or events"
            if self.prepared.config.evaluation.validation != 0
            else "evaluation.validation is 0"
        )
        if self.options.patience is not None and not self.chooses:
            why += ", so that train.patience could not end the training"
        elif self.stale and self.state.step < self.steps:
            looks = quantity(self.position.looks_since, "looks")
            why += f"; training ended there: validation had not risen for {looks} (train.patience)"
        return f"saved: the weights of the last step, {self.state.step:,}, since {why}"

    @property
    def step(self) -> int:
        """The step whose weights are saved."""
        return self.state.step if self.best is None else self.position.best_step

    @property
    def choice(self) -> dict[str, Any]:
        """The step whose weights are saved and its validation, if validation has chosen it."""
        if self.best is None:
            return {}
        metric = main_metric(self.prepared.config.evaluation.metrics)
        return {
            "step": self.position.best_step,
            "taken": self.state.step,
            "metric": metric,
            "value": self.position.best_value,
        }

    @property
    def stale(self) -> bool:
        """True if validation has not risen for as many looks as train.patience allows."""
        return (
            self.options.patience is not None and self.position.looks_since >= self.options.patience
        )

    def gather(self, everyone: bool = False) -> None:
        """Bring the trained weights into the tower that is judged and saved; on the device if that
        has room.

        Args:
            everyone: on all processes, where only tables are divided; else on the main one, which
                judges and saves.
        """
        if not self.options.divides:
            return
        tower: Any = self.data.tower
        gather(self.state.modules["towers"], tower, self.group, everyone or self.options.fsdp)
        if free_bytes(self.group.device) > 2 * sum(p.nbytes for p in tower.parameters()):
            tower.to(self.group.device)

    def clear(self) -> None:
        """Leave the memory to the steps: a tower that is only judged and saved waits on the CPU,
        without divided tables."""
        if self.options.divides:
            self.data.tower.cpu()
        if self.options.divide_tables:
            release(self.data.tower, self.state.modules["towers"])

    def look(self) -> None:
        """Judge the tower by validation if it is time; those on the way only if the budget allows
        it."""
        step = self.state.step
        if step not in self.pauses:
            return
        self.gather()
        if self.group.main:
            with self.prepared.phases("evaluate"):
                self._look(step)
        if self.options.patience is not None:
            since = self.position.looks_since if self.group.main else 0  # that process weighs
            self.position.looks_since = self.group.all_reduce_max(since)

    def _look(self, step: int) -> None:
        start = time.perf_counter()
        if 0 < step < self.steps and not self.budget.allows(start - self.began - self.budget.spent):
            self.position.looks_left_out += 1
            self.prepared.log.write(event="evaluation left out", step=step)
            return
        verdict = self.held_out.judge("validation", whole=False)
        self.prepared.log.write(event="evaluation", step=step, metrics=verdict.ranking.metrics)
        if step:
            self.alarms.collapse(step, verdict.spread)
        if self.chooses:
            self._weigh(step, verdict.ranking.metrics)
        seconds = time.perf_counter() - start
        if 0 < step < self.steps:
            self.budget.spend(seconds)
        else:  # those on the way take as long
            self.budget.cost = seconds

    def _weigh(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the weights if they are the best until now."""
        value = metrics[main_metric(metrics)]
        if self.position.best_value is not None and value <= self.position.best_value:
            self.position.looks_since += 1
            return
        self.position.best_step, self.position.best_value, self.position.looks_since = (
            step,
            value,
            0,
        )
        if self.options.keep_best:
            saved = self._saved()
            frozen = {
                name for name, parameter in saved.named_parameters() if not parameter.requires_grad
            }
            tensors = {
                name: value for name, value in saved.state_dict().items() if name not in frozen
            }
            self.best = {
                name: value.detach().to("cpu", copy=True).contiguous()
                for name, value in tensors.items()
            }

    def _saved(self) -> nn.ModuleDict:
        """Return what the run saves: the tower that is judged, and the objective."""
        tower: Any = self.data.tower
        return nn.ModuleDict({"tower": tower, "objective": self.prepared.config.objective})

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
        """Leave a checkpoint."""
        if self.checkpoints is None:
            return
        latest = self.checkpoints.latest
        if name := broken(self.state.modules, self.group):
            raise TemperaError(
                f"{name} is not finite after step {self.state.step}, so no checkpoint is saved: lower train.learning_rate"
                + (f"; last good checkpoint: {latest}" if latest else "")
            )
        records = self.prepared.log.records
        seconds, count = self.ended or (time.perf_counter() - self.began, len(records))
        self.position.training, self.position.evaluating = seconds, self.budget.spent
        self.position.look = self.budget.cost
        self.position.spent = self.prepared.phases.seconds()
        self.checkpoints.save(self.state, self.position, records[:count], self.best)
        if self.group.main:
            logger.info(f"saved checkpoint {self.checkpoints.latest}; run {AGAIN} to resume")

    def announce(self) -> None:
        """Say what the run is about to do, before its first step."""
        (rows,) = self.data.sampler(0, 1)
        batch = as_many(self.data.batch(rows, 0), self.options.select)
        together = self.options.gradient_accumulation_steps
        objective = self.prepared.config.base
        mine = divide(batch, self.group.rank, self.group.size)
        # With the rows that are made for the beginning.
        largest = as_many(self.data.batch(rows, 0, 0.0), self.options.select)
        most = divide(largest, self.group.rank, self.group.size)
        plan = self.state.cache.plan(self.state.modules["towers"], most, self.group)
        width = self.data.tower.encode(batch.doc.rows[:1]).shape[1]
        tile = objective.tile_size(self.group.device)
        scores = SCORE_BYTES * min(tile, outlook.block(objective, largest, len(most)))
        sizes = outlook.memory(plan, [self.state.modules], scores, width)
        epochs = self.steps * together / self.data.sampler.batches_per_epoch
        passes = "1 epoch" if f"{epochs:.3g}" == "1" else f"{epochs:.3g} epochs"
        compared = outlook.negatives(objective, mine, self.group, self.options.size)
        first = f"{quantity(self.steps, 'steps')}, {passes}; {compared}"
        lines = [f"towers: {plan}", outlook.described(sizes)]
        if self.group.device.type != "cpu":
            lines.append(f"device: {self.group.device}; scores in tiles of {tile:,}")
        if len(batch) < len(rows):
            first += f"; a guide chooses these of {len(rows):,} pairs"
        if together > 1:
            lines.append(
                f"{together} batches a step: each is a softmax of its own, which averages gradients and adds no negatives"
            )
        if self.group.main:
            logger.info(first)
            for line in lines:
                logger.debug(line)
            self.prepared.log.write(
                event="plan", text=[first, *lines], expected_bytes=sizes, replayed=plan.replayed
            )
