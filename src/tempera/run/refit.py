"""Training again, also on data that were held out, once validation has chosen settings and length."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ..engine.clock import Phases
from ..engine.training_options import RefitOn
from ..io.console import logger, silenced
from ..io.documents import JsonLines
from ..ranking.ranking import Part
from .fit import Fitted, fit
from .prepare import Prepared, move_tower, reading_of

WORTH = 0.05  # share of the data that is held out, from which `auto` trains again
LEARNED: dict[Part, str] = {"validation": "also on validation", "test": "also on all that was held out"}
# With withheld items, validation is not trained on before the test: it may hold them.
_PARTS: dict[RefitOn, tuple[Part, ...]] = {"none": (), "validation": ("validation",), "all": ("validation", "test")}


class Refit:
    """Train a run anew on more data, by `train.refit`: begun with the weights and the objective that it has before its training.

    Args:
        prepared: the run, before its training.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.train, self.objective = prepared.config.train, copy.deepcopy(prepared.config.objective)
        counts = prepared.task.showcase.facts().counts
        self.latest = self.pairs = counts["train"]  # of the training before, and of the first one
        worth = self.pairs < (1 - WORTH) * counts["pairs"]
        parts = {**_PARTS, "auto": prepared.task.refits if worth else ()}[self.train.refit]
        self.parts = [each for each in parts if each == "test" or not prepared.config.evaluation.cold_items]
        self.learned = prepared.task.learned

    @property
    def times(self) -> float:
        """Return the most steps of all trainings together, in those of the first one."""
        sizes = [self.pairs, *map(self.learned, self.parts)]
        return float(sum(size for size, before in zip(sizes, [0, *sizes]) if size != before) / self.pairs)

    def __call__(self, part: Part, run: Prepared, fitted: Fitted) -> Prepared:
        """Return the run trained also on a part of its data, for as many passes as its best weights have taken; all processes call.

        The same run where this part is not asked for or adds no pair, or where no step has helped.
        """
        group = run.devices.group
        best = group.all_reduce_max(fitted.step if group.main else -1)
        if part not in self.parts or not best:
            return run
        config = replace(run.config, objective=copy.deepcopy(self.objective))
        with run.phases("refit"), TemporaryDirectory(dir=run.folder) as folder:
            torch.manual_seed(self.train.seed)  # of the first weights, as `prepare` does
            task = run.task.extended(reading_of(config, run.devices), part)
            move_tower(config, task, run.devices)
            pairs = task.showcase.facts().counts["train"]
            if pairs == self.latest:
                return run
            self.latest = pairs
            steps = max(1, round(best * pairs / self.pairs))
            logger.info(f"training again, {LEARNED[part]}: {steps:,} steps on {pairs:,} pairs")
            run.log.write(event="refit", part=part, pairs=pairs, steps=steps)
            with JsonLines(Path(folder) / "log.jsonl") as log, silenced(bars=True):
                train = replace(self.train, max_steps=steps, max_time=None)
                again = replace(run, config=replace(config, train=train), task=task, log=log, phases=Phases())
                fit(again, looks=False)
        return replace(run, config=config, task=task)
