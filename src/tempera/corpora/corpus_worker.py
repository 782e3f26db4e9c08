"""One worker of an encoding: its share of the shards, and then the shards that nobody has claimed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, OutputError
from .claims import STALE, ShardClaims
from .corpus_manifest import CLAIMS, RECORDS, SHARDS
from .encoding_job import EncodingJob
from .output_place import PARTIAL
from .shard_files import CorpusShard

_PATIENCE = 10.0  # seconds that a single worker waits for shards that others have claimed
_PAUSE = 0.2  # seconds between two looks at them


@dataclass(frozen=True)
class WorkerShare:
    """The share of one worker of several: shards I, I + N, ...

    Args:
        number: of the worker, from 0.
        workers: their number.

    Raises:
        ConfigError: a number out of range.

    >>> WorkerShare.of("1/4")
    WorkerShare(number=1, workers=4)
    """

    number: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.workers:
            raise ConfigError(
                f"worker {self.number}/{self.workers}: workers are counted from 0, so give 0/{max(1, self.workers)} to "
                f"{max(1, self.workers) - 1}/{max(1, self.workers)}"
            )

    @classmethod
    def of(cls, text: str) -> WorkerShare:
        """Return the share written as I/N.

        Raises:
            ConfigError: another form, or a number out of range.
        """
        number, sign, workers = text.partition("/")
        if not sign or not number.isdecimal() or not workers.isdecimal():
            raise ConfigError(
                f"--worker is {text!r}; expected I/N, such as 0/4 for the first of four"
            )
        return cls(int(number), int(workers))

    def order(self, shards: Sequence[CorpusShard]) -> tuple[list[CorpusShard], list[CorpusShard]]:
        """Return the shards of this worker, and the shards of the others, the next worker's first."""
        own = list(shards[self.number :: self.workers])
        others: list[CorpusShard] = []
        for step in range(1, self.workers):
            others += shards[(self.number + step) % self.workers :: self.workers]
        return own, others


@dataclass(frozen=True)
class EncodedPart:
    """Work that was done since the last report.

    Args:
        rows: number of encoded rows.
        size: bytes of the inputs of these rows, as far as they are known.
        tokens: that were read.
        padded: tokens and padding that were read.
        shards: number of finished shards.
    """

    rows: int = 0
    size: int = 0
    tokens: int = 0
    padded: int = 0
    shards: int = 0


Tell = Callable[[EncodedPart], None]


def work(
    job: EncodingJob, share: WorkerShare, tell: Tell = lambda part: None, stale: float = STALE
) -> dict[str, Any] | None:
    """Encode a share of the shards, and then all shards that no living worker has claimed; return
    the manifest if all shards are then finished, else None.

    Args:
        job: the encoding, begun.
        share: of this worker.
        tell: is called with each part of the work.
        stale: seconds after which the claim of another worker is taken over.

    Raises:
        TemperaError: a shard that cannot be encoded or written.
    """
    local = job.place.local
    claims = ShardClaims(None if local is None else local / CLAIMS, stale)
    own, others = share.order(job.shards)
    # Of an object store, nobody can claim a shard: each worker keeps to its share.
    waiting = own if local is None else [*own, *others]
    # The workers of a program that was killed a moment ago are about to end; only a single worker
    # waits for them.
    until = time.monotonic() + (_PATIENCE if share.workers == 1 else 0.0)
    while waiting:
        waiting = _pass(job, waiting, claims, tell)
        if not waiting or time.monotonic() >= until:
            break
        time.sleep(_PAUSE)
    document = job.finish()
    if document is not None:
        clear(job)
    return document


def _pass(
    job: EncodingJob, shards: Sequence[CorpusShard], claims: ShardClaims, tell: Tell
) -> list[CorpusShard]:
    """Encode the shards that are not finished; return the shards that others have claimed."""
    claimed = []
    for shard in shards:
        if job.record(shard) is not None:
            tell(EncodedPart(size=shard.size, shards=1))
        elif not claims.take(shard.name):
            claimed.append(shard)
        else:
            try:
                # Another worker may have finished the shard since it was looked at.
                if job.record(shard) is None:
                    _encode(job, shard, claims, tell)
            except OutputError:
                # A worker that has finished everything removes the files that are under way.
                if job.record(shard) is None:
                    raise
            finally:
                claims.release(shard.name)
    return claimed


def _encode(job: EncodingJob, shard: CorpusShard, claims: ShardClaims, tell: Tell) -> None:
    """Encode a shard, with reports and signs of life on the way."""
    read = job.encoder.read
    before = [read.tokens, read.padded]

    def on_rows(rows: int) -> None:
        claims.sign(shard.name)
        tell(EncodedPart(rows, 0, read.tokens - before[0], read.padded - before[1]))
        before[:] = [read.tokens, read.padded]

    job.encode(shard, on_rows)
    tell(EncodedPart(size=shard.size, shards=1))


def clear(job: EncodingJob) -> None:
    """Remove the claims and the unfinished files of a finished folder."""
    folder = job.place.local
    if folder is None:
        return
    shutil.rmtree(folder / CLAIMS, ignore_errors=True)
    for path in _unfinished(folder):
        with suppress(OSError):
            path.unlink()


def _unfinished(folder: Path) -> Iterator[Path]:
    yield from list(folder.glob(f"*{PARTIAL}"))
    for part in (SHARDS, RECORDS):
        yield from list((folder / part).rglob(f"*{PARTIAL}"))
