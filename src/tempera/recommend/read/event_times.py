"""Times of events: numbers unchanged, dates of a single form as microseconds since 1970.

Letters in shapes: r rows of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...tables.dates import ISO, UNITS, date_forms, dates, is_of_unit
from ...tables.reader import BlockReader, is_text, missing

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
_MOST = 0.9  # share of the numbers that are such times, in one unit or another
_EXPECTED = "numbers or dates of one form (data.time_format names another)"


@dataclass
class EventTimes:
    """Read the times of a table, block by block: all in the form and the unit of the first times.

    Args:
        missing: treatment of a row without a time.
        form: of the dates, in the codes of `datetime.strptime`; None finds the form.
    """

    missing: Literal["refuse", "drop"] = "refuse"
    form: str | None = None
    unit: str | None = None  # of the times so far, if they are since 1970
    example: str = ""  # a time of that unit

    def of(self, reader: BlockReader) -> pa.Array:
        """Return the times of a block as int64, float64 or microseconds since 1970, [r].

        Raises:
            DataError: a row without a time, or times of different forms or units.
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
        """Return times by type; texts are numbers, ISO dates, or dates of another form."""
        values = reader.column("time")
        name = reader.columns["time"][0]
        kinds = next((kinds for has_type, kinds in _TIMES.items() if has_type(values.type)), None)
        if kinds is None:
            reader.refuse_type(name, values.type, _EXPECTED)
        if is_text(values.type) and self.form is None:
            self.form = self._form_of(reader, values)
        if is_text(values.type) and self.form is not None:
            return self._dates(reader, values, self.form)
        values = reader.cast("time", values, kinds, _EXPECTED)
        return values.cast(_DATES[0], safe=False) if _is_date(values) else values

    def _form_of(self, reader: BlockReader, texts: pa.Array) -> str | None:
        """Return the form of texts of dates: the given form, or else the form of the first text;
        None for numbers and for texts of no known form."""
        present = texts.filter(pa.array(~missing(texts)))
        if not len(present) or _are_numbers(present):
            return None
        forms = date_forms(present) or date_forms(present[:1])[:1]
        if len(forms) > 1:
            shown = " or ".join(f"data.time_format={form!r}" for form in forms)
            row = int((~missing(texts)).argmax())
            what = f"is {texts[row].as_py()!r}, which has {len(forms)} meanings"
            reader.fail(reader.columns["time"][0], row, f"{what}: give {shown}")
        return next(iter(forms), None)

    def _dates(self, reader: BlockReader, texts: pa.Array, form: str) -> pa.Array:
        """Return dates of a form as microseconds, [r]."""
        times = dates(texts, form)
        wrong = times.is_null().to_numpy(zero_copy_only=False) & ~missing(texts)
        if wrong.any():
            row = int(wrong.argmax())
            like = (
                "an ISO date, as in the first row"
                if form == ISO
                else f"a date of the form {form!r}"
            )
            reader.fail(
                reader.columns["time"][0], row, f"is {texts[row].as_py()!r}; expected {like}"
            )
        return times

    def _unset(
        self,
        reader: BlockReader,
        values: pa.Array,
        numbers: NDArray[np.float64],
        absent: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return True for times of 0 or less among times since 1970, [r], and refuse times of a
        different unit."""
        timed, none = ~absent & reader.keep, np.zeros(len(numbers), bool)
        of_unit = {name: is_of_unit(numbers, name) & timed for name in UNITS}
        counts = {name: int(rows.sum()) for name, rows in of_unit.items()}
        if sum(counts.values()) < _MOST * (timed & (numbers > 0)).sum():
            return none  # other numbers, such as days or steps
        if self.unit is None:
            unit = max(UNITS, key=counts.__getitem__)
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


def _are_numbers(texts: pa.Array) -> bool:
    try:
        texts.cast(pa.float64())
    except pa.ArrowException:
        return False
    return True


def _is_date(values: pa.Array) -> bool:
    return bool(pa.types.is_timestamp(values.type))


def _written(values: pa.Array, row: int) -> str:
    """Return a time in the form for messages."""
    return str(values[row].as_py())
