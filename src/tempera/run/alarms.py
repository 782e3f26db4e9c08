"""Alarms and cautions of a run that continues, and the messages of one that cannot."""

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
_FEW_OF_MODEL = 15  # steps of a model that has learned before
_FORGOTTEN, _LEARNT = (
    0.01,
    0.05,
)  # a fall of validation, and a share of the first loss, that are signs of overfitting
_RISEN, _MIDDLE = (
    0.01,
    0.6,
)  # a rise of validation from a share of the steps on that tells of more to learn


class Alarms:
    """Write alarms and skipped steps to the log of a run; a resumed run has those from before in
    its log."""

    def __init__(self, log: JsonLines) -> None:
        self.log = log

    def ring(self, step: int, text: str | None) -> None:
        """Log an alarm and print it; do nothing if there is no text."""
        if text is not None:
            self.log.write(event=ALARM, step=step, text=text)
            logger.warning(f"alarm: {text}")

    def caution(self, step: int, text: str) -> None:
        """Log what may disappoint; the end of the run shows it."""
        self.log.write(event=CAUTION, step=step, text=text)

    def collapse(self, step: int, spread: Spread) -> None:
        """Ring if an evaluation has found that all embeddings have become alike."""
        if spread.collapsed:
            self.ring(
                step, f"after step {step:,} the embeddings have collapsed: {spread.collapsed}"
            )

    def regression(self, step: int, metric: str, difference: Difference, queries: int) -> None:
        """Ring if the trained model less the untrained one is below 0 in a metric by more than
        chance; else be cautious below 0."""
        about = (
            f"{label(metric)} {difference.mean:+.3f} ({100 * difference.confidence:g} % interval {difference.low:+.3f} to "
            f"{difference.high:+.3f}, {quantity(queries, 'queries')}"
        )
        if difference.high < 0 and queries >= FEW_QUERIES:
            self.ring(
                step,
                f"the trained model is worse than the untrained one: {about}); lower train.learning_rate, and check which "
                "column is the query and which the document",
            )
        elif difference.mean < 0:
            why = "too few to tell" if queries < FEW_QUERIES else "which chance may explain"
            self.caution(
                step,
                f"the trained model is below the untrained one: {about}), {why}; train on more data, or at a lower "
                "train.learning_rate",
            )

    def step(self, progress: Progress, data: Data, together: int) -> None:
        """Log a step, or that it was skipped, with its fault and rows."""
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
        records = self.log.records
        return {
            "alarms": [record["text"] for record in records if record["event"] == ALARM],
            "cautions": list(
                dict.fromkeys(record["text"] for record in records if record["event"] == CAUTION)
            ),
            "steps_left_out": sum(record["event"] == LEFT_OUT for record in records),
        }


def doubts(
    config: Config,
    records: Sequence[Mapping[str, Any]],
    rivals: Mapping[str, Difference],
    subject: Subject,
    together: str = "",
    chooses: bool = True,
    queries: int = 0,
) -> Iterator[str]:
    """Yield cautions about a run that has ended, each with advice: too few steps, too many, no
    better than a baseline.

    Args:
        records: the log.
        rivals: the trained system less each baseline, in the main metric.
        subject: its advice.
        together: advice to ask the model and a baseline together, where that is better and not the
            default.
        chooses: whether validation has enough queries to stop by.
        queries: of the test; 0 where there is none.
    """
    if 0 < queries < FEW_QUERIES:
        yield (
            f"all figures are of {quantity(queries, 'test queries')}, too few to tell one system from another: "
            "give more data"
        )
    steps = [record for record in records if record["event"] == "step"]
    pretrained = config.resolved["tower"]["kind"] == "pretrained"
    stated = "max_time" if config.resolved["train"]["max_time"] else "max_steps"
    longer = f"train.{'num_train_epochs' if config.train.max_steps is None else stated}"
    few, more = (
        (_FEW_OF_MODEL, "on more data, or for more epochs")
        if pretrained
        else (FEW_STEPS, subject.more)
    )
    if 0 < len(steps) < few:
        yield (
            f"the run took {quantity(len(steps), 'optimiser steps')}, which is too few to learn much: train "
            f"on more data, raise {longer}, or lower train.batch_size"
        )
    else:
        looks = [record for record in records if record["event"] == "evaluation"]
        yield from _overfitted(steps, looks, chooses, chooses and config.train.keep_best)
        yield from _unfinished(looks, longer) if chooses else ()
    name = min(rivals, key=lambda name: rivals[name].mean, default=None)
    if name is not None and rivals[name].low <= 0:
        d, below = rivals[name], rivals[name].high < 0 and not 0 < queries < FEW_QUERIES
        size = f", {quantity(queries, 'queries')}" if queries else ""
        yield (
            f"the trained model is {'worse than' if below else 'not shown to be better than'} {label(name)}: "
            f"{label(main_metric(config.evaluation.metrics))} {d.mean:+.3f} ({100 * d.confidence:g} % interval {d.low:+.3f} to "
            f"{d.high:+.3f}{size}); train {more}"
            + (f", and {subject.finer}" if subject.finer and not below else "")
            + (f"; until then, {together}" if together else "")
        )


def _overfitted(
    steps: Sequence[Mapping[str, Any]],
    looks: Sequence[Mapping[str, Any]],
    chooses: bool,
    kept: bool,
) -> Iterator[str]:
    """Yield a caution if validation has fallen since its best, which may have been kept, while the
    loss came near 0."""
    if len(looks) < 3 or len(steps) < 2:
        return
    metric = main_metric(looks[0]["metrics"])
    values = [look["metrics"][metric] for look in looks]
    best = max(range(len(values)), key=values.__getitem__)
    share = steps[-1]["loss"] / steps[0]["loss"] if steps[0]["loss"] > 0 else 1.0
    if 0 < best < len(values) - 1 and values[-1] <= values[best] - _FORGOTTEN and share <= _LEARNT:
        yield (
            f"the model overfitted: the loss fell to {steps[-1]['loss']:.2g}, and validation {label(metric)} from "
            f"{values[best]:.3f} after step {looks[best]['step']:,} to {values[-1]:.3f}; "
            + (
                "the best weights are saved; to save time, too, or to get better ones, "
                if kept
                else ""
            )
            + "lower train.num_train_epochs or train.learning_rate"
            + (", or set train.patience=2 to stop in time" if chooses else "")
        )


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
    values, before = [look["metrics"][metric] for look in looks], middle[-1]["metrics"][metric]
    if values[-1] > max(values[:-1]) and values[-1] >= before + _RISEN:
        yield (
            f"validation {label(metric)} rose from {before:.3f} after step {middle[-1]['step']:,} to {values[-1]:.3f} at the "
            f"end: a longer run may be better; raise {longer}"
        )


@contextmanager
def explained(data: Data, together: int, kept: Checkpoints | None) -> Iterator[None]:
    """Add to a fault that ends the block the rows that it comes from, and the last good
    checkpoint."""
    try:
        yield
    except NotFinite as error:
        latest = None if kept is None else kept.latest
        left = f"; last good checkpoint: {latest}; resume with train.skip_non_finite=1 to skip such steps"
        raise NotFinite(
            error.fault, named(error.fault, data, together), left if latest else ""
        ) from None


@contextmanager
def within_memory(kept: Checkpoints) -> Iterator[None]:
    """Turn an out-of-memory error in the block into one line: which options to lower, and the last
    checkpoint."""
    try:
        yield
    except (
        MemoryError,
        RuntimeError,
        OSError,
    ) as error:  # of Python, numpy and Arrow; of torch; of a mapped file
        said = " ".join(str(error).split())
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not _NO_MEMORY.search(
            said
        ):
            raise
        left = f"; last checkpoint: {kept.latest}" if kept.latest else ""
        raise TemperaError(
            "out of memory: lower train.cache_memory and train.micro_batch_tokens (what the towers take), train.batch_size, "
            "evaluation.corpus, or the size of the tower (tower.dimensions, tower.vocabulary)"
            f"{left} ({said[:120] or type(error).__name__})"
        ) from None


def named(fault: Fault, data: Data, together: int) -> str:
    """Name the first rows of a fault as a user knows them; a step has `together` batches."""
    places = []
    for number, rows in enumerate(fault.rows, (fault.step - 1) * together):
        (batch,) = data.sampler(number, number + 1)
        own = [row for row in rows if row < len(batch)]
        if len(own) == len(batch):
            return f"all rows of batch {number}"
        places += data.called(batch[torch.tensor(own, dtype=torch.int64)])
        places += ["rows made of documents"] if len(own) < len(rows) else []
    more = f" and {len(places) - SHOWN:,} more rows" if len(places) > SHOWN else ""
    return ", ".join(places[:SHOWN]) + more
