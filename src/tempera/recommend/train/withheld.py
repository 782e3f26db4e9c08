"""Items withheld from training, for an evaluation on new items.

Letters in shapes: e events, i items, c withheld items, t targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...errors import DataError
from ..read.division import TEST, TRAIN, Division
from ..read.timeline import Events, Timeline


@dataclass(frozen=True)
class Withheld:
    """Hold items withheld from training, and the later events of these items."""

    items: Events  # [c] codes, rising
    counts: Events  # [c] training events of each that are left out
    targets: Events  # [t] events of the test part, in rising order, each with a history
    whole: Timeline  # with the training events that are left out


def withhold(
    timeline: Timeline, division: Division, share: float, seed: int
) -> tuple[Timeline, Division, Withheld]:
    """Take the training events of a random share of the items out of a timeline.

    Histories then hold a withheld item only where it was taken after training. Users without
    remaining events are left out.

    Raises:
        DataError: a share of less than an item, or of items that nobody takes in the test.

    >>> timeline = Timeline.of([1, 1, 1, 2, 2, 2], list("abcbca"))
    >>> part = np.array([0, 0, 2, 0, 0, 2], np.uint8)
    >>> fewer, division, cold = withhold(timeline, Division(part, {}, {"last": np.array([2, 5])}), 0.34, seed=1)
    >>> cold.items.tolist(), cold.counts.tolist(), len(fewer), cold.targets.tolist(), division.test["last"].tolist()
    ([0], [1], 5, [4], [1, 4])
    """
    counts = np.bincount(timeline.item[division.train], minlength=len(timeline.item_ids))
    trained = np.flatnonzero(counts)
    items = np.sort(np.random.default_rng(seed).permutation(trained)[: round(share * len(trained))])
    cold = np.zeros(len(counts), bool)
    cold[items] = True
    left = ~(cold[timeline.item] & (division.part == TRAIN))
    place = np.cumsum(left) - 1  # of an event that is left
    fewer = timeline.kept(left)
    part = division.part[left]
    judged = fewer.judged
    targets = judged[cold[fewer.item[judged]] & (part[judged] == TEST)]
    targets = targets[fewer.has_history(targets)]
    if not len(targets):
        raise DataError(
            f"evaluation.cold_items is {share:g}: it withholds {len(items)} items, none of which occurs in the test: "
            "give a larger share, or the split more of the data"
        )

    def left_of(protocols: Mapping[str, Events]) -> dict[str, Events]:
        """Return the events of each protocol in `fewer` that still have a history."""
        remaining = {}
        for name, events in protocols.items():
            moved = place[events]
            remaining[name] = moved[fewer.has_history(moved)]
        return remaining

    moved = replace(
        division,
        part=part,
        validation=left_of(division.validation),
        test=left_of(division.test),
        counts={**division.counts, "interactions with items that are withheld": int((~left).sum())},
        notes=(
            *division.notes,
            f"{len(items):,} items are withheld from training and evaluated as new ones",
        ),
    )
    return fewer, moved, Withheld(items, counts[items], targets, timeline)
