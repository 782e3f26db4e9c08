"""Candidates that must not count as negatives.

A mask is called with a block and answers with exclusions; each exclusion gives, for a tile of rows, the index of what is
left out: (rows, columns) counted from the tile's first row, or a boolean [tile, c]. A row's own positive is never
left out: the objective sees to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import DataError
from .matches import Index, match
from .pools import Block

Exclusion = Callable[[slice], Index]
Mask = Callable[[Block], tuple[Exclusion, ...]]


@dataclass(frozen=True)
class SameId:
    """Leave out candidates that are the row's query or document under another row (accidental hits, Yi et al. 2019).

    A query or document of row j is left out of row i where the two rows share a query id or a document id; any other
    document is left out where it has the id of row i's document.

    Raises:
        DataError: the batch has no ids to compare.
    """

    def __call__(self, block: Block) -> tuple[Exclusion, ...]:
        batch, local = block.batch, block.batch.local
        if not block.paired:
            if batch.doc.ids is None or block.candidates.ids is None:
                missing = "doc" if batch.doc.ids is None else block.candidate
                raise DataError(f"same_id compares documents by id, and the batch has no ids of {missing}: give ids=")
            return (match(batch.doc.ids[local], block.candidates.ids),)
        known = [side.ids for side in (batch.query, batch.doc) if side.ids is not None]
        if not known:
            raise DataError("same_id compares rows by id, and the batch has ids of neither query nor doc: give ids=")
        return tuple(match(ids[local], ids) for ids in known)
