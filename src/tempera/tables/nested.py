"""Values inside of lists and objects, by a path such as messages.0.content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrow_types import is_list, list_lengths, with_values
from .tables import TableBlock


def with_paths(block: TableBlock, names: Iterable[str]) -> TableBlock:
    """Return a block with one more column for each name that is no column, but a path to values.

    >>> rows = pa.table({"messages": [[{"role": "user", "content": "hi"}], []]})
    >>> with_paths(TableBlock(rows, "a"), ["messages.0.content"]).table["messages.0.content"].to_pylist()
    ['hi', None]
    """
    table = block.table
    for name in names:
        if name in table.column_names:
            continue
        values = at_path(table, name)
        if values is not None:
            table = table.append_column(name, values)
    if table is block.table:
        return block
    return replace(block, table=table)


def at_path(table: pa.Table, path: str) -> pa.ChunkedArray | None:
    """Return the values that a path leads to in each row; None if the path leads nowhere.

    A path has names of columns and fields, and positions in lists, with dots between them.
    Positions count from 0, and from the end if they are negative. A name after a list is the field
    of every object in the list. A position beyond the list of a row is null.

    >>> table = pa.table({"ctxs": [[{"text": "a"}, {"text": "b"}], [{"text": "c"}]]})
    >>> at_path(table, "ctxs.text").to_pylist(), at_path(table, "ctxs.1.text").to_pylist()
    ([['a', 'b'], ['c']], ['b', None])
    """
    name, _, rest = path.partition(".")
    while name not in table.column_names:  # names may hold dots themselves
        step, _, rest = rest.partition(".")
        if not step:
            return None
        name = f"{name}.{step}"
    if table.column_names.count(name) > 1:
        return None
    column = table[name]
    chunks = column.chunks or [pa.array([], column.type)]
    for step in filter(None, rest.split(".")):
        steps = [_step(chunk, step) for chunk in chunks]
        chunks = [chunk for chunk in steps if chunk is not None]
        if len(chunks) < len(steps):
            return None
    return pa.chunked_array(chunks)


def _step(values: pa.Array, step: str) -> pa.Array | None:
    """Return the values at a step of a path: a field of objects, or a position in lists; None if
    there are no such values."""
    if pa.types.is_struct(values.type):
        if values.type.get_field_index(step) < 0:
            return None
        return pc.struct_field(values, step)
    if pa.types.is_fixed_size_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
    if not is_list(values.type):
        return None
    if step.removeprefix("-").isdigit():
        return _values_at(values, int(step))
    fields = _step(pc.list_flatten(values), step)
    if fields is None:
        return None
    return with_values(values, fields)


def _values_at(lists: pa.Array, position: int) -> pa.Array:
    """Return the value at a position of every list; null for a list without the position."""
    lengths = list_lengths(lists)
    starts = lengths.cumsum() - lengths
    at = position if position >= 0 else lengths + position
    rows = np.where((at >= 0) & (at < lengths), starts + at, -1)
    return pc.list_flatten(lists).take(pa.array(rows, mask=rows < 0))
