"""Tables from files, a block of rows at a time: Parquet, Arrow, JSON and separated values, one file
or a folder of shards."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..io.atomic import is_run
from ..io.manifest import refuse_damaged
from ..io.untrusted import refuse_irregular
from .arrow_types import decoded
from .json_tables import json_tables
from .saved_sets import arrow_files
from .separated import csv_tables, is_separated, typed_tables
from .table_form import BY_CONTENT, TableForm

__all__ = ["TableBlock", "blocks", "blocks_of", "csv_tables", "read_table"]

_ROWS = 1 << 16  # rows of a Parquet file that are held at once
FEW = 20  # files of a folder that are looked into, where no name tells of a table
_COMPRESSED = (".gz", ".zst")  # of texts; Parquet and Arrow have compression of their own
_BESIDE_RUNS = (
    ".partial",
    ".replaced",
    ".checkpoints",
    ".trackers",
)  # ends of folders that are written beside a run


@dataclass(frozen=True)
class TableBlock:
    """Consecutive rows of one file."""

    table: pa.Table
    file: str  # as it is named in messages
    first: int = 1  # number of the first row, counted from 1
    origin: NDArray[np.int64] | None = (
        None  # row of the file, from `first` on, that each row is of; None: in order
    )
    notes: tuple[str, ...] = ()  # on the form of the file so far, as parts of a sentence

    def number(self, row: int) -> int:
        """Return the number in its file of a row of this block."""
        return self.first + (row if self.origin is None else int(self.origin[row]))

    def place(self, row: int) -> str:
        """Return what to call a row of this block."""
        return f"{self.file} row {self.number(row)}"


Parse = Callable[[Path], Iterator[pa.Table]]  # a file some rows at a time
Reader = Callable[[Path, TableForm, list[str]], Iterator[pa.Table]]  # and what is unusual in it


def blocks(path: Path, form: TableForm = BY_CONTENT) -> Iterator[TableBlock]:
    """Read a file, or every file in a folder by name, in order; all texts are valid UTF-8.

    Args:
        form: what the user says of the files.

    Raises:
        DataError: a file that is missing, empty, damaged, of another format or not UTF-8; names the
            file and the row.
        ConfigError: the form is not one that such a file has.
    """
    empty = True
    for file in files_of(path):
        for block in blocks_of(file, form=form):
            empty = empty and not len(block.table)
            yield block
    if empty:
        raise DataError(f"{path} holds no rows")


def blocks_of(
    path: Path, parse: Parse | None = None, form: TableForm = BY_CONTENT
) -> Iterator[TableBlock]:
    """Read one file; raises as `blocks` does.

    Args:
        parse: how it is read; None is by its extension, and its form.
    """
    refuse_irregular(path)
    refuse_damaged(path)  # of an export
    if not path.is_file():
        raise DataError(f"no such file: {path}")
    kind = ending(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    first, notes = 1, list[str]()
    try:
        for table in parse(path) if parse else _reader(path)(path, form, notes):
            _ = str(table.schema)  # names are read when they are asked for
            yield TableBlock(decoded(table), str(path), first, notes=tuple(notes))
            first += len(table)
    except UnicodeDecodeError:  # texts of rows have been looked at
        raise DataError(f"{path}: the names of its columns are not UTF-8") from None
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        after = f" after row {first - 1:,}" if first > 1 else ""
        raise DataError(
            f"{path}: not a readable {kind.lstrip('.')} file{after}: {str(error).splitlines()[0]}"
        ) from None


def _reader(path: Path) -> Reader:
    """Return how a file is read, by its extension, or by its content if that is unknown.

    Raises:
        DataError: no table.
    """
    kind = ending(path)
    if kind in _PARSERS:
        return _PARSERS[kind]
    if is_separated(path):
        return _PLAIN
    raise DataError(
        f"{path}: cannot read {kind or 'a file without extension'}; give one of {', '.join(_PARSERS)}"
    )


def read_table(path: Path) -> pa.Table:
    """Read every row of a file, all texts valid UTF-8; columns of CSV are texts.

    Raises:
        DataError: as `blocks` does, and for columns that change their type, or of which two have
            one name.
    """
    tables = [block.table for block in blocks(path)]
    refuse_repeated(tables[0].column_names, str(path))
    return joined(tables, f"{path}: a column changes its type on the way")


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Refuse a table with two columns of one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"{where} has {names.count(twice)} columns named {twice!r}; give each column a name of its own"
        )


def joined(tables: Sequence[pa.Table], otherwise: str) -> pa.Table:
    """Return the rows of all tables, with the columns of any.

    Raises:
        DataError: `otherwise`, and the reason: the tables hold one column in several ways.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{otherwise}: {str(error).splitlines()[0]}") from None


def parquet_table(path: Path) -> pa.Table:
    """Read a Parquet file, with pyarrow's own errors; its `read_table` waits for ever for some that
    are damaged.

    Raises:
        DataError: the file is not as its manifest has it.
    """
    import pyarrow.parquet as parquet

    refuse_damaged(path)

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def files_of(path: Path) -> list[Path]:
    """Return the files of a folder of shards, in order, or those that a name with * stands for; of
    anything else, the path itself.

    Raises:
        DataError: the folder holds no table, or several data sets, or is that of a run.
    """
    if "*" in path.name and not path.exists():
        return sorted(path.parent.glob(path.name)) or [path]
    if not path.is_dir():
        return [path]
    if is_run(path):
        raise DataError(f"{path} is a run, not data: give a table of data, or a folder of tables")
    visible = sorted(file for file in visible_files(path) if file.is_file())
    files = arrow_files(path) or [file for file in visible if is_table(file)]
    if not files and len(visible) <= FEW:
        files = [file for file in visible if is_separated(file)]
    if not files:
        raise DataError(f"{path} holds no table: give tables, such as .parquet, .jsonl or .csv")
    return files


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield what lies below a folder, but for folders, and is not hidden, nor in a hidden folder, a
    run or what lies beside one."""
    for here, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not (name.startswith(".") or name.endswith(_BESIDE_RUNS) or is_run(Path(here, name)))
        ]
        yield from (Path(here, name) for name in files if not name.startswith("."))


def is_table(path: Path) -> bool:
    """Return whether a file is read as a table, by its extension."""
    return ending(path) in _PARSERS


def is_written_as_text(path: Path) -> bool:
    """Return whether a file is text, which has an encoding, by its extension."""
    return ending(path) not in (".parquet", ".arrow")


def ending(path: Path) -> str:
    """Return the extension by which a file is read, with that of its compression.

    >>> ending(Path("set.v1.csv.gz"))
    '.csv.gz'
    """
    return "".join(
        path.suffixes[-2:] if path.suffix.lower() in _COMPRESSED else path.suffixes[-1:]
    ).lower()


def _parquet(path: Path, form: TableForm, _notes: list[str]) -> Iterator[pa.Table]:
    import pyarrow.parquet as parquet

    _refuse_form(path, form)
    first = 1
    with parquet.ParquetFile(path, memory_map=True) as file:
        for batch in file.iter_batches(_ROWS):
            table = pa.Table.from_batches([batch])
            valid(table, str(path), first)
            yield table
            first += len(table)


def _refuse_form(path: Path, form: TableForm) -> None:
    """Refuse options of texts for a file that has its own names and encoding."""
    for name, value in vars(form).items():
        if value is not None:
            raise ConfigError(
                f"data.{name} is for tables that are written as text, and {path} holds it itself: leave it out"
            )


def _arrow(path: Path, form: TableForm, _notes: list[str]) -> Iterator[pa.Table]:
    """Read an Arrow file in either form: a file with an index, or a stream."""
    _refuse_form(path, form)
    with pa.memory_map(str(path)) as file:
        indexed = file.read(6) == b"ARROW1"
        file.seek(0)
        reader = pa.ipc.open_file(file) if indexed else pa.ipc.open_stream(file)
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if indexed else reader:
            table = pa.Table.from_batches([batch])
            table.validate(
                full=True
            )  # reading one value of a column that is not valid may end the process
            yield table


def valid(table: pa.Table, file: str, first: int = 1) -> None:
    """Refuse texts that are not UTF-8, which Arrow's readers pass on.

    Raises:
        DataError: names the row and the column.
    """
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        for name, column in zip(table.column_names, table.columns):
            for row in range(len(table)):
                try:
                    column[row].as_py()
                except UnicodeDecodeError:
                    raise DataError(
                        f"{file}, row {first + row}: column {name!r} is not UTF-8: save it in that encoding"
                    ) from None
        raise


_PLAIN: Reader = partial(csv_tables, likely="")
_TEXTS: dict[str, Reader] = {
    ".jsonl": json_tables,
    ".json": json_tables,
    ".csv": csv_tables,
    **dict.fromkeys((".tsv", ".tab"), partial(csv_tables, likely="\t")),
    **dict.fromkeys((".dat", ".data"), _PLAIN),
    **dict.fromkeys((".inter", ".user", ".item"), typed_tables),
}
_PARSERS: dict[str, Reader] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    **{kind + packed: parse for kind, parse in _TEXTS.items() for packed in ("", *_COMPRESSED)},
}
