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
from ..io.tables import parquet_table
from ..recommend.full_catalogue import Histories
from ..recommend.past_events import PastEvents, nothing
from ..towers.stamp import refuse_foreign

Codes = NDArray[np.int64]


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
        self.known = {"items": items, "targets": 3, "contexts": contexts, "dislikes": items}

    def of(self, user: pa.Scalar) -> PastEvents:
        """Return what one user has done; only the part of the file with that user is read in
        full."""
        with self._readable(), parquet.ParquetFile(checked_file(self.path)) as file:
            refuse_foreign(file.schema_arrow.metadata, self.model, self.path)
            names = [
                "items",
                *(
                    name
                    for name in file.schema_arrow.names
                    if name in self.known and name != "items"
                ),
            ]
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
        table, _ = self._all
        if "time" not in table.column_names:
            return None
        at = self._places(users)
        times: NDArray[np.float64] = np.where(
            at < 0, np.nan, table["time"].to_numpy().astype(np.float64)[at]
        )
        return times

    @property
    def times(self) -> tuple[float, float] | None:
        """The earliest and the latest time of a user's latest event; None if the run has no
        times."""
        table, _ = self._all
        if "time" not in table.column_names or not len(table):
            return None
        span = pc.min_max(table["time"]).as_py()
        return float(span["min"]), float(span["max"])

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
            rest = table.drop_columns([name for name in table.column_names if name in self.known])
            return rest.set_column(0, "id", rest["id"].cast(pa.large_string())), self._past(table)

    def _past(self, table: pa.Table) -> PastEvents:
        """Return the lists of a table, each with codes that the run has; those of one user's events
        are of one length."""
        rows = {
            name: self._rows(table, name)
            for name in self.known
            if name in table.column_names or name == "items"
        }
        for name in ("targets", "contexts"):
            if name in rows and not np.array_equal(rows[name].stops, rows["items"].stops):
                raise DataError(f"{self.path} has other {name} than items: it is damaged")
        return PastEvents(**rows)

    def _rows(self, table: pa.Table, name: str) -> Histories:
        lists = table[name].combine_chunks()
        lists.validate(full=True)
        codes, lengths = (
            lists.flatten().to_numpy(),
            lists.value_lengths().to_numpy().astype(np.int64),
        )
        if len(codes) and not 0 <= codes.min() <= codes.max() < self.known[name]:
            raise DataError(f"{self.path} names {name} that the run does not have: it is damaged")
        return Histories.of(codes, np.concatenate([[0], lengths.cumsum()]))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # whatever a damaged file makes of the reader
            raise DataError(f"{self.path} is not readable: {error}") from None
