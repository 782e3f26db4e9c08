"""Counting and vectors together: counted items and users' vectors fused, as they are judged and as
a saved run recommends.

Letters in shapes: r queries of a block, c items.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from ...errors import DataError
from ...io.documents import parsed
from ...io.manifest import refuse_damaged
from ...ranking.fusion import Fusion, fused, standard_error, standardised
from ...tables.tables import parquet_table
from ...towers.stamp import refuse_foreign
from .baselines import Floats, ItemToItem
from .full_catalogue import Histories, Scores

COUNTS = "counts.parquet"  # of a run: which items follow or accompany which
_KEY = b"tempera.counts"


@dataclass(frozen=True)
class Counting:
    """Hold a counting baseline and its weight beside the vectors.

    Args:
        system: name of the baseline.
        fitted: its weights, which are not below 0.
        fusion: weight of the vectors.
        served: True if validation shows both together to be better than the vectors alone.
    """

    system: str
    fitted: ItemToItem
    fusion: Fusion = field(default_factory=Fusion)
    served: bool = False

    def chosen(self, metric: Mapping[float, NDArray[np.float64]]) -> Counting:
        """Return the same with the weight that is best by a metric of each validation query, [q],
        for rising weights."""
        fusion = Fusion.chosen(metric)
        ahead = metric[fusion.weight] - metric[1.0]
        return replace(self, fusion=fusion, served=bool(ahead.mean() > standard_error(ahead)))

    def fused(self, vectors: Floats, histories: Histories, weight: float | None = None) -> Floats:
        """Return scores of vectors and of counts in one, [r, c]: the weighted mean of both,
        standardised for each query.

        Counts enter by their square root, which keeps one frequent pair from outweighing everything
        else. Items that are newer than the table have no counts, and a query without any, such as
        one without a history, is answered by the vectors alone.
        """
        counted = np.zeros(vectors.shape, np.float32)
        counted[:, : self.fitted.weights.shape[0]] = np.sqrt(self.fitted.scores(histories))
        together = fused(vectors, counted, self.fusion.weight if weight is None else weight)
        uncounted = ~counted.any(1)
        together[uncounted] = standardised(vectors[uncounted])
        return together.astype(np.float32)

    @property
    def ranks(self) -> str:
        """Return what ranks with the chosen weight, in words."""
        if self.fusion.weight in (0, 1):
            return "the vectors alone" if self.fusion.weight else f"{self.system} alone"
        return f"the vectors and {self.system} together"

    def by_history(
        self, vectors: Scores, histories: Histories, weight: float | None = None
    ) -> Scores:
        """Return the fused scores of a block of queries, as ranking needs them."""
        return lambda rows: self.fused(vectors(rows), histories[rows], weight)

    def about(self) -> dict[str, Any]:
        """Return what was chosen, for metrics.json."""
        return {
            "hybrid": asdict(self.fusion),
            "counting": {"system": self.system, "served": self.served},
        }

    def table(self) -> pa.Table:
        """Return a table with a row for each item, and what was chosen in its metadata."""
        weights = self.fitted.weights
        columns = {
            name: pa.LargeListArray.from_arrays(
                pa.array(weights.indptr, pa.int64()), pa.array(values)
            )
            for name, values in (
                ("items", weights.indices.astype(np.int32)),
                ("weights", weights.data),
            )
        }
        about = {
            **{"system": self.system, "served": self.served, **asdict(self.fusion)},
            **{"last": self.fitted.last, "decay": self.fitted.decay},
        }
        return pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})

    @classmethod
    def read(cls, table: pa.Table) -> Counting:
        """Return what `table` has written.

        Raises:
            ValueError, KeyError, TypeError, pyarrow.ArrowException: another table, or a damaged
                one.
        """
        about: Any = parsed((table.schema.metadata or {})[_KEY].decode())
        table.validate(full=True)
        items, weights = (table[name].combine_chunks() for name in ("items", "weights"))
        offsets, columns = items.offsets.to_numpy().astype(np.int64), items.values.to_numpy()
        values = weights.values.to_numpy()
        if not np.array_equal(offsets, weights.offsets.to_numpy()) or values.dtype != np.float32:
            raise ValueError("its items and weights do not belong together")
        if not (
            ((columns >= 0) & (columns < len(table))).all()
            and (values >= 0).all()
            and np.isfinite(values).all()
        ):
            raise ValueError("it names items or weights that cannot be")
        counts = sparse.csr_array((values, columns, offsets), (len(table), len(table)))
        fitted = ItemToItem(counts, about["last"], float(about["decay"]))
        fusion = Fusion(float(about["weight"]), int(about["queries"]))
        return cls(str(about["system"]), fitted, fusion, bool(about["served"]))


def open_counts(run: Path, items: int, model: str) -> Counting | None:
    """Return a run's table of counts; None if the run has none.

    Args:
        model: fingerprint of the run's model.

    Raises:
        DataError: the table is damaged, or is one of another run.
    """
    path = run / COUNTS
    refuse_damaged(path)
    if not path.is_file():
        return None
    try:
        table = parquet_table(path)
        refuse_foreign(table.schema.metadata, model, path)
        counting = Counting.read(table)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        raise DataError(
            f"{path} is damaged: {error}; without this file the vectors alone recommend"
        ) from None
    if (size := counting.fitted.weights.shape[0]) > items:
        raise DataError(f"{path} is damaged: it counts {size:,} items, and the run has {items:,}")
    return counting
