"""Terms added to the logits after the temperature: they are never divided by it.

A correction is called with a block and answers with an `Addition`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .pools import Block


@dataclass(frozen=True)
class Addition:
    """What one correction adds to the logits of one block.

    Letters in shapes: b rows of the block, r rows of a tile, c candidates.
    """

    positive: Tensor | None = None  # [b] added to each row's positive
    candidate: Tensor | None = None  # [c] added to every other candidate
    pairwise: Callable[[slice, Tensor], Tensor] | None = (
        None  # (tile, its similarities [r, c]) -> [r, c], to every other
    )


Correction = Callable[[Block], Addition]
