"""The profile of a table: the values in a sample of each column, and the possible kinds of the
column.

Letters in shapes: r rows of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from ..io.later import compute as pc
from .arrow_types import decoded, is_list, is_text
from .dates import date_forms, epoch_unit

Kind = Literal[
    "text", "id", "label", "rating", "time", "list", "number", "constant", "url", "boolean"
]

TYPED = "date"  # the time form of a column whose type says that it holds dates
_SAMPLED_ROWS = 2_000
_MEASURED_ROWS = 400  # rows of the sample that are measured and matched with patterns
_NESTED_ROWS = 200  # rows of lists and objects, which are slower to read
_FREQUENT = 12  # values in a profile; a label has at most as many values
_GRADES = 21  # whole numbers that a scale has at most: 0 to 20, or 0.0 to 10.0 by halves
_WIDEST_SCALE = 100.0  # largest number of a scale, to either side of 0
_LONGEST_ID = 64  # letters
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_LISTED = re.compile(r"\[.*\]", re.DOTALL)
_SIGN_OF_LISTS = re.compile(r"""['",]|\[\s*\]""")  # stands in at least one of many lists
_LINK = r"^(https?|ftp)://\S+$|^www\.\S+$"
_WORDLESS = r"[\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{0e00}-\x{0e7f}]"  # scripts without spaces
_TRUTHS = frozenset({"true", "false", "yes", "no", "t", "f", "y", "n", "on", "off", "0", "1"})
# Values that show a label in any number of rows.
_LABELS = _TRUTHS | {
    "-1",
    "0.0",
    "1.0",
    "-1.0",
    "positive",
    "negative",
    "entailment",
    "neutral",
    "contradiction",
    "relevant",
    "irrelevant",
    "not relevant",
    "good",
    "bad",
}


@dataclass(frozen=True)
class ColumnProfile:
    """A column, by a sample of its values.

    Attributes:
        name: of the column.
        type: of the values, in Arrow.
        rows: number of rows in the sample.
        blanks: rows of the sample that hold null, not a number, an empty text, or white space.
        distinct: number of different values, blanks apart.
        whole: True if the sample is every row of the table.
        frequent: the most frequent values as texts, with their counts, at most 12.
        letters: of the median value; of a column of lists, of the median text in the lists.
        words: likewise.
        kinds: the possible kinds of the column; a column of ratings may be of ids, too.
        scale: lowest and highest number.
        time_forms: the forms of the times: a unit of `dates.UNITS`, "iso", "date" for columns of a
            type of dates, or formats of strptime, several where days and months look alike.
    """

    name: str
    type: pa.DataType
    rows: int
    blanks: int
    distinct: int
    whole: bool
    frequent: tuple[tuple[str, int], ...]
    letters: float
    words: float
    kinds: frozenset[Kind]
    scale: tuple[float, float] | None = None
    time_forms: tuple[str, ...] = ()

    @property
    def time_form(self) -> str | None:
        """Return the first form of the column's times; None without times."""
        return self.time_forms[0] if self.time_forms else None

    @property
    def values(self) -> list[str]:
        """Return the most frequent values."""
        return [value for value, _ in self.frequent]


@dataclass(frozen=True)
class TableProfile:
    """The columns of a table, by a sample of its rows.

    Attributes:
        columns: by name; of columns of the same name, the first.
        rows: number of rows in the sample.
        where: the name of the table in messages.
        headless: True if the names look like data: the table has no line of names.
    """

    columns: Mapping[str, ColumnProfile]
    rows: int
    where: str
    headless: bool = False

    def could_be(self, *kinds: Kind) -> list[str]:
        """Return the names of the columns possibly of any of some kinds."""
        return [name for name, column in self.columns.items() if column.kinds & set(kinds)]


def profile(table: pa.Table, where: str) -> TableProfile:
    """Return the profile of a table, from a sample of its rows.

    Args:
        table: its first rows, of any types.
        where: the name of the table in messages.

    >>> table = pa.table({"question": ["what is a cat?", "where do owls live?"] * 20,
    ...                   "ok": ["yes", "no"] * 20, "at": range(1_700_000_000, 1_700_000_040)})
    >>> of_table = profile(table, "a.csv")
    >>> sorted(of_table.columns["ok"].kinds), of_table.columns["ok"].values
    (['boolean', 'label'], ['no', 'yes'])
    >>> of_table.columns["at"].time_form, of_table.could_be("time"), of_table.headless
    ('seconds', ['at'], False)
    """
    columns = []
    for i, name in enumerate(table.column_names):
        values = decoded(table.select([i])).column(0)
        columns.append(_profile_of(name, values))
    by_name: dict[str, ColumnProfile] = {}
    for column in columns:
        by_name.setdefault(column.name, column)
    rows = min(len(table), _SAMPLED_ROWS)
    return TableProfile(by_name, rows, where, headless(columns))


def _sample(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return at most `_SAMPLED_ROWS` values from all over a column."""
    if len(values) <= _SAMPLED_ROWS:
        return values
    rows = np.linspace(0, len(values) - 1, _SAMPLED_ROWS).astype(np.int64)
    try:
        return values.take(pa.array(rows))
    except pa.ArrowException:  # of a type that Arrow cannot take rows of
        return values[:_SAMPLED_ROWS]


def headless(columns: Sequence[ColumnProfile]) -> bool:
    """Return True if the names of columns look like a row of the columns.

    >>> columns = profile(pa.table({"7": ["8", "9"], "2024-01-01": ["2024-02-01", "2024-02-07"]}), "a").columns
    >>> headless([*columns.values()])
    True
    """
    return _are_names(columns) is False


def first_line_holds_names(
    header: Sequence[str], rows: pa.Table, thorough: bool = False
) -> bool | None:
    """Return True if the first line of a file holds names, and False if it holds data, from the rows
    after it; None if nothing tells.

    Args:
        header: the values of the first line.
        rows: as many columns of texts.
        thorough: look at values for any names; takes some milliseconds.

    >>> rows = pa.table({"a": ["2", "3"], "b": ["7", "7"]})
    >>> first_line_holds_names(["1", "8"], rows), first_line_holds_names(["user", "item"], rows, thorough=True)
    (False, True)
    """
    if len(header) > 1 and all(map(_NUMBER.fullmatch, header)):
        return False
    columns = list(zip(header, rows.columns, strict=True))
    if not thorough and not any(_may_be_data(name, column) for name, column in columns):
        return None
    return _are_names([_profile_of(name, column) for name, column in columns])


def _are_names(columns: Sequence[ColumnProfile]) -> bool | None:
    """Return True if the names of columns are names, and False if they are data; None if nothing
    tells.

    In a table with a line of names, the name of a column of numbers or dates is no number and no
    date. In a table without a line of names, some name looks like the values of its column: both
    are numbers or dates, have the same pattern (user_000001, hashes, codes), or are sentences, or
    the name is frequent among the values.
    """
    evidence = [_evidence_of_name(column) for column in columns]
    if "name" in evidence:
        return True
    if "data" in evidence:
        return False
    return None


def _may_be_data(name: str, column: pa.ChunkedArray) -> bool:
    """Return False for a name that is no number, date, code, link, list or sentence, and that the
    column does not repeat."""
    if re.search(r"\d|://|[\[]", name) or len(name.split()) > 2:
        return True
    return bool(name) and pc.sum(pc.equal(column, name)).as_py() not in (None, 0, 1)


def _profile_of(name: str, column: pa.ChunkedArray) -> ColumnProfile:
    """Return the profile of a column, from a sample of its values."""
    values = _sample(column)
    whole = len(column) <= _SAMPLED_ROWS
    kind = values.type
    rows = len(values)
    if pa.types.is_nested(kind):
        return _profile_of_nested(name, values[:_NESTED_ROWS], whole)
    texts = as_texts(values)
    texts = texts.filter(pc.not_equal(pc.utf8_trim_whitespace(texts), ""))
    counts = _counts(texts)
    measured = texts[:: max(1, len(texts) // _MEASURED_ROWS)]
    numbers = _numbers(kind, texts)
    scale = None
    if numbers is not None and len(numbers):
        extremes = pc.min_max(numbers).as_py()
        scale = (extremes["min"], extremes["max"])
    of_column = ColumnProfile(
        name,
        kind,
        rows,
        blanks=rows - len(texts),
        distinct=len(counts),
        whole=whole,
        frequent=tuple(counts[:_FREQUENT]),
        letters=_median(pc.utf8_length(measured)),
        words=_median(pc.count_substring_regex(measured, r"\S+")),
        kinds=frozenset(),
        scale=scale,
        time_forms=_time_forms(kind, texts, numbers),
    )
    return replace(of_column, kinds=_kinds(of_column, measured, len(texts), numbers))


def _profile_of_nested(name: str, values: pa.ChunkedArray, whole: bool) -> ColumnProfile:
    """Return the profile of a column of lists or objects."""
    kind = values.type
    rows = len(values)
    texts = pa.array([str(value) for value in _python(values) if value is not None], pa.string())
    counts = _counts(texts)
    inside = texts
    if is_list(kind) and is_text(kind.value_type):
        inside = pc.list_flatten(values.combine_chunks()).drop_null()
    kinds = set[Kind]()
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        kinds.add("list")
    return ColumnProfile(
        name,
        kind,
        rows,
        blanks=rows - len(texts),
        distinct=len(counts),
        whole=whole and rows < _NESTED_ROWS,
        frequent=tuple(counts[:_FREQUENT]),
        letters=_median(pc.utf8_length(inside)),
        words=_median(pc.count_substring_regex(inside, r"\S+")),
        kinds=frozenset(kinds),
    )


def _counts(texts: pa.Array) -> list[tuple[str, int]]:
    """Return the distinct texts with their counts, the most frequent first."""
    counts = [(each["values"], each["counts"]) for each in pc.value_counts(texts).to_pylist()]
    return sorted(counts, key=lambda each: (-each[1], each[0]))


def as_texts(values: pa.ChunkedArray) -> pa.Array:
    """Return single values of any type as texts; values that are null or not a number are left
    out."""
    values = values.filter(pc.invert(pc.is_null(values, nan_is_null=True)))
    if pa.types.is_floating(values.type):
        # Arrow then writes 4.0 as 4, so that it equals 4 of another file.
        values = values.cast(pa.float64())
    try:
        texts = values.cast(pa.large_string())
    except pa.ArrowException:
        texts = pa.chunked_array([[str(value) for value in _python(values)]], pa.large_string())
    whole: pa.Array = texts.combine_chunks()
    if isinstance(whole, pa.Array):
        return whole
    return pa.concat_arrays(whole.chunks)


def _python(values: pa.ChunkedArray) -> list[object]:
    """Return values of Python; values beyond Python, for instance a time of a nanosecond, as texts
    of Arrow."""
    try:
        held: list[object] = values.to_pylist()
    except (ValueError, OverflowError, UnicodeDecodeError, pa.ArrowException):
        valid = values.is_valid()
        held = [str(values.slice(i, 1)) if valid[i].as_py() else None for i in range(len(values))]
    return held


def _numbers(kind: pa.DataType, texts: pa.Array) -> pa.Array | None:
    """Return a column's values as numbers; None if a value is no number."""
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind) or pa.types.is_binary(kind):
        return None
    try:
        return pc.utf8_trim_whitespace(texts).cast(pa.float64())
    except pa.ArrowException:
        return None


def _time_forms(kind: pa.DataType, texts: pa.Array, numbers: pa.Array | None) -> tuple[str, ...]:
    """Return the forms in which a column holds times."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return (TYPED,)
    if numbers is not None and pc.count_distinct(numbers).as_py() > 1:
        unit = epoch_unit(numbers)
        if unit is not None:
            return (unit,)
    if is_text(kind) or (numbers is not None and pa.types.is_integer(kind)):
        return date_forms(texts)
    return ()


def _kinds(
    column: ColumnProfile, texts: pa.Array, rows: int, numbers: pa.Array | None
) -> frozenset[Kind]:
    """Return the possible kinds of a column of single values.

    Args:
        column: the profile of the column, without kinds.
        texts: some values of the column.
        rows: number of values, blanks apart.
        numbers: all values as numbers.
    """
    if not rows:
        return frozenset()
    kinds: set[Kind] = set()
    if column.distinct == 1:
        kinds.add("constant")
    if column.time_forms:
        kinds.add("time")
    if numbers is not None:
        kinds.add("number")
        if column.distinct > 1 and not column.time_forms and _is_scale(numbers, column.distinct):
            kinds.add("rating")
    if is_text(column.type) and numbers is None and not column.time_forms:
        kinds |= _kinds_of_texts(column, texts)
    if "list" not in kinds and not column.time_forms and _is_label(column, rows):
        kinds.add("label")
    if column.distinct > 1 and {value.lower() for value in column.values} <= _TRUTHS:
        kinds.add("boolean")
    if not kinds & {"list", "url", "boolean"} and _is_id(column, texts):
        kinds.add("id")
    return frozenset(kinds)


def _kinds_of_texts(column: ColumnProfile, texts: pa.Array) -> set[Kind]:
    """Return the possible kinds of texts without a number or a date."""
    if _share(texts, _LINK) > 0.95:
        return {"url"}
    values = texts.to_pylist()
    are_listed = all(_LISTED.fullmatch(text.strip()) for text in values)
    if are_listed and any(map(_SIGN_OF_LISTS.search, values)):
        return {"list"}
    if _share(texts, r"\S\s+\S") > 0.25 or _share(texts, _WORDLESS) > 0.25:
        return {"text"}
    return set()


def _is_label(column: ColumnProfile, rows: int) -> bool:
    """Return True if few values stand in many rows, or if all values are usual for labels."""
    if not 1 < column.distinct <= _FREQUENT:
        return False
    return 10 * column.distinct <= rows or {value.lower() for value in column.values} <= _LABELS


def _is_scale(numbers: pa.Array, distinct: int) -> bool:
    """Return True if numbers may be grades: a few whole numbers, or fractions, not far from 0."""
    if not pc.all(pc.less_equal(pc.abs(numbers), _WIDEST_SCALE)).as_py():
        return False
    has_fractions = pc.any(pc.not_equal(pc.floor(numbers), numbers)).as_py()
    return bool(has_fractions) or distinct <= _GRADES


def _is_id(column: ColumnProfile, texts: pa.Array) -> bool:
    """Return True if values are whole numbers, or texts of a single word."""
    if pa.types.is_floating(column.type) or pa.types.is_temporal(column.type):
        return False
    if "number" in column.kinds or column.scale is not None:
        return _share(texts, r"^\s*[-+]?\d+\s*$") == 1
    wordy = _share(texts, r"\S\s+\S") > 0.02 or column.letters > _LONGEST_ID
    return not wordy and not column.time_forms


def _evidence_of_name(column: ColumnProfile) -> Literal["name", "data", "open"]:
    """Return "name" if the name of a column differs from its values, "data" if the name looks like
    a value, and "open" if neither is shown."""
    name = column.name.strip()
    if not name or column.rows == column.blanks:
        return "open"
    of_name = _profile_of(name, pa.chunked_array([[name]], pa.large_string()))
    if column.scale is not None:
        return "name" if of_name.scale is None else "data"
    if column.time_forms:
        if column.time_form == TYPED:
            return "data" if of_name.time_forms else "name"
        return "data" if set(column.time_forms) & set(of_name.time_forms) else "name"
    if not is_text(column.type):
        return "name"
    if "list" in column.kinds or "url" in column.kinds:
        return "data" if column.kinds & of_name.kinds else "name"
    if any(value == name and count > 1 for value, count in column.frequent):
        return "data"
    patterns = {_pattern(value) for value in column.values}
    if patterns == {_pattern(name)} and re.search(r"\d", name):
        return "data"
    if "text" in column.kinds and _is_sentence(name, column):
        return "data"
    return "open"


def _pattern(text: str) -> str:
    """Return the signs of a text with a letter for letters and 9 for digits; of hashes and codes,
    which mix letters and digits, the length.

    >>> _pattern("user_000001"), _pattern("9f86d081884c7d65"), _pattern("A1B2C3"), _pattern("Year 3")
    ('a_9', '16', '6', 'a 9')
    """
    mixes = len(re.findall(r"\d+", text)) > 1 or re.search(r"\d[A-Za-z]", text)
    if mixes and re.fullmatch(r"[A-Za-z0-9-]{6,}", text):
        return str(len(text))
    return re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", text))


def _is_sentence(name: str, column: ColumnProfile) -> bool:
    """Return True if a name has four words or more, or ends as a sentence does, and is at least half
    as long as the column's texts."""
    words = len(name.split())
    ends = words > 2 and name.endswith((".", "?", "!"))
    return (words > 3 or ends) and 2 * len(name) >= column.letters


def _share(texts: pa.Array, pattern: str) -> float:
    """Return the share of texts that hold a pattern."""
    matched: float = pc.mean(pc.match_substring_regex(texts, pattern)).as_py() or 0.0
    return matched


def _median(counts: pa.Array) -> float:
    """Return the median of counts; 0 if there are none."""
    if not len(counts):
        return 0.0
    return float(np.median(counts.to_numpy(zero_copy_only=False)))
