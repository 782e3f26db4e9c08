"""Candidates that must not count as negatives.

A mask is called with a block and answers with exclusions. An exclusion gives, for a tile of rows,
the index of the candidates left out: (rows, columns) counted from the tile's first row, an addend
[tile, c] of 0 and -inf, or booleans [tile, c]. The objective keeps a row's own positive in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..arithmetic.abilities import sent
from ..arithmetic.ragged import Shared
from ..errors import DataError, refuse_not_a_number, refuse_unknown
from .matches import Matches, match
from .pools import Block, Exclusion
from .similarity import cosine, exact

# Inner products of unit vectors that differ by less, in units of rounding, are equal: a tie is not
# above.
TIE = 16

Mask = Callable[[Block], Sequence[Exclusion]]


@dataclass(frozen=True)
class SameId:
    """Leave out candidates that are the row's query or document under another row (accidental hits,
    Yi et al. 2019).

    A query or document of row j is left out of row i where the two rows share a query id or a
    document id; any other document is left out where it has the id of row i's document.

    Raises:
        DataError: the batch has no ids to compare.

    >>> from tempera import Batch, Objective, Side
    >>> documents = Side(torch.eye(2)[[0, 0]], ids=torch.tensor([7, 7]))  # both rows have the same document
    >>> Objective(masks=[SameId()])(Batch(Side(torch.eye(2)), documents)).tolist()
    [0.0, 0.0]
    """

    def __call__(self, block: Block) -> tuple[Matches, ...]:
        batch = block.batch
        local = batch.local
        if not block.paired:
            return (match(doc_ids(block)[local], _candidate_ids(block)),)
        if batch.query.ids is None and batch.doc.ids is None:
            raise DataError(
                "same_id compares rows by id, and the batch has ids of neither query nor doc: give ids="
            )
        matches = []
        if batch.query.ids is not None:
            columns = None  # of each row; None: its position
            if block.candidate == "doc" and batch.answer is not None:
                columns = batch.answers
            matches.append(match(batch.query.ids[local], batch.query.ids, columns=columns))
        if batch.doc.ids is not None:
            matches.append(match(doc_ids(block)[local], _paired_ids(block)))
        return tuple(matches)


@dataclass(frozen=True)
class KnownPositives:
    """Leave out every document that is known to answer the row's query, in whichever row or pool it
    stands.

    A document candidate is left out where its id is among `Batch.known` of row i; a query candidate
    j where document j is known to answer query i, or document i to answer query j.

    Raises:
        DataError: the batch has no `known`, or no document ids.

    >>> from tempera import Batch, Objective, Ragged, Side
    >>> documents, known = Side(torch.eye(2), ids=torch.tensor([7, 8])), Ragged.of([[7, 8], [8]])
    >>> losses = Objective(temperature=1.0, masks=[KnownPositives()])(Batch(Side(torch.eye(2)), documents, known=known))
    >>> [round(loss, 4) for loss in losses.tolist()]
    [0.0, 0.3133]
    """

    def __call__(self, block: Block) -> tuple[Exclusion, ...]:
        known = block.batch.known
        if isinstance(known, Shared) and block.candidate != "query":
            return (_shared(known[block.batch.local], _known_ids(block), block.device),)
        return self.matches(block)

    def matches(self, block: Block) -> tuple[Matches, ...]:
        """Return the pairs of a row and a candidate that are left out."""
        batch = block.batch
        if batch.known is None:
            raise DataError(
                "known_positives needs the known answers of every query: give the batch known=Ragged"
            )
        mine = batch.known[batch.local]
        matches = [match(mine.values, _known_ids(block), mine.offsets)]
        if block.candidate == "query":
            rows = torch.repeat_interleave(batch.known.lengths)
            matches.append(match(doc_ids(block)[batch.local], batch.known.values, columns=rows))
        return tuple(matches)


@dataclass(frozen=True)
class Guided:
    """Leave out candidates that a guide finds closer to the anchor than the row's pair (GISTEmbed,
    Solatorio 2024, eq. 3).

        guide(anchor, candidate) > p - margin        absolute, p = guide(query, doc) of the row
        guide(anchor, candidate) > p - margin * |p|  relative (NV-Retriever, Moreira et al. 2024:
        margin 0.05)

    A tie, up to rounding, is not above: a copy of the row's document stays unless `same_id` leaves
        it out. A guide's vector that is not finite makes NaN of the loss of every row that the
        vector is compared with.

    Args:
        margin: how much less similar than the pair a candidate has to be.
        kind: absolute or relative.
        by: "guide" takes `Side.guide`, unit vectors of any model; "self" takes the embeddings in
            training.

    Raises:
        DataError: a side without guide vectors.

    >>> from tempera import Objective
    >>> near = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    >>> losses = Objective(temperature=1.0, masks=[Guided(margin=0.5, by="self")])(near, near)
    >>> losses.tolist()
    [0.0, 0.0]
    """

    margin: float = 0.0
    kind: Literal["absolute", "relative"] = "absolute"
    by: Literal["guide", "self"] = "guide"

    def __post_init__(self) -> None:
        refuse_unknown("guided: kind", self.kind, "absolute", "relative")
        refuse_unknown("guided: by", self.by, "guide", "self")
        refuse_not_a_number("guided: margin", self.margin)

    def __call__(self, block: Block) -> tuple[Exclusion, ...]:
        local = block.batch.local
        query = self._vectors(block, "query")[local]  # [b, G]
        doc = self._vectors(block, "doc")[sent(block.batch.answers[local], query.device)]  # [b, G]
        pair = (query * doc).sum(1, keepdim=True)  # [b, 1]
        margin: float | Tensor = self.margin
        if self.kind == "relative":
            margin = self.margin * pair.abs()
        bound = pair - margin
        bound += TIE * torch.finfo(bound.dtype).eps
        anchors = query if block.anchor == "query" else doc
        candidates = self._vectors(block, block.candidate)
        # Numbers that are not finite make these NaN, and with them the losses: no comparison with
        # such a number is true, so that the candidate would be left out in silence.
        minus = torch.rsub(bound, -1, alpha=0)  # [b, 1] -1 - 0 bound: -1 or NaN
        plus = torch.rsub(candidates.sum(1), 1, alpha=0)  # [c] 1 - 0 sum: 1 or NaN

        def closer(tile: slice) -> Tensor:
            similarities = anchors[tile] @ candidates.T
            # 1 or 0: several times as fast as booleans
            kept = torch.le(similarities, bound[tile], out=similarities)
            kept.reciprocal_()  # 1 or infinity
            return torch.addcmul(plus, kept, minus[tile], out=kept)  # 0, -inf or NaN

        return (closer,)

    def _vectors(self, block: Block, role: str) -> Tensor:
        side = getattr(block.batch, role)
        if self.by == "self":
            return cosine(side.rows.detach())
        if side.guide is None:
            raise DataError(
                f"guided needs a guide's vectors of every side, and {role} has none: give the folder of a saved model as "
                "train.guide=FOLDER (in your own loop the vectors as guide=), or let the model judge, by: self"
            )
        return exact(side.guide)


def _shared(known: Shared, ids: Tensor, device: torch.device) -> Exclusion:
    """Return the exclusion of candidates whose ids, [c], are on the list of a row: a list is looked
    up once for all rows of a tile that share it."""
    matches = match(known.lists.values, ids, known.lists.offsets)

    def on_the_list(tile: slice) -> Tensor:
        lists, list_of_row = torch.unique(known.of[tile], return_inverse=True)
        left_out = torch.zeros(len(lists), len(ids), device=device)
        rows, columns = matches.of(lists)(slice(0, len(lists)))
        left_out[sent(rows, device), sent(columns, device)] = -torch.inf
        return left_out[sent(list_of_row, device)]  # several times as fast as pair by pair

    return on_the_list


def doc_ids(block: Block) -> Tensor:
    """Ids of the rows' documents, [n]."""
    ids = block.batch.doc_ids
    if ids is None:
        raise DataError("documents are compared by id, and the batch has no ids of doc: give ids=")
    return ids


def _paired_ids(block: Block) -> Tensor:
    """Ids of the documents that the candidates of a paired block are or belong to, [c]."""
    if block.candidate == "query" or block.batch.answer is None:
        return doc_ids(block)
    return _candidate_ids(block)


def _known_ids(block: Block) -> Tensor:
    """Ids of the documents among which a query's known answers are looked for, [c]."""
    return _paired_ids(block) if block.paired else _candidate_ids(block)


def _candidate_ids(block: Block) -> Tensor:
    ids = block.candidates.ids
    if ids is None:
        raise DataError(
            f"documents are compared by id, and the batch has no ids of {block.candidate}: give ids="
        )
    return ids
