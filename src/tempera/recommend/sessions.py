"""Sessions: rows that hold a list of items each, as a table with one row for each item.

Letters in shapes: r rows, e items of all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..io.columns import RoleTable
from ..io.reader import is_list, is_text
from ..io.tables import TableBlock, refuse_repeated

SESSION, POSITION = "session", "position"  # columns that flat tables have in addition


@dataclass
class Sessions:
    """Flatten lists of items, block by block; other tables stay as they are.

    Other lists of a row, such as times, go along item by item, and single values are repeated. A
    row of a table without users is a session of its own, numbered over all blocks. Positions that a
    table does not have are places within a row.

    Args:
        roles: the roles of the columns.
        options: columns that are chosen for roles, and `separator`, which divides lists that are
            texts.
        dropped: rows without an item are added to these counts.

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

    def flat(self, block: TableBlock) -> TableBlock:
        """Return a block with one row for each item.

        Raises:
            DataError: lists of a row that differ in length, by row and column.
        """
        names = block.table.column_names
        refuse_repeated(names, block.file)
        item = self._column("item", names)
        lists = None if item is None else self._lists(block.table[item])
        if item is None or lists is None:
            return block
        lengths = _lengths(lists)
        row = np.repeat(np.arange(len(lists)), lengths)  # [e]
        columns = {}
        for name in names:
            values = lists if name == item else block.table[name]
            if not is_list(values.type):
                columns[name] = values.take(pa.array(row))
            elif np.array_equal(_lengths(values), lengths):
                columns[name] = pc.list_flatten(values.combine_chunks())
            elif any(self._column(role, names) == name for role in self.roles.usual):
                self._refuse_lengths(block, name, item, _lengths(values), lengths)
        if self._column("user", names) is None:
            self.anonymous = True
            columns[SESSION] = pa.array(self.rows + 1 + row)
        if self._column("position", names) is None:
            self.placed = True
            columns[POSITION] = pa.array(np.arange(len(row)) - (lengths.cumsum() - lengths)[row])
        if empty := int((lengths == 0).sum()):
            self.dropped["rows without an item"] += empty
        self.rows += len(lists)
        return replace(block, table=pa.table(columns), origin=row)

    def _column(self, role: str, names: list[str]) -> str | None:
        """Return the column of a role: the one that is chosen, or else the first with a usual
        name."""
        chosen = self.options.get(role)
        usual = (
            self.roles.usual_columns(role, names)
            if role in self.roles.usual and chosen is None
            else [chosen]
        )
        return next((name for name in usual if name in names), None)

    def _lists(self, values: pa.ChunkedArray) -> pa.ChunkedArray | None:
        """Return lists of items, [r]; None where a row has one item."""
        separator = self.options.get("separator")
        if separator and is_text(values.type):
            return pc.split_pattern(values, separator)
        return values if is_list(values.type) else None

    def _refuse_lengths(
        self, block: TableBlock, name: str, item: str, own: Any, lengths: Any
    ) -> None:
        row = int((own != lengths).argmax())
        raise DataError(
            f"{block.file}, row {block.number(row)}: column {name!r} has {own[row]} values, and {item!r} has {lengths[row]}: give "
            "one for each item, or one for the row"
        )


def _lengths(lists: pa.ChunkedArray) -> Any:
    return pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
