"""The curator: rows of a batch worth learning from, chosen by a guide before the step.

With l_i the contrastive loss of row i among all rows of the batch, for the model and for the
guide's vectors,

    guide:         score_i = -l_i(guide)                     pairs that the guide understands
    learnability:  score_i = l_i(model) - l_i(guide)         pairs that only the guide understands

(Evans et al. 2024, "Data curation via joint example selection", section 2; Mindermann et al. 2022,
eq. 3). Only the rows with the highest scores take part in the step, as if the sampler had drawn
only these rows. A pair whose document answers another query has a high loss by any guide, and is
left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..arithmetic.abilities import without_dropout
from ..core.batch import Batch, Role, take
from ..core.masks import Guided
from ..core.objective import Objective, base_of
from ..errors import DataError
from ..parallel.distributed import ALONE, Group
from .cache import Cache
from .step import TowersLike, embed_once

By = Literal["guide", "learnability"]
_FEWEST = 2  # rows of a batch that is learned from


def curated(
    towers: TowersLike,
    objective: Any,
    batch: Batch[Any],
    share: float,
    by: By,
    cache: Cache,
    group: Group = ALONE,
) -> tuple[Batch[Any], Tensor | None]:
    """Return the rows with the highest scores, at least 2 rows over all processes; all rows if the
    share is 1.

    Rows of weight 0 come last.

    Returns:
        This process's part of the chosen rows, and the positions of all chosen rows in the batch of
        all processes, [k]; None for the positions of all rows.

    Raises:
        DataError: a side without the guide's vectors, or a vector that is not finite.
    """
    if share == 1:
        return batch, None
    scores, everyone = scored(towers, objective, batch, by, cache, group)
    _refuse_not_finite(everyone)
    if everyone.weight is not None:
        scores[everyone.weight.cpu() == 0] = -torch.inf
    ranked = scores.argsort(descending=True, stable=True)
    best = torch.zeros(len(scores), dtype=torch.bool)
    best[ranked[: _count(len(scores), share)]] = True
    mine = best[everyone.local].nonzero()[:, 0]
    return take(batch, mine), best.nonzero()[:, 0]


def as_many(batch: Batch[Any], share: float) -> Batch[Any]:
    """Return the first rows of a batch of all processes, as many as `curated` chooses; for plans
    of memory, made before there are scores.

    >>> from ..core.batch import Side
    >>> len(as_many(Batch(Side(torch.eye(10)), Side(torch.eye(10))), 0.8))
    8
    """
    if share == 1:
        return batch
    return take(batch, torch.arange(_count(len(batch), share)))


def _count(rows: int, share: float) -> int:
    """Return the number of rows to choose."""
    return min(rows, max(_FEWEST, round(share * rows)))


def scored(
    towers: TowersLike,
    objective: Any,
    batch: Batch[Any],
    by: By,
    cache: Cache,
    group: Group = ALONE,
) -> tuple[Tensor, Batch[Tensor]]:
    """Return the scores of all processes' rows, [n], and the batch of these rows by the guide's
    vectors.

    Of the objective, temperature, masks of ids, pools and corrections take part. A teacher and a
    memory do not: `contrastive_losses` leaves the teacher out, and nothing is recalled. Nor does
    `Guided`: a wrong pair is far apart by the guide, and the mask would leave out the documents that
    are nearer. The model is read without dropout.
    """
    judge = judging(objective)
    everyone = group.gather(batch.of(guides_of(batch)).to(group.device))
    mine = -judge.contrastive_losses(everyone)  # [b]
    if by == "learnability":
        if not cache.footprints:
            cache.plan(towers, batch, group)  # measures graphs with dropout, before it is off
        with without_dropout(towers), _without_graphs(cache), torch.no_grad():
            mine += judge.contrastive_losses(embed_once(towers, batch, cache, group))
    scores = mine.new_zeros(len(everyone))
    scores[everyone.local] = mine
    return group.all_reduce_sums(scores).cpu(), everyone


def judging(objective: nn.Module) -> Objective:
    """Return the objective that scores rows: the given objective without widths and without the
    mask `Guided`."""
    judge = copy.copy(base_of(objective))
    judge.masks = tuple(mask for mask in judge.masks if not isinstance(mask, Guided))
    return judge


def guides_of(batch: Batch[Any]) -> dict[Role, Tensor]:
    """Return the guide's vectors of every side, [n, G].

    Raises:
        DataError: a side without the guide's vectors.
    """
    guides = {}
    for role, side in batch.sides().items():
        if side.guide is None:
            raise DataError(
                f"train.select chooses rows by a guide's vectors, and {role} has none: give train.guide=FOLDER"
            )
        guides[role] = side.guide
    return guides


def _refuse_not_finite(everyone: Batch[Tensor]) -> None:
    """Refuse vectors of the guide that are not finite: their scores would choose all rows or none."""
    for role, side in everyone.sides().items():
        lost = ~side.rows.isfinite().all(1)
        if lost.any():
            raise DataError(
                f"train.select chooses rows by a guide's vectors, and those of {int(lost.sum()):,} {role} rows are not "
                f"finite, the first is row {int(lost.int().argmax())} of its batch: look at the guide"
            )


@contextmanager
def _without_graphs(cache: Cache) -> Iterator[None]:
    """Let a cache keep no graph in the block; its measured sizes stay."""
    mode = cache.mode
    cache.mode = "always"  # embed every row twice, keep no graph
    try:
        yield
    finally:
        cache.mode = mode
