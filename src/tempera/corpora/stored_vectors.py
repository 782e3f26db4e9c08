"""Vectors as a shard stores them: lists of a fixed size of float32, float16 or int8.

Letters in shapes: n rows, D width.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError, refuse_unknown
from ..ranking.nearest import refuse_not_finite
from ..towers.similarities import Similarity
from .manifest_form import Stored
from .shard_columns import of_numbers

Vectors = NDArray[np.float32]
_TYPES = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}


def refuse_unstorable(dtype: str, similarity: Similarity) -> None:
    """Refuse an unknown type of stored numbers, and int8 for vectors whose length counts.

    Raises:
        ConfigError: an unknown type.
        DataError: int8 with vectors for comparison by inner product.
    """
    refuse_unknown("dtype", dtype, *get_args(Stored))
    if dtype == "int8" and similarity == "dot":
        raise DataError(
            "int8 keeps directions and no lengths, and this model compares by inner product: take float16"
        )


def list_type(width: int, dtype: str) -> pa.DataType:
    """Return the type of a column of vectors. No number is null, which readers use to be fast."""
    return pa.list_(pa.field("element", _TYPES[dtype], nullable=False), width)


def is_vectors(kind: pa.DataType | None, width: int) -> bool:
    """Return True for the type of a column of vectors of a width."""
    if kind is None or not pa.types.is_fixed_size_list(kind):
        return False
    return kind.list_size == width and kind.value_type in _TYPES.values()


def stored(vectors: Vectors, dtype: str, where: str) -> pa.Array:
    """Return vectors, [n, D], as a column of lists.

    int8 keeps whole multiples of a 127th of the largest absolute number of a row, as
    `core.precisions.at_precision` does: a row's numbers depend on that row alone.

    Raises:
        DataError: a vector that is not finite, also as float16.

    >>> stored(np.array([[3.0, -4.0, 0.015]], np.float32), "int8", "a.parquet")[0].as_py()
    [95, -127, 0]
    """
    refuse_not_finite(vectors, where)
    numbers: NDArray[Any] = np.ascontiguousarray(vectors)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            numbers = vectors.astype(np.float16)
        refuse_not_finite(numbers, where, "they are too large for float16; store float32")
    if dtype == "int8":
        largest = np.abs(vectors).max(1, keepdims=True, initial=0)
        steps = largest / np.float32(127)
        numbers = np.rint(vectors / np.maximum(steps, np.float32(1e-28))).astype(np.int8)
    flat = of_numbers(numbers.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=list_type(vectors.shape[1], dtype))


def restored(column: pa.Array) -> Vectors:
    """Return a column of lists as vectors to compare, [n, D], in float32; those of int8 have
    length 1.

    >>> column = stored(np.array([[0.6, 0.8]], np.float32), "int8", "a.parquet")
    >>> bool(abs(restored(column) - [[0.6, 0.8]]).max() < 0.01)
    True
    """
    width = column.type.list_size
    numbers = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    vectors: Vectors = numbers.astype(np.float32)
    if numbers.dtype == np.int8:
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
        vectors /= np.maximum(lengths, np.float32(1e-12))[:, None]
    return vectors
