"""Interactions outside the training data of a run, read like the data of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from ..options.build import config_of_run
from ..recommend.judge.moments import ANOTHER_UNIT
from ..recommend.read.division import Undivided
from ..recommend.read.events import BELOW
from ..recommend.read.feature_tables import texts_of
from ..recommend.read.interactions import Interactions
from ..recommend.read.timeline import Timeline
from ..task.config import Config
from .recommender import Recommender


def data_of_run(run: Path, overrides: Sequence[str] = ()) -> tuple[Config, Interactions]:
    """Return the configuration of a recommender's run, and its options of the data.

    Raises:
        DataError: the run's data are no interactions.
    """
    config = config_of_run(run, overrides)
    if not isinstance(config.data, Interactions):
        raise DataError(
            f"{run / 'config.yaml'} does not describe interactions: data.source has to be interactions; "
            "restore it from a copy"
        )
    return config, config.data


def without_files(options: Interactions) -> Interactions:
    """Return the options of a run for reading other data, as a whole."""
    return replace(
        options,
        path=None,
        users=None,
        items=None,
        validation=None,
        test=None,
        split=Undivided(),
    )


def read_further(options: Interactions, data: Any, integers: Mapping[str, bool]) -> Timeline:
    """Return the timeline of other data, read like the data of the run, with ids as texts in the
    run's spelling."""
    source = without_files(options)
    is_path = isinstance(data, str | Path)
    held = replace(source, path=str(data)) if is_path else source.hand(data)
    later = held.read(whole=False)
    if later.anonymous:  # the same numbers are other sessions in the run
        names = [f"session {name}" for name in later.user_ids.to_pylist()]
        later = replace(later, user_ids=pa.array(names, pa.large_string()))
    users = texts_of(later.user_ids, integers["user"])
    items = texts_of(later.item_ids, integers["item"])
    return replace(later, user_ids=users, item_ids=items)


def left_out_of(dropped: Mapping[str, int], options: Interactions) -> dict[str, int]:
    """Return the counts of rows that are left out, by reason: rows of a low rating are not, if
    their items count as seen."""
    return {
        reason: count
        for reason, count in dropped.items()
        if reason != BELOW or options.below_min_rating == "forget"
    }


def refuse_another_unit(times: NDArray[Any] | None, recommender: Recommender) -> None:
    """Raise DataError if the times are hundreds of times the run's times, or the reverse: a
    comparison would say nothing."""
    known = recommender.stored.times
    if times is None or known is None:
        return
    earliest, latest = known
    middle = float(np.median(times))
    if min(earliest, middle) <= 0:
        return
    if max(middle / latest, earliest / middle) > ANOTHER_UNIT:
        here = f"{float(times.min()):,.0f} to {float(times.max()):,.0f}"
        raise DataError(
            f"times are {here} here, and {earliest:,.0f} to {latest:,.0f} in the histories of "
            f"{recommender.folder}: another unit, or dates beside numbers (dates are read as "
            "microseconds since 1970); give times as the run was trained on them"
        )


def in_contexts(recommender: Recommender, later: Timeline) -> tuple[Recommender, Timeline]:
    """Return a recommender with the contexts of the events of a timeline, and the timeline with the
    recommender's codes of the contexts."""
    if recommender.contexts is None or later.contexts is None or later.context is None:
        return recommender, replace(later, context=None)
    names = recommender.contexts.table.column_names
    contexts = {name: later.contexts[name] for name in later.contexts.column_names if name in names}
    first = len(recommender.contexts.table) - 1
    extended = recommender.with_contexts(contexts, len(later.contexts))
    return extended, replace(later, context=later.context + first)
