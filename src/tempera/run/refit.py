"""Training again, also on data that were held out, once validation has chosen settings and
length."""

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
# Of the steps, and of their learning rate, where training goes on from trained weights
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

    It begins anew, with the weights and the objective that the run has before its training. Where
    rows are made of documents (`train.made_rows`), which is the longest part of a training, or
    negatives are mined for it (`mining.again`), it goes on from the weights that validation has
    chosen: for half of the steps, or a quarter where both are, at half of the learning rates,
    without such rows and with such negatives. A memory is empty then, and schedules begin again.

    Args:
        prepared: the run, before its training.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.train, self.objective = prepared.config.train, copy.deepcopy(prepared.config.objective)
        counts = prepared.task.facts.counts
        plan = prepared.task.refits
        self.latest = self.pairs = counts["train"]  # of the training before, and of the first one
        worth = self.pairs < (1 - WORTH) * counts["pairs"]
        parts = {**_PARTS, "auto": plan.auto if worth else ()}[self.train.refit]
        self.parts = [
            each for each in parts if each == "test" or not prepared.config.evaluation.cold_items
        ]
        self.rows = plan.rows
        self.mines = prepared.config.world.mines(prepared.task, prepared.config)
        self.goes_on = bool(self.train.made_rows) or self.mines
        self.share, self.cost = (
            1.0,
            1.0,
        )  # of the steps, and the time of one in those of the first training
        self.besides = ""
        if self.mines:
            negatives = prepared.config.mining.mining.negatives
            self.share, self.cost = _SHARE, 1 + negatives / 2
            self.besides = f", with up to {quantity(negatives, 'negatives')} a query that it mines"
        if self.train.made_rows:
            self.share, self.cost = _SHARE * self.share, 1.0
        self.chosen: Prepared | None = None  # the run after its first training
        if self.goes_on:
            self.train = _onward(self.train)

    @property
    def times(self) -> float:
        """Return the most steps of all trainings together, in the time of those of the first
        one."""
        sizes = [self.pairs, *(self.rows(part) for part in self.parts)]
        more = sum(size for size, before in zip(sizes[1:], sizes, strict=False) if size != before)
        return float(1 + self.share * self.cost * more / self.pairs)

    def __call__(self, part: Part, run: Prepared, fitted: Fitted) -> Prepared:
        """Return the run trained also on a part of its data, for the passes that its best weights
        have taken; all processes call.

        The same run where this part is not asked for or adds no pair, or where no step has helped.
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
                _begin(self.chosen, task, config.objective)
            steps = max(1, round(self.share * best * pairs / self.pairs))
            how = "training goes on" if self.goes_on else "training again"
            logger.info(
                f"{how}, {LEARNED[part]}: {quantity(steps, 'steps')} on {quantity(pairs, 'pairs')}{self.besides}"
            )
            with JsonLines(Path(folder) / "log.jsonl") as log, silenced(bars=True):
                train = replace(self.train, max_steps=steps, max_time=None)
                again = replace(
                    run, config=replace(config, train=train), task=task, log=log, phases=Phases()
                )
                mined = None
                if self.mines:
                    mined = config.world.mine(task, group)
                fit(again, looks=False)
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


def _onward(train: Training) -> Training:
    """Return the options of a training that goes on from trained weights."""
    tables = train.table_learning_rate or (
        TABLE_RATE if train.table_optimizer == "rowwise_adagrad" else None
    )
    return replace(
        train,
        made_rows=0,
        learning_rate=_SHARE * train.learning_rate,
        temperature_learning_rate=_SHARE * train.temperature_learning_rate,
        table_learning_rate=None if tables is None else _SHARE * tables,
    )


def _begin(chosen: Prepared, task: RunTask, objective: nn.Module) -> None:
    """Give a run's tower and objective the weights that validation has chosen, which the first
    process alone has."""
    task.data.tower.load_state_dict(chosen.task.data.tower.state_dict())
    with torch.no_grad():
        for mine, trained in zip(
            objective.parameters(), chosen.config.objective.parameters(), strict=True
        ):
            mine.copy_(trained)
    chosen.devices.group.share([*task.data.tower.state_dict().values(), *objective.parameters()])
