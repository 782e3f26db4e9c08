"""The losses of a tile's rows, and the gradients of its logits: of positives among candidates, or
against a teacher.

Letters in shapes: r rows of a tile, c candidates of a block, k positives of a tile, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Numerator = Literal["one", "mean", "sum"]

# A share this small cannot be seen in a sum of either precision, and subnormal numbers take 40
# times as long.
_INVISIBLE = 2.0**-100
_LOWEST = math.log2(_INVISIBLE)
_LOG2_E = math.log2(math.e)
_LEFT_OUT = -1e30  # the logit of an excluded candidate, where it has to be finite


class Positives(NamedTuple):
    """The positives of a tile's rows in the block of one term; the first r are the rows' own."""

    rows: Tensor  # [k] counted from the tile's first
    columns: Tensor  # [k]
    logits: Tensor | None = None  # [k] once they are known; None where the term has no positives


def cross_entropy(
    logits: Sequence[Tensor], held: Tensor, positives: Positives, numerator: Numerator
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, [r], and the mass of its softmax, [r].

        loss_i = log sum_c exp(l_ic) - l_i(y) = top_i + log mass_i - l_i(y)
        mass_i = sum_c exp(l_ic - top_i),    top_i = max_c l_ic

    The logits become their gradients times the mass, exp(l_ic - top_i) - mass_i y_ic, in place.

    Args:
        logits: of every term, [r, c] each.
        held: the logits among which the positives stand, one of `logits`.
    """
    level, target = _numerator(numerator, positives, len(held))
    mass, top = _exponentiate(logits)
    rows, columns = positives.rows, positives.columns
    if target is None:
        held[rows, columns] -= mass
    else:
        held[rows, columns] -= target * mass[rows]
    return top + mass.log() - level, mass


def divergence(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return KL(P || Q) of each row, [r], and the mass of the student's softmax, [r]; 0 in a row
    without candidates.

        KL = sum_c P_c (log P_c - log Q_c),    P = p / sum p,    Q = q / sum q

    The student's logits become their gradients times the mass, (Q - P) sum q, in place.

    Args:
        student: logits of every term, [r, c] each.
        teacher: the teacher's logits, likewise.
    """
    _lower(student)
    _lower(teacher)
    targets = [_exponentials(v.clone()) for v in teacher]  # p
    gaps = []
    for p, u, v in zip(targets, student, teacher, strict=True):
        gaps.append(torch.linalg.vecdot(p, v.sub_(u)))
    mass = _total([_exponentials(u).sum(1) for u in student])  # sum q; the logits become q
    target_mass = _total([p.sum(1) for p in targets])  # sum p
    for q, p in zip(student, targets, strict=True):
        q.sub_(p.mul_((mass / target_mass)[:, None]))
    return sum(gaps[1:], gaps[0]) / target_mass - (target_mass.log() - mass.log()), mass


def _lower(logits: Sequence[Tensor]) -> None:
    """Lower logits in place so that each row's highest is 0; an excluded candidate has the same
    finite logit in all of them."""
    top = torch.stack([x.amax(1) for x in logits]).amax(0).clamp_min_(_LEFT_OUT)
    for x in logits:
        x.sub_(top[:, None]).clamp_min_(_LEFT_OUT)


def _exponentials(lowered: Tensor) -> Tensor:
    """Return exp in place, and 0 for a number too small to be seen in a sum. On a CPU powers of 2
    take a fourth of exp's time."""
    return torch.threshold_(lowered.mul_(_LOG2_E), _LOWEST, -torch.inf).exp2_()


def _total(masses: Sequence[Tensor]) -> Tensor:
    """Return the sum of masses, [r], above 0 where a row has no candidates."""
    return sum(masses[1:], masses[0]).clamp_min(_INVISIBLE)


def _exponentiate(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Turn logits into exp(logit - top) in place; their sum, [r], and the highest logit, [r]."""
    tops = [x.amax(1) for x in logits]
    top = tops[0] if len(tops) == 1 else torch.stack(tops).amax(0)
    masses = [_exponentials(x.sub_(top[:, None])).sum(1) for x in logits]
    mass = masses[0]
    for more in masses[1:]:
        mass += more
    return mass, top


def _numerator(kind: Numerator, positives: Positives, count: int) -> tuple[Tensor, Tensor | None]:
    """Return the level l_i(y) that a row's log-sum-exp is compared with, [r], and the target share
    y_ic of each positive, [k]; None is 1.

    Args:
        count: number of rows, r.
    """
    rows, logits = positives.rows, positives.logits
    assert logits is not None
    if kind == "one":
        return logits, None
    if kind == "mean":  # of log-probabilities: Khosla et al. 2020, eq. 2
        counts = logits.new_zeros(count).index_add_(0, rows, torch.ones_like(logits))
        target = 1 / counts[rows]
        return logits.new_zeros(count).index_add_(0, rows, logits * target), target
    # log of the summed probability: Miech et al. 2020, eq. 1
    top = logits.new_full((count,), -torch.inf).scatter_reduce_(0, rows, logits, "amax")
    mass = logits.new_zeros(count).index_add_(0, rows, (logits - top[rows]).exp())
    level = top + mass.log()
    return level, (logits - level[rows]).exp()
