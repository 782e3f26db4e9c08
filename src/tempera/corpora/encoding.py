"""A corpus of texts, encoded shard by shard into a corpus of vectors, with a bar."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import ConfigError, TemperaError, quantity
from ..io.console import logger, progress_bar, silenced
from .claims import STALE
from .corpus_worker import EncodedPart, Tell, WorkerShare, work
from .encoding_job import EncodingJob
from .worker_pool import work_together

Engine = Literal["own", "ray"]
# The number of a process and of all processes, as launchers set them.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


@dataclass
class EncodingTotals:
    """The work of all workers so far.

    Args:
        rows: that were encoded now.
        tokens: that were read.
        padded: tokens and padding that were read.
        shards: that are finished, earlier ones included.
        seconds: since the start.
    """

    rows: int = 0
    tokens: int = 0
    padded: int = 0
    shards: int = 0
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def add(self, part: EncodedPart) -> None:
        """Count a part of the work."""
        self.rows += part.rows
        self.tokens += part.tokens
        self.padded += part.padded
        self.shards += part.shards
        self.seconds = time.monotonic() - self.began

    @property
    def padding(self) -> float:
        """The share of padding in all that was read."""
        return 1 - self.tokens / self.padded if self.padded else 0.0

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        seconds = max(self.seconds, 1e-9)
        return {
            "rows": self.rows,
            "seconds": round(self.seconds, 2),
            "rows_per_second": round(self.rows / seconds, 1),
            "tokens": self.tokens,
            "tokens_per_second": round(self.tokens / seconds, 1),
            "padding": round(self.padding, 4),
        }

    def line(self) -> str:
        """Return a line on the work, for people."""
        seconds = max(self.seconds, 1e-9)
        line = f"encoded {quantity(self.rows, 'rows')} in {self.seconds:,.0f} s: {self.rows / seconds:,.0f} a second"
        if self.tokens:
            line += f", {self.tokens / seconds:,.0f} tokens a second, {self.padding:.0%} padding"
        return line


def encode_corpus(
    job: EncodingJob,
    workers: int | None = None,
    worker: str | None = None,
    engine: Engine = "own",
    stale: float = STALE,
) -> tuple[dict[str, Any] | None, EncodingTotals]:
    """Write the vectors of every shard that is not finished; return the manifest, None if other
    workers still have shards in work, and the work that was done.

    Args:
        job: the encoding.
        workers: number of processes on this machine; of Ray, most at once.
        worker: I/N, for one worker of N that are started elsewhere; None is the process that a
            launcher such as torchrun has started, or a single worker.
        engine: "ray" has Ray Data schedule the shards.
        stale: seconds after which the claim of another worker is taken over.

    Raises:
        TemperaError: wrong options, no model, no corpus, a folder of something else, or a shard
            that cannot be encoded or written.
    """
    if worker is not None and (workers is not None or engine == "ray"):
        raise ConfigError("--worker is one of several that you start; drop --workers and --engine")
    share = None if worker is None else WorkerShare.of(worker)
    launched = None
    if share is None and workers is None and engine == "own":
        launched = launched_share()
        share = launched
    is_alone = share is None and workers in (None, 1) and engine == "own"
    # The processes of a launcher share a terminal, and the jobs of an array do not.
    with silenced() if launched is not None and launched.number else nullcontext():
        job.begin()
        if engine == "own" and workers in (None, 1) and job.unfinished():
            job.encoder.open()  # so that the time left is that of the texts
        with _bar(job) as (tell, totals):
            if engine == "ray":
                from .ray_engine import work_by_ray

                document = work_by_ray(job, workers, tell)
            elif workers is not None and workers > 1:
                document = work_together(job, workers, tell, stale)
            else:
                document = work(job, share or WorkerShare(), tell, stale)
        _report(job, document, totals, is_alone)
    return document, totals


def _report(
    job: EncodingJob, document: dict[str, Any] | None, totals: EncodingTotals, is_alone: bool
) -> None:
    """Log the work, and the shards that others have in work."""
    if totals.rows:
        logger.info(totals.line())
    if document is None:
        left = job.unfinished()
        line = (
            f"{quantity(len(left), 'shards')} of {len(job.shards):,}, {left[0]} for one, "
            "left to other workers; the same command encodes what they leave"
        )
        if is_alone:
            raise TemperaError(
                f"{line}; a worker that was killed on another machine holds a claim for {STALE / 60:.0f} minutes"
            )
        logger.info(line)
        return
    if document["blank"]:
        logger.warning(
            f"{quantity(document['blank'], 'rows')} of {document['rows']:,} without a text"
        )


def launched_share() -> WorkerShare | None:
    """Return the share of a process that a launcher has started; None without a launcher."""
    for rank, size in _LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return WorkerShare(int(os.environ[rank]), int(os.environ[size]))
    return None


@contextmanager
def _bar(job: EncodingJob) -> Iterator[tuple[Tell, EncodingTotals]]:
    """Give a function to report parts of the work to, and the totals that it keeps; show a bar over
    the bytes of the corpus with the time left."""
    totals = EncodingTotals()
    total = sum(shard.size for shard in job.shards)
    with progress_bar("encoding", total, "B") as bar:
        bar.unit_scale = True

        def tell(part: EncodedPart) -> None:
            totals.add(part)
            if totals.seconds > 0 and totals.tokens:
                bar.set_postfix_str(
                    f"{totals.rows:,} rows, {totals.tokens / totals.seconds:,.0f} tokens/s, {totals.padding:.0%} padding",
                    refresh=False,
                )
            bar.update(part.size)

        yield tell, totals
