"""Types of Arrow's columns: those that hold texts or lists, and plain ones in place of what other
writers choose."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

_ARE_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def decoded(table: pa.Table) -> pa.Table:
    """Return a table without dictionaries, such as categories of pandas, and with texts of polars
    as other writers have them.

    Dictionaries of views within lists are left, since Arrow does not cast them.
    """
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if pa.types.is_dictionary(field.type):
            kind = _plain(field.type.value_type)
            parts = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(parts, kind)
        if (kind := _plain(column.type)) != column.type:
            with suppress(pa.ArrowNotImplementedError):
                column = column.cast(kind)
        table = table if column.type == field.type else table.set_column(i, field.name, column)
    return table


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type whose texts, in lists and structs too, are in no dictionary, no views and no
    lists of a fixed size."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_fixed_size_list(kind) and any(each(kind.value_type) for each in _ARE_TEXTS):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind
