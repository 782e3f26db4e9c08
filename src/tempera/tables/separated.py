"""Tables of separated values, and their form: the sign between values, enclosing quotes, and a
first line of names."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa

from ..errors import ConfigError, DataError, quantity
from ..io.later import compute as pc
from .encodings import REMEDY, SAVE, Chunks, encoding_of, opened, opened_as_utf8
from .json_tables import BLOCK
from .known_files import known_file
from .profile import first_line_holds_names, profile
from .table_form import BY_CONTENT, TableForm

_START = 1 << 16  # bytes that show the form of a table
_PIECE = 1 << 18  # bytes that are searched at once, near the processor
_FIRST_LINES = 100  # lines that have to agree on the sign between values
_EXCEL = re.compile(r"sep=.(?=\s*$)", re.MULTILINE)  # a first line that Excel reads
_SPACES = " "
_COLONS = "::"
_UNIT = "\x1f"  # stands between values in place of two colons, since Arrow takes one letter
# Signs between values, by the likely sign, in the order in which they are tried.
_SIGNS = {
    ",": (",", _COLONS, ";", "\t", "|"),
    "\t": ("\t", _COLONS, ";", "|", ","),
    "": ("\t", _COLONS, ";", "|", ",", _SPACES),  # of files whose name tells nothing
}
_NAMES_OF_SIGNS = {"\t": "tabs", _SPACES: "spaces"}
_PACKED = {".gz": "gzip", ".zst": "zstd"}
_TYPES = ("token", "float", "token_seq", "float_seq")  # of columns of RecBole's files


@dataclass(frozen=True)
class Dialect:
    """The form of one file of separated values.

    Args:
        sign: stands between values; a space stands for any number of spaces.
        encoding: of the file; None is UTF-8.
        quoted: True if double quotes enclose a value.
        names: of the columns; if empty, the first line has the names.
        replaced: True if the file has a line of names, to be replaced by `names`.
        remedy: the advice for a file of another encoding.
    """

    sign: str = ","
    encoding: str | None = None
    quoted: bool = True
    names: tuple[str, ...] = ()
    replaced: bool = False
    remedy: str = REMEDY

    @property
    def letter(self) -> str:
        """Return the letter between values in the bytes that Arrow reads."""
        return _UNIT if self.sign == _COLONS else self.sign

    @staticmethod
    def is_packed(path: Path) -> bool:
        """Return True if a file is compressed."""
        return path.suffix.lower() in _PACKED

    def open(self, path: Path) -> BinaryIO:
        """Open a file's bytes for Python, in UTF-8 and with one letter between values."""
        if self.sign in (_COLONS, _SPACES):
            return io.BufferedReader(Chunks(_one_letter(path, self)))
        return opened_as_utf8(path, self.encoding)

    def translated(self, path: Path) -> pa.Buffer | None:
        """Return a file's bytes in UTF-8, with one letter between values; None if Arrow can read
        the file itself.

        The bytes are in memory, since Arrow reads ahead by its own threads, not to be held up by
        Python.
        """
        if self.encoding is None and self.sign not in (_COLONS, _SPACES):
            return None
        with self.open(path) as file:
            return pa.py_buffer(file.read())


def csv_tables(
    path: Path,
    form: TableForm | None = None,
    notes: list[str] | None = None,
    *,
    likely: str = ",",
    sign: str | None = None,
    quoted: bool | None = None,
    names: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Read separated values as texts; an empty value is null.

    Args:
        path: of the file.
        form: the form by the user's options; the content of the file says the rest. None without
            options.
        notes: notes on an unusual form are added here, as parts of a sentence.
        likely: the likely sign between values: a comma, a tab, or "" for no guess.
        sign: between values; None reads it from the content.
        quoted: True if double quotes enclose a value. None is true, unless quotes are plain signs:
            then every line has the values of a row, and some enclosed value would run over several
            lines.
        names: of the columns of a file without a line of names.

    Raises:
        DataError: a row that is not UTF-8, too long or too short, or a value of several rows.
    """
    if notes is None:
        notes = []
    remedy = SAVE if form is None else REMEDY
    form = form or BY_CONTENT
    encoding = encoding_of(path, form.encoding)
    known = known_file(path)
    if known is not None and encoding is None and not _begins_as_utf8(path):
        encoding = known.encoding
    dialect = Dialect(sign or "", encoding, quoted is not False, tuple(names), remedy=remedy)
    if encoding is not None and form.encoding is None:
        notes.append(f"it is in {encoding.upper()}")
    start = _start(path, dialect)
    line = _EXCEL.match(start)
    if line is not None:
        raise DataError(
            f"{path}: its first line, {line[0]!r}, tells Excel what stands between values, and is no line of the table: "
            "remove it"
        )
    if sign is None and not likely and _are_adjacency_lists(start):
        notes.append(
            "each of its lines is a user and the items of that user in their order (data.ordered=false if it has no meaning)"
        )
        yield from _adjacency_lists(path, dialect)
        return
    if sign is None:
        dialect = replace(dialect, sign=_sign_of(start, likely))
        if likely and dialect.sign != likely:
            between = _NAMES_OF_SIGNS.get(dialect.sign, repr(dialect.sign))
            notes.append(f"its values are divided by {between}")
    if dialect.sign in (_COLONS, _SPACES) or not _holds_quotes(path):
        dialect = replace(dialect, quoted=False)
    elif quoted is None and _quotes_are_plain(path, start, dialect):
        dialect = replace(dialect, quoted=False)
        notes.append("double quotes are part of its values, and enclose none")
    if not names:
        dialect = _named(path, start, dialect, form, notes)
    yield from _batches(path, dialect)


def typed_tables(
    path: Path, form: TableForm = BY_CONTENT, notes: list[str] | None = None
) -> Iterator[pa.Table]:
    """Read a file of RecBole as texts and lists of texts.

    The file has values between tabs, columns called NAME:TYPE, and lists with spaces between
    values. A file without any type is read as separated values.

    Raises:
        DataError: a column without a type.
    """
    dialect = Dialect("\t", encoding_of(path, form.encoding))
    lines = _lines(_start(path, dialect))
    header = lines[0] if lines else ""
    if not any(name.rpartition(":")[2] in _TYPES for name in header.split("\t")):
        yield from csv_tables(path, form, notes, likely="")
        return
    for table in csv_tables(path, form, notes, sign="\t", quoted=False):
        for i, header in enumerate(table.column_names):
            name, _, kind = header.rpartition(":")
            if not name or kind not in _TYPES:
                raise DataError(
                    f"{path}: column {header!r} has no type: call it NAME:TYPE, with one of {', '.join(_TYPES)}"
                )
            values = table.column(i)
            if kind.endswith("_seq"):
                values = pc.split_pattern(values, " ")
            table = table.set_column(i, name, values)
        yield table


def is_separated(path: Path) -> bool:
    """Return True if a file of any name holds separated values, by its first lines.

    All lines have the same number of values, two or more. Values between spaces, commas or the like
    are numbers, times and ids.
    """
    try:
        dialect = Dialect("", encoding_of(path))
        start = _start(path, dialect)
        lines = _lines(start)
        if re.search("[\0\ufffd]", start) or len(lines) < 2:
            return False
        if _are_adjacency_lists(start):
            return True
        sign = _sign_of(start, "")
        if not _divides(sign, lines[:_FIRST_LINES]):
            return False
        if sign in ("\t", _COLONS):
            return True
        dialect = replace(dialect, sign=sign, quoted=sign != _SPACES)
        rows = _rows(start, dialect)
    except (DataError, OSError, EOFError, pa.ArrowException):
        return False
    if len(rows) > 1:
        rows = rows.slice(1)  # without the names
    columns = profile(rows, str(path)).columns.values()
    if any("text" in column.kinds for column in columns):
        return False
    return any(column.kinds & {"number", "time"} for column in columns)


def is_adjacency(path: Path) -> bool:
    """Return True if each line of a file holds a user and the user's items, of different number."""
    return _are_adjacency_lists(_start(path, Dialect("", encoding_of(path))))


def _batches(path: Path, dialect: Dialect) -> Iterator[pa.Table]:
    """Read the rows of a file of known form."""
    import pyarrow.csv as reader

    read = reader.ReadOptions(
        block_size=BLOCK,
        column_names=list(dialect.names),
        skip_rows_after_names=int(dialect.replaced),
    )
    parse = reader.ParseOptions(
        delimiter=dialect.letter,
        quote_char='"' if dialect.quoted else False,
        newlines_in_values=dialect.quoted,
    )

    def opened_for_arrow() -> Any:
        if content is not None:
            return pa.BufferReader(content)
        return pa.input_stream(str(path), compression=_PACKED.get(path.suffix.lower()))

    content = dialect.translated(path)
    first = 1
    try:
        names = dialect.names
        if not names:
            with opened_for_arrow() as stream:
                names = reader.open_csv(stream, read, parse).schema.names
        texts = reader.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
        )
        with opened_for_arrow() as stream:
            for batch in reader.open_csv(stream, read, parse, texts):
                table = pa.Table.from_batches([batch])
                if dialect.quoted:
                    _refuse_swallowed(path, table, dialect, first)
                yield table
                first += len(table)
    except pa.ArrowInvalid as error:
        _refuse_row(path, dialect)
        if "UTF8" in str(error):
            raise DataError(f"{path} is not UTF-8: {dialect.remedy}") from None
        raise


def _start(path: Path, dialect: Dialect) -> str:
    """Return the first lines of a file, without a cut line."""
    with opened_as_utf8(path, dialect.encoding) as file:
        start = file.read(_START)
    whole, newline, _ = start.rpartition(b"\n")
    if len(start) == _START and newline:
        start = whole + newline
    return start.decode("utf-8", "replace").removeprefix("\ufeff")


def _lines(text: str) -> list[str]:
    """Return the lines of a text with any content, without their ends."""
    return [line for line in re.split(r"\r?\n|\r", text) if line.strip()]


def _sign_of(start: str, likely: str) -> str:
    """Return the sign between the values of a table: the first sign that divides all first lines
    alike, else a sign with equal parts in the first two lines, else the likely sign."""
    unquoted = re.sub(r'"[^"]*"', "", start)
    for text in (start, unquoted):  # values may be quoted
        lines = _lines(text)[:_FIRST_LINES]
        for sign in _SIGNS[likely]:
            if len(lines) > 1 and _divides(sign, lines):
                return sign
    lines = _lines(start)
    if len(lines) > 1 and not (likely and likely in lines[0]):
        for sign in _SIGNS[likely]:
            if sign != _SPACES and 0 < lines[0].count(sign) == lines[1].count(sign):
                return sign
    return likely or "\t"


def _are_adjacency_lists(start: str) -> bool:
    """Return True if lines hold whole numbers between spaces, of different number, as in files of
    users with their items."""
    lines = [line.split() for line in _lines(start)[:_FIRST_LINES]]
    are_numbers = all(word.isdecimal() for line in lines for word in line)
    return are_numbers and len({len(line) for line in lines}) > 1


def _adjacency_lists(path: Path, dialect: Dialect) -> Iterator[pa.Table]:
    """Read lines of a user and items, between spaces.

    Raises:
        DataError: a line without a number at its beginning.
    """
    for lines in _whole_lines(path, dialect):
        rows = pa.array(_lines(lines.decode("utf-8", "replace")), pa.large_string())
        words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(rows))
        yield pa.table({"user": pc.list_element(words, 0), "items": pc.list_slice(words, 1)})


def _begins_as_utf8(path: Path) -> bool:
    """Return True if the beginning of a file is UTF-8."""
    with opened(path) as file:
        start = file.read(_START).rpartition(b"\n")[0]
    try:
        start.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _divides(sign: str, lines: Sequence[str]) -> bool:
    """Return True if all lines hold a sign equally often, at least once; spaces beside each other
    count once."""
    if sign == _SPACES:
        lines = [re.sub(" +", " ", line.strip(" ")) for line in lines]
    counts = {line.count(sign) for line in lines}
    return len(counts) == 1 and 0 not in counts


def _one_letter(path: Path, dialect: Dialect) -> Iterator[bytes]:
    """Yield the bytes of a file, with one letter between values."""
    rest = b""
    with opened_as_utf8(path, dialect.encoding) as file:
        while block := file.read(BLOCK):
            whole, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest += block
                continue
            yield _divided(rest + whole + newline, dialect.sign)
            rest = tail
    yield _divided(rest, dialect.sign)


def _divided(lines: bytes, sign: str) -> bytes:
    """Return lines with one letter in place of two colons, or of several spaces."""
    if sign == _COLONS:
        return lines.replace(b"::", _UNIT.encode())
    single_spaced = re.sub(rb" {2,}", b" ", lines)
    return re.sub(rb"(?m)^ +| +(?=\r?$)", b"", single_spaced)


def _holds_quotes(path: Path) -> bool:
    """Return True if a file holds double quotes.

    A packed file is read to its end, to notice a file cut short: Arrow's parser takes half a file
    for a whole file.
    """
    quotes = False
    buffer = bytearray(_PIECE)
    with opened(path) as file:
        while size := file.readinto(buffer):  # type: ignore[attr-defined]
            quotes = quotes or buffer.find(b'"', 0, size) >= 0
            if quotes and not Dialect.is_packed(path):
                return True
    return quotes


def _quotes_are_plain(path: Path, start: str, dialect: Dialect) -> bool:
    """Return True if double quotes are plain signs.

    Then every line has the values of a row, two or more, and some value begins with a quote that
    encloses neither the value nor a text of two lines.
    """
    first_lines = _lines(start)
    if not _divides(dialect.sign, first_lines):
        return False
    signs = first_lines[0].count(dialect.sign)
    sign = re.escape(dialect.sign.encode())
    not_enclosed = re.compile(
        rb'(?:(?<=\n)|(?<=%s))"(?!(?:[^"\n]|"")*"(?:%s|\r?\n))' % (sign, sign)
    )
    is_plain = False
    for lines in _whole_lines(path, dialect):
        if not _all_have(lines, dialect.sign, signs):
            return False
        is_plain = is_plain or not_enclosed.search(b"\n" + lines) is not None
    return is_plain and not _encloses(path, dialect)


def _encloses(path: Path, dialect: Dialect) -> bool:
    """Return True if quotes end where values do, and no value runs over more than two lines."""
    with dialect.open(path) as file, suppress(csv.Error):
        rows = _python_reader(file, dialect, strict=True)
        before = 0
        for _ in rows:
            if rows.line_num > before + 2:
                return False
            before = rows.line_num
        return True
    return False


def _whole_lines(path: Path, dialect: Dialect) -> Iterator[bytes]:
    """Yield the lines of a file, many at once; the last line has an end, too."""
    rest: list[bytes] = []
    with opened_as_utf8(path, dialect.encoding) as file:
        while block := file.read(BLOCK):
            whole, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest.append(block)
                continue
            rest.append(whole + newline)
            yield b"".join(rest)
            rest = [tail]
    if any(rest):
        rest.append(b"\n")
        yield b"".join(rest)


def _all_have(lines: bytes, sign: str, count: int) -> bool:
    """Return True if every line with content holds a sign `count` times."""
    letters = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(letters == ord("\n"))
    signs = np.flatnonzero(letters == ord(sign))
    counts = np.diff(np.searchsorted(signs, ends), prepend=0)
    lengths = np.diff(ends, prepend=-1)
    blank = (lengths == 1) | ((lengths == 2) & (letters[ends - 1] == ord("\r")))
    return bool(((counts == count) | blank).all())


def _rows(start: str, dialect: Dialect) -> pa.Table:
    """Return the first lines of a file as a table of texts, whose first row may be names; rows of
    another length than the first row are left out."""
    content = start
    if dialect.sign in (_COLONS, _SPACES):
        content = _divided(start.encode(), dialect.sign).decode()
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    lines = io.StringIO(content, newline="")
    rows: list[list[str]] = []
    with suppress(csv.Error):  # of a value that is too long for Python's reader
        for cells in csv.reader(lines, delimiter=dialect.letter, quoting=quoting):
            if cells and (not rows or len(cells) == len(rows[0])):
                rows.append(cells)
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.table(columns, [f"column{i}" for i in range(1, len(columns) + 1)])


def _named(path: Path, start: str, dialect: Dialect, form: TableForm, notes: list[str]) -> Dialect:
    """Return a dialect with the names of the columns, if the first line holds no names, or the user
    gives other names."""
    rows = _rows(start, dialect)
    if not len(rows):
        return dialect
    header = [column[0].as_py() for column in rows.columns]
    has_names = form.header
    if has_names is None:
        has_names = first_line_holds_names(header, rows.slice(1), form.columns is not None)
    if form.columns is not None:
        if len(form.columns) != len(header):
            raise ConfigError(
                f"data.columns names {quantity(len(form.columns), 'columns')}, and the first line of {path} has "
                f"{quantity(len(header), 'values')}: name each column once, in their order"
            )
        # If nothing tells, the user gives names since the file has no line of names.
        named_twice = has_names is True or header == list(form.columns)
        return replace(dialect, names=form.columns, replaced=named_twice)
    if has_names is not False:
        return dialect
    names = tuple(rows.column_names)
    known = known_file(path)
    if known is not None and len(known.columns) == len(names):
        notes.append(f"its columns are called as {known.of} describes them")
        return replace(dialect, names=known.columns)
    if form.header is None:
        shown = ", ".join(names)
        if len(names) > 5:
            shown = f"{names[0]}, ..., {names[-1]}"
        notes.append(
            f"its first line holds data and no names, so that its columns are called {shown} "
            "(data.columns=[...] names them, data.header=true takes the line for names)"
        )
    return replace(dialect, names=names)


def _refuse_swallowed(path: Path, table: pa.Table, dialect: Dialect, first: int) -> None:
    """Refuse a value from a double quote over whole rows to the next quote.

    A text of several lines passes: not all of its lines hold the signs of a row, or quotes end
    where values do.
    """
    signs = table.num_columns - 1
    if not signs:
        return
    for i, column in enumerate(table.columns):
        if not _holds_line_ends(column):
            continue
        long = pc.match_substring(column, "\n")
        for row in np.flatnonzero(long.to_numpy()):
            lines = column[int(row)].as_py().split("\n")
            counts = [line.count(dialect.letter) for line in lines]
            of_rows = counts[0] == signs - i and all(count == signs for count in counts[1:-1])
            if not of_rows or (len(lines) == 2 and not counts[1]):
                continue
            is_certain = dialect.sign != "," and len(lines) > 2
            if is_certain or _ends_within_value(path, dialect, first + int(row)):
                raise DataError(
                    f"{path}, row {first + row}: column {table.column_names[i]!r} begins with a double quote and runs "
                    f"over {len(lines)} lines that hold values of other rows: enclose the value in quotes and "
                    'write those within it twice ("")'
                )


def _holds_line_ends(column: pa.ChunkedArray) -> bool:
    """Return True if a text holds the end of a line, by the column's letters in memory."""
    for chunk in column.chunks:
        letters = memoryview(chunk.buffers()[2] or b"")
        for at in range(0, len(letters), _PIECE):
            if b"\n" in bytes(letters[at : at + _PIECE]):
                return True
    return False


def _ends_within_value(path: Path, dialect: Dialect, row: int) -> bool:
    """Return True if a row's quotes end within a value, by Python's reader."""
    header = 0 if dialect.names and not dialect.replaced else 1
    rows = _python_rows(path, dialect, strict=True)
    for _ in range(row + header):
        try:
            next(rows, None)
        except csv.Error:
            return True
    return False


def _python_rows(path: Path, dialect: Dialect, strict: bool = False) -> Iterator[list[str]]:
    """Yield the rows of a file as Python reads them, without blank rows."""
    with dialect.open(path) as file:
        yield from filter(None, _python_reader(file, dialect, strict))


def _python_reader(file: Any, dialect: Dialect, strict: bool) -> Any:
    """Return Python's reader of a file; a strict reader refuses quotes that end within a value."""
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=dialect.letter, quoting=quoting, strict=strict)


def _refuse_row(path: Path, dialect: Dialect) -> None:
    """Refuse a file with its first row not in UTF-8, too long or too short; the search ends at a
    value too long for Python's reader."""
    rows = _python_rows(path, dialect)
    with suppress(csv.Error):
        header: Sequence[str] = dialect.names
        if not header or dialect.replaced:
            header = next(rows, [])
        for row, cells in enumerate(rows, 1):
            for name, cell in zip(header, cells):
                if not cell.isascii() and any("\udc80" <= letter <= "\udcff" for letter in cell):
                    raise DataError(
                        f"{path}, row {row}: column {name!r} is not UTF-8: {dialect.remedy}"
                    )
            if len(cells) != len(header):
                what = f"{quantity(len(cells), 'values')} for {quantity(len(header), 'columns')}"
                advice = ""
                if dialect.quoted:
                    advice = f", and enclose those that hold {dialect.sign!r} in double quotes"
                raise pa.ArrowInvalid(f"row {row} has {what}: give each row {len(header)}{advice}")
