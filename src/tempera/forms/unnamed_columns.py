"""Names for the columns of tables of interactions without a line of names, by their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..tables.profile import ColumnProfile, TableProfile, profile
from ..tables.reader import is_text

_PRODUCT = r"^(B[0-9A-Z]{9}|\d{9}[\dX])$"  # of Amazon
_REVIEWER = r"^A[0-9A-Z]{9,}$"
_WIDE = 20  # columns from which a table without names is a matrix, or holds features
_IMPRESSION = re.compile(r"\S+-[01]( \S+-[01])*")  # of MIND: items that were shown, and clicked
_LINE = 1000  # bytes of a line that are looked at
_EXAMPLE = 30  # letters of a value that a message shows


def is_unnamed(names: Sequence[str]) -> bool:
    """Return True if columns have the names of a file without a line of names.

    >>> is_unnamed(["column1", "column2"]), is_unnamed(["user", "column2"])
    (True, False)
    """
    return bool(names) and [*names] == [f"column{i}" for i in range(1, len(names) + 1)]


def event_names(rows: pa.Table, where: str) -> tuple[str, ...] | None:
    """Return names for the columns of a table of interactions, where the values leave no
    doubt: whole numbers of users and then of items, or ids as Amazon writes them, before ratings
    and times.

    >>> rows = pa.table({"column1": ["1", "7"], "column2": ["30", "31"], "column3": ["1300000000", "1300000007"]})
    >>> event_names(rows, "a.csv")
    ('user', 'item', 'time')
    """
    columns = [*profile(rows, where).columns.values()]
    names = _ids(rows, columns)
    if names is None or len(columns) > 4:
        return None
    for column in columns[2:]:
        if "time" in column.kinds:
            role = "time"
        elif is_scale(column):
            role = "rating"
        else:
            return None
        if role in names:
            return None
        names = (*names, role)
    return names if "time" in names else None


def features_named(table: pa.Table, where: str, role: str) -> pa.Table:
    """Return a table of users or items with names for unnamed columns: the first column holds the
    ids, and the first texts are the titles."""
    names = table.column_names
    if not is_unnamed(names):
        return table
    named = [role, *names[1:]]
    texts = profile(table, where).could_be("text")
    if role == "item" and texts and texts[0] != names[0]:
        named[names.index(texts[0])] = "title"
    return table.rename_columns(named)


def refuse_prize(path: Path) -> None:
    """Refuse a file of the Netflix Prize: the ratings stand below their item.

    Raises:
        DataError: the file is of the Netflix Prize.
    """
    if not path.is_file() or path.suffix.lower() != ".txt":
        return
    with path.open("rb") as file:
        first, second = (file.readline(_LINE).strip() for _ in range(2))
    if re.fullmatch(rb"\d+:", first) and re.fullmatch(rb"\d+(,[\d-]+)*", second):
        raise DataError(
            f"{path}: the line {first.decode()!r} names the item of the lines below it, such as {second.decode()!r}: write a "
            "table with the item in each row, with columns item, user, rating and time"
        )


def refuse_no_events(rows: pa.Table, where: str) -> None:
    """Refuse a table without names and without a user and an item in each row.

    Raises:
        DataError: a matrix, features of advertisements, or impressions.
    """
    of_table = profile(rows, where)
    if rows.num_columns > _WIDE:
        _refuse_wide(of_table, where)
    for column in of_table.columns.values():
        if (
            is_text(column.type)
            and column.values
            and all(map(_IMPRESSION.fullmatch, column.values))
        ):
            raise DataError(
                f"{where}: {column.name} holds impressions such as {column.values[0][:_EXAMPLE]!r}, items that were shown and a 1 "
                "for those that were clicked: write a table with a row for each click, with columns user, item and time"
            )


def _refuse_wide(of_table: TableProfile, where: str) -> NoReturn:
    columns = [*of_table.columns.values()]
    numbers = [column for column in columns if "number" in column.kinds or not column.values]
    what = (
        "a matrix with a row for each user and a column for each item, write a row for each rating, with columns user, item "
        "and rating"
        if len(numbers) == len(columns)
        else "features of one label, as those of advertisements, they are no interactions of users with items"
    )
    raise DataError(
        f"{where} has no line of names and {len(columns)} columns: if they are {what}; else begin the file with a line of names, "
        "or give data.columns"
    )


def _ids(rows: pa.Table, columns: Sequence[ColumnProfile]) -> tuple[str, ...] | None:
    """Return the roles, user and item, of the first two columns, in order; None in doubt."""
    if len(columns) < 2:
        return None
    if all("id" in column.kinds and column.scale is not None for column in columns[:2]):
        return ("user", "item")
    first, second = (rows[column.name] for column in columns[:2])
    if _all_match(first, _REVIEWER) and _all_match(second, _PRODUCT):
        return ("user", "item")
    if _all_match(first, _PRODUCT) and _all_match(second, _REVIEWER):
        return ("item", "user")
    return None


def is_scale(column: ColumnProfile) -> bool:
    """Return True if a column grades from 0 or 1 to 5 or 10, by wholes or halves."""
    return "rating" in column.kinds and column.scale is not None and column.scale[1] in (5, 10)


def _all_match(values: pa.ChunkedArray, pattern: str) -> bool:
    return bool(is_text(values.type) and pc.all(pc.match_substring_regex(values, pattern)).as_py())
