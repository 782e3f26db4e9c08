"""The rows of a shard, some at a time, and the row group of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DataError
from ..io.untrusted import refuse_irregular
from ..tables.tables import blocks_of, ending, valid

ROWS = 1 << 14  # rows that are read and encoded at once; and of a row group of a text file


@dataclass(frozen=True)
class ShardPiece:
    """Consecutive rows of one row group.

    Args:
        table: the rows.
        group: number of the row group, from 0.
        first: number of the first row in the shard, from 0.
    """

    table: pa.Table
    group: int
    first: int


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a shard.

    Raises:
        DataError: an unreadable shard.
    """
    if ending(path) == ".parquet":
        with _parquet_file(path) as file:
            return list(file.schema_arrow.names)
    for block in blocks_of(path):
        return list(block.table.column_names)
    return []


def count_rows(path: Path) -> int | None:
    """Return the number of rows of a shard; None for a format that does not say it.

    Raises:
        DataError: an unreadable shard.
    """
    if ending(path) == ".parquet":
        with _parquet_file(path) as file:
            return int(file.metadata.num_rows)
    if ending(path) == ".arrow":
        return sum(len(block.table) for block in blocks_of(path))
    return None


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as parquet

    refuse_irregular(path)
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: not a readable parquet file: {str(error).splitlines()[0]}"
        ) from None


def count_groups(path: Path) -> int:
    """Return the number of row groups of a Parquet file.

    Raises:
        DataError: an unreadable shard.
    """
    with _parquet_file(path) as file:
        return int(file.num_row_groups)


def pieces(
    path: Path,
    columns: Sequence[str] | None = None,
    rows: int = ROWS,
    group: int | None = None,
) -> Iterator[ShardPiece]:
    """Yield the rows of a shard in order, at most `rows` at once.

    The row groups of a Parquet file and the batches of an Arrow file are kept. Of a text file,
    `rows` rows are a row group, whatever its reader yields at once.

    Args:
        path: of a local file.
        columns: to read; None reads all.
        rows: most rows of a piece.
        group: the only row group of a Parquet file to read; None reads all.

    Raises:
        DataError: an unreadable shard.
    """
    kind = ending(path)
    if kind == ".parquet":
        yield from _of_parquet(path, columns, rows, group)
        return
    if kind == ".arrow":
        yield from _of_arrow(path, rows)
        return
    first = 0
    for group, table in enumerate(_cut_again(path, rows)):
        yield ShardPiece(table, group, first)
        first += len(table)


def _of_parquet(
    path: Path, columns: Sequence[str] | None, rows: int, only: int | None
) -> Iterator[ShardPiece]:
    """Yield the rows of all row groups, or of one."""
    import pyarrow.parquet as parquet

    groups: list[int] = []  # of each table so far
    before = 0  # rows of the groups before the only one

    def parse(place: Path) -> Iterator[pa.Table]:
        nonlocal before
        first = 1
        with parquet.ParquetFile(place, memory_map=True) as file:
            chosen = range(file.num_row_groups)
            if only is not None:
                chosen = range(only, only + 1)
                before = sum(file.metadata.row_group(group).num_rows for group in range(only))
            if columns is not None:
                wanted = [name for name in columns if name in file.schema_arrow.names]
            else:
                wanted = None
            for group in chosen:
                for batch in file.iter_batches(rows, row_groups=[group], columns=wanted):
                    table = pa.Table.from_batches([batch])
                    valid(table, str(place), before + first)
                    first += len(table)
                    groups.append(group)
                    yield table

    for block in blocks_of(path, parse):
        if len(block.table):
            yield ShardPiece(block.table, groups[-1], before + block.first - 1)


def _of_arrow(path: Path, rows: int) -> Iterator[ShardPiece]:
    for group, block in enumerate(blocks_of(path)):
        for start in range(0, len(block.table), rows):
            yield ShardPiece(block.table.slice(start, rows), group, block.first - 1 + start)


def _cut_again(path: Path, rows: int) -> Iterator[pa.Table]:
    """Yield tables of exactly `rows` rows, and the rest."""
    waiting: list[pa.Table] = []
    count = 0
    for block in blocks_of(path):
        waiting.append(block.table)
        count += len(block.table)
        while count >= rows:
            table = _joined(waiting, path)
            yield table.slice(0, rows)
            waiting = [table.slice(rows)]
            count -= rows
    if count:
        yield _joined(waiting, path)


def _joined(tables: Sequence[pa.Table], path: Path) -> pa.Table:
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: a column changes its type on the way: {str(error).splitlines()[0]}"
        ) from None
