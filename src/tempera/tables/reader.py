"""Values of a block of rows by the roles of its columns; every fault is refused by file, row and
column.

Letters in shapes: r rows of the block, k values of a role in all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError
from .arrow_types import is_list, is_text
from .columns import Columns
from .tables import TableBlock

__all__ = ["IDS", "BlockReader", "Mask", "Rows", "is_list", "is_text", "missing", "reads_as"]

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
_HEAVIEST = float(np.finfo(np.float32).max)
IDS = "ids as texts or integers; write integers of more than 63 bits as texts"


class BlockReader:
    """Read a block; rows left out are counted by reason, and not checked any more.

    Args:
        block: the rows.
        columns: the columns of each role.
        dropped: counts by reason; the rows left out are added.
    """

    def __init__(self, block: TableBlock, columns: Columns, dropped: Counter[str]) -> None:
        self.block = block
        self.columns = columns
        self.dropped = dropped
        self.keep = np.ones(len(block.table), bool)  # [r] rows that are not left out

    def column(self, role: str, name: str | None = None) -> pa.Array:
        """Return a column as an array, [r]; nulls if the block lacks the column."""
        name = name or self.columns[role][0]
        table = self.block.table
        if name not in table.column_names:
            return pa.nulls(len(table))
        column = table[name]
        if column.num_chunks == 1:
            return column.chunk(0)
        try:
            return pa.concat_arrays(column.chunks)
        except pa.ArrowException:  # lists of more than any list could hold
            self.refuse_type(name, column.type, "one value in each row")

    def ids(self, role: str, values: pa.Array | None = None, rows: Rows | None = None) -> pa.Array:
        """Return ids, texts or integers: of each row, [r], or `values`, [k], of some `rows`."""
        if values is None:
            values = self.column(role)
        kind = values.type
        if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
            self.refuse_type(self.columns[role][0], kind, IDS)
        self.refuse(role, missing(values), "has no id", rows)
        return values

    def numbers(
        self, role: str, values: pa.Array | None = None, rows: Rows | None = None
    ) -> NDArray[np.float64]:
        """Return finite numbers: of each row, [r], or `values`, [k], of some `rows`."""
        if values is None:
            values = self.column(role)
        values = self.cast(role, values, [pa.float64()], "a number", rows)
        self.refuse(role, missing(values), "has no number", rows)
        numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
        self.refuse(role, np.isinf(numbers), "is infinite", rows)
        return numbers

    def weights(self) -> NDArray[np.float32]:
        """Return the weight of each row, [r]."""
        weights = self.numbers("weight")
        self.refuse("weight", weights < 0, "is below 0")
        self.refuse("weight", weights > _HEAVIEST, "is more than 3.4e38")
        return np.where(self.keep, weights, 0).astype(np.float32)

    def cast(
        self,
        role: str,
        values: pa.Array,
        kinds: Sequence[pa.DataType],
        expected: str,
        rows: Rows | None = None,
    ) -> pa.Array:
        """Return values as the first of some types to fit all values; a time is cut to a date where
        the type is a date."""
        for kind in kinds:
            try:
                return values.cast(kind, safe=not pa.types.is_temporal(values.type))
            except pa.ArrowException:
                continue
        name = self.columns[role][0]
        if is_text(values.type):
            # The type that fits the most values from the first on says which value is wrong.
            at = max(_first_unread(kind, values) for kind in kinds)
            if at >= 0:
                row = at if rows is None else int(rows[at])
                self.fail(name, row, f"is {values[at].as_py()!r}; expected {expected}")
        return self.refuse_type(name, values.type, expected)

    def leave_out(self, reason: str, rows: Mask) -> None:
        """Leave rows out, [r], and count the rows not left out before."""
        self.count(reason, rows & self.keep)
        self.keep &= ~rows

    def leave_out_below(self, role: str, least: float | None, but: Mask | bool = False) -> None:
        """Leave out the rows with a number below the least, apart from the rows of a mask.

        A table without the column, and None for the least number, leave nothing out.
        """
        if role in self.columns and least is not None:
            too_low = self.numbers(role) < least
            self.leave_out(f"rows below min_{role}", too_low & ~np.bool_(but))

    def count(self, reason: str, rows: Mask) -> None:
        """Count rows left out."""
        if rows.any():
            self.dropped[reason] += int(rows.sum())

    def refuse(
        self, role: str, wrong: Mask, fault: str, rows: Rows | None = None, name: str | None = None
    ) -> None:
        """Refuse wrong values: of each row, [r], or of some `rows`, [k], unless their row is left
        out.

        Args:
            role: of the column.
            wrong: True for each wrong value.
            fault: the words for the fault, to follow the name of the column; a remedy stands after
                a colon.
            rows: the row of each value.
            name: the column, of a role with several columns.
        """
        wrong = wrong & (self.keep if rows is None else self.keep[rows])
        if not wrong.any():
            return
        at = int(wrong.argmax())
        row = at if rows is None else int(rows[at])
        count = int(wrong.sum())
        what, colon, remedy = fault.partition(":")
        many = f" ({count:,} such rows)" if count > 1 else ""
        self.fail(name or self.columns[role][0], row, f"{what}{many}{colon}{remedy}")

    def fail(self, name: str, row: int, text: str) -> NoReturn:
        """Refuse a row for a value in a column."""
        raise DataError(
            f"{self.block.file}, row {self.block.number(row)}: column {name!r} {text}"
        ) from None

    def refuse_type(self, name: str, kind: pa.DataType, expected: str) -> NoReturn:
        """Refuse a column for its type; for a column of records, the message names a field."""
        if pa.types.is_struct(kind) and kind.num_fields:
            field = f"{name}.{kind.field(0).name}"
            expected += f", which a field may hold: name it by its path, such as {field}"
        raise DataError(
            f"{self.block.file}: column {name!r} holds {kind}; expected {expected}"
        ) from None


def missing(values: pa.Array) -> Mask:
    """Return True for each value that is null, not a number, or an empty text, [k]."""
    absent: Mask = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    if is_text(values.type):
        absent = absent | pc.fill_null(pc.equal(values, ""), True).to_numpy(zero_copy_only=False)
    return absent


def reads_as(kind: pa.DataType, text: pa.Scalar) -> bool:
    """Return True if a text can be read as a value of a type; null can."""
    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _first_unread(kind: pa.DataType, texts: pa.Array) -> int:
    """Return the position of the first text that cannot be read as a type; -1 if there is none."""
    for i, text in enumerate(texts):
        if not reads_as(kind, text):
            return i
    return -1
