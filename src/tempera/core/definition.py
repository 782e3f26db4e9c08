"""The objective as it is defined, row by row and candidate by candidate in float64: the oracle of
the tiles.

    loss_i = mean over softmaxes of [ log sum_c exp(l_ic) - level_i ],    l_ic = s_ic / t + corrections

with level_i the logit of the row's positive, or the mean or the log-sum-exp of several positives,

or, with a teacher, (1 - w) of the loss above and w of the row's divergence from the teacher.

Shares no line with the tiles. Gradients are autograd's. Takes some milliseconds for ten rows: for
small batches only.

Letters: i a row, c a candidate, n rows, k candidates of a row. A block is a pair of roles: anchor
    and candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, Role, Side
from .corrections import Hardness, LogQ, Margin
from .masks import Guided, KnownPositives, SameId
from .matryoshka import Matryoshka
from .objective import Objective
from .similarity import cosine
from .teacher import Teacher

Block = tuple[Role, Role]


def defined_losses(
    objective: Objective | Matryoshka, batch: Batch[Tensor], scale: Tensor | None = None
) -> Tensor:
    """Compute the loss of every row of a whole batch, [n] float64, differentiable for every
    embedding and the temperature.

    With Matryoshka, the loss is the weighted sum over the widths and the precisions.

    Args:
        scale: 1/t; None is the scale of the objective's temperature. A batch's own temperature
            comes first.

    >>> from .batch import Side
    >>> eye = torch.eye(3)
    >>> [round(loss, 4) for loss in defined_losses(Objective(temperature=1.0), Batch(Side(eye), Side(eye))).tolist()]
    [0.5514, 0.5514, 0.5514]
    """
    if isinstance(objective, Matryoshka):
        total = torch.zeros(len(batch), dtype=torch.float64)
        widths = objective.widths or (batch.doc.rows.shape[1],)
        for width, weight in zip(widths, objective.weights, strict=True):
            for precision in ("float32", *objective.precisions):
                rows = {}
                for role, side in batch.sides().items():
                    rows[role] = kept(side.rows[:, :width].double(), precision)
                losses = defined_losses(objective.objective, batch.of(rows), scale)
                total = total + weight * losses
        return total
    if batch.temperature is not None:
        scale = torch.tensor(1 / batch.temperature, dtype=torch.float64)
    elif scale is None:
        scale = objective.temperature.scale()
    return Definition(objective, batch, scale.double()).losses()


@dataclass(frozen=True)
class Definition:
    """The candidates that an objective gives each row of a whole batch, and the logits."""

    objective: Objective
    batch: Batch[Tensor]
    scale: Tensor  # 1/t

    def losses(self) -> Tensor:
        """Compute the loss of every row, [n]: the mean over softmaxes, mixed with the loss against
        a teacher."""
        contrast = torch.stack([self.loss(blocks) for blocks in self.softmaxes()]).mean(0)
        teacher = self.objective.teacher
        if teacher is None:
            return contrast
        weight = teacher.share(self.objective.progress)
        return (1 - weight) * contrast + weight * self.taught(teacher)

    def taught(self, teacher: Teacher) -> Tensor:
        """Compute the loss of every row against a teacher, [n]: the mean over the row's anchors."""
        by_anchor: dict[Role, list[Block]] = {"query": [], "doc": []}
        for pool in teacher.compared:
            for block in pool.blocks:
                if len(self._sides.get(block[1], ())):
                    by_anchor[block[0]].append(block)
        divergences = [self.divergence(teacher, blocks) for blocks in by_anchor.values() if blocks]
        return torch.stack(divergences).mean(0)

    def divergence(self, teacher: Teacher, blocks: list[Block]) -> Tensor:
        """Compute KL(P || Q) of each row's anchor over the candidates of some blocks, [n], with P the
        teacher's softmax and Q the student's."""
        losses = []
        student_temperature = 1 / teacher.scales[0]
        teacher_temperature = 1 / teacher.scales[1]
        allowed = {block: self.compared(block, teacher.own) for block in blocks}
        for i in range(len(self.batch)):
            student = []
            target = []
            for block in blocks:
                chosen = allowed[block][i]
                added = torch.zeros(len(chosen), dtype=torch.float64)
                if not teacher.own:
                    added = self.logq_terms(block, chosen)
                similarities = self.similarities(block)[i, chosen]
                student.append(similarities / student_temperature + added)
                target.append(self.teacher_says(block, i, chosen) / teacher_temperature + added)
            u = torch.cat(student)
            v = torch.cat(target)
            loss = torch.sum(v.softmax(0) * (v.log_softmax(0) - u.log_softmax(0)))
            for block in blocks:
                unsaid = self.unsaid(block)[i]
                compared = self.listed(block, teacher.own)[i] - self.pair(block)[i]
                loss = loss + unsaid[sorted(compared)].sum()
            losses.append(loss)
        return torch.stack(losses)

    def logq_terms(self, block: Block, chosen: list[int]) -> Tensor:
        """Compute the sampling corrections of chosen candidates, [k]."""
        added = torch.zeros(len(chosen), dtype=torch.float64)
        for correction in self.objective.corrections:
            if isinstance(correction, LogQ):
                logq = _needed(self._sides[block[1]].logq).double()
                added = added - correction.weight * logq[chosen]
        return added

    def teacher_says(self, block: Block, i: int, chosen: list[int]) -> Tensor:
        """Compute the teacher's similarities of a row's anchor and chosen candidates, [k]: products
        of the teacher's vectors."""
        anchors, candidates = (_needed(self._sides[role].teacher).double() for role in block)
        return anchors[self.places(block[0])[i]] @ candidates[chosen].T  # type: ignore[no-any-return]

    def compared(self, block: Block, own: bool) -> list[list[int]]:
        """List the candidates that a teacher compares with each row's anchor: all candidates, or
        the row's own, without the anchor itself and masked candidates; the row's pair stays, masked
        or not."""
        listed = self.listed(block, own)
        masked = self.masked(block)
        pair = self.pair(block)
        compared = []
        for i, place in enumerate(self.places(block[1])):
            candidates = listed[i] - (masked[i] - pair[i])
            if block[0] == block[1]:
                candidates = candidates - {place}
            compared.append(sorted(candidates))
        return compared

    def pair(self, block: Block) -> list[set[int]]:
        """Find each row's positive among the candidates of a block, if present."""
        if not holds_positive(block):
            return self._nothing
        return [{place} for place in self.places(block[1])]

    def listed(self, block: Block, own: bool) -> list[set[int]]:
        """Find the candidates of each row before any is left out: all, or its own."""
        if not own:
            return [set(range(len(self._sides[block[1]])))] * len(self.batch)
        return self.pair(block) if block[1] == "doc" else self.own(block[1])

    def softmaxes(self) -> list[list[Block]]:
        """List the blocks of each softmax; a block without candidates in the batch is left out."""
        softmaxes: dict[str, list[Block]] = {}
        for pool in self.objective.pools:
            for anchor, candidate in pool.blocks:
                if candidate not in self._sides:
                    continue
                name = "joint"
                if self.objective.partition == "per_direction":
                    name = f"{anchor}>{'query' if candidate == 'query' else 'doc'}"
                softmaxes.setdefault(name, []).append((anchor, candidate))
        return list(softmaxes.values())

    def loss(self, blocks: list[Block]) -> Tensor:
        """Compute every row's loss in the softmax over some blocks, [n].

        One of the blocks holds the positives of the numerator. With `hardest`, only the negatives
        with the highest logits, over all blocks, are in the sum.
        """
        held = next(block for block in blocks if holds_positive(block))
        positives = {block: self.positives(block, several=block == held) for block in blocks}
        negatives = {block: self.negatives(block, positives[block]) for block in blocks}
        as_positive = {block: self.logits(block, positive=True) for block in blocks}
        as_negative = {block: self.logits(block, positive=False) for block in blocks}
        unsaid = {block: self.unsaid(block) for block in blocks}
        losses = []
        for i in range(len(self.batch)):
            positive = {
                block: as_positive[block][i, sorted(positives[block][i])] for block in blocks
            }
            negative = torch.cat([as_negative[block][i, negatives[block][i]] for block in blocks])
            if self.objective.hardest is not None:
                negative = negative.topk(min(self.objective.hardest, len(negative))).values
            loss = _log_sum_exp(torch.cat([*positive.values(), negative]))
            loss = loss - _NUMERATORS[self.objective.numerator](positive[held])
            for block in blocks:
                others = set(range(len(self._sides[block[1]]))) - positives[block][i]
                loss = loss + unsaid[block][i, sorted(others)].sum()
            losses.append(loss)
        return torch.stack(losses)

    def similarities(self, block: Block) -> Tensor:
        """Compute the similarity of each row's anchor and every candidate, [n, c]."""
        anchors, candidates = (self._sides[role].rows.double() for role in block)
        return _similarities(
            anchors[self.places(block[0])], candidates, self.objective.similarity == cosine
        )

    def logits(self, block: Block, positive: bool) -> Tensor:
        """Compute the logit of each candidate as a positive, or as a negative, of each row, [n,
        c]."""
        similarities = self.similarities(block)
        logits = similarities * self.scale
        for correction in self.objective.corrections:
            if isinstance(correction, LogQ) and (correction.kind == "classic" or not positive):
                logits = logits - correction.weight * _needed(self._sides[block[1]].logq).double()
            elif isinstance(correction, Margin) and positive:
                logits = logits - correction.margin
            elif isinstance(correction, Hardness) and not positive:
                gains = correction.strength * similarities.detach()
                logits = logits + torch.where(self.harder(block, correction), gains, 0.0)
        return logits

    def harder(self, block: Block, correction: Hardness) -> Tensor:
        """Find the candidates that a correction makes harder for each row, [n, c]; only documents
        for queries."""
        harder = torch.zeros(len(self.batch), len(self._sides[block[1]]), dtype=torch.bool)
        if block[0] != "query" or block[1] == "query":
            return harder
        for i, mine in enumerate(self.own(block[1])):
            harder[i, sorted(mine)] = True
        if correction.on == "all":
            return torch.ones_like(harder)
        return harder if correction.on == "own" else ~harder

    def places(self, role: Role) -> list[int]:
        """Find where each row's own query or document stands, [n]."""
        if role == "query" or self.batch.answer is None:
            return list(range(len(self.batch)))
        return [self._ids["doc"].index(answer) for answer in self.batch.answer.tolist()]

    def own(self, role: Role) -> list[set[int]]:
        """Find the candidates that belong to each row; a document shared by all rows belongs to
        none."""
        if role == "query" or (role == "doc" and self.batch.answer is None):
            return [{i} for i in range(len(self.batch))]
        own: list[set[int]] = [set() for _ in range(len(self.batch))]
        owner = self._sides[role].owner
        if owner is not None:
            for c, row in enumerate(owner.tolist()):
                if row >= 0:
                    own[row].add(c)
        return own

    def positives(self, block: Block, several: bool) -> list[set[int]]:
        """Find each row's positives in a block: the row's pair and, with `several`, the candidates
        of other rows with the same id or known to answer, unless the numerator is "one"."""
        if not holds_positive(block):
            return self._nothing
        positives = self.pair(block)
        if several and self.objective.numerator != "one":
            positives = _joined(positives, self.same_id(block))
            if self.batch.known is not None:
                positives = _joined(positives, self.known(block))
        return positives

    def negatives(self, block: Block, positives: list[set[int]]) -> list[list[int]]:
        """List the candidates of each row that are neither positives nor masked."""
        everything = set(range(len(self._sides[block[1]])))
        left_out = _joined(_joined(positives, self.masked(block)), self.no_candidates(block))
        return [sorted(everything - out) for out in left_out]

    def no_candidates(self, block: Block) -> list[set[int]]:
        """Find the columns that are no candidates of a row at all: the anchor itself and, for a
        document, its row's negatives."""
        if block[0] == block[1]:
            return [{place} for place in self.places(block[1])]
        if block == ("doc", "negatives"):
            return self.own("negatives")
        return self._nothing

    def masked(self, block: Block) -> list[set[int]]:
        """Find the candidates of each row that a mask names; the row's positives can be among the
        masked candidates, and the callers keep the positives."""
        masked = self._nothing
        for mask in self.objective.masks:
            if isinstance(mask, SameId):
                masked = _joined(masked, self.same_id(block))
            elif isinstance(mask, KnownPositives):
                masked = _joined(masked, self.known(block))
            elif isinstance(mask, Guided):
                masked = _joined(masked, self.guided(block, mask))
        return masked

    def same_id(self, block: Block) -> list[set[int]]:
        """Find the candidates with the same id as each row.

        Two queries, or two documents, are the same if the ids are equal. Candidates of row i are

            query           the queries of rows with the query or the document of row i
            doc             the documents with the id of row i's document, and the documents of rows
                            with the query of row i
            other roles     the documents with the id of row i's document
        """
        queries = self._ids["query"]
        documents = self._documents
        of_query = [_equal(queries, query) for query in queries]  # rows
        if block[1] == "query":
            return _joined(of_query, [_equal(documents, document) for document in documents])
        same = [_equal(self._ids[block[1]], document) for document in documents]
        if block[1] != "doc":
            return same
        places = self.places("doc")
        return _joined(same, [{places[j] for j in rows} for rows in of_query])

    def known(self, block: Block) -> list[set[int]]:
        """Find the documents known to answer each row's query.

        In the role of queries, find the queries of rows whose document answers row i, or whose
        known answers hold the document of row i.
        """
        listed = _needed(self.batch.known)
        known = [set(ids.tolist()) for ids in listed.values.split(listed.lengths.tolist())]
        candidates: list[set[int]] = [set() for _ in known]
        for i, mine in enumerate(known):
            if block[1] != "query":
                for c, document in enumerate(self._ids[block[1]]):
                    if document in mine:
                        candidates[i].add(c)
            else:
                for j, theirs in enumerate(known):
                    if self._documents[j] in mine or self._documents[i] in theirs:
                        candidates[i].add(j)
        return candidates

    def guided(self, block: Block, mask: Guided) -> list[set[int]]:
        """Find the candidates that a guide finds closer to the anchor than the row's pair; a tie is
        not closer."""
        similarities, bounds = self.judged(block, mask)
        closer = similarities > bounds
        return [set(row.nonzero()[:, 0].tolist()) for row in closer]

    def unsaid(self, block: Block) -> Tensor:
        """Mark comparisons with a vector of the guide that is not finite, [n, c]: NaN for such a
        comparison, else 0; added to the loss, NaN shows a damaged guide."""
        unsaid = torch.zeros(len(self.batch), len(self._sides[block[1]]), dtype=torch.float64)
        for mask in self.objective.masks:
            if isinstance(mask, Guided):
                similarities, bounds = self.judged(block, mask)
                unsaid = unsaid + 0 * similarities + 0 * bounds
        return unsaid

    def judged(self, block: Block, mask: Guided) -> tuple[Tensor, Tensor]:
        """Find a guide's similarities, [n, c], and the bounds above which a candidate is closer,
        [n, 1]."""
        is_own = mask.by == "self"
        vectors = {}
        for role, side in self._sides.items():
            rows = side.rows if is_own else _needed(side.guide)
            vectors[role] = rows.detach().double()
        queries = vectors["query"][self.places("query")]
        documents = vectors["doc"][self.places("doc")]
        pairs = _similarities(queries, documents, is_own).diagonal()
        margins = mask.margin * (pairs.abs() if mask.kind == "relative" else 1.0)
        bounds = pairs - margins + 1e-12
        anchors = queries if block[0] == "query" else documents
        return _similarities(anchors, vectors[block[1]], is_own), bounds[:, None]

    @property
    def _nothing(self) -> list[set[int]]:
        """No candidate of any row."""
        return [set() for _ in range(len(self.batch))]

    @cached_property
    def _sides(self) -> Mapping[Role, Side[Tensor]]:
        return self.batch.sides()

    @cached_property
    def _ids(self) -> dict[Role, list[int | None]]:
        ids: dict[Role, list[int | None]] = {}
        for role, side in self._sides.items():
            ids[role] = [None] * len(side) if side.ids is None else side.ids.tolist()
        return ids

    @cached_property
    def _documents(self) -> list[int | None]:
        """The id of each row's document, [n]."""
        return [self._ids["doc"][place] for place in self.places("doc")]


def kept(rows: Tensor, precision: str) -> Tensor:
    """Return rows rounded to a precision, [n, D], with the gradient of the rows themselves."""
    numbers = []
    for row in rows.tolist():
        largest = max(map(abs, row))
        length = math.sqrt(sum(x * x for x in row))
        for x in row:
            if precision == "int8":
                numbers.append(round(127 * x / largest) * largest / 127 if largest else 0.0)
            elif precision == "binary":
                numbers.append(math.copysign(length / math.sqrt(len(row)), 1 if x > 0 else -1))
            else:
                numbers.append(x)
    rounded = torch.tensor(numbers, dtype=torch.float64).reshape(rows.shape)
    return rows + (rounded - rows.detach())


def holds_positive(block: Block) -> bool:
    """Return True if a row's positive is among the candidates of a block."""
    return block in (("query", "doc"), ("doc", "query"))


def _similarities(anchors: Tensor, candidates: Tensor, normalised: bool) -> Tensor:
    """Compute inner products or cosines of all anchors and all candidates, [n, c]; 0 for a vector
    without direction."""
    if not normalised:
        return anchors @ candidates.T
    squares = anchors.square().sum(1)[:, None] * candidates.square().sum(1)
    none = squares == 0
    return (anchors @ candidates.T / squares.masked_fill(none, 1).sqrt()).masked_fill(none, 0)


def _log_sum_exp(logits: Tensor) -> Tensor:
    return logits.logsumexp(0)


# level_i by the logits of a row's positives, [k]; for one positive all three are the logit.
_NUMERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "one": lambda logits: logits.sum(),
    "mean": lambda logits: logits.mean(),
    "sum": _log_sum_exp,
}


def _equal(ids: list[int | None], one: int | None) -> set[int]:
    """Find the places of an id in a list; none for None."""
    return set() if one is None else {place for place, each in enumerate(ids) if each == one}


def _joined(sets: list[set[int]], others: list[set[int]]) -> list[set[int]]:
    """Join sets row by row."""
    return [mine | more for mine, more in zip(sets, others, strict=True)]


def _needed(value: Any) -> Any:
    assert value is not None, "a part of the objective needs what the batch does not have"
    return value
