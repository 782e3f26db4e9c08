"""JSON as tables: lines of objects, or one array of them."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyarrow as pa

from ..errors import DataError
from .documents import parsed

BLOCK = 1 << 24  # bytes that are parsed at once
_LONGEST = 1 << 28  # bytes of a row
_ROWS = 1 << 14  # rows of an array that are parsed at once
# lists and objects inside one another; pyarrow's parser overflows its stack by some thousands
_DEEPEST = 64
_NULL = re.compile(rb"^[ \t\r]*null", re.MULTILINE)
_BRACKETS = bytes(set(range(256)) - set(b"[]{}\n"))  # all other bytes
_ROW = re.compile(r"in row\s*(\d+)")
_KINDS = re.compile(r"Column\(/(.+)\) changed from (\w+) to (\w+)")


def opened(path: Path) -> BinaryIO:
    """Open a file's bytes, decompressed by its extension, .gz or .zst."""
    kind = path.suffix.lower()
    if kind == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return gzip.open(path) if kind == ".gz" else path.open("rb")  # type: ignore[return-value]


def json_tables(path: Path, schema: pa.Schema | None = None) -> Iterator[pa.Table]:
    """Read a file some rows at a time.

    Args:
        schema: the columns to read, and their types; None reads all, and infers their types.

    Raises:
        DataError: by row, what is not JSON, not UTF-8, no object, too long or too deep, or of
            several types.
    """
    first = 1
    for lines in _array(path) if _is_array(path) else _whole_lines(path):
        try:
            lines.decode("utf-8")
            _refuse_fatal(lines, path, first)
            table = _table(lines, schema)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            _refuse_row(path, lines, first, error, schema)
        yield table
        first += len(table)


def _table(lines: bytes, schema: pa.Schema | None) -> pa.Table:
    import pyarrow.json as reader

    read = reader.ReadOptions(block_size=len(lines) + 1, use_threads=False)
    parse = reader.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"
    )
    table = reader.read_json(io.BytesIO(lines), read, parse)
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        # Where types are inferred, Arrow loses nulls that a column's first list begins with, and
        # moves the values of later rows up (apache/arrow#51305).
        rows = [parsed(line) for line in _rows(lines)]
        try:
            table = pa.table({name: [row.get(name) for row in rows] for name in table.column_names})
        except OverflowError as error:
            raise pa.ArrowInvalid(str(error)) from None
    return table


def _rows(lines: bytes) -> list[bytes]:
    return [line for line in lines.split(b"\n") if line.strip()]


def _is_array(path: Path) -> bool:
    if ".json" not in (suffix.lower() for suffix in path.suffixes[-2:]):
        return False
    with opened(path) as file:
        return file.read(1 << 10).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _array(path: Path) -> Iterator[bytes]:
    """Write the objects of an array as lines."""
    try:
        with opened(path) as file:
            rows = parsed(file.read())
        for start in range(0, len(rows), _ROWS):
            yield "\n".join(map(json.dumps, rows[start : start + _ROWS])).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Read blocks that end with a line's end; blank ones are left out."""
    rest, first = b"", True
    with opened(path) as file:
        while block := file.read(BLOCK):
            if first:
                block, first = block.removeprefix(b"\xef\xbb\xbf"), False
            lines, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest += block
                if len(rest) > _LONGEST:
                    raise DataError(
                        f"{path} has a row of more than {_LONGEST >> 20} MiB; is it a file of JSON lines?"
                    )
                continue
            whole, rest = rest + lines + newline, tail
            if whole.strip():
                yield whole
    if rest.strip():
        yield rest


def _refuse_fatal(lines: bytes, path: Path, first: int) -> None:
    """Refuse rows that pyarrow's parser does not survive: a bare null, and too many lists inside
    one another."""
    null = _NULL.search(lines)
    if null is not None:
        row = first + len(_rows(lines[: null.start()]))
        raise DataError(f"{path}, row {row}: expected an object of columns, not null")
    brackets = lines.translate(None, _BRACKETS)
    if len(max(brackets.split(b"\n"), key=len)) < _DEEPEST:
        return
    for row, line in enumerate(_rows(lines), first):
        depth = 0
        for sign in re.sub(rb'"(?:[^"\\]|\\.)*"', b"", line).translate(None, _BRACKETS):
            depth += 1 if sign in b"[{" else -1
            if depth > _DEEPEST:
                raise DataError(
                    f"{path}, row {row}: more than {_DEEPEST} lists and objects inside one another"
                )


def _refuse_row(
    path: Path, lines: bytes, first: int, error: Exception, schema: pa.Schema | None
) -> NoReturn:
    """Name the row that is wrong; reading line by line is slow, and only for blocks with a
    fault."""
    for row, line in enumerate(_rows(lines), first):
        try:
            text = line.decode("utf-8")
            parsed(text).items()
        except UnicodeDecodeError:
            raise DataError(f"{path}, row {row}: not UTF-8") from None
        except ValueError as fault:
            raise DataError(f"{path}, row {row}: not JSON: {fault}") from None
        except AttributeError:
            raise DataError(
                f"{path}, row {row}: expected an object of columns, not {text[:40]!r}"
            ) from None
    place = _ROW.search(str(error))
    row = first + int(place[1]) if place else first
    text = re.sub(r"^JSON parse error: | in row \d+$", "", str(error).splitlines()[0])
    if kinds := _KINDS.match(text):
        column, before, after = kinds[1].replace("/", "."), kinds[2], kinds[3]
        wrong = f"{after}, and {before} before: give every row values of one kind"
        if (
            schema is not None and before == "string"
        ):  # which the schema expects, whatever the rows before hold
            wrong = f'{after}: write it as a text, such as "7"'
        raise DataError(f"{path}, row {row}: column {column!r} holds {wrong}") from None
    raise DataError(f"{path}, row {row}: {text[0].lower()}{text[1:]}") from None
