"""Tables from files, a block of rows at a time: Parquet, JSON lines and CSV, plain or gzip, one file or a folder of shards."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyarrow as pa

from ..errors import DataError
from .documents import parsed

_BLOCK = 1 << 24  # bytes that are parsed at once; a longer row of CSV cannot be read
_LONGEST = 1 << 28  # bytes of a row of JSON
_DEEPEST = 64  # lists and objects inside one another; pyarrow's parser overflows its stack by some thousands
_NULL = re.compile(rb"^[ \t\r]*null", re.MULTILINE)
_BRACKETS = bytes(set(range(256)) - set(b"[]{}\n"))  # all other bytes
_ROWS = 1 << 16  # rows of a Parquet file that are held at once
_SEPARATORS = ("::", ";", "\t", "|")  # that other programs write in place of commas
_ROW = re.compile(r"(?:in row|Row #)\s*(\d+)")


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one file."""

    table: pa.Table
    file: str  # as it is named in messages
    first: int = 1  # number of the first row, counted from 1

    def place(self, row: int) -> str:
        """What to call a row of this block."""
        return f"{self.file}:{self.first + row}"


def blocks(path: Path) -> Iterator[Block]:
    """The rows of a file, or of every file in a folder by name, in order; all texts are valid UTF-8.

    Raises:
        DataError: what is not there, empty, damaged, of another format or not UTF-8, with the file and the row.
    """
    files = _shards(path) if path.is_dir() else [path]
    empty = True
    for file in files:
        for block in _read(file):
            empty = empty and not len(block.table)
            yield block
    if empty:
        raise DataError(f"{path} holds no rows: an empty data set cannot be trained on")


def read_table(path: Path) -> pa.Table:
    """Every row of a file, all texts valid UTF-8; columns of CSV are texts.

    Raises:
        DataError: as `blocks` does, and for columns that change their type.
    """
    return joined([block.table for block in blocks(path)], f"{path}: a column changes its type on the way")


def joined(tables: Sequence[pa.Table], otherwise: str) -> pa.Table:
    """The rows of all tables, with the columns of any.

    Raises:
        DataError: `otherwise`, and why: the tables hold one column in several ways.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{otherwise}: {str(error).splitlines()[0]}") from None


def parquet_table(path: Path) -> pa.Table:
    """A file of Parquet, with pyarrow's own errors; its `read_table` waits for ever for some that are damaged."""
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        return file.read(use_threads=False)


def _shards(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and _kind(path) in _READERS)
    if not files:
        raise DataError(f"{folder} holds no file to read: give a folder of {', '.join(_READERS)}")
    return files


def _kind(path: Path) -> str:
    return "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]).lower()


def _read(path: Path) -> Iterator[Block]:
    if not path.is_file():
        raise DataError(f"no such file: {path}")
    kind = _kind(path)
    if kind not in _READERS:
        raise DataError(f"{path}: cannot read {kind or 'a file without extension'}; give one of {', '.join(_READERS)}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: an empty data set cannot be trained on")
    first = 1
    try:
        for table in _READERS[kind](path):
            _ = str(table.schema)  # names are read when they are asked for
            yield Block(table, str(path), first)
            first += len(table)
    except UnicodeDecodeError:  # texts of rows have been looked at
        raise DataError(f"{path}: the names of its columns are not UTF-8") from None
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        after = f" after row {first - 1:,}" if first > 1 else ""
        raise DataError(
            f"{path}: not a readable {kind.lstrip('.')} file{after}: {str(error).splitlines()[0]}"
        ) from None


def _parquet(path: Path) -> Iterator[pa.Table]:
    import pyarrow.parquet as parquet

    first = 1
    with parquet.ParquetFile(path, memory_map=True) as file:
        for batch in file.iter_batches(_ROWS):
            table = pa.Table.from_batches([batch])
            valid(table, str(path), first)
            yield table
            first += len(table)


def valid(table: pa.Table, file: str, first: int = 1) -> None:
    """Refuse texts that are not UTF-8, which a reader passes on.

    Raises:
        DataError: says row and column.
    """
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        for name, column in zip(table.column_names, table.columns):
            for row in range(len(table)):
                try:
                    column[row].as_py()
                except UnicodeDecodeError:
                    raise DataError(f"{file}, row {first + row}: column {name!r} is not UTF-8") from None
        raise


def _json(path: Path) -> Iterator[pa.Table]:
    first = 1
    with opened(path) as file:
        for lines in whole_lines(file, path):
            try:
                lines.decode("utf-8")
                refuse_fatal(lines, path, first)
                table = _table(lines)
            except (pa.ArrowInvalid, UnicodeDecodeError) as error:
                _json_fault(path, lines, first, error)
            yield table
            first += len(table)
    if first == 1:
        yield pa.table({})


def _table(lines: bytes) -> pa.Table:
    """JSON lines as a table.

    Where types are inferred, Arrow loses nulls that a column's first list begins with, and moves the values of later rows up
    (apache/arrow#51305); where they are given, it does not.
    """
    import pyarrow.json as reader

    options = reader.ReadOptions(block_size=len(lines) + 1, use_threads=False)
    table = reader.read_json(io.BytesIO(lines), options)
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        schema = pa.schema([field.with_type(_with_texts(field.type)) for field in table.schema])
        read = reader.read_json(io.BytesIO(lines), options, reader.ParseOptions(explicit_schema=schema))
        columns = [_as(column.combine_chunks(), kind) for column, kind in zip(read.columns, table.schema.types)]
        table = pa.table(columns, schema=table.schema)
        table.validate(full=True)
    return table


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """A type whose lists of nothing but nulls are lists of texts, which Arrow counts right."""
    if pa.types.is_list(kind):
        return pa.list_(pa.string() if pa.types.is_null(kind.value_type) else _with_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in kind])
    return kind


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of the type that `_with_texts` has made of `kind`, as `kind`."""
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(values.offsets, _as(values.values, kind.value_type), mask=values.is_null())
    if pa.types.is_struct(kind):
        parts = [_as(values.field(i), field.type) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
    return values


def opened(path: Path) -> BinaryIO:
    """A file's bytes, decompressed by its extension."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def refuse_fatal(lines: bytes, path: Path, first: int) -> None:
    """Refuse rows of JSON that pyarrow's parser does not survive: a bare null, and too many lists inside one another.

    Raises:
        DataError: says the row, counted from `first`.
    """
    if (found := _NULL.search(lines)) is not None:
        row = first + sum(1 for line in lines[: found.start()].split(b"\n") if line.strip())
        raise DataError(f"{path}, row {row}: an object of columns is expected, and it is null")
    brackets = lines.translate(None, _BRACKETS)
    if len(max(brackets.split(b"\n"), key=len)) < _DEEPEST:
        return
    for row, line in enumerate(filter(bytes.strip, lines.split(b"\n")), first):
        depth = 0
        for sign in re.sub(rb'"(?:[^"\\]|\\.)*"', b"", line).translate(None, _BRACKETS):
            depth += 1 if sign in b"[{" else -1
            if depth > _DEEPEST:
                raise DataError(f"{path}, row {row}: more than {_DEEPEST} lists and objects inside one another")


def whole_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Blocks that end with a line's end; blank ones are left out.

    Raises:
        DataError: a row that is longer than all that a row may be.
    """
    rest, first = b"", True
    while block := file.read(_BLOCK):
        if first:
            block, first = block.removeprefix(b"\xef\xbb\xbf"), False
        lines, newline, tail = block.rpartition(b"\n")
        if not newline:
            rest += block
            if len(rest) > _LONGEST:
                raise DataError(f"{path} has a row of more than {_LONGEST >> 20} MiB: is it one of JSON lines?")
            continue
        whole, rest = rest + lines + newline, tail
        if whole.strip():
            yield whole
    if rest.strip():
        yield rest


def _json_fault(path: Path, lines: bytes, first: int, error: Exception) -> NoReturn:
    """Say which row; reading line by line is slow, and only for blocks with a fault."""
    rows = [line for line in lines.split(b"\n") if line.strip()]
    for row, line in enumerate(rows, first):
        try:
            parsed(line.decode("utf-8")).items()
        except UnicodeDecodeError:
            raise DataError(f"{path}, row {row}: not UTF-8") from None
        except ValueError as fault:
            raise DataError(f"{path}, row {row}: not JSON: {fault}") from None
        except AttributeError:
            raise DataError(f"{path}, row {row}: an object of columns is expected: {line[:40]!r}") from None
    found = _ROW.search(str(error))
    row = first + int(found[1]) if found else first
    text = re.sub(r"^JSON parse error: | in row \d+$", "", str(error).splitlines()[0])
    raise DataError(f"{path}, row {row}: {text[0].lower()}{text[1:]}") from None


def _csv(path: Path) -> Iterator[pa.Table]:
    import pyarrow.csv as reader

    read, parse = reader.ReadOptions(block_size=_BLOCK), reader.ParseOptions(newlines_in_values=True)
    with opened(path) as file:
        while file.read(1 << 24):  # the parser takes a gzip file that is cut short for a whole one
            pass
    try:
        with pa.input_stream(str(path)) as stream:  # decompresses by extension
            names = reader.open_csv(stream, reader.ReadOptions(block_size=_BLOCK), parse).schema.names
        if len(names) == 1:
            _refuse_separator(path, names[0])
        texts = reader.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
        )
        with pa.input_stream(str(path)) as stream:
            for batch in reader.open_csv(stream, read, parse, texts):
                yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            _csv_fault(path)
        raise


def _refuse_separator(path: Path, header: str) -> None:
    """Refuse a table of one column in which another sign than the comma divides the first two lines into as many parts."""
    with opened(path) as file:
        file.readline()
        row = file.readline().decode("utf-8", "replace")
    found = next((sign for sign in _SEPARATORS if 0 < header.count(sign) == row.count(sign)), None)
    if found is not None:
        raise DataError(
            f"{path}: its columns are divided by {found!r}, and commas are expected: write it with commas, or hand it over, "
            f"tempera.train(..., data=pandas.read_csv({path.name!r}, sep={found!r}))"
        )


def _csv_fault(path: Path) -> None:
    with opened(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        rows = csv.reader(lines)
        header = next(rows)
        for row, cells in enumerate(rows, 1):
            for name, cell in zip(header, cells):
                if not cell.isascii() and any("\udc80" <= letter <= "\udcff" for letter in cell):
                    raise DataError(f"{path}, row {row}: column {name!r} is not UTF-8")


_READERS: dict[str, Callable[[Path], Iterator[pa.Table]]] = {
    ".parquet": _parquet,
    ".jsonl": _json,
    ".jsonl.gz": _json,
    ".json": _json,
    ".csv": _csv,
    ".csv.gz": _csv,
}
