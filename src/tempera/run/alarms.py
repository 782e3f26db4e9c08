"""Alarms of a run that continues, and the messages of one that cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from ..engine.faults import Fault, NotFinite
from ..engine.loop import Progress
from ..errors import TemperaError
from ..io.console import logger
from ..io.documents import JsonLines
from ..ranking.compare import bootstrap
from ..ranking.spread import Spread
from ..ranking.verdict import SystemScores, main_metric
from .resume import Checkpoints
from .task import Data

_NO_MEMORY = re.compile("an't allocate memory|annot allocate memory|bad_alloc|can't start new thread")
SHOWN = 3  # rows that a message names
ALARM, LEFT_OUT = "alarm", "step left out"  # events of the log


class Alarms:
    """Write alarms and skipped steps to the log of a run; a resumed run has those from before in its log."""

    def __init__(self, log: JsonLines) -> None:
        self.log = log

    def ring(self, step: int, text: str | None) -> None:
        """Log an alarm and print it; do nothing if there is no text."""
        if text is not None:
            self.log.write(event=ALARM, step=step, text=text)
            logger.warning(f"alarm: {text}")

    def collapse(self, step: int, spread: Spread) -> None:
        """Ring if an evaluation has found that all embeddings have become alike."""
        if spread.collapsed:
            self.ring(step, f"after step {step:,} the embeddings have collapsed: {spread.collapsed}")

    def regression(self, step: int, before: SystemScores, after: SystemScores) -> None:
        """Ring if the trained model is worse than the untrained one in the main metric, by more than chance."""
        metric = main_metric(after.per_query)
        difference = bootstrap(after.per_query[metric], before.per_query[metric])
        if difference.high < 0:
            self.ring(
                step,
                f"the trained model is worse than the untrained one: {metric} {difference.mean:+.4f} "
                f"({100 * difference.confidence:g} % interval {difference.low:+.4f} to {difference.high:+.4f})",
            )

    def step(self, progress: Progress, data: Data, together: int) -> None:
        """Log a step, or that it was skipped, with its fault and rows."""
        values = asdict(progress)
        fault = values.pop("fault")
        if progress.fault is None:
            self.log.write(event="step", **values)
            return
        rows = named(progress.fault, data, together)
        self.log.write(event=LEFT_OUT, step=progress.step, what=fault["what"], cause=fault["cause"], rows=rows)
        logger.warning(f"skipped: {NotFinite(progress.fault, rows)}")

    def summary(self) -> dict[str, Any]:
        """Return alarms and the number of skipped steps, for metrics.json."""
        records = self.log.records
        return {
            "alarms": [record["text"] for record in records if record["event"] == ALARM],
            "steps_left_out": sum(record["event"] == LEFT_OUT for record in records),
        }


@contextmanager
def explained(data: Data, together: int, kept: Checkpoints | None) -> Iterator[None]:
    """Add to a fault that ends the block the rows that it comes from, and the last good checkpoint."""
    try:
        yield
    except NotFinite as error:
        latest = None if kept is None else kept.latest
        left = f"; last good checkpoint: {latest}; resume with train.skip_non_finite=1 to skip such steps"
        raise NotFinite(error.fault, named(error.fault, data, together), left if latest else "") from None


@contextmanager
def within_memory(kept: Checkpoints) -> Iterator[None]:
    """Turn an out-of-memory error in the block into one line: which options to lower, and the last checkpoint."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:  # of Python, numpy and Arrow; of torch; of a mapped file
        said = " ".join(str(error).split())
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not _NO_MEMORY.search(said):
            raise
        left = f"; last checkpoint: {kept.latest}" if kept.latest else ""
        raise TemperaError(
            "out of memory: lower train.cache_memory and train.micro_batch_tokens (what the towers take), "
            f"train.batch_size, evaluation.corpus or the size of the tower{left} ({said[:120] or type(error).__name__})"
        ) from None


def named(fault: Fault, data: Data, together: int) -> str:
    """Name the first rows of a fault as a user knows them; a step has `together` batches."""
    places = []
    for number, rows in enumerate(fault.rows, (fault.step - 1) * together):
        (batch,) = data.sampler(number, number + 1)
        if len(rows) == len(batch):
            return f"all rows of batch {number}"
        places += data.called(batch[torch.tensor(rows, dtype=torch.int64)])
    more = f" and {len(places) - SHOWN:,} more rows" if len(places) > SHOWN else ""
    return ", ".join(places[:SHOWN]) + more
