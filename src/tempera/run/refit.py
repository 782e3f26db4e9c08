"""Training again, also on held-out data, after validation has chosen settings and length."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..engine.clock import Phases
from ..engine.optim import TABLE_RATE
from ..engine.training_options import RefitOn, Training
from ..errors import quantity
from ..io.console import logger, silenced
from ..io.documents import JsonLines
from ..task.evaluation import Part
from .fit import Fitted, fit
from .prepare import Prepared, move_tower, reading_of
from .task import RunTask

WORTH = 0.05  # share of the data that is held out, from which `auto` trains again
# Of the steps, and of the learning rates, where training goes on from trained weights
# (bench/results/continued.json).
_SHARE = 0.5
LEARNED: dict[Part, str] = {
    "validation": "also on validation",
    "test": "also on all that was held out",
}
# With withheld items, validation is not trained on before the test: it may hold them.
_PARTS: dict[RefitOn, tuple[Part, ...]] = {
    "none": (),
    "validation": ("validation",),
    "all": ("validation", "test"),
}


class Refit:
    """Train a run on more data, by `train.refit`.

    A refit begins anew, with the weights and the objective of the run before its training. Where
    rows are made of documents (`train.made_rows`), the longest part of a training, or negatives are
    mined for the refit (`mining.again`), the refit goes on from the best weights by validation: for
    half of the steps, or a quarter where both are, at half of the learning rates, without made rows
    and with mined negatives. A memory is empty then, and schedules begin again.

    Args:
        prepared: the run, before its training.
    """

    def __init__(self, prepared: Prepared) -> None:
        config = prepared.config
        counts = prepared.task.facts.counts
        plan = prepared.task.refits
        self.train = config.train
        self.objective = copy.deepcopy(config.objective)
        self.pairs = counts["train"]  # of the first training
        self.latest = self.pairs  # of the training before
        self.rows = plan.rows
        parts = _PARTS.get(config.train.refit, ())
        if config.train.refit == "auto" and self.pairs < (1 - WORTH) * counts["pairs"]:
            parts = plan.auto
        self.parts = [part for part in parts if part == "test" or not config.evaluation.cold_items]
        self.mines = config.world.mines(prepared.task, config)
        self.goes_on = bool(self.train.made_rows) or self.mines
        self.share = 1.0  # of the steps of the first training
        self.cost = 1.0  # time of a step, in steps of the first training
        self.besides = ""
        if self.mines:
            negatives = config.mining.mining.negatives
            self.share = _SHARE
            self.cost = 1 + negatives / 2
            self.besides = f", with up to {quantity(negatives, 'negatives')} a query that it mines"
        if self.train.made_rows:
            self.share *= _SHARE
            self.cost = 1.0
        if self.goes_on:
            self.train = _continued(self.train)
        self.chosen: Prepared | None = None  # the run after its first training

    @property
    def times(self) -> float:
        """The most steps of all trainings together, in steps of the first training by their
        time."""
        more = 0
        before = self.pairs
        for part in self.parts:
            size = self.rows(part)
            if size != before:
                more += size
            before = size
        return float(1 + self.share * self.cost * more / self.pairs)

    def __call__(self, part: Part, run: Prepared, fitted: Fitted) -> Prepared:
        """Return the run trained also on a held-out part, for as many passes as the best weights
        have taken; all processes call.

        The run stays the same where `train.refit` leaves the part out, where the part adds no pair,
        or where no step has helped.
        """
        group = run.devices.group
        self.chosen = self.chosen or run
        best = group.all_reduce_max(fitted.step if group.main else -1)
        if part not in self.parts or not best:
            return run
        config = replace(run.config, objective=copy.deepcopy(self.objective))
        with run.phases("refit"), TemporaryDirectory(dir=run.folder) as folder:
            torch.manual_seed(self.train.seed)  # of the first weights, as `prepare` does
            reading = reading_of(replace(config, train=self.train), run.devices)
            task = run.task.again(reading, part)
            move_tower(config, task, run.devices)
            pairs = task.facts.counts["train"]
            if pairs == self.latest:
                return run
            self.latest = pairs
            if self.goes_on:
                _load_chosen_weights(self.chosen, task, config.objective)
            steps = max(1, round(self.share * best * pairs / self.pairs))
            how = "training goes on" if self.goes_on else "training again"
            logger.info(
                f"{how}, {LEARNED[part]}: {quantity(steps, 'steps')} on "
                f"{quantity(pairs, 'pairs')}{self.besides}"
            )
            mined = self._train(replace(run, config=config, task=task), steps, Path(folder))
            record: dict[str, Any] = {
                "event": "refit",
                "part": part,
                "pairs": pairs,
                "steps": steps,
            }
            if self.goes_on:
                record["goes_on"] = True
            if mined is not None:
                record["negatives"] = mined.kept
                if 2 * mined.empty > mined.queries:
                    few = f"{mined.empty:,} of {mined.queries:,} queries have found no negative"
                    logger.info(f"{few}: see mining.absolute_margin, relative_margin and depth")
            run.log.write(**record)
        return replace(run, config=config, task=task)

    def _train(self, again: Prepared, steps: int, folder: Path) -> Any:
        """Train a run without looks, and return the mined negatives; None where none are mined."""
        config = again.config
        train = replace(self.train, max_steps=steps, max_time=None)
        mined = None
        with JsonLines(folder / "log.jsonl") as log, silenced(bars=True):
            short = replace(again, config=replace(config, train=train), log=log, phases=Phases())
            if self.mines:
                mined = config.world.mine(again.task, again.devices.group)
            fit(short, looks=False)
        return mined


def _continued(train: Training) -> Training:
    """Return the options of a training from trained weights."""
    tables = train.table_learning_rate
    if not tables and train.table_optimizer == "rowwise_adagrad":
        tables = TABLE_RATE
    return replace(
        train,
        made_rows=0,
        learning_rate=_SHARE * train.learning_rate,
        temperature_learning_rate=_SHARE * train.temperature_learning_rate,
        table_learning_rate=_SHARE * tables if tables else None,
    )


def _load_chosen_weights(chosen: Prepared, task: RunTask, objective: nn.Module) -> None:
    """Give a tower and an objective the best weights by validation, shared by the main process with
    all processes."""
    tower = task.data.tower
    tower.load_state_dict(chosen.task.data.tower.state_dict())
    trained = chosen.config.objective.parameters()
    with torch.no_grad():
        for parameter, trained_parameter in zip(objective.parameters(), trained, strict=True):
            parameter.copy_(trained_parameter)
    chosen.devices.group.share([*tower.state_dict().values(), *objective.parameters()])
