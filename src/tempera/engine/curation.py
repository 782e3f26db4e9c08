"""The curator: rows of a batch that are worth learning from, chosen by a guide before the step is taken.

With l_i the contrastive loss of row i among all rows of the batch, for the model and for the guide's vectors,

    guide:         score_i = -l_i(guide)                     pairs that the guide understands
    learnability:  score_i = l_i(model) - l_i(guide)         those of them that the model does not, yet

(Evans et al. 2024, "Data curation via joint example selection", section 2; Mindermann et al. 2022, eq. 3). The step is then that
of the rows with the highest scores alone, as if the sampler had drawn no others. A pair whose document answers another query
has a high loss by any guide, and is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Role, take
from ..core.objective import base_of
from ..errors import DataError
from .cache import Cache
from .distributed import ALONE, Group
from .step import TowersLike, embed_once

By = Literal["guide", "learnability"]
_FEWEST = 2  # rows of a batch that is learned from


def curated(
    towers: TowersLike, objective: Any, batch: Batch[Any], share: float, by: By, cache: Cache, group: Group = ALONE
) -> tuple[Batch[Any], Tensor | None]:
    """Return this process's part of the rows with the highest scores, at least 2 of all processes; all if the share is 1.

    The temperature is the objective's, and so are masks, pools and corrections. The model is read without dropout.

    Returns:
        The rows, and their places in the batch of all processes, [k]; None if these are all.

    Raises:
        DataError: a side without the guide's vectors.
    """
    if share == 1:
        return batch, None
    scores, mine = scored(towers, objective, batch, by, cache, group)
    best = torch.zeros(len(scores), dtype=torch.bool)
    best[scores.argsort(descending=True, stable=True)[: _count(len(scores), share)]] = True
    return take(batch, best[mine].nonzero()[:, 0]), best.nonzero()[:, 0]


def as_many(batch: Batch[Any], share: float) -> Batch[Any]:
    """Return the first rows of a batch of all processes, as many as are chosen; for plans, before anything is known of them.

    >>> from ..core.batch import Side
    >>> len(as_many(Batch(Side(torch.eye(10)), Side(torch.eye(10))), 0.8))
    8
    """
    return batch if share == 1 else take(batch, torch.arange(_count(len(batch), share)))


def _count(rows: int, share: float) -> int:
    return max(_FEWEST, round(share * rows))


def scored(
    towers: TowersLike, objective: Any, batch: Batch[Any], by: By, cache: Cache, group: Group = ALONE
) -> tuple[Tensor, slice]:
    """Return the scores of all processes' rows, [n], and which of them are this one's."""
    losses_of = base_of(objective).contrastive_losses
    guided = group.gather(batch.of(_guides(batch)).to(group.device))
    scores = -losses_of(guided)  # [b]
    if by == "learnability":
        with _judged(towers), torch.no_grad():
            scores += losses_of(embed_once(towers, batch, _without_graphs(cache), group))
    everyone = scores.new_zeros(len(guided))
    everyone[guided.local] = scores
    return group.all_reduce_sums(everyone).cpu(), guided.local


def _guides(batch: Batch[Any]) -> dict[Role, Tensor]:
    """Return the guide's vectors of every side, [n, G]."""
    for role, side in batch.sides().items():
        if side.guide is None:
            raise DataError(
                f"train.select chooses rows by a guide's vectors, and {role} has none: give train.guide=FOLDER"
            )
    return {role: side.guide for role, side in batch.sides().items() if side.guide is not None}


def _without_graphs(cache: Cache) -> Cache:
    """Return a cache that keeps no graph, and knows the same sizes."""
    scoring = copy.copy(cache)
    scoring.mode, scoring.backward = "always", 1.0
    return scoring


@contextmanager
def _judged(towers: Any) -> Iterator[None]:
    """Switch dropout off."""
    modules: list[nn.Module] = [module for module in towers.modules() if module.training]
    towers.eval()
    try:
        yield
    finally:
        for module in modules:
            module.training = True
