"""Histories of a run's users in the folder of the run, read for one user or for many users at once.

Letters in shapes: n users.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from ..errors import DataError
from ..io.checked import checked_file
from ..recommend.judge.full_catalogue import Histories
from ..recommend.judge.moments import KnownTimes
from ..recommend.judge.past_events import PastEvents, nothing
from ..tables.tables import parquet_table
from ..towers.stamp import refuse_foreign

Codes = NDArray[np.int64]

_TIMES = "times"
TIMES = (_TIMES, "aside_times")
_LISTS = {  # columns of lists, and the fields of `PastEvents` that they fill
    "items": "items",
    "targets": "targets",
    "contexts": "contexts",
    "aside": "aside",
    "times": "times",
    "aside_times": "aside_times",
    "dislikes": "aside",  # the name in earlier versions
}
# Columns whose lists are as long as the lists of another column.
_ALONGSIDE = {
    "targets": "items",
    "contexts": "items",
    "times": "items",
    "aside_times": "aside",
}


class StoredHistories:
    """Read the past events of a run's users, with the latest event last.

    Args:
        path: the file.
        model: fingerprint of the run's model.
        items: number of the run's items.
        contexts: number of the run's contexts.

    Raises:
        DataError: by every method, if the file is damaged, or of another run.
    """

    def __init__(self, path: Path, model: str, items: int, contexts: int = 0) -> None:
        self.path = path
        self.model = model
        self.known = {"items": items, "targets": 3, "contexts": contexts, "aside": items}

    def of(self, user: pa.Scalar) -> PastEvents:
        """Return the past events of one user; only the part of the file with the user is read in
        full."""
        with self._readable(), parquet.ParquetFile(checked_file(self.path)) as file:
            refuse_foreign(file.schema_arrow.metadata, self.model, self.path)
            names = [name for name in file.schema_arrow.names if name in _LISTS]
            for group in range(file.num_row_groups):
                ids = file.read_row_group(group, ["id"], use_threads=False)["id"]
                row = pc.index(ids.cast(pa.large_string()), user).as_py()
                if row >= 0:
                    lists = file.read_row_group(group, names, use_threads=False)
                    return self._past(lists.slice(row, 1))
        return nothing()

    def rows(self, users: pa.ChunkedArray) -> PastEvents:
        """Return the past events of users, n rows; the row of an unknown user is empty."""
        table, past = self._all
        rows = pc.index_in(users, value_set=table["id"]).fill_null(-1)
        return past.at(rows.to_numpy().astype(np.int64))

    def latest(self, users: pa.ChunkedArray) -> NDArray[np.float64] | None:
        """Return the time of the latest event of each user, [n], nan for unknown users; None if the
        run has no times."""
        times = self.rows(users).times
        if times is None:
            return None
        known = times.lengths > 0
        latest = np.full(len(times), np.nan)
        latest[known] = times.items[times.stops[known] - 1]
        return latest

    @property
    def times(self) -> tuple[float, float] | None:
        """The earliest and the latest time of a user's latest event; None if the run has no
        times."""
        _, past = self._all
        if past.times is None or not len(past.times.items):
            return None
        latest = past.times.items[past.times.stops[past.times.lengths > 0] - 1]
        return float(latest.min()), float(latest.max())

    @cached_property
    def clock(self) -> KnownTimes | None:
        """The times of all known events of the run; None without times."""
        with self._readable():
            names = [name for name in TIMES if name in parquet.read_schema(self.path).names]
            if _TIMES not in names:
                return None
            table = parquet.read_table(self.path, columns=names)
            ends = []  # the earliest and the latest time of each column
            for name in names:
                span = pc.min_max(pc.list_flatten(table[name])).as_py()
                if span["max"] is not None:
                    ends += [span["min"], span["max"]]
            if not ends:
                return None
            dated = pa.types.is_timestamp(table[_TIMES].type.value_type)
            return KnownTimes(min(ends), max(ends), dated)

    @property
    def table(self) -> pa.Table:
        """The file, unchanged."""
        table = parquet_table(self.path)
        refuse_foreign(table.schema.metadata, self.model, self.path)
        return table

    @cached_property
    def _all(self) -> tuple[pa.Table, PastEvents]:
        """The table without lists, with ids as texts, and the lists of all users."""
        with self._readable():
            table = self.table
            ids = pa.table({"id": table["id"].cast(pa.large_string())})
            return ids, self._past(table)

    def _past(self, table: pa.Table) -> PastEvents:
        """Return the lists of a table as past events.

        Raises:
            DataError: codes unknown to the run, or lists of unequal lengths in a row.
        """
        rows = {}
        for name, field in _LISTS.items():
            if name in table.column_names or name == "items":
                rows[field] = self._rows(table, name)
        for name, beside in _ALONGSIDE.items():
            if name not in rows:
                continue
            if beside not in rows or not np.array_equal(rows[name].stops, rows[beside].stops):
                raise DataError(f"{self.path} has other {name} than {beside}: it is damaged")
        return PastEvents(**rows)

    def _rows(self, table: pa.Table, name: str) -> Histories:
        """Return a column of lists."""
        lists = table[name].combine_chunks()
        lists.validate(full=True)
        values = lists.flatten()
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        codes = values.to_numpy()
        count = self.known.get(_LISTS[name])
        if count is not None and len(codes) and not 0 <= codes.min() <= codes.max() < count:
            raise DataError(f"{self.path} names {name} that the run does not have: it is damaged")
        lengths = lists.value_lengths().to_numpy().astype(np.int64)
        return Histories.of(codes, np.concatenate([[0], lengths.cumsum()]))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raise every error of the `with` block as a DataError."""
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # whatever a damaged file makes of the reader
            raise DataError(f"{self.path} is not readable: {error}") from None
