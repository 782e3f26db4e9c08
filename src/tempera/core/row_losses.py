"""The losses of a tile's rows, and the gradients of its logits: of positives among candidates, or
against a teacher.

Letters in shapes: r rows of a tile, c candidates of a block, k positives of a tile, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Numerator = Literal["one", "mean", "sum"]

# A share this small cannot be seen in a sum of either precision, and subnormal numbers take 40
# times as long.
_INVISIBLE = 2.0**-100
_LOWEST = math.log2(_INVISIBLE)
_LOG2_E = math.log2(math.e)
_LEFT_OUT = -1e30  # a logit that is left out, where it has to be finite


@dataclass(frozen=True)
class Tile:
    """The logits of some rows against all candidates of a group; what is left out is -inf."""

    rows: slice  # counted from this device's first
    group: int
    anchors: list[Tensor]  # one [r, D] a term, not scaled
    logits: list[Tensor]  # one [r, c] a term
    filled: list[Tensor]  # the same with the columns of zeros that fill them up, [r, w]
    candidates: list[Tensor]  # of each term, with zeros that fill them up, [w, D]
    held: int  # the term whose positives the loss is about
    # Rows in the tile and columns of each term's positives, [k] each; where there are any, the
    # first r are the rows' own.
    positives: list[tuple[Tensor, Tensor]]
    values: Tensor | None  # [k] logits of the positives of the term held
    teacher: list[Tensor]  # one [r, c] a term that has one: the teacher's logits


def contrasted(tile: Tile, numerator: Numerator) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, [r], and the mass of its softmax, [r]; its logits become their
    gradients times that mass."""
    level, target = _numerator(numerator, tile)
    mass, top = _exponentiate(tile.logits)
    positives = tile.positives[tile.held]
    tile.logits[tile.held][positives] -= mass if target is None else target * mass[positives[0]]
    return top + mass.log() - level, mass


def divergence(tile: Tile) -> tuple[Tensor, Tensor]:
    """Return the same of a teacher: KL(P || Q) of each row, with gradients Q - P; 0 in a row that
    has no candidates.

    KL = sum_c P_c (log P_c - log Q_c),    P = p / sum p,    Q = q / sum q
    """
    student, teacher = _lowered(tile.logits), _lowered(tile.teacher)
    targets = [_shares(each.clone()) for each in teacher]
    gaps = [
        torch.linalg.vecdot(p, u.sub_(x)) for p, u, x in zip(targets, teacher, student, strict=True)
    ]
    mass = _total([_shares(x).sum(1) for x in student])  # in place
    target_mass = _total([p.sum(1) for p in targets])
    for x, p in zip(student, targets, strict=True):
        x.sub_(p.mul_((mass / target_mass)[:, None]))
    return sum(gaps[1:], gaps[0]) / target_mass - (target_mass.log() - mass.log()), mass


def _lowered(logits: Sequence[Tensor]) -> Sequence[Tensor]:
    """Lower logits in place so that each row's highest is 0; what is left out is finite, and alike
    in all of them."""
    top = torch.stack([x.amax(1) for x in logits]).amax(0).clamp_min_(_LEFT_OUT)
    for x in logits:
        x.sub_(top[:, None]).clamp_min_(_LEFT_OUT)
    return logits


def _shares(lowered: Tensor) -> Tensor:
    """Return exp in place, and 0 for what cannot be seen in a sum. On a CPU powers of 2 take a
    fourth of exp's time."""
    return torch.threshold_(lowered.mul_(_LOG2_E), _LOWEST, -torch.inf).exp2_()


def _total(masses: Sequence[Tensor]) -> Tensor:
    """Return the sum of masses, [r], above 0 where a row has no candidates."""
    return sum(masses[1:], masses[0]).clamp_min(_INVISIBLE)


def _exponentiate(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Turn logits into exp(logit - top) in place; their sum, [r], and the highest logit, [r]."""
    tops = [x.amax(1) for x in logits]
    top = tops[0] if len(tops) == 1 else torch.stack(tops).amax(0)
    masses = [_shares(x.sub_(top[:, None])).sum(1) for x in logits]
    mass = masses[0]
    for more in masses[1:]:
        mass += more
    return mass, top


def _numerator(kind: Numerator, tile: Tile) -> tuple[Tensor, Tensor | None]:
    """Return the level that a row's log-sum-exp is compared with, [r], and the target share of each
    positive, [k]; None is 1."""
    rows, values = tile.positives[tile.held][0], tile.values
    assert values is not None
    count = tile.rows.stop - tile.rows.start
    if kind == "one":
        return values, None
    if kind == "mean":  # of log-probabilities: Khosla et al. 2020, eq. 2
        target = 1 / values.new_zeros(count).index_add_(0, rows, torch.ones_like(values))[rows]
        return values.new_zeros(count).index_add_(0, rows, values * target), target
    # log of the summed probability: Miech et al. 2020, eq. 1
    top = values.new_full((count,), -torch.inf).scatter_reduce_(0, rows, values, "amax")
    mass = values.new_zeros(count).index_add_(0, rows, (values - top[rows]).exp())
    level = top + mass.log()
    return level, (values - level[rows]).exp()
