"""Rows of objects in memory: frames of pandas or polars, tables of pyarrow, data sets of Hugging
Face."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import Any

import pyarrow as pa

from ..errors import DataError, article, quantity
from .arrow_types import decoded
from .tables import TableBlock, valid

_ROWS = 1 << 16


def stream(data: Any) -> Iterator[TableBlock]:
    """Read an object some rows at a time.

    Raises:
        DataError: the object is no table, or has no rows.
    """
    first = 1
    for table in _tables(data):
        for start in range(0, len(table), _ROWS):
            part = table.slice(start, _ROWS)
            valid(part, "data", first)
            yield TableBlock(decoded(part), "data", first)
            first += len(part)
    if first == 1:
        raise DataError("data holds no rows")


def is_frame(data: Any) -> bool:
    """Return True if an object may be read as a table: a frame, a table, or a data set."""
    library = sys.modules.get("datasets")
    if library is not None and isinstance(data, library.Dataset | library.IterableDataset):
        return True
    return hasattr(data, "__arrow_c_stream__")


def described(data: Any) -> str:
    """Return words for an object in memory.

    >>> described(pa.table({"a": range(1000)}))
    'a pyarrow Table of 1,000 rows'
    """
    kind = type(data)
    library = kind.__module__.partition(".")[0]
    words = f"{article(library)} {kind.__name__}"
    if isinstance(data, Sized):
        words += f" of {quantity(len(data), 'rows')}"
    return words


def data_sets(data: Any) -> dict[str, Any]:
    """Return the data sets, by name, of an object that holds several data sets, such as a
    DatasetDict; nothing for any other object."""
    if not isinstance(data, dict):
        return {}
    return {str(name): each for name, each in data.items()}


def _tables(data: Any) -> Iterator[pa.Table]:
    library = sys.modules.get("datasets")  # imported if there is an object of the library
    if library is not None and isinstance(data, library.Dataset | library.IterableDataset):
        yield from data.with_format("arrow").iter(_ROWS)
        return
    several = data_sets(data)
    if several:
        raise DataError(
            f"data holds several data sets ({', '.join(several)}): hand over one of them"
        )
    data = _without_wide_integers(data)
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        mixed = _mixed(data)
        if mixed:
            raise DataError(f"data, {mixed}; expected values of one type in a column") from None
        reason = "; ".join(str(part).splitlines()[0] for part in error.args)
        raise DataError(
            f"data is {type(data).__name__}, and no table can be made of it: {reason}"
        ) from None
    except TypeError:
        raise DataError(
            f"data is {type(data).__name__}, which gives no Arrow stream (__arrow_c_stream__): "
            "hand over a datasets.Dataset, a frame of pandas or polars, or a table of pyarrow"
        ) from None
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _without_wide_integers(data: Any) -> Any:
    """Return a frame of polars with integers of 128 bits as texts, since Arrow has no such type,
    and a lazy frame with its rows; any other object unchanged.

    Raises:
        DataError: a column of objects: Arrow would see addresses.
    """
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(data, polars.DataFrame | polars.LazyFrame):
        return data
    frame = data.lazy().collect()
    kinds = frame.schema
    for name, kind in kinds.items():
        if kind == polars.Object:
            raise DataError(
                f"data: column {name!r} holds objects of Python; expected texts or numbers"
            )
    wide = {getattr(polars, name) for name in ("Int128", "UInt128") if hasattr(polars, name)}
    names = [name for name, kind in kinds.items() if kind in wide]
    return frame.with_columns(polars.col(name).cast(polars.String) for name in names)


def _mixed(frame: Any) -> str:
    """Return the first value of a frame of pandas of another type than the values before, with its
    row; else nothing."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(frame, pandas.DataFrame):
        return ""
    for name in frame.columns:
        if str(frame.dtypes[name]) != "object":
            continue
        values = list(frame[name])
        for row, value in enumerate(values, 1):
            if type(value) not in (type(values[0]), type(None)):
                return f"row {row}: column {name!r} is {value!r}, after values like {values[0]!r}"
    return ""
