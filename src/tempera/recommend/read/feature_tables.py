"""Tables of features, row by row beside ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError
from ...forms.unnamed_columns import features_named, is_unnamed
from ...tables.columns import plain
from ...tables.tables import TableBlock, joined, refuse_repeated
from .events import TEXT, EventReader

KEY = "\0id"  # a column of ids as texts
# Integers in texts, without signs, zeros and spaces that say nothing; of any length.
_WHOLE = ((r"^\s*[+-]?0*(0)\s*$", r"\1"), (r"^\s*(?:\+|(-))?0*([1-9][0-9]*)\s*$", r"\1\2"))


def texts_of(ids: Any, integers: bool) -> Any:
    """Return ids, an array or a column, as texts; where the ids to compare with are integers, texts
    of integers are spelled in the same way.

    >>> texts_of(pa.array(["007", " -07", "+0", "7a", "7.0"]), True).to_pylist()
    ['7', '-7', '0', '7a', '7.0']
    """
    texts = ids.cast(TEXT)
    for pattern, written in _WHOLE if integers else ():
        texts = pc.replace_substring_regex(texts, pattern, written)
    return texts


def aligned(
    read: Iterable[TableBlock],
    ids: pa.Array,
    role: str,
    column: str,
    usual: Sequence[str],
    dropped: Counter[str],
) -> pa.Table:
    """Return features in the order of `ids`, texts as large_string, with nulls for absent rows; 7,
    "7" and "07" are one id.

    Args:
        read: rows in any order, with a column of ids: `column`, or a usual name of the role, or
            "id".
        role: user or item, for messages and counts.
        dropped: ids without a row, and rows with an unknown id, are added to these counts.

    Raises:
        DataError: no column of ids, a row without an id, an id with two rows, or no row for any of
            `ids`.

    >>> table = pa.table({"item": [3, 1], "title": ["c", "a"]})
    >>> aligned([TableBlock(table, "items")], pa.array([1, 2, 3]), "item", "item", (), Counter())["title"].to_pylist()
    ['a', None, 'c']
    """
    blocks = list(read)
    table = by_id(blocks, role, column, usual, pa.types.is_integer(ids.type))
    keys = table[KEY].combine_chunks()
    keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    at = pc.index_in(ids.cast(pa.large_string()), value_set=keys)
    if len(keys) and at.null_count == len(at):
        raise DataError(
            f"the {role}s' features ({blocks[0].file}) have no row for any {role} of the interactions: "
            f"their ids are like {keys[0].as_py()!r}, and "
            f"those of the interactions like {ids[0].as_py()!r}"
        )
    _count(dropped, f"{role}s without a row of features", at.null_count)
    _count(
        dropped,
        f"rows of features of {role}s without an interaction",
        len(keys) - (len(at) - at.null_count),
    )
    return table.drop_columns([KEY]).take(at)


def by_id(
    read: Iterable[TableBlock], role: str, column: str, usual: Sequence[str], integers: bool = False
) -> pa.Table:
    """Return all rows, with the ids as texts in the column `KEY`.

    Args:
        integers: True if the ids to compare with are integers, see `texts_of`.

    Raises:
        DataError: no column of ids, a row without an id, or an id with two rows.
    """
    blocks = [block for block in read if len(block.table)]
    what = f"the {role}s' features" + (f" ({blocks[0].file})" if blocks else "")
    if blocks and is_unnamed(blocks[0].table.column_names):
        names = features_named(blocks[0].table, blocks[0].file, role).column_names
        blocks = [replace(block, table=block.table.rename_columns(names)) for block in blocks]
    table = joined(
        [keyed(block, role, column, usual, integers) for block in blocks],
        f"{what} do not fit into one table",
    )
    counts = pc.value_counts(table[KEY])
    if len(counts) < len(table):
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        raise DataError(
            f"{what} have two rows for {role} {twice[0].as_py()!r}: give each {role} one row"
        )
    return table


def keyed(
    block: TableBlock, role: str, column: str, usual: Sequence[str], integers: bool = False
) -> pa.Table:
    """Return a block with the ids, as texts, in the column `KEY`."""
    names = block.table.column_names
    refuse_repeated(names, block.file)
    alike = (name for name in names if plain(name) in (*usual, "id"))
    name = column if column in names else next(alike, None)
    if name is None:
        raise DataError(
            f"{block.file} has no column of {role} ids: name it {column!r} as in the interactions; "
            f"it has {', '.join(names)}"
        )
    keys = EventReader(block, {role: (name,)}, Counter()).whole_ids(role)
    features = block.table.drop_columns([name])
    for i, field in enumerate(features.schema):
        if pa.types.is_string(field.type):
            features = features.set_column(
                i, field.name, features[field.name].cast(pa.large_string())
            )
    return features.append_column(KEY, texts_of(keys, integers))


def _count(dropped: Counter[str], reason: str, number: int) -> None:
    if number:
        dropped[reason] += number
