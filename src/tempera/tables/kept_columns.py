"""Columns kept beside texts: single values of a few plain types, in one column of records.

Letters in shapes: n rows, u groups of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import one_line
from ..io.later import compute as pc
from .arrow_types import is_text
from .vector_files import COLUMNS

TEXT = pa.large_string()
_INTEGER = pa.int64()
_NUMBER = pa.float64()
_DATE = pa.date32()
_TIME_OF_DAY = pa.time64("us")
_MOMENT = pa.timestamp("us")
_MOMENT_OF_ZONE = pa.timestamp("us", "UTC")
_SHOWN = 30  # names of columns in a line
_DAY = 86_400 * 1_000_000  # microseconds
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 to 9999, counted from 1970-01-01
# Texts that are numbers, dates and moments. Digits in front, as in 007, and more digits than a number holds are those
# of a name.
_WHOLE = r"^-?(0|[1-9]\d{0,17})$"
_DECIMAL = r"^-?(0|[1-9]\d{0,14})(\.\d+)?$"
_DATE_TEXT = r"^[1-9]\d{3}-\d{2}-\d{2}$"
_MOMENT_TEXT = r"^[1-9]\d{3}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}$"
_SHORT_DECIMAL = r"^-?(0|[1-9]\d{0,14})(\.(0|\d*[1-9]))?$"


def plain_values(column: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """Return single values in a plain type, [n]; None for lists, records, bytes and durations.

    Plain types are texts, integers and numbers of 64 bits, truths, dates, times of a day, and
    moments in microseconds, of a zone in UTC. Integers beyond 63 bits become texts. Empty texts,
    NaN, and dates outside of the years 1 to 9999 become null.

    >>> plain_values(pa.array(["a", "", None])).to_pylist(), plain_values(pa.array([[1]])) is None
    (['a', None, None], True)
    """
    kind = column.type
    types = pa.types
    if is_text(kind):
        texts = _combined(column.cast(TEXT))
        return _without(texts, pc.equal(texts, ""))
    if types.is_nested(kind):
        return None
    values = _combined(column)
    if types.is_null(kind) or types.is_boolean(kind):
        return values
    if types.is_integer(kind):
        try:
            return values.cast(_INTEGER)
        except pa.ArrowInvalid:
            return values.cast(TEXT)
    if types.is_floating(kind):
        numbers = values.cast(_NUMBER)
        return _without(numbers, pc.is_nan(numbers))
    plain = _plain_time(kind)
    if plain is None:
        return None
    is_finer = types.is_date64(kind) or getattr(kind, "unit", "") == "ns"
    try:
        return _in_calendar(values.cast(plain, safe=not is_finer))
    except pa.ArrowException:  # moments too far away for microseconds
        return None


def _combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _plain_time(kind: pa.DataType) -> pa.DataType | None:
    """Return the plain type of dates and times; None for any other type."""
    if pa.types.is_date(kind):
        return _DATE
    if pa.types.is_time(kind):
        return _TIME_OF_DAY
    if pa.types.is_timestamp(kind):
        return _MOMENT if kind.tz is None else _MOMENT_OF_ZONE
    return None


def _in_calendar(times: pa.Array) -> pa.Array:
    """Return times with null in place of those outside of the years 1 to 9999."""
    if pa.types.is_date(times.type):
        numbers, unit = times.cast(pa.int32()), 1
    elif pa.types.is_timestamp(times.type):
        numbers, unit = times.cast(_INTEGER), _DAY
    else:
        return times
    before = pc.less(numbers, _FIRST_DAY * unit)
    behind = pc.greater_equal(numbers, (_LAST_DAY + 1) * unit)
    return _without(times, pc.or_(before, behind))


def _without(values: pa.Array, wrong: pa.Array) -> pa.Array:
    """Return values with null in place of the wrong ones."""
    if not pc.any(wrong).as_py():
        return values
    return pc.if_else(wrong, pa.scalar(None, values.type), values)


def longest(values: pa.Array | pa.ChunkedArray) -> int:
    """Return the number of letters of the longest text; 0 for values of another type."""
    if not is_text(values.type):
        return 0
    return pc.max(pc.utf8_length(values)).as_py() or 0


def records(columns: dict[str, pa.Array]) -> pa.StructArray:
    """Return columns, at least one, as a column of records, [n]."""
    fields = [pa.field(name, values.type) for name, values in columns.items()]
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields)


def aligned(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return tables whose kept columns have one type each, and stand in one order.

    Integers beside numbers become numbers, and dates beside moments become moments. Other values of
    several types become texts. A column that a table lacks is null there.

    >>> one = pa.table({"columns": [{"year": 2024}]})
    >>> two = pa.table({"columns": [{"year": "about 2000", "url": "a"}]})
    >>> [table["columns"].to_pylist() for table in aligned([one, two])]
    [[{'year': '2024', 'url': None}], [{'year': 'about 2000', 'url': 'a'}]]
    """
    kinds: dict[str, list[pa.DataType]] = {}
    for table in tables:
        if COLUMNS in table.column_names:
            for field in table[COLUMNS].type:
                kinds.setdefault(field.name, []).append(field.type)
    common = {name: _common(of_column) for name, of_column in kinds.items()}
    result = []
    for table in tables:
        if COLUMNS in table.column_names:
            table = with_records(table, _cast(table, common))
        result.append(table)
    return result


def _common(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type for values of several types."""
    distinct = {kind for kind in kinds if not pa.types.is_null(kind)}
    if not distinct:
        return pa.null()
    if len(distinct) == 1:
        return distinct.pop()
    if distinct == {_INTEGER, _NUMBER}:
        return _NUMBER
    if distinct == {_DATE, _MOMENT}:
        return _MOMENT
    return TEXT


def _cast(table: pa.Table, kinds: dict[str, pa.DataType]) -> dict[str, pa.ChunkedArray]:
    """Return the kept columns of a table in some types, and nulls for absent columns."""
    columns = columns_of(table[COLUMNS])
    result = {}
    for name, kind in kinds.items():
        column = columns.get(name)
        if column is None:
            column = pa.chunked_array([pa.nulls(len(table), kind)])
        elif pa.types.is_timestamp(column.type) and kind == TEXT:
            column = _written(column)
        # A whole number too large for float64 is rounded, as its neighbours are.
        result[name] = column.cast(kind, safe=kind != _NUMBER)
    return result


def _written(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return moments as texts such as 2024-01-31T10:00:00."""
    texts = pc.strftime(moments, "%Y-%m-%dT%H:%M:%S")
    return pc.replace_substring_regex(texts, r"\.?0+$", "")


def columns_of(column: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """Return the columns in a column of records, by their names."""
    names = [field.name for field in column.type]
    return dict(zip(names, column.flatten(), strict=True))


def refuse_unreadable(column: pa.ChunkedArray) -> None:
    """Refuse valid kept columns that Python cannot read, as in a damaged file.

    Raises:
        ValueError: no records, two columns of one name, or a date outside of the years 1 to 9999.
    """
    if not pa.types.is_struct(column.type):
        raise ValueError(f"{COLUMNS} is {column.type}; expected records")
    names = [field.name for field in column.type]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{COLUMNS} has several columns called {name!r}")
    for name, values in columns_of(column).items():
        for times in _times_in(values):
            try:
                for extreme in pc.min_max(times).values():
                    extreme.as_py()
            except (pa.ArrowException, OverflowError, KeyError) as error:  # no such time zone
                raise ValueError(f"column {name!r}: {error}") from None


def _times_in(values: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Yield the dates and times in a column, also inside of lists and records."""
    kind = values.type
    if pa.types.is_temporal(kind):
        yield values
    elif pa.types.is_dictionary(kind):
        yield from _times_in(values.cast(kind.value_type))
    elif pa.types.is_struct(kind):
        for field in values.flatten():
            yield from _times_in(field)
    elif pa.types.is_nested(kind):
        yield from _times_in(pc.list_flatten(values))


def with_records(table: pa.Table, columns: dict[str, pa.ChunkedArray]) -> pa.Table:
    """Return a table with other kept columns, chunk by chunk; none without any."""
    at = table.column_names.index(COLUMNS)
    if not columns:
        return table.remove_column(at)
    chunks = []
    for batch in pa.table(columns).to_batches():
        chunks.append(records(dict(zip(batch.schema.names, batch.columns, strict=True))))
    kind = pa.struct([pa.field(name, column.type) for name, column in columns.items()])
    return table.set_column(at, COLUMNS, pa.chunked_array(chunks, kind))


def typed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of texts as integers, numbers, dates or moments, if every text is one.

    Texts such as 007 and +1 stay, since they would read otherwise. Decimals all have one number of
    digits, or none ends with a 0: else 1.10 and 1.1, as versions are written, would be equal.

    >>> typed(pa.chunked_array([["7", None, "12"]])).to_pylist()
    [7, None, 12]
    >>> typed(pa.chunked_array([["3.50", "10.25"]])).to_pylist()
    [3.5, 10.25]
    >>> typed(pa.chunked_array([["1.1", "1.10"]])).to_pylist()
    ['1.1', '1.10']
    >>> typed(pa.chunked_array([["2024-01-31"]])).to_pylist()
    [datetime.date(2024, 1, 31)]
    """
    if _all_match(texts, _WHOLE):
        return texts.cast(_INTEGER)
    for pattern, kind in ((_DATE_TEXT, _DATE), (_MOMENT_TEXT, _MOMENT)):
        if _all_match(texts, pattern):
            with suppress(pa.ArrowInvalid):  # such as the 30th of February
                return texts.cast(kind)
    if not _all_match(texts, _DECIMAL):
        return texts
    point = pc.find_substring(texts, ".")
    digits = pc.unique(pc.subtract(pc.utf8_length(texts), point).filter(pc.greater(point, -1)))
    if len(digits.drop_null()) > 1 and not _all_match(texts, _SHORT_DECIMAL):
        return texts
    return texts.cast(_NUMBER)


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    """Return True if every text matches; null does."""
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is True


def as_dates(values: pa.Array) -> pa.Array:
    """Return moments as dates if every moment is the beginning of a day, [n]; other values
    unchanged.

    Arrow reads dates in JSON as such moments.
    """
    if values.type != _MOMENT:
        return values
    times = values.cast(_INTEGER)
    days = pc.multiply(pc.divide(times, _DAY), _DAY)
    if pc.all(pc.equal(times, days)).as_py() is False:
        return values
    return values.cast(_DATE)


def _listed(names: Sequence[str]) -> str:
    """Return the first names of many, and the number of the others."""
    listed = one_line(", ".join(names[:_SHOWN]))
    if len(names) > _SHOWN:
        listed += f" and {len(names) - _SHOWN:,} more"
    return listed


def _in_words(size: int) -> str:
    """Return a number of bytes in words.

    >>> _in_words(999), _in_words(1_250_000)
    ('999 bytes', '1.2 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    units = ("kB", "MB", "GB")
    power = min(len(units), int(np.log10(size)) // 3)
    return f"{size / 1000**power:.1f} {units[power - 1]}"


class FirstValues(NamedTuple):
    """Kept columns of groups of rows."""

    columns: pa.StructArray  # [u] the first value of each group
    varying: dict[str, int]  # number of groups with several values, by column, if any

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each column."""
        names = [field.name for field in self.columns.type]
        columns = self.columns.flatten()
        return {name: column.nbytes for name, column in zip(names, columns, strict=True)}

    def lines(self) -> list[str]:
        """Return sentences on the kept columns of documents, with their bytes, since values may be
        personal, and on columns with several values of a document.

        >>> rows = pa.chunked_array([[{"year": 2024}, {"year": 2025}]])
        >>> for line in first_values(rows, np.array([0, 0]), 1).lines():
        ...     print(line)
        kept with each document: year (8 bytes; data.keep=[] keeps none)
        documents with several values in a column, of which the first is kept: year (1)
        """
        sizes = self.sizes()
        size = _in_words(sum(sizes.values()))
        lines = [f"kept with each document: {_listed([*sizes])} ({size}; data.keep=[] keeps none)"]
        if self.varying:
            counts = [f"{name} ({count:,})" for name, count in self.varying.items()]
            lines.append(
                f"documents with several values in a column, of which the first is kept: {_listed(counts)}"
            )
        return lines


def first_values(column: pa.ChunkedArray, group: NDArray[np.int64], groups: int) -> FirstValues:
    """Return the first value of every kept column in each group of rows.

    Args:
        column: of records, [n].
        group: the group of each row, [n].
        groups: their number; a group without rows has no values.

    >>> rows = pa.chunked_array([[{"a": None}, {"a": 1}, {"a": 2}, {"a": 3}]])
    >>> columns, varying = first_values(rows, np.array([0, 0, 0, 2]), 3)
    >>> columns.to_pylist(), varying
    ([{'a': 1}, {'a': None}, {'a': 3}], {'a': 1})
    """
    firsts: dict[str, pa.Array] = {}
    varying: dict[str, int] = {}
    for name, values in columns_of(column).items():
        rows = np.flatnonzero(values.is_valid().to_numpy())
        first = np.full(groups, -1)
        first[group[rows][::-1]] = rows[::-1]  # of equal groups, the last assignment stays
        codes = pc.dictionary_encode(values.combine_chunks()).indices
        code = codes.fill_null(-1).to_numpy(zero_copy_only=False)
        differs = code[rows] != code[first[group[rows]]]
        count = len(np.unique(group[rows][differs]))
        if count:
            varying[name] = count
        firsts[name] = values.take(pa.array(first, mask=first < 0)).combine_chunks()
    return FirstValues(records(firsts), varying)
