"""Terms added to the logits after the division by the temperature.

A correction is called with a block and answers with an `Addition`. Where q is the expected number
of times that the samplers put a document into a batch, and s the similarity:

    LogQ        - log q                 on every candidate (classic), or on every negative (refined)
    Hardness    + strength * s          on negatives, without gradient
    Margin      - margin                on positives
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import DataError, refuse_not_a_number, refuse_unknown
from .matches import match, on_device
from .pools import Block


@dataclass(frozen=True)
class Addition:
    """The terms of a correction for the logits of a block.

    Letters in shapes: r rows of a tile, c candidates, k positives of a tile.
    """

    candidate: Tensor | None = None  # [c] added to every candidate, positive or not
    # (rows [k], columns [k]) -> [k] or one number, added to positives
    positive: Callable[[Tensor, Tensor], Tensor] | None = None
    # (tile, similarities / t [r, c], t): adds to the similarities in place, not to positives; without
    # gradient
    pairwise: Callable[[slice, Tensor, float], None] | None = None


Correction = Callable[[Block], Addition]


@dataclass(frozen=True)
class LogQ:
    """Subtract the log of a document's sampling frequency from its logit, so that popular documents
    are not over-penalised.

    classic: off every candidate, the positive too (Yi et al. 2019, section 3.1). A constant factor
        of q cancels.
    refined: off every negative only, since the positive is there with certainty and not by sampling
    (Khrylchenko et al. 2025, arXiv 2507.09331). q has to be an expected count, as from
    `expected_logq`; accidental hits have to be masked. The gradient is the classic one's with the
    positive's own sampling left out, and equals in expectation the gradient of the softmax over the
    whole corpus.

    Args:
        kind: classic or refined.
        weight: share of the correction; 0 leaves popular documents penalised, 1 is unbiased,
            between is a dial between head and tail.

    Raises:
        DataError: candidates without logq.

    >>> from tempera import Batch, Objective, Side
    >>> documents = Side(torch.eye(2), logq=torch.tensor([0.5, 0.1]).log())
    >>> losses = Objective(temperature=1.0, corrections=[LogQ()])(Batch(Side(torch.eye(2)), documents))
    >>> [round(loss, 4) for loss in losses.tolist()]
    [1.0436, 0.071]
    """

    kind: Literal["classic", "refined"] = "classic"
    weight: float = 1.0

    def __post_init__(self) -> None:
        refuse_unknown("log_q: kind", self.kind, "classic", "refined")
        refuse_not_a_number("log_q: weight", self.weight)

    def __call__(self, block: Block) -> Addition:
        logq = block.candidates.logq
        if logq is None:
            raise DataError(
                f"log_q needs logq of the {block.candidate} candidates, and the batch has none: give the data a "
                f"frequency, or drop the correction"
            )
        every = -self.weight * logq
        if self.kind == "classic":
            return Addition(candidate=every)
        return Addition(candidate=every, positive=lambda rows, columns: self.weight * logq[columns])


def expected_logq(
    batch_rows: int, frequency: Tensor, sampled: int = 0, proposal: Tensor | None = None
) -> Tensor:
    """Return the log of the expected number of times each document stands in a batch, from all
    sources, [n].

        log( batch_rows * frequency + sampled * proposal )

    (Yang et al. 2020, section 3, for mixed negative sampling.) A document has one value for all
    sources.

    Args:
        batch_rows: pairs of a batch.
        frequency: [n] share of each document among the training pairs.
        sampled: documents drawn apart from the pairs.
        proposal: [n] chance of each document in one of these draws.

    >>> expected_logq(100, torch.tensor([0.02]), 50, torch.tensor([0.01])).exp().tolist()
    [2.5]
    """
    count = batch_rows * frequency
    if sampled:
        if proposal is None:
            raise DataError(
                "documents sampled apart from the pairs need their proposal probabilities"
            )
        count = count + sampled * proposal
    return count.log()


def inclusion_logq(
    batch_rows: int, frequency: Tensor, sampled: int = 0, proposal: Tensor | None = None
) -> Tensor:
    """Return the log of the chance that a batch holds each document at all, from any source, [n].

        log( 1 - (1 - frequency)^batch_rows (1 - proposal)^sampled )

    `LogQ` needs this chance where a batch holds each document at most once: a sum over the documents
    of a batch, each divided by its chance, has the sum over all documents as mean (Horvitz and
    Thompson 1952).

    Args:
        batch_rows: pairs of a batch.
        frequency: [n] share of each document among the training pairs.
        sampled: documents drawn apart from the pairs.
        proposal: [n] chance of each document in one of these draws.

    >>> print([round(float(chance), 4) for chance in inclusion_logq(2, torch.tensor([0.5, 0.1])).exp()])
    [0.75, 0.19]
    """
    absent = batch_rows * torch.log1p(-frequency.double())
    if sampled:
        if proposal is None:
            raise DataError(
                "documents sampled apart from the pairs need their proposal probabilities"
            )
        absent = absent + sampled * torch.log1p(-proposal.double())
    return (-torch.expm1(absent)).log().to(frequency.dtype)


@dataclass(frozen=True)
class Hardness:
    """Add `strength` x similarity to negatives of the forward direction, without gradient.

    others: negatives of other rows, strength 9 (Lan et al. 2025, eq. 5); own: the row's own hard
    negatives, strength 5 (Schechter Vera et al. 2025, EmbeddingGemma); all: both.

    Args:
        strength: in logits for a similarity of 1, whatever the temperature.
        on: others, own or all.

    >>> from tempera import Objective
    >>> near = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    >>> losses = Objective(temperature=1.0, corrections=[Hardness(9.0)])(near, near)
    >>> [round(loss, 4) for loss in losses.tolist()]
    [7.0009, 7.0009]
    """

    strength: float
    on: Literal["others", "own", "all"] = "others"

    def __post_init__(self) -> None:
        refuse_unknown("hardness: on", self.on, "others", "own", "all")
        refuse_not_a_number("hardness: strength", self.strength)

    def __call__(self, block: Block) -> Addition:
        if block.direction != "query>doc":
            return Addition()
        own = on_device(match(block.rows, block.owner), block.device)

        def harder(tile: slice, logits: Tensor, temperature: float) -> None:
            gain = 1 + self.strength * temperature  # s / t + strength * s
            if self.on == "all":
                logits *= gain
                return
            mine = own(tile)
            before = logits[mine]
            if self.on == "others":
                logits *= gain
                logits[mine] = before
            else:
                logits[mine] = before * gain

        return Addition(pairwise=harder)


@dataclass(frozen=True)
class Margin:
    """Take `margin`, in logits, off every positive (Yang et al. 2019, additive margin softmax, eq.
    4, scaled).

    Args:
        margin: in logits; divide a margin of similarities by the temperature.

    >>> from tempera import Objective
    >>> losses = Objective(temperature=1.0, corrections=[Margin(1.0)])(torch.eye(2), torch.eye(2))
    >>> [round(loss, 4) for loss in losses.tolist()]
    [0.6931, 0.6931]
    """

    margin: float

    def __post_init__(self) -> None:
        refuse_not_a_number("margin: margin", self.margin)

    def __call__(self, block: Block) -> Addition:
        return Addition(
            positive=lambda rows, columns: torch.tensor(-self.margin, dtype=torch.float64)
        )
