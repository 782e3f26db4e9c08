"""The profile of a table: what a sample of each column holds, and what the column could be.

Letters in shapes: r rows of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrow_types import decoded, is_list, is_text
from .dates import date_forms, epoch_unit

Kind = Literal[
    "text", "id", "label", "rating", "time", "list", "number", "constant", "url", "boolean"
]

TYPED = "date"  # the time form of a column whose type says that it holds dates
_SAMPLE = 2_000  # rows that tell what a column holds
_FEWER = 400  # of them are measured and matched with patterns
_NESTED = 200  # rows of lists and objects, which are slower to read
_FREQUENT = 12  # values that are told, and that a label has at most
_GRADES = 21  # whole numbers that a scale has at most: 0 to 20, or 0.0 to 10.0 by halves
_WIDEST = 100.0  # that a scale reaches, to either side
_LONGEST_ID = 64  # letters
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_LISTED = re.compile(r"\[.*\]", re.DOTALL)
_OF_LISTS = re.compile(r"""['",]|\[\s*\]""")  # at least one of many lists holds
_LINK = r"^(https?|ftp)://\S+$|^www\.\S+$"
_WORDLESS = r"[\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{0e00}-\x{0e7f}]"  # scripts without spaces
_TRUTHS = frozenset({"true", "false", "yes", "no", "t", "f", "y", "n", "on", "off", "0", "1"})
_LABELS = _TRUTHS | {
    *("-1", "0.0", "1.0", "-1.0", "positive", "negative", "entailment", "neutral"),
    *("contradiction", "relevant", "irrelevant", "not relevant", "good", "bad"),
}  # as which few rows tell a label, too


@dataclass(frozen=True)
class ColumnProfile:
    """A column, as a sample of its values shows it.

    Attributes:
        name: of the column.
        type: of its values, in Arrow.
        rows: that were looked at.
        blanks: of these, null, not a number, an empty text, or white space.
        distinct: number of different values that are not blank.
        whole: whether the sample is every row of the table.
        frequent: the most frequent values as texts, with their counts, at most 12.
        letters: of the median value, of the texts inside of lists.
        words: likewise.
        kinds: what the column could be; a column of ratings may be of ids, too.
        scale: lowest and highest of numbers.
        time_forms: the forms of its times: a unit of `dates.UNITS`, "iso", "date" for columns of
            dates by their type, or formats of strptime, several where days and months look alike.
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
        """Return the first form of the column's times; None if it holds none."""
        return self.time_forms[0] if self.time_forms else None

    @property
    def values(self) -> list[str]:
        """Return the most frequent values."""
        return [value for value, _ in self.frequent]


@dataclass(frozen=True)
class TableProfile:
    """The columns of a table, as a sample of its rows shows them.

    Attributes:
        columns: by name; of columns with one name, the first.
        rows: that were looked at.
        where: the name of the table in messages.
        headless: whether the names look like data, so that the table has no line of names.
    """

    columns: Mapping[str, ColumnProfile]
    rows: int
    where: str
    headless: bool = False

    def could_be(self, *kinds: Kind) -> list[str]:
        """Return the names of the columns that could be of any of these kinds."""
        return [name for name, column in self.columns.items() if column.kinds & {*kinds}]


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
    names = table.column_names
    columns = [_column(name, *_sample(table.select([i]))) for i, name in enumerate(names)]
    by_name = {column.name: column for column in reversed(columns)}
    rows = min(len(table), _SAMPLE)
    return TableProfile({name: by_name[name] for name in names}, rows, where, headless(columns))


def _sample(table: pa.Table) -> tuple[pa.ChunkedArray, bool]:
    """Return values from all over the only column of a table, and whether they are all."""
    return _some(decoded(table).column(0))


def _some(values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, bool]:
    """Return values from all over a column, and whether they are all."""
    if len(values) <= _SAMPLE:
        return values, True
    rows = np.linspace(0, len(values) - 1, _SAMPLE).astype(np.int64)
    try:
        return values.take(pa.array(rows)), False
    except pa.ArrowException:  # of a type that Arrow cannot take rows of
        return values[:_SAMPLE], False


def headless(columns: Sequence[ColumnProfile]) -> bool:
    """Return whether the names of columns look like a row of them.

    >>> columns = profile(pa.table({"7": ["8", "9"], "2024-01-01": ["2024-02-01", "2024-02-07"]}), "a").columns
    >>> headless([*columns.values()])
    True
    """
    return _are_names(columns) is False


def first_line_holds_names(
    header: Sequence[str], rows: pa.Table, thorough: bool = False
) -> bool | None:
    """Return whether the first line of a file holds names, from the rows after it; None if nothing
    tells.

    Args:
        header: the values of the first line.
        rows: as many columns of texts.
        thorough: whether to look at values whatever the names are, which takes some milliseconds.

    >>> rows = pa.table({"a": ["2", "3"], "b": ["7", "7"]})
    >>> first_line_holds_names(["1", "8"], rows), first_line_holds_names(["user", "item"], rows, thorough=True)
    (False, True)
    """
    if len(header) > 1 and all(map(_NUMBER.fullmatch, header)):
        return False
    columns = list(zip(header, rows.columns, strict=True))
    if not thorough and not any(_may_be_data(name, column) for name, column in columns):
        return None
    return _are_names([_column(name, *_some(column)) for name, column in columns])


def _are_names(columns: Sequence[ColumnProfile]) -> bool | None:
    """Return whether the names of columns are names; None if nothing tells.

    A column of numbers or dates whose name is none has a line of names. Else one of these says that
    there is none: a name that is a number or a date as its column's values are, of the same pattern
    as they are (user_000001, hashes, codes), frequent among them, or a sentence as they are.
    """
    evidence = [_named(column) for column in columns]
    if "name" in evidence:
        return True
    return False if "data" in evidence else None


def _may_be_data(name: str, column: pa.ChunkedArray) -> bool:
    """Return False for a name that is no number, date, code, link, list or sentence, and that the
    column does not repeat."""
    if re.search(r"\d|://|[\[]", name) or len(name.split()) > 2:
        return True
    return bool(name) and pc.sum(pc.equal(column, name)).as_py() not in (None, 0, 1)


def _column(name: str, values: pa.ChunkedArray, whole: bool) -> ColumnProfile:
    """Return the profile of a column of the sample, [r]."""
    kind, rows = values.type, len(values)
    if pa.types.is_nested(kind):
        return _nested(name, values[:_NESTED], whole)
    texts = as_texts(values)
    texts = texts.filter(pc.not_equal(pc.utf8_trim_whitespace(texts), ""))
    counts = sorted(
        ((count["values"], count["counts"]) for count in pc.value_counts(texts).to_pylist()),
        key=lambda each: (-each[1], each[0]),
    )
    numbers = _numbers(values.type, texts)
    some = texts[:: max(1, len(texts) // _FEWER)]
    scale = None
    if numbers is not None and len(numbers):
        least = pc.min_max(numbers).as_py()
        scale = (least["min"], least["max"])
    time_forms = _time_forms(kind, texts, numbers)
    of_column = ColumnProfile(
        name,
        kind,
        rows,
        blanks=rows - len(texts),
        distinct=len(counts),
        whole=whole,
        frequent=tuple(counts[:_FREQUENT]),
        letters=_median(pc.utf8_length(some)),
        words=_median(pc.count_substring_regex(some, r"\S+")),
        kinds=frozenset(),
        scale=scale,
        time_forms=time_forms,
    )
    kinds = _kinds(of_column, some, len(texts), numbers)
    return ColumnProfile(**{**vars(of_column), "kinds": kinds})


def _nested(name: str, values: pa.ChunkedArray, whole: bool) -> ColumnProfile:
    """Return the profile of a column of lists or objects."""
    rows = len(values)
    texts = pa.array([str(value) for value in _python(values) if value is not None], pa.string())
    counts = {value["values"]: value["counts"] for value in pc.value_counts(texts).to_pylist()}
    inside = texts
    if is_list(values.type) and is_text(values.type.value_type):
        inside = pc.list_flatten(values.combine_chunks()).drop_null()
    kinds: frozenset[Kind] = frozenset(
        ["list"] if is_list(values.type) or pa.types.is_fixed_size_list(values.type) else []
    )
    return ColumnProfile(
        name,
        values.type,
        rows,
        rows - len(texts),
        len(counts),
        whole and rows < _NESTED,
        tuple(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_FREQUENT]),
        _median(pc.utf8_length(inside)),
        _median(pc.count_substring_regex(inside, r"\S+")),
        kinds,
    )


def as_texts(values: pa.ChunkedArray) -> pa.Array:
    """Return single values of any type as texts, without those that are null or not a number."""
    values = values.filter(pc.invert(pc.is_null(values, nan_is_null=True)))
    if pa.types.is_floating(values.type):
        # 4.0 as 4: Arrow writes what Python does, and CSV files have both
        values = values.cast(pa.float64())
    try:
        texts = values.cast(pa.large_string())
    except pa.ArrowException:
        texts = pa.chunked_array([[str(value) for value in _python(values)]], pa.large_string())
    whole: pa.Array = texts.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _python(values: pa.ChunkedArray) -> list[object]:
    """Return values as Python has them; those that it cannot hold, such as a time of a nanosecond,
    as Arrow writes them."""
    try:
        held: list[object] = values.to_pylist()
    except (ValueError, OverflowError, UnicodeDecodeError, pa.ArrowException):
        valid = values.is_valid()
        held = [str(values.slice(i, 1)) if valid[i].as_py() else None for i in range(len(values))]
    return held


def _numbers(kind: pa.DataType, texts: pa.Array) -> pa.Array | None:
    """Return a column's values as numbers; None if one of them is none."""
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
    if numbers is None:
        return date_forms(texts) if is_text(kind) else ()
    if pc.count_distinct(numbers).as_py() > 1 and (unit := epoch_unit(numbers)):
        return (unit,)
    return date_forms(texts) if is_text(kind) or pa.types.is_integer(kind) else ()


def _kinds(
    column: ColumnProfile, texts: pa.Array, rows: int, numbers: pa.Array | None
) -> frozenset[Kind]:
    """Return what a column of single values could be.

    Args:
        texts: some of its values.
        rows: number of values that are not blank.
        numbers: all values as numbers.
    """
    kinds: set[Kind] = set()
    if not rows:
        return frozenset()
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
    """Return what texts that are no numbers and no dates could be."""
    if _share(texts, _LINK) > 0.95:
        return {"url"}
    some = texts.to_pylist()
    if all(_LISTED.fullmatch(text.strip()) for text in some) and any(map(_OF_LISTS.search, some)):
        return {"list"}
    several = _share(texts, r"\S\s+\S") > 0.25 or _share(texts, _WORDLESS) > 0.25
    return {"text"} if several else set()


def _is_label(column: ColumnProfile, rows: int) -> bool:
    """Return whether few values stand in many rows, or values that are usual for labels in any
    number of rows."""
    if not 1 < column.distinct <= _FREQUENT:
        return False
    return 10 * column.distinct <= rows or {value.lower() for value in column.values} <= _LABELS


def _is_scale(numbers: pa.Array, distinct: int) -> bool:
    """Return whether numbers may grade something: a few whole ones, or fractions, about 0."""
    if not pc.all(pc.less_equal(pc.abs(numbers), _WIDEST)).as_py():
        return False
    fractions = pc.any(pc.not_equal(pc.floor(numbers), numbers)).as_py()
    return bool(fractions) or distinct <= _GRADES


def _is_id(column: ColumnProfile, texts: pa.Array) -> bool:
    """Return whether values are whole numbers, or texts of one word."""
    if pa.types.is_floating(column.type) or pa.types.is_temporal(column.type):
        return False
    if "number" in column.kinds or column.scale is not None:
        return _share(texts, r"^\s*[-+]?\d+\s*$") == 1
    wordy = _share(texts, r"\S\s+\S") > 0.02 or column.letters > _LONGEST_ID
    return not wordy and not column.time_forms


def _named(column: ColumnProfile) -> Literal["name", "data", "open"]:
    """Return whether a column's name is one, or looks like one of its values."""
    name = column.name.strip()
    if not name or column.rows == column.blanks:
        return "open"
    as_data = _column(name, pa.chunked_array([[name]], pa.large_string()), whole=True)
    if column.scale is not None:
        return "data" if as_data.scale is not None else "name"
    if column.time_forms:
        alike = {*column.time_forms} & {*as_data.time_forms}
        return "data" if alike or (column.time_form == TYPED and as_data.time_forms) else "name"
    if not is_text(column.type):
        return "name"
    if "list" in column.kinds or "url" in column.kinds:
        return "data" if column.kinds & as_data.kinds else "name"
    repeated = any(value == name and count > 1 for value, count in column.frequent)
    patterns = {_pattern(value) for value in column.values}
    if repeated or (patterns == {_pattern(name)} and re.search(r"\d", name)):
        return "data"
    return "data" if "text" in column.kinds and _is_sentence(name, column) else "open"


def _pattern(text: str) -> str:
    """Return the signs of a text with a letter for letters and 9 for digits; of hashes and codes,
    which mix them, the length.

    >>> _pattern("user_000001"), _pattern("9f86d081884c7d65"), _pattern("A1B2C3"), _pattern("Year 3")
    ('a_9', '16', '6', 'a 9')
    """
    mixes = len(re.findall(r"\d+", text)) > 1 or re.search(r"\d[A-Za-z]", text)
    if mixes and re.fullmatch(r"[A-Za-z0-9-]{6,}", text):
        return str(len(text))
    return re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", text))


def _is_sentence(name: str, column: ColumnProfile) -> bool:
    """Return whether a name has as many words as the column's texts, four or more, or ends as a
    sentence does."""
    words = len(name.split())
    ends = words > 2 and name.endswith((".", "?", "!"))
    return (words > 3 or ends) and 2 * len(name) >= column.letters


def _share(texts: pa.Array, pattern: str) -> float:
    """Return the share of texts that hold a pattern."""
    matched: float = pc.mean(pc.match_substring_regex(texts, pattern)).as_py() or 0.0
    return matched


def _median(counts: pa.Array) -> float:
    """Return the median of counts; 0 if there are none."""
    return float(np.median(counts.to_numpy(zero_copy_only=False))) if len(counts) else 0.0
