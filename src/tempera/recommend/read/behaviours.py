"""Uses of events by their behaviour: targets with weights, dislikes, and the contexts that events
happened in, each once."""

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
    """Leave out events set aside that are of items that nobody takes, or of users who take nothing;
    dislikes among them are counted.

    Args:
        whole: these are all interactions that there are; without, an item that nobody takes here
            may be one of a run.
    """
    if ASIDE not in events.column_names:
        return events
    taken = pc.equal(events[ASIDE], TAKEN)
    takers, items = (events[name].filter(taken).unique() for name in ("user", "item"))
    if len(events) and not len(takers):
        if dislikes := _dislikes(events):
            dropped["rows, all of which are dislikes by data.dislikes"] = dislikes
        return events.slice(0, 0)
    for name, known, reason in (
        ("item", items, "dislikes of items that nobody takes"),
        ("user", takers, "dislikes of users who take nothing"),
    ):
        if name == "item" and not whole:
            continue
        left = pc.is_in(events[name], known)
        if strangers := _dislikes(events.filter(pc.invert(left))):
            dropped[reason] = strangers
        events = events.filter(left)
    return events


def _dislikes(events: pa.Table) -> int:
    return int(pc.sum(pc.equal(events[ASIDE], DISLIKED)).as_py() or 0)


def refuse_unknown(events: pa.Table, options: Mapping[str, Iterable[str]], where: str) -> None:
    """Raise DataError where an option names a behaviour that no event has."""
    if in_context(BEHAVIOUR) not in events.column_names:
        return
    known = pc.unique(events[in_context(BEHAVIOUR)]).to_pylist()
    for option, names in options.items():
        if unknown := next((name for name in names if name not in known), None):
            raise DataError(
                f"{where}: {option} names {unknown!r}, but the behaviours are "
                f"{', '.join(map(str, known[:_SHOWN]))}.{did_you_mean(unknown, known)}"
            )


def aimed(events: pa.Table, targets: Mapping[str, float] | None) -> pa.Table:
    """Return events with what each is used for, and its weight, by its behaviour."""
    if in_context(BEHAVIOUR) not in events.column_names or targets is None:
        return events
    behaviours = events[in_context(BEHAVIOUR)]
    weight, target = uses(behaviours, targets)
    if "weight" in events.column_names:
        weight = weight * events["weight"].to_numpy()
        events = events.drop_columns(["weight"])
    return events.append_column("weight", pa.array(weight)).append_column(
        "target", pa.array(target)
    )


def uses(
    behaviours: pa.ChunkedArray, targets: Mapping[str, float]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the weights of behaviours, and what events with them are used for, as
    `Timeline.target` has it."""
    at = pc.fill_null(pc.index_in(behaviours, pa.array(targets, TEXT)), len(targets)).to_numpy()
    weight = np.array([*targets.values(), 0.0], np.float32)[at]
    return weight, ((weight > 0).astype(np.uint8) + (weight == max(targets.values()))).astype(
        np.uint8
    )


def with_contexts(events: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """Return events with the number of what each happened in, and the table of these, each once."""
    names = [name for name in events.column_names if name.startswith(in_context(""))]
    if not names:
        return events, None
    codes = np.zeros(len(events), np.int64)
    for name in names:
        encoded = events[name].combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    contexts = pa.table(
        {name.removeprefix(in_context("")): events[name].take(pa.array(first)) for name in names}
    )
    return events.drop_columns(names).append_column(
        "context", pa.array(codes.astype(np.int32))
    ), contexts
