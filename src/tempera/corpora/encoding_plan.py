"""The seconds and bytes of an encoding, from a sample that is encoded and thrown away."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DataError, quantity
from .encoded_shard import ShardWriter
from .encoding_job import EncodingJob
from .shard_files import CorpusShard
from .shard_tables import ShardPiece, count_rows, pieces
from .stored_vectors import refuse_unstorable

MINUTE = 60.0  # seconds of the sample
_WARM = 512  # rows that are encoded before the clock runs
_FEW = 20  # shards whose rows are counted; of more, a mean is taken
_BEGINNING = 1 << 22  # bytes of a file of texts whose lines are counted
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class EncodingEstimate:
    """The expected cost of an encoding.

    Args:
        shards: number of shards.
        rows: of all shards, estimated from some.
        sampled: number of rows that were encoded.
        seconds: of the sample.
        tokens: of the sample.
        padding: share of padding in the sample.
        bytes: of the vectors' files.
        workers: that work at once.
        price: of an hour of a worker.
    """

    shards: int
    rows: int
    sampled: int
    seconds: float
    tokens: int
    padding: float
    bytes: int
    workers: int = 1
    price: float | None = None

    @property
    def worker_seconds(self) -> float:
        """The seconds of all workers together."""
        return self.rows * self.seconds / max(1, self.sampled)

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        document = {
            "shards": self.shards,
            "rows": self.rows,
            "sampled_rows": self.sampled,
            "sampled_seconds": round(self.seconds, 3),
            "rows_per_second": round(self.sampled / max(self.seconds, 1e-9), 1),
            "tokens_per_second": round(self.tokens / max(self.seconds, 1e-9), 1),
            "padding": round(self.padding, 4),
            "bytes": self.bytes,
            "workers": self.workers,
            "seconds": round(self.worker_seconds / self.workers, 1),
            "worker_hours": round(self.worker_seconds / 3600, 4),
        }
        if self.price is not None:
            document["cost"] = round(self.worker_seconds / 3600 * self.price, 2)
        return document

    def __str__(self) -> str:
        about = self.json()
        lines = [
            f"{quantity(self.shards, 'shards')} with about {self.rows:,} rows",
            f"measured: {quantity(self.sampled, 'rows')} in {self.seconds:.1f} s, {about['rows_per_second']:,.0f} a second, "
            f"{self.padding:.0%} padding",
            f"seconds: {about['seconds']:,.0f} with {quantity(self.workers, 'workers')}, "
            f"{about['worker_hours']:,.2f} hours of a worker",
            f"bytes:   {self.bytes:,}",
        ]
        if self.price is not None:
            lines.append(f"cost:    {about['cost']:,.2f} at {self.price:g} an hour of a worker")
        return "\n".join(lines)


def estimate(
    job: EncodingJob,
    workers: int = 1,
    price: float | None = None,
    seconds: float = MINUTE,
) -> EncodingEstimate:
    """Return the expected cost of an encoding, from a sample of the shards; nothing is kept.

    Args:
        job: the encoding.
        workers: number of workers that are as fast as this process.
        price: of an hour of a worker.
        seconds: of the sample; a smaller corpus is encoded whole.

    Raises:
        TemperaError: wrong options, no model, or no corpus.
    """
    refuse_unstorable(job.options.dtype, job.encoder.similarity)
    first = next(_pieces(job), None)
    if first is None:
        raise DataError(f"{job.shards[0].address} holds no rows")
    warm = first[1].table.slice(0, _WARM)
    job.encoder(job.columns.texts(warm, first[0].address).to_pylist())
    read = job.encoder.read
    read.tokens = read.padded = 0

    sampled = 0
    size = 0
    clock = 0.0
    taken: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tempera-") as folder:
        path = Path(folder) / "sample.parquet"
        began = time.perf_counter()
        for shard, piece in _pieces(job):
            writer = ShardWriter(
                shard.name, path, shard.address, job.columns, job.encoder, job.options.dtype
            )
            writer.write(path, [piece])
            sampled += len(piece.table)
            taken[shard.name] = taken.get(shard.name, 0) + len(piece.table)
            size += path.stat().st_size
            clock = time.perf_counter() - began
            if clock > seconds:
                break
    rows = _rows(job, taken, clock > seconds)
    return EncodingEstimate(
        len(job.shards),
        rows,
        sampled,
        clock,
        read.tokens,
        read.padding,
        round(size * rows / max(1, sampled)),
        workers,
        price,
    )


def _pieces(job: EncodingJob) -> Iterator[tuple[CorpusShard, ShardPiece]]:
    """Yield parts of the shards in turn: the first part of every shard, the second of every shard,
    and so on."""
    shards = job.shards
    step = max(1, len(shards) // _FEW)
    chosen = shards[::step]
    streams = [_of_shard(job, shard) for shard in chosen]
    while streams:
        left = []
        for stream in streams:
            part = next(stream, None)
            if part is not None:
                yield part
                left.append(stream)
        streams = left


def _of_shard(job: EncodingJob, shard: CorpusShard) -> Iterator[tuple[CorpusShard, ShardPiece]]:
    with shard.file() as path:
        for piece in pieces(path, job.columns.names):
            yield shard, piece


def _rows(job: EncodingJob, taken: dict[str, int], is_part: bool) -> int:
    """Return the number of rows of the corpus, from the shards that say it, or else from the bytes
    of the sampled shards."""
    counted = 0
    size = 0
    step = max(1, len(job.shards) // _FEW)
    for shard in job.shards[::step]:
        with shard.file() as path:
            rows = count_rows(path)
            if rows is None:
                rows = taken.get(shard.name) if not is_part else _estimated(path, shard)
        counted += rows or 0
        size += shard.size
    total = sum(shard.size for shard in job.shards)
    return round(counted * total / max(1, size))


def _estimated(path: Path, shard: CorpusShard) -> int:
    """Return the number of rows of a file of texts, by the lines of its beginning."""
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    lines = _unpacked(beginning, path.suffix.lower()).count(b"\n")
    return max(1, round(lines * shard.size / max(1, len(beginning))))


def _unpacked(beginning: bytes, suffix: str) -> bytes:
    """Return the bytes of a text, whose file may be compressed and is cut off."""
    if suffix not in _COMPRESSED:
        return beginning
    stream = pa.CompressedInputStream(pa.BufferReader(beginning), _COMPRESSED[suffix])
    parts = []
    with suppress(OSError):  # at the cut
        while part := stream.read(1 << 16):
            parts.append(part)
    return b"".join(parts)
