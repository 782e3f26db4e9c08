"""Events from a block of a table: user, item, time, weight; faults are reported by file, row and
column.

Letters in shapes: r rows of the block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import article
from ...tables.columns import Columns
from ...tables.reader import IDS, BlockReader, Rows, is_text, missing
from ...tables.tables import TableBlock
from .aside import ASIDE, DISLIKED, LOW, TAKEN
from .event_times import EventTimes

BEHAVIOUR = "behaviour"
BELOW = "rows below min_rating"  # reason for which rows are no interactions
BelowMinRating = Literal["seen", "forget"]
TEXT = pa.large_string()
# Grades that are words.
_TRUTHS = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "on": 1.0, "1": 1.0}
_TRUTHS |= {"false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0, "off": 0.0, "0": 0.0}


def events_of(
    block: TableBlock,
    columns: Columns,
    dropped: Counter[str],
    min_rating: float | None = None,
    times: EventTimes | None = None,
    dislikes: float | Sequence[str] | None = None,
    missing_id: Literal["refuse", "drop"] = "refuse",
    below_min_rating: BelowMinRating = "seen",
) -> pa.Table:
    """Return columns user, item and, where there are any, time, position, weight, aside, and the
    context of the events.

    Ids are int64 or large_string, times int64, float64 or microseconds since 1970 (UTC), positions
    float64, weights float32. Columns of the context and of behaviours are called by `in_context`.

    Args:
        columns: the columns of each role.
        dropped: counts by reason, to which the rows that are left out are added.
        times: reads the times of all blocks of the table.
        dislikes: rows of at most this rating, or of these behaviours, are dislikes.
        missing_id: treatment of a row without a user or an item.
        below_min_rating: rows below `min_rating` are set aside as seen, or forgotten.

    Raises:
        DataError: a value that cannot be used, by file, row and column.
    """
    reader = EventReader(block, columns, dropped)
    for role in ("user", "item"):
        reader.refuse_or_drop_absent(role, missing_id)
    time = None
    if "time" in columns:
        time = (times or EventTimes()).of(reader)
    aside = np.where(reader.disliked(dislikes), np.uint8(DISLIKED), np.uint8(TAKEN))
    if below_min_rating == "seen" and min_rating is not None:
        low = (reader.numbers("rating") < min_rating) & (aside == TAKEN) & reader.keep
        reader.count(BELOW, low)
        aside[low] = LOW
    reader.leave_out_below("rating", min_rating, aside != TAKEN)
    events = {"user": reader.whole_ids("user"), "item": reader.whole_ids("item")}
    if time is not None:
        events["time"] = time
    if "position" in columns:
        events["position"] = pa.array(reader.numbers("position"))
    if "weight" in columns:
        events["weight"] = pa.array(reader.weights())
    if dislikes is not None or min_rating is not None:
        events[ASIDE] = pa.array(aside)
    for name in columns.get("context", ()):
        events[in_context(name)] = reader.circumstances(name)
    if BEHAVIOUR in columns:
        events[in_context(BEHAVIOUR)] = reader.behaviours()
    return pa.table(events).filter(pa.array(reader.keep))


def in_context(name: str) -> str:
    """Return the name of a column of the context beside the roles of events."""
    return f"context {name}"


class EventReader(BlockReader):
    """Read the events of a block."""

    def refuse_or_drop_absent(self, role: str, missing_id: Literal["refuse", "drop"]) -> None:
        """Leave out rows without an id, or refuse them."""
        absent = missing(self.column(role))
        if missing_id == "drop":
            self.leave_out(f"rows without {article(role)}", absent)
        self.refuse(role, absent, "has no id: set data.missing_id=drop to leave such rows out")

    def whole_ids(self, role: str) -> pa.Array:
        """Return ids as int64 or large_string, [r]."""
        ids = self.ids(role)
        kind = pa.int64() if pa.types.is_integer(ids.type) else TEXT
        try:
            return ids.cast(kind)
        except pa.ArrowInvalid:
            self.refuse_type(self.columns[role][0], ids.type, IDS)

    def numbers(
        self, role: str, values: pa.Array | None = None, rows: Rows | None = None
    ) -> NDArray[np.float64]:
        """Return finite numbers, as `BlockReader.numbers` does; ratings may be true and false, too."""
        if role == "rating" and values is None:
            values = _grades(self.column(role))
        return super().numbers(role, values, rows)

    def behaviours(self) -> pa.Array:
        """Return the behaviour of the user in each row, as texts, [r]."""
        values = self.column(BEHAVIOUR)
        self.refuse(BEHAVIOUR, missing(values), "names no behaviour")
        if pa.types.is_boolean(values.type):
            return values.cast(TEXT)
        return self.ids(BEHAVIOUR).cast(TEXT)

    def circumstances(self, name: str) -> pa.Array:
        """Return a column of single values, [r]; texts as large_string."""
        values = self.column("", name)
        if pa.types.is_nested(values.type):
            self.refuse_type(name, values.type, "one value in each row, for data.context")
        if is_text(values.type):
            return values.cast(TEXT)
        return values

    def disliked(self, dislikes: float | Sequence[str] | None) -> NDArray[np.bool_]:
        """Return True for each row that is a dislike, [r]."""
        if dislikes is None:
            return np.zeros(len(self.block.table), bool)
        if isinstance(dislikes, float | int):
            return self.numbers("rating") <= dislikes
        listed = pc.is_in(self.behaviours(), pa.array(dislikes, TEXT))
        rows: NDArray[np.bool_] = listed.to_numpy(zero_copy_only=False)
        return rows


def _grades(values: pa.Array) -> pa.Array:
    """Return true and false, or words for true and false, as 1 and 0; other values unchanged."""
    if pa.types.is_boolean(values.type):
        return values.cast(pa.int8())
    if not is_text(values.type):
        return values
    words = pc.utf8_lower(pc.utf8_trim_whitespace(values)).cast(TEXT)
    truths = pa.array(_TRUTHS, TEXT)
    if not pc.all(pc.is_in(words.drop_null(), truths)).as_py():
        return values
    return pa.array([*_TRUTHS.values()]).take(pc.index_in(words, truths))
