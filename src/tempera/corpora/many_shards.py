"""A folder of vectors in shards, read in memory that does not grow with the rows.

Letters in shapes: q queries, c rows of all shards, n rows at once, D width, k nearest rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from ..errors import DataError
from ..io.manifest import refuse_damaged
from ..ranking.nearest import refuse_not_finite, top
from ..tables.arrow_types import is_text
from ..towers.stamp import Stamp
from .corpus_manifest import read_corpus, shard_name
from .output_place import OutputPlace, place_of
from .shard_columns import EMBEDDING, ID, of_numbers
from .stored_vectors import Vectors, is_vectors, restored

Positions = NDArray[np.int64]
ROWS = 1 << 16  # vectors in memory at once
_REMEDY = "the file is damaged: remove it, and run the same tempera encode again"


@dataclass(frozen=True)
class VectorBlock:
    """Consecutive rows of a corpus of vectors.

    Args:
        first: position of the first row in the corpus.
        shard: name of the shard.
        vectors: to compare, [n, D].
        ids: [n], if they were asked for.
    """

    first: int
    shard: str
    vectors: Vectors
    ids: pa.Array | None = None


class EncodedShards:
    """Open a folder that `tempera encode` has finished; rows are numbered over all shards, in the
    order of the corpus.

    Args:
        folder: path, or address in an object store.

    Raises:
        DataError: no such folder, an unfinished one, or a damaged manifest.
    """

    def __init__(self, folder: str) -> None:
        self.place: OutputPlace = place_of(folder)
        about = read_corpus(self.place)
        self.model: dict[str, Any] = about["model"]
        self.options: dict[str, Any] = about["options"]
        self.names: list[str] = [shard["name"] for shard in about["shards"]]
        rows = [shard["rows"] for shard in about["shards"]]
        self.fingerprint: str = self.model["fingerprint"]
        self.width: int = self.model["dimensions"]
        # Position of the first row of each shard, and the number of all rows, [shards + 1].
        self.starts: Positions = np.cumsum([0, *rows])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def stamp(self) -> Stamp:
        """The facts about all vectors."""
        similarity = self.model["similarity"]
        is_unit = similarity == "cosine"
        return Stamp(self.fingerprint, self.width, similarity, is_unit)

    def blocks(
        self, shards: Sequence[str] | None = None, with_ids: bool = False, rows: int = ROWS
    ) -> Iterator[VectorBlock]:
        """Yield the vectors of all shards, or of some, in order, at most `rows` at once.

        Raises:
            DataError: a shard is missing, damaged, or of another model.
        """
        columns = [ID, EMBEDDING] if with_ids else [EMBEDDING]
        for number, name in enumerate(self.names):
            if shards is not None and name not in shards:
                continue
            first = int(self.starts[number])
            with self._opened(number) as file:
                for batch in file.iter_batches(rows, columns=columns):
                    ids = batch.column(ID) if with_ids else None
                    where = f"{self.place.address}/{shard_name(name)}"
                    if batch.column(EMBEDDING).null_count:
                        raise DataError(f"{where} has rows with no vector: {_REMEDY}")
                    vectors = restored(batch.column(EMBEDDING))
                    refuse_not_finite(vectors, where, _REMEDY)
                    yield VectorBlock(first, name, vectors, ids)
                    first += len(batch)

    def tables(self) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Yield the ids and the kept columns of all rows in order, at most `ROWS` at once, with the
        name of the shard and the number of the first row in it, from 0.

        Raises:
            DataError: a shard is missing, damaged, or of another model.
        """
        for number, name in enumerate(self.names):
            with self._opened(number) as file:
                columns = [each for each in file.schema_arrow.names if each != EMBEDDING]
                first = 0
                for batch in file.iter_batches(ROWS, columns=columns):
                    yield name, first, batch
                    first += len(batch)

    def nearest(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        """Return scores and positions of the k rows nearest to each query vector, best first, [q,
        D] -> [q, min(k, c)] each; equal scores in the order of the corpus.

        Every row is compared. In memory are the best of each query, and `ROWS` vectors.

        Raises:
            DataError: a shard is missing, damaged, or of another model; or queries of another
                width, or that are not finite.
        """
        if queries.shape[1] != self.width:
            raise DataError(
                f"{self.place.address}: the queries have {queries.shape[1]} dimensions, and its vectors {self.width}"
            )
        refuse_not_finite(queries, "queries")
        scores = np.empty((len(queries), 0), np.float32)
        positions = np.empty((len(queries), 0), np.int64)
        for block in self.blocks():
            near, rows = top(queries, block.vectors, k)
            scores, positions = merged((scores, positions), (near, rows + block.first), k)
        return scores, positions

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors of the rows at rising positions, [n, D], in one pass over the
        shards."""
        vectors = np.empty((len(positions), self.width), np.float32)
        for here, taken in self.taken(positions):
            vectors[here] = taken
        return vectors

    def taken(self, positions: Positions) -> Iterator[tuple[slice, Vectors]]:
        """Yield the vectors of the rows at rising positions, some at a time, with their places in
        `positions`, in one pass over the shards; positions below 0 are no row."""
        for block in self.blocks():
            end = block.first + len(block.vectors)
            low, high = np.searchsorted(positions, (block.first, end)).tolist()
            if low < high:
                yield slice(low, high), block.vectors[positions[low:high] - block.first]

    def rows(self, positions: Positions) -> list[dict[str, Any]]:
        """Return the id and the kept columns of the rows at some positions, with the name of the
        shard and the number of the row in it, from 0."""
        row_at: dict[int, dict[str, Any]] = {}
        shard_of = np.searchsorted(self.starts, positions, side="right") - 1
        for number in np.unique(shard_of):
            wanted = np.unique(positions[shard_of == number]) - self.starts[number]
            with self._opened(int(number)) as file:
                for row, values in _taken(file, wanted):
                    place = {"shard": self.names[number], "row": row, "columns": values}
                    row_at[int(self.starts[number]) + row] = {"id": values.pop(ID), **place}
        return [row_at[int(position)] for position in positions]

    @contextmanager
    def _opened(self, number: int) -> Iterator[Any]:
        """Give the file of a shard, once it is known to be as it was written."""
        name = shard_name(self.names[number])
        where = f"{self.place.address}/{name}"
        try:
            if self.place.size(name) is None:
                raise DataError(
                    f"{where} is missing: run the same tempera encode again, which encodes it again"
                )
            with parquet.ParquetFile(
                self.place.opened(name), page_checksum_verification=True
            ) as file:
                stamp = Stamp.read(file.schema_arrow.metadata, where)  # type: ignore[arg-type]
                if stamp is None or stamp.model != self.fingerprint:
                    raise DataError(
                        f"{where} holds vectors of another model than the corpus: remove it, and run the same "
                        "tempera encode again"
                    )
                if self.place.local is not None:
                    refuse_damaged(self.place.local / name)
                self._refuse_other_columns(file.schema_arrow, where)
                if file.metadata.num_rows != self.starts[number + 1] - self.starts[number]:
                    raise DataError(f"{where} is damaged: it has {file.metadata.num_rows:,} rows")
                yield file
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{where} is damaged: {str(error).splitlines()[0]}") from None

    def _refuse_other_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise DataError for a shard without ids as texts, vectors of this width, and texts in the
        columns of texts that it keeps."""
        kinds = dict(zip(schema.names, schema.types, strict=True))
        wrong = [name for name in (ID, *self.options["text"]) if not _is_texts(kinds, name)]
        if len(kinds) < len(schema.names):
            fault = "two of its columns have one name"
        elif wrong or ID not in kinds:
            fault = f"its column {[*wrong, ID][0]!r} does not hold texts"
        elif not is_vectors(kinds.get(EMBEDDING), self.width):
            fault = f"its column {EMBEDDING!r} does not hold vectors of {self.width} numbers"
        else:
            return
        raise DataError(
            f"{where} is damaged: {fault}: remove it, and run the same tempera encode again"
        )


def encoded_documents(folder: str | Path) -> EncodedShards:
    """Return an encoded corpus, to compare with queries.

    Raises:
        DataError: no finished corpus of vectors, or vectors of queries.
    """
    shards = EncodedShards(str(folder))
    if shards.options.get("role") != "doc":
        raise DataError(f"{folder} holds vectors of queries; encode documents")
    return shards


def sampled(shards: EncodedShards, count: int) -> Vectors:
    """Return the vectors of `count` distinct rows, [min(count, c), D]: one at random from each of
    as many equal parts of the corpus."""
    count = min(count, len(shards))
    draw = np.random.default_rng(0)
    starts = np.arange(count + 1) * len(shards) // max(1, count)
    wanted = draw.integers(starts[:-1], starts[1:])
    return shards.vectors(wanted)


def merged(
    one: tuple[Vectors, Positions], other: tuple[Vectors, Positions], k: int
) -> tuple[Vectors, Positions]:
    """Return the k best of two rankings of each query, [q, .] each, best first; equal scores by
    rising position.

    >>> one = np.array([[0.9, 0.5]], np.float32), np.array([[3, 1]])
    >>> other = np.array([[0.5, 0.4]], np.float32), np.array([[7, 9]])
    >>> [each.tolist() for each in merged(one, other, 3)[1:]]
    [[[3, 1, 7]]]
    """
    scores = np.concatenate([one[0], other[0]], axis=1)
    positions = np.concatenate([one[1], other[1]], axis=1)
    order = np.lexsort((positions, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)


def _is_texts(kinds: Mapping[str, pa.DataType], name: str) -> bool:
    """Return True if a column holds texts, or is not there."""
    kind = kinds.get(name, pa.string())
    return is_text(kind) or pa.types.is_null(kind)


def _taken(file: Any, rows: Positions) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield some rows of a shard, rising, without their vectors; only their row groups are read."""
    columns = [name for name in file.schema_arrow.names if name != EMBEDDING]
    start = 0
    for group in range(file.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        here = rows[(rows >= start) & (rows < end)]
        if len(here):
            table = file.read_row_group(group, columns=columns, use_threads=False)
            taken = table.take(of_numbers(here - start))
            yield from zip(here.tolist(), taken.to_pylist(), strict=True)
        start = end
