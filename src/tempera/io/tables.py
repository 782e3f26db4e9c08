"""Tables from files, a block of rows at a time: Parquet, Arrow, JSON and separated values, one file
or a folder of shards."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError, quantity
from .atomic import is_run
from .json_tables import BLOCK, json_tables, opened
from .manifest import refuse_damaged
from .saved_sets import arrow_files
from .untrusted import refuse_irregular

_ROWS = 1 << 16  # rows of a Parquet file that are held at once
_COMPRESSED = (".gz", ".zst")  # of texts; Parquet and Arrow have compression of their own
_START = 1 << 16  # bytes that show what divides columns
_SEPARATORS = ("::", ";", "\t", "|")  # that other programs write in place of commas
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_ARE_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_TYPES = ("token", "float", "token_seq", "float_seq")  # of columns of RecBole's files
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

    def number(self, row: int) -> int:
        """Return the number in its file of a row of this block."""
        return self.first + (row if self.origin is None else int(self.origin[row]))

    def place(self, row: int) -> str:
        """Return what to call a row of this block."""
        return f"{self.file} row {self.number(row)}"


Parse = Callable[[Path], Iterator[pa.Table]]  # a file some rows at a time


def blocks(path: Path) -> Iterator[TableBlock]:
    """Read a file, or every file in a folder by name, in order; all texts are valid UTF-8.

    Raises:
        DataError: a file that is missing, empty, damaged, of another format or not UTF-8; names the
            file and the row.
    """
    empty = True
    for file in files_of(path):
        for block in blocks_of(file):
            empty = empty and not len(block.table)
            yield block
    if empty:
        raise DataError(f"{path} holds no rows")


def blocks_of(path: Path, parse: Parse | None = None) -> Iterator[TableBlock]:
    """Read one file; raises as `blocks` does.

    Args:
        parse: how it is read; None is by its extension.
    """
    refuse_irregular(path)
    refuse_damaged(path)  # of an export
    if not path.is_file():
        raise DataError(f"no such file: {path}")
    kind = ending(path)
    if parse is None and kind not in _PARSERS:
        raise DataError(
            f"{path}: cannot read {kind or 'a file without extension'}; give one of {', '.join(_PARSERS)}"
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    first = 1
    try:
        for table in (parse or _PARSERS[kind])(path):
            _ = str(table.schema)  # names are read when they are asked for
            yield TableBlock(decoded(table), str(path), first)
            first += len(table)
    except UnicodeDecodeError:  # texts of rows have been looked at
        raise DataError(f"{path}: the names of its columns are not UTF-8") from None
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        after = f" after row {first - 1:,}" if first > 1 else ""
        raise DataError(
            f"{path}: not a readable {kind.lstrip('.')} file{after}: {str(error).splitlines()[0]}"
        ) from None


def decoded(table: pa.Table) -> pa.Table:
    """Return a table without dictionaries, such as categories of pandas, and with texts of polars
    as other writers have them.

    Dictionaries of views within lists are left, since Arrow does not cast them.
    """
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if pa.types.is_dictionary(field.type):
            kind = _plain(field.type.value_type)
            parts = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(parts, kind)
        if (kind := _plain(column.type)) != column.type:
            with suppress(pa.ArrowNotImplementedError):
                column = column.cast(kind)
        table = table if column.type == field.type else table.set_column(i, field.name, column)
    return table


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type whose texts, in lists and structs too, are in no dictionary, no views and no
    lists of a fixed size."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_fixed_size_list(kind) and any(each(kind.value_type) for each in _ARE_TEXTS):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind


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
    """Return the files of a folder of shards, in order; of anything else, the path itself.

    Raises:
        DataError: the folder holds no table, or several data sets, or is that of a run.
    """
    if not path.is_dir():
        return [path]
    if is_run(path):
        raise DataError(f"{path} is a run, not data: give a table of data, or a folder of tables")
    files = arrow_files(path) or sorted(
        file for file in visible_files(path) if is_table(file) and file.is_file()
    )
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


def ending(path: Path) -> str:
    """Return the extension by which a file is read, with that of its compression.

    >>> ending(Path("set.v1.csv.gz"))
    '.csv.gz'
    """
    return "".join(
        path.suffixes[-2:] if path.suffix.lower() in _COMPRESSED else path.suffixes[-1:]
    ).lower()


def _parquet(path: Path) -> Iterator[pa.Table]:
    import pyarrow.parquet as parquet

    first = 1
    with parquet.ParquetFile(path, memory_map=True) as file:
        for batch in file.iter_batches(_ROWS):
            table = pa.Table.from_batches([batch])
            valid(table, str(path), first)
            yield table
            first += len(table)


def _arrow(path: Path) -> Iterator[pa.Table]:
    """Read an Arrow file in either form: a file with an index, or a stream."""
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


def csv_tables(
    path: Path, names: Sequence[str] = (), sign: str = ",", quoted: bool = True
) -> Iterator[pa.Table]:
    """Read separated values, all of them texts; an empty one is null.

    Args:
        names: of the columns; without any, the first row holds them, unless all its values are
            numbers: columns are then called column1, column2, ...
        sign: what stands between values; in place of the comma, another one that divides the first
            two rows.
        quoted: whether double quotes enclose a value.
    """
    import pyarrow.csv as reader

    packed = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    with opened(path) as file:
        start = file.read(BLOCK)
        while packed and file.read(
            BLOCK
        ):  # the parser takes a gzip file that is cut short for a whole one
            pass
    sign = _separator(path, start[:_START]) if sign == "," else sign
    read = reader.ReadOptions(block_size=BLOCK, column_names=list(names))
    parse = reader.ParseOptions(
        delimiter=sign, quote_char='"' if quoted else False, newlines_in_values=quoted
    )
    try:
        with pa.input_stream(str(path), compression=packed) as stream:
            names = reader.open_csv(stream, read, parse).schema.names
        if not read.column_names and _are_numbers(names):
            read.column_names = names = [f"column{i}" for i in range(1, len(names) + 1)]
        texts = reader.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
        )
        with pa.input_stream(str(path), compression=packed) as stream:
            for batch in reader.open_csv(stream, read, parse, texts):
                yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        _refuse_row(path, read.column_names, sign, quoted)
        if "UTF8" in str(error):
            raise DataError(f"{path} is not UTF-8: save it in that encoding") from None
        raise


def typed_tables(path: Path) -> Iterator[pa.Table]:
    """Read one of RecBole's files: values between tabs, columns called NAME:TYPE, and lists with
    spaces between values.

    Values are texts and lists of texts, as those of separated values are.

    Raises:
        DataError: a column without a type.
    """
    for table in csv_tables(path, sign="\t", quoted=False):
        for i, header in enumerate(table.column_names):
            name, _, kind = header.rpartition(":")
            if not name or kind not in _TYPES:
                raise DataError(
                    f"{path}: column {header!r} has no type: call it NAME:TYPE, with one of {', '.join(_TYPES)}"
                )
            values = table.column(i)
            table = table.set_column(
                i, name, pc.split_pattern(values, " ") if kind.endswith("_seq") else values
            )
        yield table


def _separator(path: Path, start: bytes) -> str:
    """Return what divides the columns of a table: the comma, or another sign that the first two
    rows hold equally often.

    Args:
        start: of the file.

    Raises:
        DataError: a table in UTF-16.
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path} is in UTF-16: save it as UTF-8")
    text = start.decode("utf-8", "replace")
    beginnings = (
        [*each.split("\n", 2), ""][:2] for each in (text, re.sub(r'"[^"]*"', "", text))
    )  # values may be quoted
    signs = (
        sign
        for header, row in beginnings
        for sign in _SEPARATORS
        if "," not in header and 0 < header.count(sign) == row.count(sign)
    )
    if (sign := next(signs, ",")) == "::":
        raise DataError(
            f"{path}: its columns are divided by '::': write it with commas, or hand over what pandas.read_csv reads"
        )
    return sign


def _are_numbers(names: Sequence[str]) -> bool:
    return len(names) > 1 and all(map(_NUMBER.fullmatch, names))


def _refuse_row(path: Path, names: Sequence[str], sign: str, quoted: bool) -> None:
    """Refuse a file with its first row that is not UTF-8 or too long or short; none behind a value
    too long for Python's reader."""
    with opened(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        rows = filter(
            None,
            csv.reader(
                lines, delimiter=sign, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
            ),
        )
        with suppress(csv.Error):
            header = names or next(rows, [])
            for row, cells in enumerate(rows, 2 if not names and _are_numbers(header) else 1):
                for name, cell in zip(header, cells):
                    if not cell.isascii() and any(
                        "\udc80" <= letter <= "\udcff" for letter in cell
                    ):
                        raise DataError(
                            f"{path}, row {row}: column {name!r} is not UTF-8: save it in that encoding"
                        )
                if len(cells) != len(header):
                    what = (
                        f"{quantity(len(cells), 'values')} for {quantity(len(header), 'columns')}"
                    )
                    advice = (
                        f", and enclose those that hold {sign!r} in double quotes" if quoted else ""
                    )
                    raise pa.ArrowInvalid(
                        f"row {row} has {what}: give each row {len(header)}{advice}"
                    )


_TEXTS: dict[str, Parse] = {
    ".jsonl": json_tables,
    ".json": json_tables,
    ".csv": csv_tables,
    **dict.fromkeys((".tsv", ".tab"), partial(csv_tables, sign="\t")),
    **dict.fromkeys((".inter", ".user", ".item"), typed_tables),
}
_PARSERS: dict[str, Parse] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    **{kind + packed: parse for kind, parse in _TEXTS.items() for packed in ("", *_COMPRESSED)},
}
