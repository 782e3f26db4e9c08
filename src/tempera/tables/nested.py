"""Values inside of lists and objects, by a path such as messages.0.content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrow_types import is_list
from .tables import TableBlock


def with_paths(block: TableBlock, names: Iterable[str]) -> TableBlock:
    """Return a block with a column for each of these names that is no column, but a path to one.

    >>> rows = pa.table({"messages": [[{"role": "user", "content": "hi"}], []]})
    >>> with_paths(TableBlock(rows, "a"), ["messages.0.content"]).table["messages.0.content"].to_pylist()
    ['hi', None]
    """
    table = block.table
    for name in names:
        if name not in table.column_names and (values := at_path(table, name)) is not None:
            table = table.append_column(name, values)
    return block if table is block.table else replace(block, table=table)


def at_path(table: pa.Table, path: str) -> pa.ChunkedArray | None:
    """Return the values that a path leads to in each row; None if it leads nowhere.

    A path has names of columns and fields, and places in lists from 0 on, or from the end where
    they are negative, with dots between them. A name after a list is that field of every object in
    it. A place that a row's list does not have is null.

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
    """Return the field of objects, or the place in lists, that a step names."""
    if pa.types.is_struct(values.type):
        has = values.type.get_field_index(step) >= 0
        return pc.struct_field(values, step) if has else None
    if pa.types.is_fixed_size_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
    if not is_list(values.type):
        return None
    if step.removeprefix("-").isdigit():
        return _place(values, int(step))
    fields = _step(pc.list_flatten(values), step)
    if fields is None:
        return None
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, fields, mask=values.is_null())


def _place(lists: pa.Array, place: int) -> pa.Array:
    """Return the value at a place of every list; null where it has none."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    at = place if place >= 0 else lengths + place
    starts = lengths.cumsum() - lengths
    rows = np.where((at >= 0) & (at < lengths), starts + at, -1)
    return pc.list_flatten(lists).take(pa.array(rows, mask=rows < 0))
