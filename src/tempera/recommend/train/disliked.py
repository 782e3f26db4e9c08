"""Dislikes as hard negatives of their user: those that training knows of, and some of them for each
row of a batch.

Letters in shapes: u users, e events, i items, b rows of a batch, m drawn dislikes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...arithmetic.ragged import Ragged, from_lengths
from ..read.division import TRAIN
from ..read.timeline import Timeline


def known_dislikes(timeline: Timeline, train: NDArray[np.bool_]) -> Ragged | None:
    """Return what training knows of users' dislikes, each item once, u rows; None if there are none
    at all.

    A dislike is known if its user's event before it is trained on (or the first one, where none is
    before it), and it is not later than all that is trained on. Items that are also a target of the
    user in training are left out, and so are those that training does not have, such as withheld
    ones. Beside events in parts, all dislikes are those of the training part.

    Args:
        train: events of the training part, [e].
    """
    aside = timeline.aside
    if aside is None or not aside.disliked.any():
        return None
    items, users = len(timeline.item_ids), len(timeline.user_ids)
    user = np.repeat(np.arange(users), np.diff(aside.offsets))
    trained = np.zeros(items, bool)
    trained[timeline.item[train]] = True
    known = trained[aside.item] & aside.disliked
    if timeline.part is None:
        known &= train[np.maximum(aside.place - 1, timeline.offsets[user])]
        if aside.time is not None and timeline.time is not None:
            known &= aside.time <= timeline.time[train].max()
    elif aside.part is not None:
        known &= aside.part == TRAIN
    targets = train if timeline.target is None else train & (timeline.target > 0)
    taken = timeline.user_of(np.flatnonzero(targets)) * items + timeline.item[targets]
    keys = np.setdiff1d(user[known] * items + aside.item[known], taken)
    return Ragged(
        torch.from_numpy(keys % items),
        from_lengths(torch.from_numpy(np.bincount(keys // items, minlength=users))),
    )


@dataclass(frozen=True)
class Disliked:
    """Draw dislikes of the rows' users beside the rows of a batch.

    Args:
        known: those of each user, u rows.
        most: number drawn for a row at most; of a user with fewer, all.
        seed: with the step it fixes what is drawn.
    """

    known: Ragged
    most: int
    seed: int

    def __call__(self, user: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the items drawn without replacement for the rows of these users, [b], and the row
        of each, both [m].

        >>> draw = Disliked(Ragged.of([[5, 6], [], [7]]), most=2, seed=0)
        >>> items, owner = draw(torch.tensor([2, 1, 0]), step=0)
        >>> sorted(items.tolist()), owner.tolist()
        ([5, 6, 7], [0, 2, 2])
        """
        own = self.known[user]
        row = torch.repeat_interleave(own.lengths)
        generator = torch.Generator().manual_seed(
            hash((self.seed, step, self.most)) & 0x7FFF_FFFF_FFFF_FFFF
        )
        order = torch.rand(len(row), generator=generator).argsort()
        order = order[row[order].argsort(stable=True)]
        chosen = order[
            torch.arange(len(row)) - own.offsets[row] < self.most
        ]  # rows keep their places when sorted by row
        return own.values[chosen], row[chosen]

    def expected(self, users: Tensor, items: int) -> Tensor:
        """Return how often a row is expected to bring each item, [i], where it is of each user with
        these chances, [u]."""
        lengths = self.known.lengths
        each = users.double() * lengths.clamp_max(self.most) / lengths.clamp_min(1)
        return torch.bincount(
            self.known.values, each[torch.repeat_interleave(lengths)], minlength=items
        ).float()
