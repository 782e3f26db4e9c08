"""Histories of a run's users, as its folder keeps them: one of them, or those of many users at
once.

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
from ..recommend.judge.past_events import PastEvents, nothing
from ..tables.tables import parquet_table
from ..towers.stamp import refuse_foreign
from .moments import KnownTimes

Codes = NDArray[np.int64]

_TIMES = "times"
TIMES = (_TIMES, "aside_times")
_LISTS = {  # columns of lists, and the parts of `PastEvents` that they are
    **{name: name for name in ("items", "targets", "contexts", "aside", *TIMES)},
    "dislikes": "aside",  # as earlier versions have called them
}


class StoredHistories:
    """Read what the users of a run have done, each with the latest event last.

    Args:
        path: the file.
        model: fingerprint of the run's model.
        items: number of items that the run has.
        contexts: number of contexts that it has.

    Raises:
        DataError: by every method, where the file is damaged, or of another run.
    """

    def __init__(self, path: Path, model: str, items: int, contexts: int = 0) -> None:
        self.path, self.model = path, model
        self.known = {"items": items, "targets": 3, "contexts": contexts, "aside": items}

    def of(self, user: pa.Scalar) -> PastEvents:
        """Return what one user has done; only the part of the file with that user is read in
        full."""
        with self._readable(), parquet.ParquetFile(checked_file(self.path)) as file:
            refuse_foreign(file.schema_arrow.metadata, self.model, self.path)
            names = [name for name in file.schema_arrow.names if name in _LISTS]
            for group in range(file.num_row_groups):
                ids = file.read_row_group(group, ["id"], use_threads=False)["id"].cast(
                    pa.large_string()
                )
                if (at := pc.index(ids, user).as_py()) >= 0:
                    return self._past(
                        file.read_row_group(group, names, use_threads=False).slice(at, 1)
                    )
        return nothing()

    def rows(self, users: pa.ChunkedArray) -> PastEvents:
        """Return what users have done, n rows; those of users whom the run does not know are
        empty."""
        _, past = self._all
        return past.at(self._places(users))

    def latest(self, users: pa.ChunkedArray) -> NDArray[np.float64] | None:
        """Return the time of the latest event of each user, [n], nan for unknown ones; None if the
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
        """The times of all events that the run knows; None if it has no times."""
        with self._readable():
            names = [name for name in TIMES if name in parquet.read_schema(self.path).names]
            if _TIMES not in names:
                return None
            table = parquet.read_table(self.path, columns=names)
            spans = [pc.min_max(pc.list_flatten(table[name])).as_py() for name in names]
            dated = pa.types.is_timestamp(table[_TIMES].type.value_type)
            known = [span for span in spans if span["max"] is not None]
            return (
                KnownTimes(
                    min(span["min"] for span in known), max(span["max"] for span in known), dated
                )
                if known
                else None
            )

    def _places(self, users: pa.ChunkedArray) -> Codes:
        """Return the row of each user, [n]; -1 for unknown ones."""
        at: Codes = (
            pc.index_in(users, value_set=self._all[0]["id"])
            .fill_null(-1)
            .to_numpy()
            .astype(np.int64)
        )
        return at

    @property
    def table(self) -> pa.Table:
        """The file, as it is."""
        table = parquet_table(self.path)
        refuse_foreign(table.schema.metadata, self.model, self.path)
        return table

    @cached_property
    def _all(self) -> tuple[pa.Table, PastEvents]:
        """The table without its lists, with ids as texts, and the lists of all users."""
        with self._readable():
            table = self.table
            rest = table.select(["id"])
            return rest.set_column(0, "id", rest["id"].cast(pa.large_string())), self._past(table)

    def _past(self, table: pa.Table) -> PastEvents:
        """Return the lists of a table, each with codes that the run has; those of one user's events
        are of one length."""
        rows = {
            field: self._rows(table, name)
            for name, field in _LISTS.items()
            if name in table.column_names or name == "items"
        }
        for name, of in (
            ("targets", "items"),
            ("contexts", "items"),
            (_TIMES, "items"),
            ("aside_times", "aside"),
        ):
            if name in rows and (
                of not in rows or not np.array_equal(rows[name].stops, rows[of].stops)
            ):
                raise DataError(f"{self.path} has other {name} than {of}: it is damaged")
        return PastEvents(**rows)

    def _rows(self, table: pa.Table, name: str) -> Histories:
        lists = table[name].combine_chunks()
        lists.validate(full=True)
        values = lists.flatten()
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        values, lengths = values.to_numpy(), lists.value_lengths().to_numpy().astype(np.int64)
        most = self.known.get(_LISTS[name])
        if most is not None and len(values) and not 0 <= values.min() <= values.max() < most:
            raise DataError(f"{self.path} names {name} that the run does not have: it is damaged")
        return Histories.of(values, np.concatenate([[0], lengths.cumsum()]))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # whatever a damaged file makes of the reader
            raise DataError(f"{self.path} is not readable: {error}") from None
