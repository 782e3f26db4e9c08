"""The same objective at several widths and precisions of the embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from numbers import Integral, Real

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

    Each width has a loss at float32, and one at each of the other precisions. The towers run once.

    Args:
        objective: any objective; its parts are shared by all widths.
        widths: how many numbers of the embeddings; each must be there. None is all of them.
        weights: of each width's loss, 0 or more; None is 1 for all.
        precisions: "int8", "binary" or both, beside float32, with a straight-through gradient; in a
            configuration `objective.precisions`, which stands beside `objective.matryoshka` or
            alone.

    Raises:
        ConfigError: no objective, no width, one below 1, not one weight for each, a weight below 0
            or not finite, no weight above 0, or an unknown precision.
        DataError: embeddings that are narrower than a width.

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
        for name, numbers, kind in (("widths", widths, Integral), ("weights", weights, Real)):
            fits = numbers is None or (
                isinstance(numbers, Sequence) and all(isinstance(x, kind) for x in numbers)
            )
            refuse_other(
                f"matryoshka: {name}", numbers, fits, "a list of numbers such as [32, 64], or None"
            )
        self.objective = objective
        self.widths = None if widths is None else tuple(widths)
        self.weights = (
            tuple(weights) if weights is not None else (1.0,) * len(self.widths or (None,))
        )
        self.precisions = tuple(precisions)
        if (widths is not None and (not widths or min(widths) < 1)) or len(self.weights) != len(
            self.widths or (None,)
        ):
            raise ConfigError(
                f"matryoshka: one weight for each width of at least 1, not {self.widths} and {self.weights}"
            )
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights) or not any(
            self.weights
        ):
            raise ConfigError(
                f"matryoshka: weights are finite, 0 or more, and one of them above 0, not {list(self.weights)}"
            )
        if unknown := [each for each in self.precisions if each not in ROUNDED]:
            raise ConfigError(
                f"precisions beside float32 are {' and '.join(ROUNDED)}, not {unknown[0]!r}"
            )

    @property
    def temperature(self) -> Temperature:
        """The objective's."""
        return self.objective.temperature

    def forward(self, queries: Batch[Tensor] | Tensor, documents: Tensor | None = None) -> Tensor:
        """Return one loss a row, [b], differentiable, of two tensors or a batch, as
        `Objective.forward` takes them."""
        batch = as_batch(queries, documents)
        batch = self.recall(batch) if batch.memory is None else batch  # at its whole width
        return torch.stack(
            [w * self.objective(self._cut(batch, *cut)) for cut, w in self._parts()]
        ).sum(0)

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Losses, [b]; gradients of sum(shares * losses) are added to `.grad`, one pass over the
        scores a width and precision."""
        rows = batch.doc.rows
        exact = widest(rows.device) if shares.dtype == torch.float64 else shares.dtype
        losses = torch.zeros(shares.shape, dtype=exact, device=rows.device)
        for cut, weight in self._parts():
            with torch.enable_grad():
                part = self._cut(batch, *cut)
            losses = losses + weight * self.objective.propagate(part, weight * shares)
        return losses

    def advance(self, progress: float) -> None:
        """Follow the schedules of the objective."""
        self.objective.advance(progress)

    def recall(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """The batch with what the objective's memory holds."""
        return self.objective.recall(batch)

    def remember(self, batch: Batch[Tensor]) -> None:
        """Put the batch's documents into the objective's memory."""
        self.objective.remember(batch)

    def _parts(self) -> list[tuple[tuple[int | None, str], float]]:
        weighted = zip(self.widths or (None,), self.weights, strict=True)
        return [((n, each), w) for (n, w), each in product(weighted, (FLOAT32, *self.precisions))]

    def _cut(self, batch: Batch[Tensor], width: int | None, precision: str) -> Batch[Tensor]:
        have = batch.query.rows.shape[1]
        if width is not None and width > have:
            raise DataError(f"matryoshka: width {width} of embeddings that have {have} numbers")
        return batch.map(lambda rows: at_precision(rows[:, :width], precision))
