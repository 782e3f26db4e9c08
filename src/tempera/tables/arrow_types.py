"""Types of Arrow's columns: types of texts or lists, and plain types in place of types of other
writers."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..io.later import compute as pc

_UUID_BYTES = 16
_EXACT_DIGITS = 18  # decimal digits that an integer of 64 bits holds at least


def is_text(kind: pa.DataType) -> bool:
    """Return True if a column of a type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return True if a column of a type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def decoded(table: pa.Table) -> pa.Table:
    """Return a table with the types of text files.

    Dictionaries, such as categories of pandas, become their values; polars' texts become plain
    texts, and UUIDs become texts. Decimals become numbers, or texts where a number would round.
    Dictionaries of views within lists are left, since Arrow has no cast.

    >>> from decimal import Decimal
    >>> table = pa.table({"id": [Decimal(2**70)], "price": [Decimal("1.50")]})
    >>> decoded(table).to_pylist()
    [{'id': '1180591620717411303424', 'price': 1.5}]
    """
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if _is_rare(field.type):
            chunks = column.chunks or [pa.array([], field.type)]
            common = [_common(chunk) for chunk in chunks]
            # Bytes of which one part alone is UTF-8 stay bytes as a whole.
            if all(chunk.type == common[0].type for chunk in common):
                column = pa.chunked_array(common)
        if pa.types.is_dictionary(column.type):  # one of a rare type is decoded by now
            kind = _plain(column.type.value_type)
            chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(chunks, kind)
        kind = _plain(column.type)
        if kind != column.type:
            with suppress(pa.ArrowNotImplementedError):
                column = column.cast(kind)
        if column.type != field.type:
            table = table.set_column(i, field.name, column)
    return table


def _is_rare(kind: pa.DataType) -> bool:
    """Return True if a type, or the type inside of lists, is written by some writers only."""
    if is_list(kind) or pa.types.is_dictionary(kind):
        return _is_rare(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width == _UUID_BYTES)
    return bool(
        isinstance(kind, pa.UuidType | pa.Bool8Type | pa.JsonType)
        or pa.types.is_decimal(kind)
        or pa.types.is_run_end_encoded(kind)
        or _is_list_view(kind)
        or _is_bytes(kind)
    )


def _common(values: pa.Array) -> pa.Array:
    """Return values of a rare type as texts or numbers; bytes not in UTF-8 stay bytes."""
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
        if kind.scale > 0:
            return values.cast(pa.float64())
        return values.cast(pa.int64() if kind.precision <= _EXACT_DIGITS else pa.large_string())
    if _is_list_view(kind):
        return values.cast(pa.large_list(kind.value_type))
    if is_list(kind):
        return with_values(values, _common(pc.list_flatten(values)))
    try:
        return values.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowException:
        return values


def list_lengths(lists: pa.Array) -> NDArray[np.int64]:
    """Return the number of values of each list, [n]; 0 for null."""
    lengths: NDArray[np.int64] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(
        zero_copy_only=False
    )
    return lengths


def with_values(lists: pa.Array, values: pa.Array) -> pa.LargeListArray:
    """Return lists with new values, [all values of the lists], in place of the old values."""
    ends = list_lengths(lists).cumsum()
    offsets = pa.array(np.concatenate([[0], ends]), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, values, mask=lists.is_null())


def _uuids(values: pa.Array) -> pa.Array:
    """Return UUIDs of 16 bytes as texts like 6b0a...-...; each distinct UUID is written once."""
    coded = values.dictionary_encode()
    distinct = coded.dictionary.to_pylist()
    texts = [None if value is None else str(UUID(bytes=value)) for value in distinct]
    return pa.array(texts, pa.large_string()).take(coded.indices)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type with no dictionaries, views or lists of a fixed size around texts, also in
    lists and structs."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        inside = kind.value_type
        if is_text(inside) or pa.types.is_string_view(inside):
            return pa.list_(_plain(inside))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind
