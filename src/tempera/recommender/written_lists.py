"""Tables written piece by piece, as Parquet, CSV or JSON lines by the ending of the file's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from ..errors import OutputError
from ..io.atomic import new_file

_ROWS = 1 << 17  # of a row group, at least


def refuse_ending(path: Path) -> None:
    """Raise OutputError for a file whose name has none of the endings."""
    if path.suffix not in _WRITERS:
        raise OutputError(
            f"cannot write recommendations to {path}; give a name that ends in {', '.join(_WRITERS)}"
        )


def write_lists(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write tables of one schema, one after the other, and return the number of rows; the file
    appears whole or not at all.

    Raises:
        OutputError: another ending of the name, or the file cannot be written.
    """
    refuse_ending(path)
    with new_file(path) as partial:
        return _WRITERS[path.suffix](partial, iter(tables))


def write_parquet_tables(
    path: Path, tables: Iterator[pa.Table], metadata: dict[bytes, bytes] | None = None
) -> int:
    """Write tables of one schema as row groups that are not small; return the number of rows."""
    first = next(tables)
    total = 0
    with parquet.ParquetWriter(path, first.schema.with_metadata(metadata)) as writer:
        for group in _groups(chain([first], tables)):
            writer.write_table(group.replace_schema_metadata(metadata))
            total += len(group)
    return total


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables joined to groups of at least `_ROWS` rows; the last group may be smaller."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _write_csv(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write tables as CSV, with a line of names; return the number of rows."""
    first = next(tables)
    total = 0
    with csv.CSVWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
            total += len(table)
    return total


def _write_json_lines(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write tables as JSON lines; return the number of rows."""
    total = 0
    with path.open("w", encoding="utf-8") as file:
        for table in tables:
            for row in _with_short_floats(table).to_pylist():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            total += len(table)
    return total


def _with_short_floats(table: pa.Table) -> pa.Table:
    """Return a table with float32 numbers as the float64 of the fewest digits, as in CSV."""
    for place, field in enumerate(table.schema):
        if pa.types.is_float32(field.type):
            numbers = table[field.name].cast(pa.string()).cast(pa.float64())
            table = table.set_column(place, field.name, numbers)
    return table


_WRITERS: dict[str, Callable[[Path, Iterator[pa.Table]], int]] = {
    ".parquet": write_parquet_tables,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
}
