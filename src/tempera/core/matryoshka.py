"""The same objective at several widths of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from .abilities import widest
from .batch import Batch, as_batch
from .objective import Objective
from .temperature import Temperature


class Matryoshka(nn.Module):
    """The weighted sum of an objective's losses on the first `width` numbers of every embedding (Kusupati et al. 2022, eq. 1).

    Args:
        objective: any objective; its parts are shared by all widths.
        widths: how many numbers of the embeddings; each must be there.
        weights: of each width's loss; None is 1 for all.

    Raises:
        ConfigError: no width, one below 1, or not one weight for each.
        DataError: embeddings that are narrower than a width.

    >>> nested = Matryoshka(Objective(temperature=1.0), widths=(2, 3))
    >>> nested(torch.eye(3), torch.eye(3)).shape
    torch.Size([3])
    """

    def __init__(self, objective: Objective, widths: Sequence[int], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.objective = objective
        self.widths = tuple(widths)
        self.weights = tuple(weights) if weights is not None else (1.0,) * len(self.widths)
        if not self.widths or min(self.widths) < 1 or len(self.weights) != len(self.widths):
            raise ConfigError(
                f"matryoshka: one weight for each width of at least 1, not {self.widths} and {self.weights}"
            )

    @property
    def temperature(self) -> Temperature:
        """The objective's."""
        return self.objective.temperature

    def forward(self, queries: Batch[Tensor] | Tensor, documents: Tensor | None = None) -> Tensor:
        """Return one loss a row, [b], differentiable, of two tensors or a batch, as `Objective.forward` takes them."""
        batch = as_batch(queries, documents)
        return torch.stack([w * self.objective(self._cut(batch, n)) for n, w in self._parts()]).sum(0)

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Losses, [b]; gradients of sum(shares * losses) are added to `.grad`, one pass over the scores a width."""
        rows = batch.doc.rows
        exact = widest(rows.device) if shares.dtype == torch.float64 else shares.dtype
        losses = torch.zeros(shares.shape, dtype=exact, device=rows.device)
        for width, weight in self._parts():
            with torch.enable_grad():
                cut = self._cut(batch, width)
            losses = losses + weight * self.objective.propagate(cut, weight * shares)
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

    def _parts(self) -> list[tuple[int, float]]:
        return list(zip(self.widths, self.weights, strict=True))

    def _cut(self, batch: Batch[Tensor], width: int) -> Batch[Tensor]:
        have = batch.query.rows.shape[1]
        if width > have:
            raise DataError(f"matryoshka: width {width} of embeddings that have {have} numbers")
        return batch.map(lambda rows: rows[:, :width])
