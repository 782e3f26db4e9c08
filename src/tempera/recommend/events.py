"""From a block of a table to events: who, what, when, how much; every fault by file, row and column.

Letters in shapes: r rows of the block.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError
from ..io.tables import Block

Mask = NDArray[np.bool_]
_DATE = pa.timestamp("us")
_TIMES = (pa.float64(), _DATE, pa.timestamp("us", "UTC"))  # what a text may say


def events_of(
    block: Block,
    columns: dict[str, str],
    dropped: Counter[str],
    min_rating: float | None = None,
    missing_time: Literal["refuse", "drop"] = "refuse",
) -> pa.Table:
    """Columns user, item and, where there are any, time, position and weight.

    Ids are int64 or large_string, times int64, float64 or microseconds since 1970 (UTC), positions float64, weights
    float32.

    Args:
        columns: the column of each role.
        dropped: what is left out is added to these counts, by reason.

    Raises:
        DataError: the file, row and column of what cannot be used.
    """
    return _Reader(block, columns, dropped).read(min_rating, missing_time)


class _Reader:
    def __init__(self, block: Block, columns: dict[str, str], dropped: Counter[str]) -> None:
        self.block, self.columns, self.dropped = block, columns, dropped
        self.keep = np.ones(len(block.table), bool)

    def read(self, min_rating: float | None, missing_time: Literal["refuse", "drop"]) -> pa.Table:
        found: dict[str, pa.Array] = {}
        if "time" in self.columns:
            found["time"] = self.times(missing_time)
        if "rating" in self.columns and min_rating is not None:
            self.leave_out("rows below min_rating", self.numbers("rating") < min_rating)
        found = {"user": self.ids("user"), "item": self.ids("item"), **found}
        if "position" in self.columns:
            found["position"] = pa.array(self.numbers("position"))
        if "weight" in self.columns:
            found["weight"] = pa.array(self.weights())
        return pa.table(found).filter(pa.array(self.keep))

    def ids(self, role: str) -> pa.Array:
        """Ids of a role, texts or integers, [r]."""
        name = self.columns[role]
        values = id_values(self.column(role), f"{self.block.file}: column {name!r}")
        self.every("has no id", role, missing(values))
        return values

    def times(self, missing_time: Literal["refuse", "drop"]) -> pa.Array:
        """Numbers as they are given; dates as microseconds, [r]."""
        values = self.column("time")
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            values = self.parsed(values)
        elif pa.types.is_temporal(values.type):
            values = self.cast("time", values, _DATE, "dates are expected", safe=False)
        elif pa.types.is_integer(values.type):
            values = self.cast("time", values, pa.int64(), "times of at most 63 bits are expected")
        elif pa.types.is_floating(values.type):
            values = values.cast(pa.float64())
        elif not pa.types.is_null(values.type):
            self.fail_column("time", values.type, "numbers or dates are expected")
        absent = missing(values)
        if missing_time == "drop":
            self.leave_out("rows without a time", absent)
        self.every("has no time", "time", absent, ": data.missing_time=drop leaves such rows out")
        if pa.types.is_floating(values.type):
            self.every("is infinite", "time", np.isinf(values.to_numpy(zero_copy_only=False)))
        return values

    def parsed(self, values: pa.Array) -> pa.Array:
        """Texts as integers, else as numbers, else as ISO dates, of UTC unless they say otherwise."""
        for kind in (pa.int64(), pa.float64(), _DATE, pa.timestamp("us", "UTC")):
            try:
                return values.cast(kind).cast(_DATE) if pa.types.is_timestamp(kind) else values.cast(kind)
            except pa.ArrowInvalid:
                continue
        kinds = list(_TIMES)
        for row, text in enumerate(values):
            own = [kind for kind in _TIMES if _is(kind, text)]
            kinds = [kind for kind in kinds if kind in own]
            if not kinds:
                expected = "a time as in the rows before" if own else "a number or an ISO date"
                self.fail("time", row, f"is {text.as_py()!r}, and {expected} is expected")
        return self.fail_column("time", values.type, "numbers or ISO dates are expected")

    def weights(self) -> NDArray[np.float32]:
        """How much each row counts, [r]."""
        weights = self.numbers("weight")
        self.every("is below 0", "weight", weights < 0)
        self.every("is more than 3.4e38", "weight", weights > np.finfo(np.float32).max)
        return weights.astype(np.float32)

    def numbers(self, role: str) -> NDArray[np.float64]:
        """A column of finite numbers, [r]."""
        values = self.column(role)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            self.every_number(role, values)
        values = self.cast(role, values, pa.float64(), "numbers are expected")
        numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
        self.every("has no number", role, missing(values))
        self.every("is infinite", role, np.isinf(numbers))
        return numbers

    def every_number(self, role: str, texts: pa.Array) -> None:
        """Refuse texts that are no numbers."""
        try:
            texts.cast(pa.float64())
        except pa.ArrowInvalid:
            bad = next(row for row, text in enumerate(texts) if not _is(pa.float64(), text))
            self.fail(role, bad, f"is {texts[bad].as_py()!r}, and a number is expected")

    def cast(self, role: str, values: pa.Array, kind: pa.DataType, what: str, safe: bool = True) -> pa.Array:
        try:
            return values.cast(kind, safe=safe)
        except pa.ArrowException:
            self.fail_column(role, values.type, what)

    def column(self, role: str) -> pa.Array:
        """The column of a role; without values where this block of a file lacks it."""
        name, table = self.columns[role], self.block.table
        if name not in table.column_names:
            return pa.nulls(len(table))
        try:
            column = table[name].combine_chunks()
        except pa.ArrowException:  # lists of what no list could hold
            self.fail_column(role, table[name].type, "one value in each row is expected")
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def leave_out(self, reason: str, which: Mask) -> None:
        """Leave rows out, and count them."""
        which = which & self.keep
        if which.any():
            self.dropped[reason] += int(which.sum())
            self.keep &= ~which

    def every(self, fault: str, role: str, which: Mask, remedy: str = "") -> None:
        """Refuse rows that are not left out."""
        which = which & self.keep
        if which.any():
            self.fail(role, int(which.argmax()), f"{fault}{remedy}")

    def fail(self, role: str, row: int, text: str) -> NoReturn:
        place = f"{self.block.file}, row {self.block.first + row}"
        raise DataError(f"{place}: column {self.columns[role]!r} {text}") from None

    def fail_column(self, role: str, given: pa.DataType, text: str) -> NoReturn:
        raise DataError(f"{self.block.file}: column {self.columns[role]!r} holds {given}, and {text}") from None


def id_values(values: pa.Array, where: str) -> pa.Array:
    """Ids as int64 or as large_string.

    Raises:
        DataError: other types, with `where`.
    """
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_integer(values.type):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(f"{where} holds integers of more than 63 bits: give them as texts") from None
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_null(values.type):
        return values.cast(pa.large_string())
    raise DataError(f"{where} holds {values.type}, and ids are texts or integers")


def missing(values: pa.Array) -> Mask:
    """Which are null, not a number, or an empty text, [r]."""
    absent: Mask = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    if pa.types.is_large_string(values.type):
        absent = absent | pc.fill_null(pc.equal(values, ""), True).to_numpy(zero_copy_only=False)
    return absent


def _is(kind: pa.DataType, text: pa.Scalar) -> bool:
    """Whether a text says a value of a kind, or nothing."""
    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
