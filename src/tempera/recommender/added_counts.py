"""Events that were added to a run after training, by item.

Letters in shapes: i items.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from ..io.manifest import refuse_damaged
from ..tables.tables import parquet_table
from ..task.run_files import ADDED
from ..towers.stamp import refuse_foreign


def added_counts(run: Path, items: int, model: str) -> NDArray[np.int64]:
    """Return the number of events of each item that were added to a run after training, [i].

    Args:
        items: number of the run's items; items that are newer than the file have no events in it.
        model: fingerprint of the run's model.

    Raises:
        DataError: the file is damaged, or of another run.
    """
    counts = np.zeros(items, np.int64)
    path = run / ADDED
    refuse_damaged(path)
    if not path.is_file():
        return counts
    try:
        table = parquet_table(path)
        added = table["count"].to_numpy().astype(np.int64)
    except (pa.ArrowException, OSError, LookupError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}") from None
    refuse_foreign(table.schema.metadata, model, path)
    if len(added) > items or (added < 0).any():
        raise DataError(f"{path} is damaged: it counts {len(added):,} items of {items:,}")
    counts[: len(added)] = added
    return counts
