"""A preview of training data on interactions: rows of a batch, history lengths, repeats,
negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...core.batch import Batch
from ...core.frame import Frame
from ...task.showcase import SHOWN, extent, quantiles
from .visits import Visits

_CHARACTERS = 200


def visits_summary(
    visits: Visits, events: torch.Tensor, titles: Sequence[str], last: int
) -> dict[str, Any]:
    """Describe the training events, and the rows and negatives of one batch.

    A history is as long as the events before an event, up to `last`; an item has as many events as
    train it; negatives of a row are the items of the batch beside its own, or, where the objective
    asks for known positives, the items that the row's user is not known to have taken.

    Args:
        events: of the batch, [b].
        titles: the name of each item.
        last: events that histories are read back to.
    """
    train = np.flatnonzero(visits.train)
    count = visits.counts
    batch = visits.batch(events)
    begin, stop = visits.timeline.histories(train)
    users = len(np.unique(visits.timeline.user_of(train)))
    items = int((count > 0).sum())
    own = torch.ones(len(events), dtype=torch.int64)
    if batch.known is not None:
        own = batch.known.lengths
    present = len(batch.doc)
    if batch.sampled is not None:
        present += len(batch.sampled)
    rows = []
    for row in np.linspace(0, len(events) - 1, SHOWN).astype(int).tolist():
        shown = _visit(visits, int(events[row]), titles, last)
        disliked = _negatives(batch, row)
        shown["negatives"] = [_item(visits, item, titles) for item in disliked]
        rows.append(shown)
    return {
        "unit": "events",
        "rows": rows,
        "events": {
            "history": quantiles(np.minimum(stop - begin, last)),
            "item": quantiles(count[count > 0]),
        },
        "repeated": {"user": 1 - users / len(train), "item": 1 - items / len(train)},
        "negatives": extent("negatives per row, in one batch", (present - own).numpy()),
        "dropped": dict(visits.timeline.dropped),
    }


def _negatives(batch: Batch[Frame], row: int) -> list[int]:
    """Return the items that the user of a row dislikes."""
    side = batch.negatives
    if side is None or side.ids is None:
        return []
    items: list[int] = side.ids[side.owner == row].tolist()
    return items


def _visit(visits: Visits, event: int, titles: Sequence[str], last: int) -> dict[str, Any]:
    """Return one event as text: its user, history (the latest last) and item."""
    line = visits.timeline
    chosen = np.array([event])
    user = int(line.user_of(chosen)[0])
    begins, stops = line.histories(chosen)
    begin, stop = begins[0], stops[0]
    history = [place for place in range(max(begin, stop - last), stop) if place != event]
    past = line.item[history].tolist()
    text = " | ".join(titles[item] for item in past)
    return {
        "place": f"user {line.user_ids[user]}, event {event - begin + 1:,} of {line.lengths[user]:,}",
        "query": {"text": text[-_CHARACTERS:], "events": len(past)},
        "doc": _item(visits, int(line.item[event]), titles),
    }


def _item(visits: Visits, item: int, titles: Sequence[str]) -> dict[str, Any]:
    return {"text": titles[item][:_CHARACTERS], "events": int(visits.counts[item])}
