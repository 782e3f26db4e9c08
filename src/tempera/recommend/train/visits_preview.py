"""A preview of training data on interactions: rows of a batch, history lengths, repeats,
negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...task.showcase import SHOWN, extent, quantiles
from .visits import Visits

_CHARACTERS = 200


def visits_summary(
    visits: Visits, events: torch.Tensor, titles: Sequence[str], last: int
) -> dict[str, Any]:
    """Describe the training events; rows and negatives are those of one batch.

    A history is as long as what stands before an event, up to `last`; an item has as many events as
    it is trained on; negatives of a row are the items of the batch beside its own, or, where the
    objective asks for known positives, those that its user is not known to have taken.

    Args:
        events: of the batch, [b].
        titles: what items are called.
        last: events that histories are read back to.
    """
    train, count, batch = np.flatnonzero(visits.train), visits.counts, visits.batch(events)
    begin, stop = visits.timeline.histories(train)
    own = torch.ones(len(events), dtype=torch.int64) if batch.known is None else batch.known.lengths
    present = len(batch.doc) + (0 if batch.sampled is None else len(batch.sampled))
    shown = np.linspace(0, len(events) - 1, SHOWN).astype(int).tolist()

    def disliked(row: int) -> list[dict[str, Any]]:
        side = batch.negatives
        items = [] if side is None or side.ids is None else side.ids[side.owner == row].tolist()
        return [_item(visits, item, titles) for item in items]

    users = len(np.unique(visits.timeline.user_of(train)))
    return {
        "unit": "events",
        "rows": [
            {**_visit(visits, int(events[row]), titles, last), "negatives": disliked(row)}
            for row in shown
        ],
        "events": {
            "history": quantiles(np.minimum(stop - begin, last)),
            "item": quantiles(count[count > 0]),
        },
        "repeated": {
            "user": 1 - users / len(train),
            "item": 1 - int((count > 0).sum()) / len(train),
        },
        "negatives": extent("negatives per row, in one batch", (present - own).numpy()),
        "dropped": dict(visits.timeline.dropped),
    }


def _visit(visits: Visits, event: int, titles: Sequence[str], last: int) -> dict[str, Any]:
    """Return one event as text: its user, history (the latest last) and item."""
    line = visits.timeline
    (user,), ((begin,), (stop,)) = (
        line.user_of(np.array([event])),
        line.histories(np.array([event])),
    )
    past = line.item[[k for k in range(max(begin, stop - last), stop) if k != event]].tolist()
    return {
        "place": f"user {line.user_ids[int(user)]}, event {event - begin + 1:,} of {line.lengths[user]:,}",
        "query": {"text": " | ".join(titles[i] for i in past)[-_CHARACTERS:], "events": len(past)},
        "doc": _item(visits, int(line.item[event]), titles),
    }


def _item(visits: Visits, item: int, titles: Sequence[str]) -> dict[str, Any]:
    return {"text": titles[item][:_CHARACTERS], "events": int(visits.counts[item])}
