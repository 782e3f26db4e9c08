"""Folders of interactions: a table of events, or its parts, beside tables of users and items."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..tables.columns import plain
from ..tables.reader import is_text
from ..tables.saved_sets import PART_NAMES
from .event_roles import TABLE
from .unnamed_columns import is_unnamed

_SHOWN = 6  # files that a message names
_NAMED = ("title", "name")  # words in the name of a column of titles


def folder_options(
    tables: Mapping[Path, pa.Table], options: Mapping[str, Any], folder: Path
) -> dict[str, str]:
    """Return the options for the files of a folder of interactions; nothing if the folder has no
    table of interactions, or no further table.

    Of several tables of events, the table with ratings is read. If the names of all tables are
    parts, for instance train and test, each table is a part. The table of items (or users) is the
    table with titles, or else with most columns.

    Args:
        tables: the first rows of each table, a row for each event.
        options: the user's options of the section `data`.
        folder: the folder of the tables.

    Raises:
        DataError: several tables of events, and no sign of the right table.
    """
    events = [file for file, rows in tables.items() if TABLE.suits(options, rows.column_names)]
    if not events:
        _refuse_joined(tables, options, folder)
        _refuse_unnamed(tables, folder)
        return {}
    if len(tables) == len(events) == 1:
        return {}
    features = {}
    for role in TABLE.needed:
        file = _features(role, tables, events)
        if file is not None:
            features[f"{role}s"] = str(file)
    parts = _parts(events)
    if parts:
        named = {"path" if part == "train" else part: str(file) for part, file in parts.items()}
        return named | features
    if len(events) > 1:
        rated = [file for file in events if TABLE.has("rating", {}, tables[file].column_names)]
        alike = len({frozenset(tables[file].column_names) for file in events}) == 1
        if len(events) == len(tables) and alike:
            return {}  # shards of one table
        if len(rated) != 1:
            raise DataError(
                f"{folder} has {len(events)} tables of interactions ({_names(events)}): give one of them, such as {events[0]}, or "
                "put those that are one table into a folder of their own"
            )
        events = rated
    return {"path": str(events[0])} | features


def part_of(file: Path) -> str | None:
    """Return the part of a data set by the name of a file: train, validation or test.

    >>> part_of(Path("ml.valid.inter")), part_of(Path("test_ratings.csv")), part_of(Path("latest.csv"))
    ('validation', 'test', None)
    """
    words = re.split(r"[^a-z]+", file.name.lower())
    for part, names in PART_NAMES.items():
        if not set(names).isdisjoint(words):
            return part
    return None


def _parts(events: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each part, if every file is a part, with train among the parts; without a
    test, the file of validation is the test."""
    parts = {}
    for file in events:
        part = part_of(file)
        if part is not None:
            parts[part] = file
    if len(parts) < len(events) or len(parts) < 2 or "train" not in parts:
        return {}
    if "test" not in parts:
        parts["test"] = parts.pop("validation")
    return parts


def _features(role: str, tables: Mapping[Path, pa.Table], events: Sequence[Path]) -> Path | None:
    """Return the table about users or items alone with most features."""
    files = [file for file in tables if file not in events and _is_about(role, tables[file])]
    return max(files, key=lambda file: _richness(tables[file]), default=None)


def _is_about(role: str, rows: pa.Table) -> bool:
    """Return True if a table is about users or items, not about both, with a row for each user or
    item."""
    roles = [each for each in TABLE.needed if TABLE.usual_columns(each, rows.column_names)]
    if roles != [role]:
        return False
    ids = rows[TABLE.usual_columns(role, rows.column_names)[0]]
    return bool(pc.count_distinct(ids).as_py() == len(rows))


def _richness(rows: pa.Table) -> tuple[bool, int]:
    """Return True if a table has titles, and its number of columns of texts."""
    titled = any(word in plain(name) for name in rows.column_names for word in _NAMED)
    return titled, sum(is_text(field.type) for field in rows.schema)


def _refuse_joined(
    tables: Mapping[Path, pa.Table], options: Mapping[str, Any], folder: Path
) -> None:
    """Refuse tables with users and items apart, joined by a third column, for instance of
    orders."""
    of_users = list[Path]()
    of_items = list[Path]()
    for file, rows in tables.items():
        if TABLE.has("user", options, rows.column_names):
            of_users.append(file)
        if TABLE.has("item", options, rows.column_names):
            of_items.append(file)
    for users in of_users:
        for items in of_items:
            names = set(tables[items].column_names)
            shared = [
                name
                for name in tables[users].column_names
                if name in names and plain(name).endswith("id")
            ]
            if users != items and shared:
                raise DataError(
                    f"{folder}: {users.name} has the users and {items.name} the items, joined by {shared[0]!r}: join both to one "
                    f"table with a user and an item in each row, or give {items} data.user={shared[0]}, which takes each of "
                    f"{shared[0]!r} for a user"
                )


def _refuse_unnamed(tables: Mapping[Path, pa.Table], folder: Path) -> None:
    """Refuse several tables without a line of names."""
    files = [*tables]
    if len(files) > 1 and all(is_unnamed(rows.column_names) for rows in tables.values()):
        raise DataError(
            f"{folder} has {len(files)} tables without a line of names ({_names(files)}): give one of them, such as {files[0]}"
        )


def _names(files: Sequence[Path]) -> str:
    names = ", ".join(file.name for file in files[:_SHOWN])
    return names + (", ..." if len(files) > _SHOWN else "")
