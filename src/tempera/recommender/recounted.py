"""The table of counts of a run, counted again from the run's histories.

Letters in shapes: u users, c items.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from ..io.documents import parsed
from ..recommend.judge.baselines import BASELINES, ItemToItem, Observed
from ..recommend.judge.counts import Counting
from ..recommend.judge.full_catalogue import Histories
from .stored_histories import Codes


def recounted(
    run: Path,
    counting: Counting,
    old: Histories,
    new: Histories,
    ids: pa.ChunkedArray,
    items: int,
) -> Counting | None:
    """Return the counts as if they had been counted over new histories from the start; None if the
    run does not hold all that they were counted from.

    The settings are those that the training has chosen. The run holds all that was counted if the
    old histories give the old table, number by number; they do not where events were held out of
    the training.

    Args:
        old: the events that the run knows, u rows.
        new: the same events and further ones, u rows.
        ids: of the users, in the type of the data, [u].
        items: c, the number of the run's items.
    """
    baseline = _baseline(run, counting.system)
    if baseline is None:
        return None
    users = pc.array_sort_indices(ids.combine_chunks()).to_numpy()  # as in a training's data
    known = counting.fitted.weights.shape[0]
    if (old.values >= known).any():
        return None
    if not _are_equal(_fitted(baseline, old, users, known), counting.fitted):
        return None
    return replace(counting, fitted=_fitted(baseline, new, users, items))


def _baseline(run: Path, system: str) -> Any:
    """Return the baseline of a run with the settings that its training has chosen; None if the run
    does not say."""
    try:
        document: Any = parsed((run / "metrics.json").read_text(encoding="utf-8"))
        return replace(BASELINES[system], **document["baselines"][system])  # type: ignore[type-var]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _fitted(baseline: Any, histories: Histories, users: Codes, items: int) -> ItemToItem:
    """Return a baseline that has learned from all events of histories."""
    rows = histories[users]
    offsets = np.concatenate([[0], rows.lengths.cumsum()])
    values = rows.values
    observed = Observed(values, offsets, items, np.ones(len(values), bool))
    fitted: ItemToItem = baseline.fit(observed)
    return fitted


def _are_equal(first: ItemToItem, second: ItemToItem) -> bool:
    """Return True for the same settings and the same weights, number by number."""
    if (first.last, first.decay) != (second.last, second.decay):
        return False
    tables = [sparse.csr_array(each.weights).sorted_indices() for each in (first, second)]
    parts = [(table.indptr, table.indices, table.data) for table in tables]
    return all(np.array_equal(a, b) for a, b in zip(*parts, strict=True))
