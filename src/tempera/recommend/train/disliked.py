"""Dislikes as hard negatives of their user: the dislikes that training knows of, and a draw of them
for each row of a batch.

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
    """Return the dislikes of each user that training knows of, each item once, u rows; None if the
    data have no dislikes.

    A dislike is known if the user's event before the dislike is trained on (or the user's first
    event, where the dislike is earlier), and the dislike is not later than all training events.
    Items that are also a target of the user in training are left out, and items without a training
    event, such as withheld items. Where events lie in parts, the dislikes of the training part are
    known.

    Args:
        train: events of the training part, [e].
    """
    aside = timeline.aside
    if aside is None or not aside.disliked.any():
        return None
    items = len(timeline.item_ids)
    users = len(timeline.user_ids)
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
    targets = train
    if timeline.target is not None:
        targets = train & (timeline.target > 0)
    taken = timeline.user_of(np.flatnonzero(targets)) * items + timeline.item[targets]
    keys = np.setdiff1d(user[known] * items + aside.item[known], taken)
    lengths = torch.from_numpy(np.bincount(keys // items, minlength=users))
    return Ragged(torch.from_numpy(keys % items), from_lengths(lengths))


@dataclass(frozen=True)
class Disliked:
    """Draw dislikes of the rows' users beside the rows of a batch.

    Args:
        known: the dislikes of each user, u rows.
        most: largest number drawn for a row; of a user with fewer dislikes, all are drawn.
        seed: of the draws, together with the step.
    """

    known: Ragged
    most: int
    seed: int

    def __call__(self, user: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the items drawn without replacement for the rows of these users, [b], and the row
        of each item, both [m].

        >>> draw = Disliked(Ragged.of([[5, 6], [], [7]]), most=2, seed=0)
        >>> items, owner = draw(torch.tensor([2, 1, 0]), step=0)
        >>> sorted(items.tolist()), owner.tolist()
        ([5, 6, 7], [0, 2, 2])
        """
        own = self.known[user]
        row = torch.repeat_interleave(own.lengths)
        seed = hash((self.seed, step, self.most)) & 0x7FFF_FFFF_FFFF_FFFF
        generator = torch.Generator().manual_seed(seed)
        order = torch.rand(len(row), generator=generator).argsort()
        order = order[row[order].argsort(stable=True)]  # at random within each row
        place = torch.arange(len(row)) - own.offsets[row]  # within the row, also of `order`
        chosen = order[place < self.most]
        return own.values[chosen], row[chosen]

    def expected(self, users: Tensor, items: int) -> Tensor:
        """Return the expected number of times that a row has each item as a dislike, [i].

        Args:
            users: chance of each user to be the user of the row, [u].
        """
        lengths = self.known.lengths
        chance = users.double() * lengths.clamp_max(self.most) / lengths.clamp_min(1)
        chances = chance[torch.repeat_interleave(lengths)]  # of each dislike of each user
        return torch.bincount(self.known.values, chances, minlength=items).float()
