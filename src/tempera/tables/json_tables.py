"""JSON as tables: lines of objects or of arrays, or a document with rows."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import pyarrow as pa

from ..errors import ConfigError, DataError, quantity
from ..io.documents import parsed
from .encodings import REMEDY, SAVE, encoding_of, opened, opened_as_utf8
from .json_documents import documents, rows_of_document
from .table_form import BY_CONTENT, TableForm

__all__ = ["BLOCK", "json_tables", "opened"]

BLOCK = 1 << 24  # bytes that are parsed at once
_LONGEST = 1 << 28  # bytes of a row
_ROWS = 1 << 14  # rows of an array that are parsed at once
# lists and objects inside one another; pyarrow's parser overflows its stack by some thousands
_DEEPEST = 64
_NULL = re.compile(rb"^[ \t\r]*null", re.MULTILINE)
_BRACKETS = bytes(set(range(256)) - set(b"[]{}\n"))  # all other bytes
_ROW = re.compile(r"in row\s*(\d+)")
_KINDS = re.compile(r"Column\(/(.+)\) changed from (\w+) to (\w+)")


@dataclass(frozen=True)
class JsonForm:
    """The form of a file of JSON.

    Args:
        encoding: of the file; None is UTF-8.
        rows: of a document, in memory; None if each line is a row.
        arrays: True if rows are arrays of values.
    """

    encoding: str | None = None
    rows: list[Any] | None = None
    arrays: bool = False


def json_tables(
    path: Path,
    form: TableForm | None = None,
    notes: list[str] | None = None,
    *,
    schema: pa.Schema | None = None,
    further: bool = False,
) -> Iterator[pa.Table]:
    """Read a file some rows at a time: a row on each line, rows over several lines, or a document
    with rows.

    Rows are objects, or arrays with their values in column1, column2, ...

    Args:
        path: of the file.
        form: the form of the file, as the user's options say; None if no option says anything.
        notes: notes on an unusual form are added here, as parts of a sentence.
        schema: the columns to read, and their types; None reads all columns, and infers their
            types.
        further: True to read further columns beside those of a schema; values of several types
            become texts.

    Raises:
        DataError: a row not in JSON or not in UTF-8, no object or array, too long, too deep, or of
            other types than the rows before; the message names the row.
    """
    if notes is None:
        notes = []
    remedy = SAVE if form is None else REMEDY
    form = form or BY_CONTENT
    encoding = encoding_of(path, form.encoding)
    of_file = _form(path, encoding) if schema is None else JsonForm(encoding)
    if of_file.encoding is not None and form.encoding is None:
        notes.append(f"it is in {of_file.encoding.upper()}")
    if form.columns is not None and not of_file.arrays:
        raise ConfigError(
            f"data.columns names the columns of files without names, and {path} names its own: leave it out"
        )
    read = _with_further if further else _table
    first = 1
    has_infinite = False
    for lines in _blocks(path, of_file):
        try:
            lines.decode("utf-8")
            if of_file.arrays:
                lines = _named(lines, form.columns, path, first)
            _refuse_fatal(lines, path, first)
            table = read(lines, schema)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            finite = _finite(lines)
            if finite is None:
                _refuse_row(path, lines, first, error, schema, remedy)
            if not has_infinite:
                notes.append("NaN and Infinity are read as missing values")
            has_infinite = True
            _refuse_fatal(finite, path, first)  # a line of NaN alone has become null
            try:
                table = read(finite, schema)
            except pa.ArrowInvalid as other:
                _refuse_row(path, finite, first, other, schema, remedy)
        yield table
        first += len(table)


def _form(path: Path, encoding: str | None) -> JsonForm:
    """Return the form of a file, from its first line, or from the whole file if its first line is
    no row."""
    with opened_as_utf8(path, encoding) as file:
        line = next((line for line in file if line.strip()), b"")
        more = any(line.strip() for line in file)
    value = _value(line)
    is_document = path.name.lower().rpartition(".json")[2] in ("", ".gz", ".zst")
    if isinstance(value, dict):
        rows = rows_of_document(value, is_document and not more)
        return JsonForm(encoding, None if more or rows == [value] else rows)
    if isinstance(value, list) and (more or not any(isinstance(x, dict | list) for x in value)):
        return JsonForm(encoding, arrays=True)
    if isinstance(value, list):
        return _of_rows(value, encoding)
    if not line.lstrip().startswith((b"{", b"[")):
        return JsonForm(encoding)  # of which a line will be refused
    try:
        with opened_as_utf8(path, encoding) as file:
            values = documents(file.read().removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8: {REMEDY}") from None
    except ValueError as error:
        if is_document and line.lstrip().startswith(b"["):
            raise DataError(f"{path}: not JSON: {error}") from None
        return JsonForm(encoding)
    if len(values) == 1:
        values = rows_of_document(values[0], is_document)
    return _of_rows(values, encoding)


def _of_rows(rows: list[Any], encoding: str | None) -> JsonForm:
    """Return the form of rows in memory."""
    return JsonForm(encoding, rows, bool(rows) and isinstance(rows[0], list))


def _value(line: bytes) -> Any:
    """Return the JSON value of a line; None for a line that is no JSON."""
    try:
        return parsed(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except ValueError:
        return None


def _blocks(path: Path, form: JsonForm) -> Iterator[bytes]:
    """Yield rows as lines of JSON, many at once."""
    if form.rows is None:
        yield from _whole_lines(path, form.encoding)
        return
    for start in range(0, len(form.rows), _ROWS):
        yield "\n".join(map(json.dumps, form.rows[start : start + _ROWS])).encode()


def _named(lines: bytes, names: Sequence[str] | None, path: Path, first: int) -> bytes:
    """Write lines of arrays as lines of objects."""
    rows = []
    for row, line in enumerate(_rows(lines), first):
        try:
            values = parsed(line)
        except ValueError as error:
            raise DataError(f"{path}, row {row}: not JSON: {error}") from None
        if not isinstance(values, list):
            text = line.decode("utf-8", "replace")[:40]
            raise DataError(
                f"{path}, row {row}: expected an array, as the first row is, not {text!r}"
            )
        if names is not None and len(values) > len(names):
            raise ConfigError(
                f"data.columns names {quantity(len(names), 'columns')}, and row {row} of {path} has "
                f"{quantity(len(values), 'values')}: name each column once, in their order"
            )
        called = names or [f"column{i}" for i in range(1, len(values) + 1)]
        rows.append(json.dumps(dict(zip(called, values, strict=False))))
    return "\n".join(rows).encode()


def _finite(lines: bytes) -> bytes | None:
    """Return lines with null in place of NaN and Infinity; None if the lines hold neither, or are
    not JSON."""
    if b"NaN" not in lines and b"Infinity" not in lines:
        return None
    names: list[str] = []
    try:
        rows = [parsed(line, names.append) for line in _rows(lines)]
    except ValueError:
        return None
    if not names:
        return None
    return "\n".join(map(json.dumps, rows)).encode()


def _with_further(lines: bytes, schema: pa.Schema | None) -> pa.Table:
    """Return the columns of a schema, and further columns; values of several types are written as
    JSON."""
    try:
        return _table(lines, schema, "infer")
    except pa.ArrowException:
        table = _table(lines, schema)
    rows = [parsed(line) for line in _rows(lines)]
    names = dict.fromkeys(name for row in rows for name in row)
    for name in names:
        if name in table.column_names:
            continue
        values = [row.get(name) for row in rows]
        try:
            column = pa.array(values)
        except (pa.ArrowException, OverflowError):
            column = pa.array([_written(value) for value in values], pa.string())
        table = table.append_column(name, column)
    return table


def _written(value: Any) -> str | None:
    """Return a value as a text; null stays."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _table(
    lines: bytes, schema: pa.Schema | None, others: Literal["ignore", "infer"] = "ignore"
) -> pa.Table:
    """Return lines as a table.

    Args:
        schema: some columns and their types; None infers the types of all.
        others: the treatment of columns beside those of a schema.
    """
    import pyarrow.json as reader

    read = reader.ReadOptions(block_size=len(lines) + 1, use_threads=False)
    parse = reader.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior=others if schema else "infer"
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


def _whole_lines(path: Path, encoding: str | None) -> Iterator[bytes]:
    """Yield blocks that end with a line's end; blank blocks are left out."""
    rest = b""
    is_first = True
    with opened_as_utf8(path, encoding) as file:
        while block := file.read(BLOCK):
            if is_first:
                block = block.removeprefix(b"\xef\xbb\xbf")
                is_first = False
            lines, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest += block
                if len(rest) > _LONGEST:
                    raise DataError(
                        f"{path} has a row of more than {_LONGEST >> 20} MiB; is it a file of JSON lines?"
                    )
                continue
            whole = rest + lines + newline
            rest = tail
            if whole.strip():
                yield whole
    if rest.strip():
        yield rest


def _refuse_fatal(lines: bytes, path: Path, first: int) -> None:
    """Refuse rows fatal to pyarrow's parser: a bare null, and too many nested lists."""
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
    path: Path,
    lines: bytes,
    first: int,
    error: Exception,
    schema: pa.Schema | None,
    remedy: str,
) -> NoReturn:
    """Raise DataError for the first wrong row; reading line by line is slow, and only for blocks
    with a fault."""
    for row, line in enumerate(_rows(lines), first):
        try:
            text = line.decode("utf-8")
            parsed(text).items()
        except UnicodeDecodeError:
            raise DataError(f"{path}, row {row}: not UTF-8: {remedy}") from None
        except ValueError as fault:
            python = re.match(r"\{\s*u?'", text)
            hint = "; it is as Python writes a dict: write rows with json.dumps" if python else ""
            raise DataError(f"{path}, row {row}: not JSON: {fault}{hint}") from None
        except AttributeError:
            raise DataError(
                f"{path}, row {row}: expected an object of columns, not {text[:40]!r}"
            ) from None
    place = _ROW.search(str(error))
    row = first + int(place[1]) if place else first
    text = re.sub(r"^JSON parse error: | in row \d+$", "", str(error).splitlines()[0])
    kinds = _KINDS.match(text)
    if kinds is not None:
        column = kinds[1].replace("/", ".")
        before = kinds[2]
        after = kinds[3]
        wrong = f"{after}, and {before} before: give every row values of one kind"
        if schema is not None and before == "string":  # the schema expects a string
            wrong = f'{after}: write it as a text, such as "7"'
        raise DataError(f"{path}, row {row}: column {column!r} holds {wrong}") from None
    raise DataError(f"{path}, row {row}: {text[0].lower()}{text[1:]}") from None
