"""Options of the hard negatives that the evaluated model mines before it is trained again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from .hard_negatives import Mining


@dataclass(frozen=True)
class MiningAgain:
    """Mine hard negatives with the evaluated model before it is trained again, and check negatives
    by a cross-encoder.

    Args:
        again: negatives of a query, mined by the model before the second training (`train.refit`);
            the second training then starts from the weights that validation has chosen. Nothing is
            mined with 0, where the data have negatives, with a teacher, or where the objective does
            not compare with negatives.
        skip: number of best ranks to leave out.
        depth: last rank to consider.
        absolute_margin: at least 0; None applies no margin.
        relative_margin: 0.05 keeps documents that score at most 95 % of the answer. At most 1; None
            applies no margin.
        cross_encoder: folder of a cross-encoder that judges all negatives, by `cross_margin`; the
            scores are kept by pair, in vectors/ beside the run.
        cross_margin: relative margin for the scores of the cross-encoder.
        faiss: search by an index, such as HNSW32; None searches exactly.

    Raises:
        ConfigError: numbers or margins out of range.

    >>> MiningAgain(again=3, skip=98).mining.negatives
    2
    """

    again: Annotated[int, Field(ge=0)] = 0
    skip: Annotated[int, Field(ge=0)] = Mining.skip
    depth: Annotated[int, Field(gt=0)] = Mining.depth
    absolute_margin: float | None = Mining.absolute_margin
    relative_margin: float | None = Mining.relative_margin
    cross_encoder: str | None = None
    cross_margin: float = Mining.cross_margin
    faiss: str | None = None

    def __post_init__(self) -> None:
        _ = self.mining  # refuses options out of range

    @property
    def mining(self) -> Mining:
        """The options of the mining: `again` negatives a query, or fewer where there are fewer
        ranks."""
        return Mining(
            negatives=max(1, min(self.again, self.depth - self.skip)),
            skip=self.skip,
            depth=self.depth,
            absolute_margin=self.absolute_margin,
            relative_margin=self.relative_margin,
            cross_margin=self.cross_margin,
        )
