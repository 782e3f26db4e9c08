"""Uses of events by behaviour: targets with weights, dislikes, and the table of contexts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError, did_you_mean
from .aside import ASIDE, DISLIKED, TAKEN
from .events import BEHAVIOUR, TEXT, in_context

_SHOWN = 10  # behaviours that a message names


def usable_aside(events: pa.Table, dropped: Counter[str], whole: bool = True) -> pa.Table:
    """Return the events without some of the events set aside: dislikes of items that nobody takes,
    and dislikes of users who take nothing, are left out.

    Args:
        dropped: counts by reason; the dislikes among the events left out are added.
        whole: True if the events are all interactions; else an item taken by nobody here may be an
            item of a run.
    """
    if ASIDE not in events.column_names:
        return events
    taken = events.select(["user", "item"]).filter(pc.equal(events[ASIDE], TAKEN))
    if len(events) and not len(taken):
        dislikes = _dislikes(events)
        if dislikes:
            dropped["rows, all of which are dislikes by data.dislikes"] = dislikes
        return events.slice(0, 0)
    if whole:
        known = pc.is_in(events["item"], taken["item"].unique())
        _count_dislikes(events, known, "dislikes of items that nobody takes", dropped)
        events = events.filter(known)
    known = pc.is_in(events["user"], taken["user"].unique())
    _count_dislikes(events, known, "dislikes of users who take nothing", dropped)
    return events.filter(known)


def _dislikes(events: pa.Table) -> int:
    return int(pc.sum(pc.equal(events[ASIDE], DISLIKED)).as_py() or 0)


def _count_dislikes(
    events: pa.Table, known: pa.ChunkedArray, reason: str, dropped: Counter[str]
) -> None:
    """Count the dislikes among the unknown events, if there are any."""
    dislikes = _dislikes(events.filter(pc.invert(known)))
    if dislikes:
        dropped[reason] = dislikes


def refuse_unknown_behaviours(
    events: pa.Table, options: Mapping[str, Iterable[str]], where: str
) -> None:
    """Raise DataError if an option names a behaviour without an event."""
    if in_context(BEHAVIOUR) not in events.column_names:
        return
    known = pc.unique(events[in_context(BEHAVIOUR)]).to_pylist()
    for option, names in options.items():
        for name in names:
            if name not in known:
                raise DataError(
                    f"{where}: {option} names {name!r}, but the behaviours are "
                    f"{', '.join(map(str, known[:_SHOWN]))}.{did_you_mean(name, known)}"
                )


def with_targets(events: pa.Table, targets: Mapping[str, float] | None) -> pa.Table:
    """Return events with columns of target and weight, by behaviour."""
    if in_context(BEHAVIOUR) not in events.column_names or targets is None:
        return events
    behaviours = events[in_context(BEHAVIOUR)]
    weight, target = uses(behaviours, targets)
    if "weight" in events.column_names:
        weight = weight * events["weight"].to_numpy()
        events = events.drop_columns(["weight"])
    events = events.append_column("weight", pa.array(weight))
    return events.append_column("target", pa.array(target))


def uses(
    behaviours: pa.ChunkedArray, targets: Mapping[str, float]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the weight of each event by behaviour, [e], and the use of each event: 0 stands in
    histories only, 1 trains, 2 is evaluated, too (`Timeline.target`), [e]."""
    at = pc.fill_null(pc.index_in(behaviours, pa.array(targets, TEXT)), len(targets)).to_numpy()
    weight = np.array([*targets.values(), 0.0], np.float32)[at]
    trains = (weight > 0).astype(np.uint8)
    target = trains + (weight == max(targets.values()))
    return weight, target.astype(np.uint8)


def with_contexts(events: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """Return events with the number of the context, and the table of all contexts, each once."""
    names = [name for name in events.column_names if name.startswith(in_context(""))]
    if not names:
        return events, None
    codes = np.zeros(len(events), np.int64)
    for name in names:
        encoded = events[name].combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    contexts = {}
    for name in names:
        contexts[name.removeprefix(in_context(""))] = events[name].take(pa.array(first))
    events = events.drop_columns(names)
    events = events.append_column("context", pa.array(codes.astype(np.int32)))
    return events, pa.table(contexts)
