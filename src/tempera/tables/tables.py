"""Tables from files, a block of rows at a time: Parquet, Arrow, JSON and separated values, one file
or a folder of shards."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

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
_TYPED = (".parquet", ".arrow", ".inter", ".user", ".item")  # files with types of their columns
_COMPRESSED = (".gz", ".zst")  # of texts; Parquet and Arrow have compression of their own
# Ends of the names of folders that are written beside a run.
_BESIDE_RUNS = (".partial", ".replaced", ".checkpoints", ".trackers")


@dataclass(frozen=True)
class TableBlock:
    """Consecutive rows of one file."""

    table: pa.Table
    file: str  # the name of the file in messages
    first: int = 1  # number of the first row, counted from 1
    # The row of the file, counted from `first`, from which each row comes; None: in order.
    origin: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()  # on the form of the file so far, as parts of a sentence
    # "texts" of separated values, "json", whose dates are texts, or "typed"
    values: Literal["texts", "json", "typed"] = "typed"

    def number(self, row: int) -> int:
        """Return the number of a row of the block in the file."""
        if self.origin is not None:
            row = int(self.origin[row])
        return self.first + row

    def place(self, row: int) -> str:
        """Return the file and the number of a row of the block, in words."""
        return f"{self.file} row {self.number(row)}"


Parse = Callable[[Path], Iterator[pa.Table]]  # reads a file some rows at a time
# Reads a file of a form, and adds notes on unusual things to the list.
Reader = Callable[[Path, TableForm, list[str]], Iterator[pa.Table]]


def blocks(path: Path, form: TableForm = BY_CONTENT) -> Iterator[TableBlock]:
    """Read a file, or every file in a folder by name, in order; all texts are valid UTF-8.

    Args:
        path: of a file or a folder.
        form: the form of the files, as the user's options say.

    Raises:
        DataError: a file that is missing, empty, damaged, of another format or not UTF-8; the
            message names the file and the row.
        ConfigError: the file cannot have this form.
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
    """Read one file; raises the errors of `blocks`.

    Args:
        path: of the file.
        parse: reads the file; None chooses by the extension and the form.
        form: the form of the file, as the user's options say.
    """
    refuse_irregular(path)
    refuse_damaged(path)  # of an export
    if not path.is_file():
        raise DataError(f"no such file: {path}")
    kind = ending(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    first = 1
    notes = list[str]()
    try:
        tables = _reader(path)(path, form, notes) if parse is None else parse(path)
        for table in tables:
            _ = str(table.schema)  # Arrow decodes names when they are read, and may fail here
            yield TableBlock(
                decoded(table), str(path), first, notes=tuple(notes), values=_values_of(kind)
            )
            first += len(table)
    except UnicodeDecodeError:  # of a name, since the texts of rows were checked before
        raise DataError(f"{path}: the names of its columns are not UTF-8") from None
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        after = f" after row {first - 1:,}" if first > 1 else ""
        raise DataError(
            f"{path}: not a readable {kind.lstrip('.')} file{after}: {str(error).splitlines()[0]}"
        ) from None


def _reader(path: Path) -> Reader:
    """Return the reader of a file, by its extension, or by its content if the extension is unknown.

    Raises:
        DataError: the file is no table.
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
        DataError: as in `blocks`; also a column of changing type, or two columns of the same name.
    """
    return whole_table(path).table


def whole_table(path: Path) -> TableBlock:
    """Read every row of a file, as `read_table` does, with the way in which the file has its
    values."""
    every = list(blocks(path))
    tables = [block.table for block in every]
    refuse_repeated(tables[0].column_names, str(path))
    table = joined(tables, f"{path}: a column changes its type on the way")
    return TableBlock(table, str(path), values=every[0].values)


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Refuse a table with two columns of the same name."""
    for name in names:
        count = names.count(name)
        if count > 1:
            raise DataError(
                f"{where} has {count} columns named {name!r}; give each column a name of its own"
            )


def joined(tables: Sequence[pa.Table], otherwise: str) -> pa.Table:
    """Return the rows of all tables, with the columns of any table.

    Raises:
        DataError: `otherwise`, and the reason: the tables hold a column in several types.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{otherwise}: {str(error).splitlines()[0]}") from None


def parquet_table(path: Path) -> pa.Table:
    """Read a Parquet file, with pyarrow's own errors; pyarrow's `read_table` waits for ever for
    some damaged files.

    Raises:
        DataError: the file differs from its manifest.
    """
    import pyarrow.parquet as parquet

    refuse_damaged(path)

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def files_of(path: Path) -> list[Path]:
    """Return the files of a folder of shards, in order, or the files of a name with *; for any
    other path, the path itself.

    Raises:
        DataError: the folder holds no table, or several data sets, or is the folder of a run.
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
    """Yield the visible files below a folder.

    Hidden folders, runs, and unfinished folders beside runs are left out.
    """
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_left_out(Path(here, name))]
        for name in files:
            if not name.startswith("."):
                yield Path(here, name)


def _is_left_out(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name.endswith(_BESIDE_RUNS) or is_run(folder)


def is_table(path: Path) -> bool:
    """Return True if a file is read as a table, by its extension."""
    return ending(path) in _PARSERS


def is_written_as_text(path: Path) -> bool:
    """Return True if a file is text with an encoding, by its extension."""
    return ending(path) not in (".parquet", ".arrow")


def _values_of(kind: str) -> Literal["texts", "json", "typed"]:
    """Return the way in which a file has its values, by its extension."""
    if ".json" in kind:
        return "json"
    return "typed" if kind.startswith(_TYPED) else "texts"


def ending(path: Path) -> str:
    """Return the extension of a file's format, with the extension of the compression.

    >>> ending(Path("set.v1.csv.gz"))
    '.csv.gz'
    """
    parts = 2 if path.suffix.lower() in _COMPRESSED else 1
    return "".join(path.suffixes[-parts:]).lower()


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
    """Refuse options of texts for a file with its own names and encoding."""
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
        batches = reader
        if indexed:
            batches = map(reader.get_batch, range(reader.num_record_batches))
        for batch in batches:
            table = pa.Table.from_batches([batch])
            # Reading a value of a column that is not valid may end the process.
            table.validate(full=True)
            yield table


def valid(table: pa.Table, file: str, first: int = 1) -> None:
    """Refuse texts not in UTF-8: Arrow's readers let such texts pass.

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
_TABBED: Reader = partial(csv_tables, likely="\t")
_TEXTS: dict[str, Reader] = {
    ".jsonl": json_tables,
    ".json": json_tables,
    ".csv": csv_tables,
    ".tsv": _TABBED,
    ".tab": _TABBED,
    ".dat": _PLAIN,
    ".data": _PLAIN,
    ".inter": typed_tables,
    ".user": typed_tables,
    ".item": typed_tables,
}
_PARSERS: dict[str, Reader] = {".parquet": _parquet, ".arrow": _arrow}
for _kind, _read in _TEXTS.items():
    for _packed in ("", *_COMPRESSED):
        _PARSERS[_kind + _packed] = _read
