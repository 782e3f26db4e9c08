"""Names for the columns of tables that have no line of names, by what they hold or by their file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..io.profile import ColumnProfile, TableProfile, profile
from ..io.reader import is_text

_GENRES = tuple(f"genre{i}" for i in range(19))
# The columns of GroupLens' files, by the name of the file.
_GROUPLENS: dict[str, tuple[str, ...]] = {
    "ratings.dat": ("user", "item", "rating", "timestamp"),
    "u.data": ("user", "item", "rating", "timestamp"),
    "movies.dat": ("item", "title", "genres"),
    "u.item": ("item", "title", "release_date", "video_release_date", "url", *_GENRES),
    "users.dat": ("user", "gender", "age", "occupation", "zip_code"),
    "u.user": ("user", "age", "gender", "occupation", "zip_code"),
}
GROUPLENS_ENCODING = "latin-1"  # of the titles, as GroupLens has saved them
_PRODUCT = r"^(B[0-9A-Z]{9}|\d{9}[\dX])$"  # of Amazon
_REVIEWER = r"^A[0-9A-Z]{9,}$"
_WIDE = 20  # columns from which a table without names is a matrix, or holds features
_IMPRESSION = re.compile(r"\S+-[01]( \S+-[01])*")  # of MIND: items that were shown, and clicked
_LINE = 1000  # bytes of a line that are looked at
_EXAMPLES = 30  # letters of a value that a message shows


def is_unnamed(names: Sequence[str]) -> bool:
    """Return whether columns are called as those of a file without a line of names.

    >>> is_unnamed(["column1", "column2"]), is_unnamed(["user", "column2"])
    (True, False)
    """
    return bool(names) and [*names] == [f"column{i}" for i in range(1, len(names) + 1)]


def is_grouplens(path: Path) -> bool:
    """Return whether a file is called as one of GroupLens'."""
    return path.name.lower() in _GROUPLENS


def known_names(path: Path, count: int) -> tuple[str, ...] | None:
    """Return the columns of one of GroupLens' files; None for another one.

    >>> known_names(Path("ml-1m/movies.dat"), 3)
    ('item', 'title', 'genres')
    """
    names = _GROUPLENS.get(path.name.lower(), ())
    return names if len(names) == count else None


def event_names(rows: pa.Table, path: Path) -> tuple[str, ...] | None:
    """Return names for the columns of a table of interactions, where what they hold leaves no
    doubt: whole numbers of users and then of items, or ids as Amazon writes them, before ratings
    and times.

    >>> rows = pa.table({"column1": ["1", "7"], "column2": ["30", "31"], "column3": ["1300000000", "1300000007"]})
    >>> event_names(rows, Path("a.csv"))
    ('user', 'item', 'time')
    """
    if (known := known_names(path, rows.num_columns)) is not None:
        return known
    of_table = profile(rows, str(path))
    columns = [*of_table.columns.values()]
    names = _ids(rows, columns)
    if names is None or len(columns) > 4:
        return None
    for column in columns[2:]:
        role = "time" if "time" in column.kinds else "rating" if _is_scale(column) else None
        if role is None or role in names:
            return None
        names = (*names, role)
    return names


def features_named(table: pa.Table, path: Path, role: str) -> pa.Table:
    """Return a table of users or items with names for its columns, if it has none: the first holds
    the ids, and the first texts are the titles."""
    names = table.column_names
    if not is_unnamed(names):
        return table
    if (known := known_names(path, len(names))) is not None:
        return table.rename_columns(list(known))
    named = [role, *names[1:]]
    texts = profile(table, str(path)).could_be("text")
    if role == "item" and texts and texts[0] != names[0]:
        named[names.index(texts[0])] = "title"
    return table.rename_columns(named)


def refuse_prize(path: Path) -> None:
    """Refuse a file of the Netflix Prize, whose ratings stand below the item that they are of.

    Raises:
        DataError: it is one.
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


def refuse_unnamed(rows: pa.Table, path: Path) -> NoReturn:
    """Refuse a table without names whose columns are not clear, and say what they could be called.

    Raises:
        DataError: always.
    """
    of_table = profile(rows, str(path))
    if rows.num_columns > _WIDE:
        _refuse_wide(of_table, path)
    for column in of_table.columns.values():
        if (
            is_text(column.type)
            and column.values
            and all(map(_IMPRESSION.fullmatch, column.values))
        ):
            raise DataError(
                f"{path}: {column.name} holds impressions such as {_short(column.values[0])!r}, items that were shown and a 1 "
                "for those that were clicked: write a table with a row for each click, with columns user, item and time"
            )
    names = ",".join(_suggested(of_table))
    held = ", ".join(_holds(column) for column in of_table.columns.values())
    raise DataError(
        f"{path} has no line of names, and its columns hold {held}: name them in their order, such as data.columns=[{names}]"
    )


def _refuse_wide(of_table: TableProfile, path: Path) -> NoReturn:
    columns = [*of_table.columns.values()]
    numbers = [column for column in columns if "number" in column.kinds or not column.values]
    what = (
        "a matrix with a row for each user and a column for each item, write a row for each rating, with columns user, item "
        "and rating"
        if len(numbers) == len(columns)
        else "features of one label, as those of advertisements, they are no interactions of users with items"
    )
    raise DataError(
        f"{path} has no line of names and {len(columns)} columns: if they are {what}; else begin the file with a line of names, "
        "or give data.columns"
    )


def _ids(rows: pa.Table, columns: Sequence[ColumnProfile]) -> tuple[str, ...] | None:
    """Return which of the first two columns are users and items; None if that is not clear."""
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


def _is_scale(column: ColumnProfile) -> bool:
    """Return whether a column grades from 0 or 1 to 5 or 10, by wholes or halves."""
    return "rating" in column.kinds and column.scale is not None and column.scale[1] in (5, 10)


def _all_match(values: pa.ChunkedArray, pattern: str) -> bool:
    return bool(is_text(values.type) and pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _suggested(of_table: TableProfile) -> list[str]:
    """Return names that columns could have: the first ids are of users, the next of items."""
    free, names = ["user", "item"], []
    for name, column in of_table.columns.items():
        if "time" in column.kinds and "time" not in names:
            names.append("time")
        elif "id" in column.kinds and "label" not in column.kinds and free:
            names.append(free.pop(0))
        elif (
            "rating" in column.kinds
            and column.distinct > 1
            and "rating" not in names
            and _is_scale(column)
        ):
            names.append("rating")
        else:
            names.append(name)
    return names


def _holds(column: ColumnProfile) -> str:
    if not column.values:
        return "nothing"
    if column.time_form is not None:
        return f"times such as {_short(column.values[0])}"
    if column.scale is not None and "id" not in column.kinds:
        return "{:g} to {:g}".format(*column.scale)
    return _short(column.values[0])


def _short(text: str) -> str:
    return text if len(text) <= _EXAMPLES else f"{text[: _EXAMPLES - 3]}..."
