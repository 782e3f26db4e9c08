"""Lists of neighbours: lines of whole numbers, of which the first is a user and the others are his
items."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ..errors import ConfigError, DataError
from .encodings import opened
from .table_form import TableForm

_LINE = re.compile(rb"\s*\d+(?:[ \t]+\d+)*\s*")
_BYTES = 1 << 24  # that are read at once
_SHOWN = 100  # lines that show the form
USER, ITEMS = "user", "items"  # its columns


def is_adjacency(path: Path) -> bool:
    """Return whether a file holds lines of whole numbers, more of them in some lines than in
    others."""
    try:
        with opened(path) as file:
            lines = [file.readline(_BYTES) for _ in range(_SHOWN)]
    except (OSError, EOFError, pa.ArrowException):
        return False
    lines = [line for line in lines if line.strip()]
    lengths = {len(line.split()) for line in lines}
    return len(lengths) > 1 and max(lengths) > 2 and all(map(_LINE.fullmatch, lines))


def adjacency_tables(path: Path, form: TableForm, notes: list[str]) -> Iterator[pa.Table]:
    """Read such a file some lines at a time, with a user and a list of items in each row, as texts.

    Args:
        form: which has to say nothing of the file.
        notes: what was told by its content is added as parts of a sentence.

    Raises:
        DataError: a line that holds anything else.
        ConfigError: a form of other tables.
    """
    for name, value in vars(form).items():
        if value is not None:
            raise ConfigError(
                f"data.{name} is for tables with columns, and each line of {path} holds a user and his items: leave it out"
            )
    notes.append("each line holds a user and his items")
    first = 1
    with opened(path) as file:
        while lines := file.readlines(_BYTES):
            for number, line in enumerate(lines, first):
                if line.strip() and not _LINE.fullmatch(line):
                    raise DataError(
                        f"{path}, row {number}: expected whole numbers between spaces, the user and his items"
                    )
            first += len(lines)
            rows = [line.decode("ascii").split() for line in lines if line.strip()]
            users = pa.array([row[0] for row in rows], pa.string())
            items = pa.array([row[1:] for row in rows], pa.list_(pa.string()))
            yield pa.table({USER: users, ITEMS: items})
