"""Rows that go backward: an unbiased sample, drawn by the gradients that their embeddings have.

After the loss stage the gradient g_i of every embedding is known. Row i then goes backward with
chance pi_i, its gradient divided by pi_i, so that the expected gradient of every parameter is the
exact one whatever the chances are. What the draw adds to the variance of the gradients at the
embeddings is, for independent draws,

    sum_i (1 / pi_i - 1) |g_i|^2

and for a given cost sum_i pi_i c_i in tokens it is least where pi_i = min(1, k |g_i| / sqrt(c_i))
(Neyman 1934). VCAS (Wang et al. 2024) draws samples of a transformer's layers by norms that it
estimates; here they are known.

Letters in shapes: n rows, m rows that are drawn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

Share = Annotated[float, Field(gt=0, le=1)] | Literal["auto"]
NOISE = 0.1  # of the noise between batches, which "auto" adds at most; see `chances`
FLOOR = 0.1  # lowest chance of a row with a gradient, as a part of the share of all tokens
_HALVINGS = 60
_LEAST_PULL = 1e-300  # of a row that counts, so that its inverse is finite
_ROUNDING = 1e-14


def chances(norms: Tensor, cost: Tensor, share: Share) -> Tensor:
    """Return the chance of each row to go backward, [n]; 0 where the gradient is 0.

    A number is the expected share of the tokens. With "auto" the sample adds at most a tenth of the
    noise between batches: rows are draws from the data, so the variance of the sum of their
    gradients is about sum |g_i|^2, which is what sum (1 / pi_i - 1) |g_i|^2 is compared with.

    Args:
        norms: of each embedding's gradient, [n] float64.
        cost: tokens of each row, [n].
        share: of all tokens, or "auto".

    >>> chances(torch.tensor([3.0, 1.0, 0.0]), torch.tensor([1, 1, 2]), 0.4).tolist()
    [1.0, 0.6..., 0.0]
    """
    cost = cost.double().clamp(min=1)
    pull = norms / cost.sqrt()  # [n]
    alive = norms != 0  # what is not finite goes backward, too, and is found there
    lowest = FLOOR * (share if isinstance(share, float) else 1e-2)

    def at(k: float) -> Tensor:
        return torch.where(alive, (k * pull).nan_to_num(1.0).clamp(lowest, 1), 0.0)

    if share == "auto":
        allowed = NOISE * float(norms.square().sum())
        return _least(at, pull, alive, lowest, lambda pi: float(added(pi, norms)) <= allowed)
    budget = float(share) * float(cost.sum())
    return _least(at, pull, alive, lowest, lambda pi: float(pi @ cost) >= budget)


def _least(
    at: Callable[[float], Tensor],
    pull: Tensor,
    alive: Tensor,
    lowest: float,
    is_enough: Callable[[Tensor], bool],
) -> Tensor:
    """Return the chances of the smallest factor at which they are enough, up to rounding; 1 for all
    rows if none is."""
    if not bool(alive.any()):
        return at(0.0)
    pulls = pull[alive].nan_to_num(1.0, posinf=1.0).clamp(min=_LEAST_PULL)
    # In logarithms, since gradients of one batch may lie any number of orders of magnitude apart.
    low, high = math.log(lowest / float(pulls.max())), -math.log(float(pulls.min()))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(at(math.exp(middle))) else (middle, high)
    return at(math.exp(high))


def added(chance: Tensor, norms: Tensor) -> Tensor:
    """Return the variance that independent draws add to the gradients of the embeddings, a scalar.

    >>> float(added(torch.tensor([0.5, 1.0, 0.0]), torch.tensor([2.0, 3.0, 0.0])))
    4.0
    """
    alive = chance > 0
    return ((1 / chance[alive] - 1) * norms[alive].square()).sum()


def _uncertain(chance: Tensor) -> Tensor:
    """Return the chances of rows that a draw may leave out, and 0 for those that it takes whatever
    rounding does, [n]."""
    return torch.where(chance < 1, chance, 0.0)


def draw(chance: Tensor, order: Tensor, start: float) -> Tensor:
    """Return the rows that a systematic draw takes (Madow 1949), [m], each with its chance.

    The chances are laid end to end in some order, and a row is taken where one of the points start,
    start + 1, ... falls on it. Rows that are alike and lie side by side stand in for each other, so
    that a sample by length has nearly as many tokens as is expected. There are at most n + 1
    different draws of an order.

    Args:
        chance: of each row, [n].
        order: of the rows, [n].
        start: between 0 and 1, uniformly.

    >>> draw(torch.tensor([0.5, 1.0, 0.25, 0.25]), torch.arange(4), 0.6).tolist()
    [1, 2]
    """
    ordered = chance[order]
    uncertain = _uncertain(ordered)
    ends = uncertain.cumsum(0) - start
    hit = ends.ceil() > (ends - uncertain).ceil()
    return order[hit | (ordered >= 1)].sort().values


def draws(chance: Tensor, order: Tensor) -> list[tuple[float, float]]:
    """Return a start of every different draw, with the chance of that draw; what they bring has the
    exact mean.

    >>> draws(torch.tensor([0.5, 1.0, 0.25, 0.25]), torch.arange(4))
    [(0.25, 0.5), (0.625, 0.25), (0.875, 0.25)]
    """
    ends = sorted({0.0, 1.0, *(_uncertain(chance[order]).cumsum(0) % 1).tolist()})
    return [((a + b) / 2, b - a) for a, b in itertools.pairwise(ends) if b - a > _ROUNDING]


@dataclass(frozen=True)
class Drawn:
    """The rows of a batch that went backward.

    Args:
        share: of the tokens.
        added: the variance that the draw adds to the gradients of the embeddings, as a part of the
            sum of their squares.
    """

    share: float
    added: float

    @classmethod
    def of(cls, norms: Tensor, cost: Tensor, chance: Tensor, rows: Tensor) -> Drawn:
        """Return what a draw costs and adds."""
        noise = float(
            added(chance, norms) / norms.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
        )
        return cls(float(cost[rows].sum() / cost.sum().clamp(min=1)), noise)
