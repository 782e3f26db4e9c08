"""Events from a block of a table: user, item, time, weight; faults are reported by file, row and
column.

Letters in shapes: r rows of the block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..io.columns import Columns
from ..io.reader import IDS, BlockReader, is_text, missing
from ..io.tables import TableBlock
from .aside import ASIDE, DISLIKED, LOW

BEHAVIOUR = "behaviour"
BELOW = "rows below min_rating"  # a reason for which rows are no interactions
LowRated = Literal["seen", "forget"]
TEXT = pa.large_string()
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


def events_of(
    block: TableBlock,
    columns: Columns,
    dropped: Counter[str],
    min_rating: float | None = None,
    missing_time: Literal["refuse", "drop"] = "refuse",
    dislikes: float | Sequence[str] | None = None,
    low_rated: LowRated = "seen",
) -> pa.Table:
    """Return columns user, item and, where there are any, time, position, weight, aside, and what
    events happened in.

    Ids are int64 or large_string, times int64, float64 or microseconds since 1970 (UTC), positions
    float64, weights float32. Columns of the context are called by `in_context`, behaviours like one
    of them.

    Args:
        columns: the columns of each role.
        dropped: what is left out is added to these counts, by reason.
        dislikes: rows of at most this rating, or of these behaviours, are dislikes.
        low_rated: rows below `min_rating` are set aside as seen, or forgotten.

    Raises:
        DataError: a value that cannot be used, by file, row and column.
    """
    reader = EventReader(block, columns, dropped)
    times = {"time": reader.times(missing_time)} if "time" in columns else {}
    aside = np.where(reader.disliked(dislikes), np.uint8(DISLIKED), np.uint8(0))
    if low_rated == "seen" and min_rating is not None:
        low = (reader.numbers("rating") < min_rating) & (aside == 0) & reader.keep
        reader.count(BELOW, low)
        aside[low] = LOW
    reader.leave_out_below("rating", min_rating, aside > 0)
    events = {"user": reader.whole_ids("user"), "item": reader.whole_ids("item"), **times}
    if "position" in columns:
        events["position"] = pa.array(reader.numbers("position"))
    if "weight" in columns:
        events["weight"] = pa.array(reader.weights())
    if dislikes is not None or min_rating is not None:
        events[ASIDE] = pa.array(aside)
    events |= {in_context(name): reader.circumstances(name) for name in columns.get("context", ())}
    if BEHAVIOUR in columns:
        events[in_context(BEHAVIOUR)] = reader.behaviours()
    return pa.table(events).filter(pa.array(reader.keep))


def in_context(name: str) -> str:
    """Return what a column of the context is called beside the roles of events."""
    return f"context {name}"


class EventReader(BlockReader):
    """Read the events of a block."""

    def whole_ids(self, role: str) -> pa.Array:
        """Return ids as int64 or large_string, [r]."""
        ids = self.ids(role)
        try:
            return ids.cast(pa.int64() if pa.types.is_integer(ids.type) else pa.large_string())
        except pa.ArrowInvalid:
            self.refuse_type(self.columns[role][0], ids.type, IDS)

    def behaviours(self) -> pa.Array:
        """Return what each row's user did, as texts, [r]."""
        self.refuse(BEHAVIOUR, missing(self.column(BEHAVIOUR)), "names no behaviour")
        return self.ids(BEHAVIOUR).cast(TEXT)

    def circumstances(self, name: str) -> pa.Array:
        """Return a column of single values, [r]; texts as large_string."""
        values = self.column("", name)
        if pa.types.is_nested(values.type):
            self.refuse_type(name, values.type, "one value in each row, for data.context")
        return values.cast(TEXT) if is_text(values.type) else values

    def disliked(self, dislikes: float | Sequence[str] | None) -> NDArray[np.bool_]:
        """Return which rows are dislikes, [r]."""
        if dislikes is None:
            return np.zeros(len(self.block.table), bool)
        if isinstance(dislikes, float | int):
            return self.numbers("rating") <= dislikes
        listed: NDArray[np.bool_] = pc.is_in(self.behaviours(), pa.array(dislikes, TEXT)).to_numpy(
            zero_copy_only=False
        )
        return listed

    def times(self, missing_time: Literal["refuse", "drop"]) -> pa.Array:
        """Return numbers as they are given; dates as microseconds, [r]."""
        values, expected = self.column("time"), "numbers or ISO dates, of one kind in all rows"
        kinds = next((kinds for has_type, kinds in _TIMES.items() if has_type(values.type)), None)
        if kinds is None:
            self.refuse_type(self.columns["time"][0], values.type, expected)
        values = self.cast("time", values, kinds, expected)
        if pa.types.is_timestamp(values.type):
            values = values.cast(_DATES[0], safe=False)
        absent = missing(values)
        if missing_time == "drop":
            self.leave_out("rows without a time", absent)
        self.refuse(
            "time", absent, "has no time: set data.missing_time=drop to leave such rows out"
        )
        if pa.types.is_floating(values.type):
            self.refuse("time", np.isinf(values.to_numpy(zero_copy_only=False)), "is infinite")
        return values
