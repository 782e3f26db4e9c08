"""Types of Arrow's columns: those that hold texts or lists, and plain ones in place of what other
writers choose."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UUID = 16  # bytes
_EXACT = 18  # decimal digits that an integer of 64 bits holds at least
_ARE_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)
_ARE_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_ARE_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def decoded(table: pa.Table) -> pa.Table:
    """Return a table with the types that text files have: without dictionaries, such as categories
    of pandas, with texts of polars as other writers have them, UUIDs as texts, and decimals as
    numbers, or as texts where a number would round them.

    Dictionaries of views within lists are left, since Arrow does not cast them.

    >>> from decimal import Decimal
    >>> table = pa.table({"id": [Decimal(2**70)], "price": [Decimal("1.50")]})
    >>> decoded(table).to_pylist()
    [{'id': '1180591620717411303424', 'price': 1.5}]
    """
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if _is_other(field.type):
            parts = [_common(chunk) for chunk in column.chunks] or [
                _common(pa.array([], field.type))
            ]
            column = pa.chunked_array(parts)
        if pa.types.is_dictionary(field.type):
            kind = _plain(field.type.value_type)
            parts = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(parts, kind)
        if (kind := _plain(column.type)) != column.type:
            with suppress(pa.ArrowNotImplementedError):
                column = column.cast(kind)
        table = table if column.type == field.type else table.set_column(i, field.name, column)
    return table


def _is_other(kind: pa.DataType) -> bool:
    """Return whether values, in lists too, are of a type that only some writers have."""
    if is_list(kind):
        return _is_other(kind.value_type)
    if pa.types.is_dictionary(kind):
        return _is_other(kind.value_type)
    return bool(
        isinstance(kind, pa.UuidType | pa.Bool8Type | pa.JsonType)
        or (pa.types.is_fixed_size_binary(kind) and kind.byte_width == _UUID)
        or pa.types.is_decimal(kind)
        or pa.types.is_run_end_encoded(kind)
        or any(is_one(kind) for is_one in (*_ARE_VIEWS, *_ARE_BYTES))
    )


def _common(values: pa.Array) -> pa.Array:
    """Return values of types that only some writers have as texts or numbers; bytes that are no
    UTF-8 as they are."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _common(values.dictionary).take(values.indices)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_decode(values)
    if isinstance(kind, pa.UuidType):
        return _uuids(values.storage)
    if pa.types.is_fixed_size_binary(kind):
        return _uuids(values)
    if isinstance(kind, pa.Bool8Type):
        return values.storage.cast(pa.bool_())
    if isinstance(kind, pa.JsonType):
        return values.storage
    if pa.types.is_decimal(kind):
        whole = pa.int64() if kind.precision <= _EXACT else pa.large_string()
        return values.cast(pa.float64() if kind.scale > 0 else whole)
    if any(is_one(kind) for is_one in _ARE_VIEWS):
        return values.cast(pa.large_list(kind.value_type))
    if is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int64())
        inside = _common(pc.list_flatten(values))
        return pa.LargeListArray.from_arrays(offsets, inside, mask=values.is_null())
    try:
        return values.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowException:
        return values


def _uuids(values: pa.Array) -> pa.Array:
    """Return 16 bytes each as texts like 6b0a...-...; each distinct one is written once."""
    coded = values.dictionary_encode()
    texts = [
        None if each is None else str(UUID(bytes=each)) for each in coded.dictionary.to_pylist()
    ]
    return pa.array(texts, pa.large_string()).take(coded.indices)


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
