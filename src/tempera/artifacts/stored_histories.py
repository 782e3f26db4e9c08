"""Histories of a run's users, as its folder keeps them: one of them, or those of many users at once.

Letters in shapes: n users, v items of all histories together.
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
from ..io.tables import parquet_table
from ..recommend.full_catalogue import Histories

Codes = NDArray[np.int64]


class StoredHistories:
    """Read the histories of a run, each with the latest item last.

    Args:
        path: the file.
        items: number of items that the run has.

    Raises:
        DataError: by every method, where the file is damaged.
    """

    def __init__(self, path: Path, items: int) -> None:
        self.path, self.items = path, items

    def of(self, user: pa.Scalar) -> Codes:
        """Return the codes of all items that one user has taken; only the part of the file with that user is read in full."""
        with self._readable(), parquet.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                ids = file.read_row_group(group, ["id"], use_threads=False)["id"].cast(pa.large_string())
                if (at := pc.index(ids, user).as_py()) >= 0:
                    items = file.read_row_group(group, ["items"], use_threads=False)["items"]
                    items.validate(full=True)
                    return self._checked(items[at].values.to_numpy()).astype(np.int64)
        return np.empty(0, np.int64)

    def rows(self, users: pa.ChunkedArray) -> Histories:
        """Return the histories of users, n rows; those of users whom the run does not know are empty."""
        _, offsets, items = self._all
        at = self._places(users)
        return Histories(items, np.where(at < 0, 0, offsets[at]), np.where(at < 0, 0, offsets[at + 1]))

    def latest(self, users: pa.ChunkedArray) -> NDArray[np.float64] | None:
        """Return the time of the latest event of each user, [n], nan for unknown ones; None if the run has no times."""
        table, _, _ = self._all
        if "time" not in table.column_names:
            return None
        at = self._places(users)
        times: NDArray[np.float64] = np.where(at < 0, np.nan, table["time"].to_numpy().astype(np.float64)[at])
        return times

    def _places(self, users: pa.ChunkedArray) -> Codes:
        """Return the row of each user, [n]; -1 for unknown ones."""
        at: Codes = pc.index_in(users, value_set=self._all[0]["id"]).fill_null(-1).to_numpy().astype(np.int64)
        return at

    @cached_property
    def _all(self) -> tuple[pa.Table, Codes, NDArray[np.integer]]:
        """The table without its lists, with ids as texts; the offsets of the lists, and their items, [v]."""
        with self._readable():
            table = parquet_table(self.path)
            lists = table["items"].combine_chunks()
            lists.validate(full=True)
            items = self._checked(lists.values.to_numpy())
            rest = table.drop_columns(["items"])
            return rest.set_column(0, "id", rest["id"].cast(pa.large_string())), lists.offsets.to_numpy(), items

    def _checked(self, codes: NDArray[np.integer]) -> NDArray[np.integer]:
        if len(codes) and not 0 <= codes.min() <= codes.max() < self.items:
            raise DataError(f"{self.path} names items that the run does not have: it is damaged")
        return codes

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # whatever a damaged file makes of the reader
            raise DataError(f"{self.path} is not readable: {error}") from None
