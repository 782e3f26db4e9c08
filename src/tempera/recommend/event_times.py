"""Times of events: numbers as they are given, dates of one form as microseconds since 1970.

Letters in shapes: r rows of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..io.reader import BlockReader, is_text, missing

_DATES = [pa.timestamp("us"), pa.timestamp("us", "UTC")]
_FINER = [pa.timestamp("ns"), pa.timestamp("ns", "UTC")]  # cut to microseconds
# The types that a column's times are read as, the first that suits all of them, by the type that
# the table gives.
_TIMES: Mapping[Callable[[pa.DataType], bool], list[pa.DataType]] = {
    is_text: [pa.int64(), pa.float64(), *_DATES, *_FINER],
    pa.types.is_temporal: _DATES[:1],
    pa.types.is_integer: [pa.int64()],
    pa.types.is_floating: [pa.float64()],
    pa.types.is_null: [pa.null()],
}
_CLOCKS = ("", " %H:%M:%S", " %H:%M", " %H:%M:%S.%f", " %I:%M:%S %p", " %I:%M %p")
_DAYS = (
    *("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%Y", "%m-%d-%Y", "%d-%m-%Y", "%Y-%m-%d"),
    *("%m %d, %Y", "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y", "%d-%b-%Y", "%d/%b/%Y"),
)
# Forms of dates that programs write besides ISO's, as `datetime.strptime` has them.
FORMS = (
    *(day + clock for day in _DAYS for clock in _CLOCKS),
    *("%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S %Y"),
    *("%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %Z", "%d/%b/%Y:%H:%M:%S %z"),
)
_SHOWN = 200  # distinct dates that show their form
_SPELLED_UTC = r"\s*(UTC|GMT)$"
# Units of the times since 1970 that programs write, in seconds.
_UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
_EARLIEST, _LATEST = 5e8, 4e9  # seconds since 1970 that an event may happen at: 1985 to 2096
_MOST = 0.9  # share of the numbers that are such times, in one unit or another
_EXPECTED = "numbers or dates of one form (data.time_format names another)"


@dataclass
class EventTimes:
    """Read the times of one table, block by block: all in the form and the unit of the first ones.

    Args:
        missing: what to do with a row that has no time.
        form: of the dates, as `datetime.strptime` has it; None is found.
    """

    missing: Literal["refuse", "drop"] = "refuse"
    form: str | None = None
    unit: str | None = None  # of the times so far, if they are since 1970
    example: str = ""  # a time of that unit

    def of(self, reader: BlockReader) -> pa.Array:
        """Return the times of a block as int64, float64 or microseconds since 1970, [r].

        Raises:
            DataError: a row without a time, or with one of another form or unit than the others.
        """
        values = self._values(reader)
        absent, unset = missing(values), np.zeros(len(values), bool)
        if not pa.types.is_null(values.type):
            numbers = pc.fill_null(values.cast(pa.int64()) if _is_date(values) else values, 0)
            since = numbers.to_numpy(zero_copy_only=False).astype(np.float64)
            reader.refuse("time", np.isinf(since), "is infinite")
            unset = self._unset(reader, values, since, absent)
        if self.missing == "drop":
            reader.leave_out("rows without a time", absent | unset)
        remedy = "set data.missing_time=drop to leave such rows out"
        reader.refuse("time", absent, f"has no time: {remedy}")
        if unset.any():
            value = _written(values, int(unset.argmax()))
            reader.refuse("time", unset, f"is {value}, unlike {self.example}: {remedy}")
        return values

    def _values(self, reader: BlockReader) -> pa.Array:
        """Return times by their type; texts are numbers, ISO dates, or dates of another form."""
        values = reader.column("time")
        name = reader.columns["time"][0]
        kinds = next((kinds for has_type, kinds in _TIMES.items() if has_type(values.type)), None)
        if kinds is None:
            reader.refuse_type(name, values.type, _EXPECTED)
        if is_text(values.type):
            values = pc.replace_substring_regex(values, _SPELLED_UTC, "Z")
            if self.form is None and not _is_one_of(values, kinds):
                self.form = self._form_of(reader, reader.column("time"))
            if self.form is not None:
                return self._dates(reader, reader.column("time"), self.form)
        values = reader.cast("time", values, kinds, _EXPECTED)
        return values.cast(_DATES[0], safe=False) if _is_date(values) else values

    def _form_of(self, reader: BlockReader, texts: pa.Array) -> str | None:
        """Return the form of dates that are not ISO's; None if no form reads them."""
        forms = forms_of_dates(texts)
        if len(forms) > 1:
            shown = " or ".join(f"data.time_format={form!r}" for form in forms)
            row = int((~missing(texts)).argmax())
            what = f"is {texts[row].as_py()!r}, which has {len(forms)} meanings"
            reader.fail(reader.columns["time"][0], row, f"{what}: give {shown}")
        return next(iter(forms), None)

    def _dates(self, reader: BlockReader, texts: pa.Array, form: str) -> pa.Array:
        """Return dates of a form as microseconds, [r]; each distinct text is read once."""
        coded = texts.dictionary_encode()
        distinct = coded.dictionary.to_pylist()
        read = [date_of(text, form) for text in distinct]
        for code, (text, value) in enumerate(zip(distinct, read, strict=True)):
            if value is None and text.strip():
                row = pc.index(coded.indices, code).as_py()
                what = f"is {text!r}, which is no date of the form {form!r}"
                reader.fail(
                    reader.columns["time"][0], row, f"{what}: mend it, or give data.time_format"
                )
        return pa.array(read, pa.int64()).take(coded.indices).cast(_DATES[0])

    def _unset(
        self,
        reader: BlockReader,
        values: pa.Array,
        numbers: NDArray[np.float64],
        absent: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return which times are 0 or less among times since 1970, [r], and refuse those of another
        unit than the others."""
        timed, none = ~absent & reader.keep, np.zeros(len(numbers), bool)
        of_unit = {name: _of_unit(numbers, name) & timed for name in _UNITS}
        counts = {name: int(rows.sum()) for name, rows in of_unit.items()}
        if sum(counts.values()) < _MOST * (timed & (numbers > 0)).sum():
            return none  # other numbers, such as days or steps
        if self.unit is None:
            unit = max(_UNITS, key=counts.__getitem__)
            if not counts[unit]:
                return none
            self.unit, self.example = unit, _written(values, int(of_unit[unit].argmax()))
        for name, rows in of_unit.items():
            if name != self.unit and counts[name]:
                row = int(rows.argmax())
                many = f" ({counts[name]:,} such rows)" if counts[name] > 1 else ""
                reader.fail(
                    reader.columns["time"][0],
                    row,
                    f"is {_written(values, row)}{many}, a time in {name}, and others are in {self.unit}, such as "
                    f"{self.example}: write all of them in one unit",
                )
        return timed & (numbers <= 0)


def forms_of_dates(texts: pa.Array) -> list[str]:
    """Return the forms, of `FORMS`, that read all dates of a column, or else the one that reads
    most of them, if it reads half.

    >>> forms_of_dates(pa.array(["September 24, 2021", None, "May 1, 2020"]))
    ['%B %d, %Y']
    >>> forms_of_dates(pa.array(["3/5/2011 1:05:09 AM", "4/6/2011 10:00:00 PM"]))
    ['%m/%d/%Y %I:%M:%S %p', '%d/%m/%Y %I:%M:%S %p']
    """
    distinct = [text for text in pc.unique(texts).to_pylist() if text and text.strip()]
    # Dates are drawn from the whole column: a day above 12 tells days from months.
    sample = distinct[:: max(1, len(distinct) // _SHOWN)]
    if not sample:
        return []
    counts = {form: sum(date_of(text, form) is not None for text in sample) for form in FORMS}
    best = max(FORMS, key=counts.__getitem__)
    if counts[best] == len(sample):
        return [form for form in FORMS if counts[form] == len(sample)]
    is_usual = best.startswith("%Y-%m-%d")  # as ISO has it: then the cast names what is wrong
    return [best] if 2 * counts[best] >= len(sample) and not is_usual else []


def date_of(text: str | None, form: str) -> int | None:
    """Return a date of a form in microseconds since 1970, UTC unless it names a zone; None if it is
    none.

    >>> date_of("31/12/1999", "%d/%m/%Y"), date_of("31/02/1999", "%d/%m/%Y")
    (946598400000000, None)
    """
    if text is None:
        return None
    try:
        moment = datetime.strptime(text.strip(), form)
    except ValueError:
        return None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1_000_000)


def _is_one_of(values: pa.Array, kinds: list[pa.DataType]) -> bool:
    """Return whether all texts are values of one type."""
    for kind in kinds:
        try:
            values.cast(kind)
        except pa.ArrowException:
            continue
        return True
    return False


def _is_date(values: pa.Array) -> bool:
    return bool(pa.types.is_timestamp(values.type))


def _of_unit(numbers: NDArray[np.float64], unit: str) -> NDArray[np.bool_]:
    """Return which numbers are times since 1970 in a unit, [r]."""
    low, high = (bound / _UNITS[unit] for bound in (_EARLIEST, _LATEST))
    within: NDArray[np.bool_] = (numbers >= low) & (numbers < high)
    return within


def _written(values: pa.Array, row: int) -> str:
    """Return a time as it stands in a message."""
    return str(values[row].as_py())
