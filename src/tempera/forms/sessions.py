"""Sessions: rows with a list of items each, as a table with a row for each item.

Letters in shapes: r rows, e items of all rows.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..io.documents import parsed
from ..tables.columns import RoleTable, plain
from ..tables.reader import is_list, is_text
from ..tables.tables import TableBlock, refuse_repeated
from .running_histories import RunningHistories

SESSION, POSITION = "session", "position"  # columns that flat tables have in addition


@dataclass
class Sessions:
    """Flatten lists of items, block by block; a table without lists of items stays.

    Further lists of a row, for instance of times, go along item by item, and single values are
    repeated. A row of a table without users is a session of its own, numbered over all blocks. A
    table without positions gets the places within a row.

    Args:
        roles: the roles of the columns.
        options: columns chosen for roles, and `separator`, the sign between the items of a text.
        dropped: counts by reason; rows without an item are added.

    >>> table = pa.table({"items": [["a", "b"], ["c"]], "time": [7, 8]})
    >>> Sessions(RoleTable({"user": (), "item": ("items",)}, ()), {}).flat(TableBlock(table, "a")).table.to_pylist()[1]
    {'items': 'b', 'time': 7, 'session': 1, 'position': 1}
    """

    roles: RoleTable
    options: Mapping[str, Any]
    dropped: Counter[str] = field(default_factory=Counter)
    rows: int = 0  # of all blocks so far
    anonymous: bool = False  # whether users were numbered
    placed: bool = False  # whether positions are places within a row, by which rows have no order
    running: RunningHistories | None = None  # of rows of a history and its next item

    def flat(self, block: TableBlock) -> TableBlock:
        """Return a block with a row for each item.

        Raises:
            DataError: lists of different length in a row, or a text among lists, by row and column.
        """
        refuse_repeated(block.table.column_names, block.file)
        block = self._unnested(block)
        names = block.table.column_names
        item = self._column("item", names)
        lists = None if item is None else self._lists(block, item)
        if item is None or lists is None:
            return block
        sessions: pa.Array | None = None
        following = self._following(item, names)
        if following is not None:
            lists, sessions = self._added(block, item, following, lists)
            names = [name for name in names if name != following]
        lengths = _lengths(lists)
        row = np.repeat(np.arange(len(lists)), lengths)  # [e]
        columns = {}
        for name in names:
            values = lists if name == item else block.table[name]
            has_role = any(self._column(role, names) == name for role in self.roles.usual)
            if has_role and name != item and is_text(values.type):
                values = listed(block, name) or values
            if not is_list(values.type):
                columns[name] = values.take(pa.array(row))
            elif np.array_equal(_lengths(values), lengths):
                columns[name] = pc.list_flatten(values.combine_chunks())
            elif has_role:
                self._refuse_lengths(block, name, item, _lengths(values), lengths)
        if self._column("user", names) is None:
            self.anonymous = True
            number = pa.array(self.rows + 1 + np.arange(len(lists)))
            columns[SESSION] = (number if sessions is None else sessions).take(pa.array(row))
        if self._column("position", names) is None:
            self.placed = True
            columns[POSITION] = pa.array(np.arange(len(row)) - (lengths.cumsum() - lengths)[row])
        empty = int((lengths == 0).sum())
        if empty and following is None:
            self.dropped["rows without an item"] += empty
        self.rows += len(lists)
        return replace(block, table=pa.table(columns), origin=row)

    @property
    def made(self) -> dict[str, str]:
        """Return the reasons of the columns added or changed in flat tables."""
        reasons = {}
        if self.anonymous:
            reasons[SESSION] = "each row is one of a user of its own"
        if self.placed:
            reasons[POSITION] = "the place in a row's list"
        if self.running is not None:
            reasons[self.running.history] = f"lists, with {self.running.item!r} after each"
        return reasons

    def _column(self, role: str, names: list[str]) -> str | None:
        """Return the column of a role: the chosen column, or else the first with a usual name."""
        chosen = self.options.get(role)
        if chosen is not None:
            return chosen if chosen in names else None
        if role not in self.roles.usual:
            return None
        usual = self.roles.usual_columns(role, names)
        return usual[0] if usual else None

    def _unnested(self, block: TableBlock) -> TableBlock:
        """Return a table with a list for each field of the objects with items in its rows, for
        instance of {"events": [{"item": 7, "time": 1}]}. A table with items of its own stays."""
        table = block.table
        if self._column("item", table.column_names) is not None:
            return block
        for at, nested in enumerate(table.schema):
            if not (is_list(nested.type) and pa.types.is_struct(nested.type.value_type)):
                continue
            fields = [each.name for each in nested.type.value_type]
            if self._column("item", fields) is None:
                continue
            column = table.column(at).combine_chunks()
            inner = column.flatten()
            outer = table.remove_column(at)
            offsets = pa.array(np.concatenate([[0], np.cumsum(_lengths(column))]), pa.int64())
            for name in fields:
                lists = pa.LargeListArray.from_arrays(offsets, inner.field(name))
                free = name if name not in outer.column_names else f"{nested.name}.{name}"
                outer = outer.append_column(free, lists)
            return TableBlock(outer, block.file, block.first, block.origin)
        return block

    def _lists(self, block: TableBlock, name: str) -> Any:
        """Return lists of items, [r]; None where a row has a single item."""
        values = block.table[name]
        separator = self.options.get("separator")
        if separator and is_text(values.type):
            return pc.split_pattern(values, separator)
        if is_list(values.type):
            return values
        if is_text(values.type):
            return listed(block, name)
        return None

    def _following(self, item: str, names: list[str]) -> str | None:
        """Return the column of the item after each row's list, if any: item_id beside
        item_id_list."""
        if "item" not in self.roles.usual:
            return None
        besides = {item, *self.options.get("metadata", ())}
        for role in self.roles.usual:
            chosen = self.options.get(role)
            if chosen:
                besides.add(chosen)
        for name in self.roles.usual_columns("item", names):
            if name not in besides and plain(item).startswith(plain(name)):
                return name
        return None

    def _added(
        self, block: TableBlock, item: str, following: str, lists: Any
    ) -> tuple[Any, pa.Array | None]:
        """Return the items that each row adds to earlier rows, [r], and sessions for a table
        without users."""
        names = block.table.column_names
        time = self._column("time", names)
        if time:
            raise DataError(
                f"{block.file}: column {time!r} tells the time of {following!r} and not those of the items in {item!r}: "
                f"read the items that have a time, with data.item={following} data.metadata=[{item}], or the order alone, "
                f"with data.metadata=[{time}]"
            )
        self.running = self.running or RunningHistories(item, following)
        user = self._column("user", names)
        users = None if user is None else block.table[user].to_pylist()
        items = block.table[following]
        added, sessions = self.running.added(block, users, lists.to_pylist(), items.to_pylist())
        numbers = None if sessions is None else pa.array(sessions, pa.int64())
        return pa.chunked_array([pa.array(added, pa.large_list(items.type))]), numbers

    def _refuse_lengths(
        self, block: TableBlock, name: str, item: str, own: Any, lengths: Any
    ) -> None:
        row = int((own != lengths).argmax())
        raise DataError(
            f"{block.file}, row {block.number(row)}: column {name!r} has {own[row]} values, and {item!r} has {lengths[row]}: give "
            "one for each item, or one for the row"
        )


def listed(block: TableBlock, name: str) -> pa.ChunkedArray | None:
    """Return the lists in a column of texts, as written by JSON, Python or a database; None if the
    first text is no list.

    >>> table = pa.table({"items": ["['a', 'b']", "[]", "[c, d]", None, "[1 2]"]})
    >>> listed(TableBlock(table, "a.csv"), "items").to_pylist()
    [['a', 'b'], [], ['c', 'd'], None, ['1', '2']]

    Raises:
        DataError: a text without a list, after a list.
    """
    column = block.table[name]
    first = pc.index(pc.greater(pc.fill_null(pc.utf8_length(column), 0), 0), True).as_py()
    if first < 0 or not _is_bracketed(column[first].as_py()):
        return None
    texts = column.to_pylist()
    for row, text in enumerate(texts):
        if text and not _is_bracketed(text):
            raise DataError(
                f"{block.file}, row {block.number(row)}: column {name!r} is {text[:40]!r}, and other rows hold lists such as "
                f"{texts[first][:40]!r}: write every row as a list"
            )
    values = [None if text is None else _values_of(text) for text in texts]
    return pa.chunked_array([pa.array(values, pa.list_(pa.large_string()))])


def _is_bracketed(text: str) -> bool:
    text = text.strip()
    return text.startswith("[") and text.endswith("]")


def _values_of(text: str) -> list[str]:
    """Return the values of a list, as texts."""
    for read in (parsed, ast.literal_eval):
        try:
            values = read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if all(isinstance(value, str | int) for value in values):
            return [str(value) for value in values]
    inside = text.strip()[1:-1]
    parts = inside.split(",") if "," in inside else inside.split()
    return [part.strip().strip("'\"") for part in parts if part.strip()]


def _lengths(lists: Any) -> Any:
    return pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
