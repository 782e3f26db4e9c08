"""Counting and vectors together: scores by counts and by users' vectors fused, for evaluation and
for a saved run.

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
from ...ranking.fusion import Fusion, standard_error, standardised
from ...tables.tables import parquet_table
from ...towers.stamp import refuse_foreign
from .baselines import Floats, ItemToItem
from .full_catalogue import Histories, Scores

COUNTS = "counts.parquet"  # of a run: the items that follow or accompany each item
_KEY = b"tempera.counts"


@dataclass(frozen=True)
class Counting:
    """Hold a counting baseline and its weight beside the vectors.

    Args:
        system: name of the baseline.
        fitted: the weights of the baseline, none below 0.
        fusion: weight of the vectors.
        served: True if both together are better on validation than the vectors alone.
    """

    system: str
    fitted: ItemToItem
    fusion: Fusion = field(default_factory=Fusion)
    served: bool = False

    def chosen(self, metric: Mapping[float, NDArray[np.float64]]) -> Counting:
        """Return the same baseline with the best weight on validation.

        Args:
            metric: by weight, rising: the metric of each validation query, [q].
        """
        fusion = Fusion.chosen(metric)
        ahead = metric[fusion.weight] - metric[1.0]
        return replace(self, fusion=fusion, served=bool(ahead.mean() > standard_error(ahead)))

    def fused(self, vectors: Floats, histories: Histories, weight: float | None = None) -> Floats:
        """Return scores of vectors and of counts together, [r, c]: the weighted mean of both,
        standardised for each query.

        Counts enter by the square root, so a frequent pair does not outweigh the rest. Items newer
        than the table have no counts. The vectors alone answer a query without counts, for example
        a query without a history.
        """
        if weight is None:
            weight = self.fusion.weight
        return self.comparable(vectors, histories).fused(weight)

    def comparable(self, vectors: Floats, histories: Histories) -> ComparableScores:
        """Return scores of vectors, [r, c], and of counts, standardised for each query."""
        counted = self.counted(histories, vectors.shape[1])
        has_counts: NDArray[np.bool_] = np.any(counted, axis=1)
        return ComparableScores(standardised(vectors), standardised(counted), has_counts)

    def counted(self, histories: Histories, items: int) -> Floats:
        """Return the square roots of the baseline's scores, [r, c]; 0 for items newer than the
        table."""
        counted = np.zeros((len(histories), items), np.float32)
        counted[:, : self.fitted.weights.shape[0]] = np.sqrt(self.fitted.scores(histories))
        return counted

    @property
    def ranks(self) -> str:
        """The systems that rank with the chosen weight, in words."""
        if self.fusion.weight == 0:
            return f"{self.system} alone"
        if self.fusion.weight == 1:
            return "the vectors alone"
        return f"the vectors and {self.system} together"

    def by_history(
        self, vectors: Scores, histories: Histories, weight: float | None = None
    ) -> Scores:
        """Return a function from a slice of the queries to fused scores, for ranking."""
        return lambda rows: self.fused(vectors(rows), histories[rows], weight)

    def about(self) -> dict[str, Any]:
        """Return the chosen baseline and weight, for metrics.json."""
        return {
            "hybrid": asdict(self.fusion),
            "counting": {"system": self.system, "served": self.served},
        }

    def table(self) -> pa.Table:
        """Return a table with a row for each item, and the chosen settings in the metadata."""
        weights = self.fitted.weights
        offsets = pa.array(weights.indptr, pa.int64())
        items = pa.array(weights.indices.astype(np.int32))
        columns = {
            "items": pa.LargeListArray.from_arrays(offsets, items),
            "weights": pa.LargeListArray.from_arrays(offsets, pa.array(weights.data)),
        }
        about = {"system": self.system, "served": self.served}
        about |= asdict(self.fusion)
        about |= {"last": self.fitted.last, "decay": self.fitted.decay}
        return pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})

    @classmethod
    def read(cls, table: pa.Table) -> Counting:
        """Return the counts written by `table`.

        Raises:
            ValueError, KeyError, TypeError, pyarrow.ArrowException: another table, or a damaged
                table.
        """
        about: Any = parsed((table.schema.metadata or {})[_KEY].decode())
        table.validate(full=True)
        items = table["items"].combine_chunks()
        weights = table["weights"].combine_chunks()
        offsets = items.offsets.to_numpy().astype(np.int64)
        columns = items.values.to_numpy()
        values = weights.values.to_numpy()
        if not np.array_equal(offsets, weights.offsets.to_numpy()) or values.dtype != np.float32:
            raise ValueError("its items and weights do not belong together")
        are_items = ((columns >= 0) & (columns < len(table))).all()
        are_weights = (values >= 0).all() and np.isfinite(values).all()
        if not are_items or not are_weights:
            raise ValueError("it names items or weights that cannot be")
        counts = sparse.csr_array((values, columns, offsets), (len(table), len(table)))
        fitted = ItemToItem(counts, about["last"], float(about["decay"]))
        fusion = Fusion(float(about["weight"]), int(about["queries"]))
        return cls(str(about["system"]), fitted, fusion, bool(about["served"]))


@dataclass(frozen=True)
class ComparableScores:
    """Scores of vectors and of counts, standardised for each query.

    Args:
        vectors: [r, c].
        counted: [r, c].
        has_counts: True for a query with counts, [r].
    """

    vectors: NDArray[np.float64]
    counted: NDArray[np.float64]
    has_counts: NDArray[np.bool_]

    def fused(self, weight: float) -> Floats:
        """Return the weighted mean of both scores, [r, c]; the vectors alone for a query without
        counts.

        Args:
            weight: of the vectors.
        """
        together = weight * self.vectors + (1 - weight) * self.counted
        together[~self.has_counts] = self.vectors[~self.has_counts]
        return together.astype(np.float32)


def open_counts(run: Path, items: int, model: str) -> Counting | None:
    """Return a run's table of counts; None if the run has none.

    Args:
        model: fingerprint of the run's model.

    Raises:
        DataError: the table is damaged, or belongs to another run.
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
    size = counting.fitted.weights.shape[0]
    if size > items:
        raise DataError(f"{path} is damaged: it counts {size:,} items, and the run has {items:,}")
    return counting
