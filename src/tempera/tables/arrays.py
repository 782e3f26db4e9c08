"""Arrays and Arrow tables in files that are mapped into memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .kept_columns import aligned
from .tables import joined


def reserved(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[Any]]:
    """Make a mapped .npy file whose room on disk is taken: a full disk is an OSError here, and no
    crash later."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if sys.platform == "linux":
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def mapped(path: Path) -> pa.Table:
    """Map an Arrow file into memory."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def gathered(
    tables: Iterable[pa.Table], otherwise: str, folder: Path | None = None, name: str = "rows"
) -> pa.Table:
    """Return all rows as one table, with the columns of any; those that a table lacks are null
    there. Kept columns of several types become one.

    Args:
        otherwise: how the message begins if the tables hold one column in several ways.
        folder: where the rows are written, as `name`.0.arrow and so on, to be mapped; None keeps
            them in memory.

    Raises:
        DataError: there is no table, or they hold one column in several ways.
    """
    parts = list(tables if folder is None else _written(tables, folder, name))
    return joined(aligned(parts), otherwise)


def _written(tables: Iterable[pa.Table], folder: Path, name: str) -> Iterator[pa.Table]:
    """Write tables, a file for every change of columns, and map them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (schema, alike) in enumerate(groupby(tables, lambda table: table.schema)):
        path = folder / f"{name}.{number}.arrow"
        with pa.ipc.new_file(str(path), schema) as writer:
            for table in alike:
                writer.write_table(table)
        yield mapped(path)
