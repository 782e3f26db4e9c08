"""The same objective at several widths and precisions of the embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..arithmetic.abilities import widest
from ..errors import ConfigError, DataError, refuse_other
from .batch import Batch, as_batch
from .objective import Objective
from .precisions import FLOAT32, ROUNDED, at_precision
from .temperature import Temperature


class Matryoshka(nn.Module):
    """The weighted sum of an objective's losses on the first `width` numbers of every embedding
    (Kusupati et al. 2022, eq. 1).

    Each width has a loss at float32, and a loss at each further precision. The towers run once.

    Args:
        objective: any objective, shared by all widths.
        widths: number of leading dimensions for each loss; None is the whole width.
        weights: of each width's loss, 0 or more; None is 1 for all.
        precisions: "int8", "binary" or both, beside float32, with a straight-through gradient. In a
            configuration: `objective.precisions`, beside `objective.matryoshka` or alone.

    Raises:
        ConfigError: no objective, no width, a width below 1, more or fewer weights than widths, a
            weight below 0 or not finite, no weight above 0, or an unknown precision.
        DataError: embeddings narrower than a width.

    >>> nested = Matryoshka(Objective(temperature=1.0), widths=(2, 3), precisions=("binary",))
    >>> nested(torch.eye(3), torch.eye(3)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        objective: Objective,
        widths: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
        precisions: Sequence[str] = (),
    ) -> None:
        super().__init__()
        refuse_other(
            "matryoshka: objective",
            objective,
            isinstance(objective, Objective),
            "an Objective such as mnr()",
        )
        _refuse_other_numbers("widths", widths, Integral)
        _refuse_other_numbers("weights", weights, Real)
        self.objective = objective
        self.widths = None if widths is None else tuple(widths)
        count = len(self.widths) if self.widths else 1
        self.weights = (1.0,) * count if weights is None else tuple(weights)
        self.precisions = tuple(precisions)
        fit = self.widths is None or (len(self.widths) > 0 and min(self.widths) >= 1)
        if not fit or len(self.weights) != count:
            raise ConfigError(
                f"matryoshka: one weight for each width of at least 1, not {self.widths} and {self.weights}"
            )
        finite = all(math.isfinite(weight) and weight >= 0 for weight in self.weights)
        if not finite or not any(self.weights):
            raise ConfigError(
                f"matryoshka: weights are finite, 0 or more, and one of them above 0, not {list(self.weights)}"
            )
        for precision in self.precisions:
            if precision not in ROUNDED:
                raise ConfigError(
                    f"precisions beside float32 are {' and '.join(ROUNDED)}, not {precision!r}"
                )

    @property
    def temperature(self) -> Temperature:
        """The temperature of the objective."""
        return self.objective.temperature

    def forward(self, queries: Batch[Tensor] | Tensor, documents: Tensor | None = None) -> Tensor:
        """Return one loss a row, [b], differentiable, of two tensors or a batch, as
        `Objective.forward` takes them."""
        batch = as_batch(queries, documents)
        if batch.memory is None:
            batch = self.recall(batch)  # at its whole width
        losses = [part.weight * self.objective(_cut(batch, part)) for part in self._parts()]
        return torch.stack(losses).sum(0)

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Return the losses, [b], and add the gradients of sum(shares * losses) to `.grad`, in one
        pass over the scores a width and precision."""
        rows = batch.doc.rows
        exact = widest(rows.device) if shares.dtype == torch.float64 else shares.dtype
        losses = torch.zeros(shares.shape, dtype=exact, device=rows.device)
        for part in self._parts():
            with torch.enable_grad():
                cut = _cut(batch, part)
            losses = losses + part.weight * self.objective.propagate(cut, part.weight * shares)
        return losses

    def advance(self, progress: float) -> None:
        """Follow the schedules of the objective."""
        self.objective.advance(progress)

    def recall(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """Return the batch with the documents of the objective's memory."""
        return self.objective.recall(batch)

    def remember(self, batch: Batch[Tensor]) -> None:
        """Put the batch's documents into the objective's memory."""
        self.objective.remember(batch)

    def _parts(self) -> Iterator[_Part]:
        """Yield the losses of the sum, by width and precision."""
        for width, weight in zip(self.widths or (None,), self.weights, strict=True):
            for precision in (FLOAT32, *self.precisions):
                yield _Part(width, precision, weight)


class _Part(NamedTuple):
    """A loss of the sum."""

    width: int | None  # None: the whole width
    precision: str
    weight: float


def _cut(batch: Batch[Tensor], part: _Part) -> Batch[Tensor]:
    """Return a batch of embeddings with the width and the precision of a part."""
    have = batch.query.rows.shape[1]
    if part.width is not None and part.width > have:
        raise DataError(f"matryoshka: width {part.width} of embeddings that have {have} numbers")
    return batch.map(lambda rows: at_precision(rows[:, : part.width], part.precision))


def _refuse_other_numbers(name: str, numbers: object, kind: type) -> None:
    """Raise ConfigError for widths or weights that are no list of numbers of a kind."""
    fits = numbers is None
    if isinstance(numbers, Sequence):
        fits = all(isinstance(number, kind) for number in numbers)
    refuse_other(
        f"matryoshka: {name}", numbers, fits, "a list of numbers such as [32, 64], or None"
    )
