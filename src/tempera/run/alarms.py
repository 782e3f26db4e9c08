"""Alarms and cautions of a run, and the messages of faults that end a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from ..artifacts.pictures import label
from ..engine.faults import Fault, NotFinite
from ..engine.loop import Progress
from ..errors import TemperaError, quantity
from ..io.console import logger
from ..io.documents import JsonLines
from ..options.build import Config
from ..ranking.compare import Difference
from ..ranking.ranking import FEW_QUERIES
from ..ranking.spread import Spread
from ..task.showcase import Subject
from ..task.verdict import main_metric
from .resume import Checkpoints
from .task import Data

_NO_MEMORY = re.compile(
    "an't allocate memory|annot allocate memory|bad_alloc|can't start new thread"
)
SHOWN = 3  # rows that a message names
ALARM, LEFT_OUT, CAUTION = "alarm", "step left out", "caution"  # events of the log
FEW_STEPS = 50
_FEW_OF_MODEL = 15  # steps of a pretrained model
# A fall of validation, and a share of the first loss, as signs of overfitting.
_FORGOTTEN = 0.01
_LEARNT = 0.05
# A rise of validation after a share of the steps, as a sign that more steps would help.
_RISEN = 0.01
_MIDDLE = 0.6


class Alarms:
    """Write alarms and skipped steps to the log of a run; the log of a resumed run has the earlier
    alarms."""

    def __init__(self, log: JsonLines) -> None:
        self.log = log

    def ring(self, step: int, text: str | None) -> None:
        """Log and print an alarm; do nothing without a text."""
        if text is not None:
            self.log.write(event=ALARM, step=step, text=text)
            logger.warning(f"alarm: {text}")

    def caution(self, step: int, text: str) -> None:
        """Log a doubt about the results, for the end of the run."""
        self.log.write(event=CAUTION, step=step, text=text)

    def collapse(self, step: int, spread: Spread) -> None:
        """Ring if the embeddings of an evaluation are all alike."""
        if spread.collapsed:
            self.ring(
                step, f"after step {step:,} the embeddings have collapsed: {spread.collapsed}"
            )

    def regression(self, step: int, metric: str, difference: Difference, queries: int) -> None:
        """Ring if the trained model is worse than the untrained model by more than chance; log a
        caution if worse by less.

        Args:
            difference: the trained model less the untrained one, in `metric`.
            queries: number of test queries.
        """
        about = (
            f"{label(metric)} {difference.mean:+.3f} ({100 * difference.confidence:g} % interval "
            f"{difference.low:+.3f} to {difference.high:+.3f}, {quantity(queries, 'queries')}"
        )
        if difference.high < 0 and queries >= FEW_QUERIES:
            self.ring(
                step,
                f"the trained model is worse than the untrained one: {about}); lower "
                "train.learning_rate, and check which column is the query and which the document",
            )
        elif difference.mean < 0:
            why = "which chance may explain"
            if queries < FEW_QUERIES:
                why = "too few to tell"
            self.caution(
                step,
                f"the trained model is below the untrained one: {about}), {why}; train on more "
                "data, or at a lower train.learning_rate",
            )

    def step(self, progress: Progress, data: Data, together: int) -> None:
        """Log a step, or a skipped step with its fault and rows."""
        values = asdict(progress)
        fault = values.pop("fault")
        if progress.fault is None:
            self.log.write(event="step", **values)
            return
        rows = named(progress.fault, data, together)
        self.log.write(
            event=LEFT_OUT, step=progress.step, what=fault["what"], cause=fault["cause"], rows=rows
        )
        logger.warning(f"skipped: {NotFinite(progress.fault, rows)}")

    def summary(self) -> dict[str, Any]:
        """Return alarms, cautions and the number of skipped steps, for metrics.json."""
        alarms = []
        cautions = []
        left_out = 0
        for record in self.log.records:
            if record["event"] == ALARM:
                alarms.append(record["text"])
            elif record["event"] == CAUTION and record["text"] not in cautions:
                cautions.append(record["text"])
            elif record["event"] == LEFT_OUT:
                left_out += 1
        return {"alarms": alarms, "cautions": cautions, "steps_left_out": left_out}


def doubts(
    config: Config,
    records: Sequence[Mapping[str, Any]],
    rivals: Mapping[str, Difference],
    subject: Subject,
    together: str = "",
    chooses: bool = True,
    queries: int = 0,
) -> Iterator[str]:
    """Yield cautions about a complete run, each with advice: too few steps, too many, no better
    than a baseline.

    Args:
        records: the log.
        rivals: the trained system less each baseline, in the main metric.
        subject: words of advice.
        together: advice to ask the model and a baseline together; empty where the two are not
            better together, or are the default.
        chooses: True if validation has enough queries to stop by.
        queries: of the test; 0 where there is no test.
    """
    if 0 < queries < FEW_QUERIES:
        yield (
            f"all figures are of {quantity(queries, 'test queries')}, too few to tell one system "
            "from another: give more data"
        )
    steps = [record for record in records if record["event"] == "step"]
    few = FEW_STEPS
    more = subject.more
    if config.resolved["tower"]["kind"] == "pretrained":
        few = _FEW_OF_MODEL
        more = "on more data, or for more epochs"
    if config.train.max_steps is None:
        longer = "train.num_train_epochs"
    elif config.resolved["train"]["max_time"]:
        longer = "train.max_time"
    else:
        longer = "train.max_steps"
    if 0 < len(steps) < few:
        yield (
            f"the run took {quantity(len(steps), 'optimiser steps')}, which is too few to learn "
            f"much: train on more data, raise {longer}, or lower train.batch_size"
        )
    else:
        looks = [record for record in records if record["event"] == "evaluation"]
        yield from _overfitted(steps, looks, chooses, chooses and config.train.keep_best)
        if chooses:
            yield from _unfinished(looks, longer)
    if rivals:
        name = min(rivals, key=lambda name: rivals[name].mean)
        difference = rivals[name]
        if difference.low <= 0:
            finer = subject.finer
            verdict = "not shown to be better than"
            if difference.high < 0 and not 0 < queries < FEW_QUERIES:
                verdict = "worse than"
                finer = ""
            metric = label(main_metric(config.evaluation.metrics))
            size = f", {quantity(queries, 'queries')}" if queries else ""
            text = (
                f"the trained model is {verdict} {label(name)}: {metric} {difference.mean:+.3f} "
                f"({100 * difference.confidence:g} % interval {difference.low:+.3f} to "
                f"{difference.high:+.3f}{size}); train {more}"
            )
            if finer:
                text += f", and {finer}"
            if together:
                text += f"; until then, {together}"
            yield text


def _overfitted(
    steps: Sequence[Mapping[str, Any]],
    looks: Sequence[Mapping[str, Any]],
    chooses: bool,
    kept: bool,
) -> Iterator[str]:
    """Yield a caution if validation has fallen since its best while the loss came near 0.

    Args:
        chooses: True if validation can end the training.
        kept: True if the best weights are saved.
    """
    if len(looks) < 3 or len(steps) < 2:
        return
    metric = main_metric(looks[0]["metrics"])
    values = [look["metrics"][metric] for look in looks]
    last = values[-1]
    best = values.index(max(values))
    share = 1.0
    if steps[0]["loss"] > 0:
        share = steps[-1]["loss"] / steps[0]["loss"]
    has_fallen = 0 < best < len(values) - 1 and last <= values[best] - _FORGOTTEN
    has_learnt = share <= _LEARNT
    if not (has_fallen and has_learnt):
        return
    text = (
        f"the model overfitted: the loss fell to {steps[-1]['loss']:.2g}, and validation "
        f"{label(metric)} from {values[best]:.3f} after step {looks[best]['step']:,} to {last:.3f}; "
    )
    if kept:
        text += "the best weights are saved; to save time, too, or to get better ones, "
    text += "lower train.num_train_epochs or train.learning_rate"
    if chooses:
        text += ", or set train.patience=2 to stop in time"
    yield text


def _unfinished(looks: Sequence[Mapping[str, Any]], longer: str) -> Iterator[str]:
    """Yield a caution if validation is best at the end, and much better than in the middle.

    >>> look = [{"step": step, "metrics": {"ndcg@10": value}} for step, value in ((0, 0.5), (50, 0.7), (70, 0.74), (100, 0.75))]
    >>> print(*_unfinished(look, "train.max_steps"))
    validation nDCG@10 rose from 0.700 after step 50 to 0.750 at the end: a longer run may be better; raise train.max_steps
    """
    middle = [look for look in looks if 0 < look["step"] <= _MIDDLE * looks[-1]["step"]]
    if not middle:
        return
    metric = main_metric(looks[0]["metrics"])
    values = [look["metrics"][metric] for look in looks]
    last = values[-1]
    before = middle[-1]["metrics"][metric]
    if last > max(values[:-1]) and last >= before + _RISEN:
        yield (
            f"validation {label(metric)} rose from {before:.3f} after step "
            f"{middle[-1]['step']:,} to {last:.3f} at the end: a longer run may be better; "
            f"raise {longer}"
        )


@contextmanager
def explained(data: Data, together: int, kept: Checkpoints | None) -> Iterator[None]:
    """Add its rows and the last good checkpoint to a fault that ends the block."""
    try:
        yield
    except NotFinite as error:
        left = ""
        if kept is not None and kept.latest is not None:
            left = (
                f"; last good checkpoint: {kept.latest}; resume with train.skip_non_finite=1 to "
                "skip such steps"
            )
        raise NotFinite(error.fault, named(error.fault, data, together), left) from None


@contextmanager
def within_memory(kept: Checkpoints) -> Iterator[None]:
    """Turn an out-of-memory error in the block into one line with the options to lower and the last
    checkpoint."""
    try:
        yield
    # Of Python, numpy and Arrow; of torch; of a mapped file.
    except (MemoryError, RuntimeError, OSError) as error:
        said = " ".join(str(error).split())
        is_known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_known and not _NO_MEMORY.search(said):
            raise
        left = f"; last checkpoint: {kept.latest}" if kept.latest else ""
        raise TemperaError(
            "out of memory: lower train.cache_memory and train.micro_batch_tokens (what the towers "
            "take), train.batch_size, evaluation.corpus, or the size of the tower "
            "(tower.dimensions, tower.vocabulary); or train pairs of texts from shards "
            "(data.in_shards=true)"
            f"{left} ({said[:120] or type(error).__name__})"
        ) from None


def named(fault: Fault, data: Data, together: int) -> str:
    """Return the first rows of a fault by the user's names.

    Args:
        together: batches of a step.
    """
    places = []
    for number, rows in enumerate(fault.rows[:together], (fault.step - 1) * together):
        (batch,) = data.sampler(number, number + 1)
        if len(rows) == len(batch):
            return f"all rows of batch {number}"
        places += data.called(batch[torch.tensor(rows, dtype=torch.int64)])
    if any(fault.rows[together:]):  # of the batches beside those of the pairs
        places.append("rows made of documents")
    text = ", ".join(places[:SHOWN])
    if len(places) > SHOWN:
        text += f" and {len(places) - SHOWN:,} more rows"
    return text
