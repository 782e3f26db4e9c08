"""The objective as it is defined, row by row and candidate by candidate in float64: what the tiles
are checked against.

    loss_i = mean over softmaxes of [ log sum_c exp(l_ic) - level_i ],    l_ic = s_ic / t + corrections

or, with a teacher, (1 - w) of that and w of how far the row is from what the teacher says.

Shares no line with the tiles. Gradients are autograd's. Takes some milliseconds for ten rows, so it
is for small batches.

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

    Args:
        scale: 1/t; None is that of the objective's dial. A batch with a temperature of its own is
            scored by that.

    >>> from .batch import Side
    >>> eye = torch.eye(3)
    >>> [round(loss, 4) for loss in defined_losses(Objective(temperature=1.0), Batch(Side(eye), Side(eye))).tolist()]
    [0.5514, 0.5514, 0.5514]
    """
    if isinstance(objective, Matryoshka):
        total = torch.zeros(len(batch), dtype=torch.float64)
        for width, weight in zip(
            objective.widths or (batch.doc.rows.shape[1],), objective.weights, strict=True
        ):
            for precision in ("float32", *objective.precisions):
                cut = batch.map(lambda rows, w=width, p=precision: kept(rows[:, :w].double(), p))  # type: ignore[misc]
                total = total + weight * defined_losses(objective.objective, cut, scale)
        return total
    if batch.temperature is not None:
        scale = torch.tensor(1 / batch.temperature, dtype=torch.float64)
    elif scale is None:
        scale = objective.temperature.scale()
    return Definition(objective, batch, scale.double()).losses()


@dataclass(frozen=True)
class Definition:
    """The candidates that an objective gives each row of a whole batch, and their logits."""

    objective: Objective
    batch: Batch[Tensor]
    scale: Tensor  # 1/t

    def losses(self) -> Tensor:
        """Compute the loss of every row, [n]: the mean of its losses in each softmax, mixed with
        what the teacher says."""
        contrast = torch.stack([self.loss(blocks) for blocks in self.softmaxes()]).mean(0)
        teacher = self.objective.teacher
        if teacher is None:
            return contrast
        weight = teacher.share(self.objective.progress)
        return (1 - weight) * contrast + weight * self.taught(teacher)

    def taught(self, teacher: Teacher) -> Tensor:
        """Compute the loss of every row against a teacher, [n]: the mean over its anchors."""
        blocks = [
            block
            for pool in teacher.compared
            for block in pool.blocks
            if len(self._sides.get(block[1], ()))
        ]
        differences = [
            self.difference(teacher, [block for block in blocks if block[0] == anchor])
            for anchor in ("query", "doc")
            if any(block[0] == anchor for block in blocks)
        ]
        return torch.stack(differences).mean(0)

    def difference(self, teacher: Teacher, blocks: list[Block]) -> Tensor:
        """Compute how far the logits of each row's anchor and the candidates of some blocks are
        from the teacher's, [n]."""
        losses = []
        scales = [1 / scale for scale in teacher.scales]
        allowed = {block: self.compared(block, teacher.own) for block in blocks}
        for i in range(len(self.batch)):
            student, target = [], []
            for block in blocks:
                chosen = allowed[block][i]
                added = torch.zeros(len(chosen), dtype=torch.float64)
                for correction in self.objective.corrections:
                    if isinstance(correction, LogQ) and not teacher.own:
                        added = (
                            added
                            - correction.weight
                            * _needed(self._sides[block[1]].logq).double()[chosen]
                        )
                target.append(self.said(block, i, chosen) / scales[1] + added)
                student.append(self.similarities(block)[i, chosen] / scales[0] + added)
            u, v = torch.cat(student), torch.cat(target)
            loss = torch.sum(v.softmax(0) * (v.log_softmax(0) - u.log_softmax(0)))
            for block in blocks:
                unsaid = self.unsaid(block)[i]
                compared = self.listed(block, teacher.own)[i] - self.pair(block)[i]
                loss = loss + unsaid[sorted(compared)].sum()
            losses.append(loss)
        return torch.stack(losses)

    def said(self, block: Block, i: int, chosen: list[int]) -> Tensor:
        """Find what a teacher says of a row's anchor and chosen candidates: products of its
        vectors."""
        anchors, candidates = (_needed(self._sides[role].teacher).double() for role in block)
        return anchors[self.places(block[0])[i]] @ candidates[chosen].T  # type: ignore[no-any-return]

    def compared(self, block: Block, own: bool) -> list[list[int]]:
        """List the candidates that a teacher compares with each row's anchor: all, or its own, but
        itself and what is masked."""
        masked, pair = self.masked(block), self.pair(block)
        itself = [{place} if block[0] == block[1] else set() for place in self.places(block[1])]
        rows = zip(self.listed(block, own), masked, pair, itself, strict=True)
        return [sorted(all_of - (out - kept) - anchor) for all_of, out, kept, anchor in rows]

    def pair(self, block: Block) -> list[set[int]]:
        """Find each row's positive among the candidates of a block that holds it."""
        return [{place} if holds_positive(block) else set() for place in self.places(block[1])]

    def listed(self, block: Block, own: bool) -> list[set[int]]:
        """Find the candidates of each row before any is left out: all, or its own."""
        if not own:
            return [set(range(len(self._sides[block[1]])))] * len(self.batch)
        return self.pair(block) if block[1] == "doc" else self.own(block[1])

    def softmaxes(self) -> list[list[Block]]:
        """List the blocks of each softmax; a block whose candidates the batch does not have is left
        out."""
        softmaxes: dict[str, list[Block]] = {}
        for anchor, candidate in (block for pool in self.objective.pools for block in pool.blocks):
            if candidate in self._sides:
                direction = f"{anchor}>{'query' if candidate == 'query' else 'doc'}"
                joint = self.objective.partition == "joint"
                softmaxes.setdefault("" if joint else direction, []).append((anchor, candidate))
        return list(softmaxes.values())

    def loss(self, blocks: list[Block]) -> Tensor:
        """Compute every row's loss in the softmax over some blocks, [n]."""
        held = next(block for block in blocks if holds_positive(block))
        positives = {block: self.positives(block, several=block == held) for block in blocks}
        negatives = {block: self.negatives(block, positives[block]) for block in blocks}
        tables = {block: (self.logits(block, True), self.logits(block, False)) for block in blocks}
        unsaid = {block: self.unsaid(block) for block in blocks}
        losses = []
        for i in range(len(self.batch)):
            positive = {block: tables[block][0][i, sorted(positives[block][i])] for block in blocks}
            negative = torch.cat([tables[block][1][i, negatives[block][i]] for block in blocks])
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
        """Compute the logit that each candidate has as a positive, or as a negative, of each row,
        [n, c]."""
        similarities = self.similarities(block)
        logits = similarities * self.scale
        for correction in self.objective.corrections:
            if isinstance(correction, LogQ) and (correction.kind == "classic" or not positive):
                logits = logits - correction.weight * _needed(self._sides[block[1]].logq).double()
            elif isinstance(correction, Margin) and positive:
                logits = logits - correction.margin
            elif (
                isinstance(correction, Hardness)
                and not positive
                and block[0] == "query" != block[1]
            ):
                own = torch.tensor(
                    [[c in mine for c in range(logits.shape[1])] for mine in self.own(block[1])],
                    dtype=torch.bool,
                )
                harder = {"all": own | ~own, "own": own, "others": ~own}[correction.on]
                logits = logits + torch.where(
                    harder, correction.strength * similarities.detach(), 0.0
                )
        return logits

    def places(self, role: Role) -> list[int]:
        """Find where each row's own query or document stands, [n]."""
        if role == "query" or self.batch.answer is None:
            return list(range(len(self.batch)))
        return [self._ids["doc"].index(answer) for answer in self.batch.answer.tolist()]

    def own(self, role: Role) -> list[set[int]]:
        """Find the candidates that came with each row alone; a document that rows share came with
        none."""
        if role == "query" or (role == "doc" and self.batch.answer is None):
            return [{i} for i in range(len(self.batch))]
        owner = self._sides[role].owner
        owners = [] if owner is None else owner.tolist()
        return [{c for c, row in enumerate(owners) if row == i} for i in range(len(self.batch))]

    def positives(self, block: Block, several: bool) -> list[set[int]]:
        """Find each row's positives; `several` adds those of other rows, where the numerator counts
        them."""
        if not holds_positive(block):
            return [set() for _ in range(len(self.batch))]
        positives = [{place} for place in self.places(block[1])]
        if several and self.objective.numerator != "one":
            positives = _joined(positives, self.same_id(block))
            positives = (
                positives if self.batch.known is None else _joined(positives, self.known(block))
            )
        return positives

    def negatives(self, block: Block, positives: list[set[int]]) -> list[list[int]]:
        """List the candidates of each row that are neither positives nor masked."""
        left_out = _joined(positives, self.masked(block), self.no_candidates(block))
        return [[c for c in range(len(self._sides[block[1]])) if c not in out] for out in left_out]

    def no_candidates(self, block: Block) -> list[set[int]]:
        """Find what is no candidate of a row at all: the anchor itself and, for a document, its
        row's negatives."""
        if block[0] == block[1]:
            return [{place} for place in self.places(block[1])]
        return (
            self.own("negatives")
            if block == ("doc", "negatives")
            else [set() for _ in range(len(self.batch))]
        )

    def masked(self, block: Block) -> list[set[int]]:
        """Find what the masks leave out of a block for each row, its positives included."""
        masked: list[set[int]] = [set() for _ in range(len(self.batch))]
        for mask in self.objective.masks:
            if isinstance(mask, SameId):
                masked = _joined(masked, self.same_id(block))
            elif isinstance(mask, KnownPositives):
                masked = _joined(masked, self.known(block))
            elif isinstance(mask, Guided):
                masked = _joined(masked, self.guided(block, mask))
        return masked

    def same_id(self, block: Block) -> list[set[int]]:
        """Find the candidates that are each row's query or document by their ids, or belong to one
        that is."""
        queries, documents = self._ids["query"], self._documents
        of_query = [_equal(queries, query) for query in queries]
        if block[1] == "query":
            return _joined(of_query, [_equal(documents, document) for document in documents])
        same = [_equal(self._ids[block[1]], document) for document in documents]
        places = self.places("doc")
        return (
            _joined(same, [{places[j] for j in rows} for rows in of_query])
            if block[1] == "doc"
            else same
        )

    def known(self, block: Block) -> list[set[int]]:
        """Find the candidates that are known to go with each row."""
        listed = _needed(self.batch.known)
        known = [set(ids.tolist()) for ids in listed.values.split(listed.lengths.tolist())]
        if block[1] != "query":
            return [
                {c for c, each in enumerate(self._ids[block[1]]) if each in mine} for mine in known
            ]
        rows = list(zip(self._documents, known, strict=True))
        return [
            {j for j, (other, theirs) in enumerate(rows) if other in mine or own in theirs}
            for own, mine in rows
        ]

    def guided(self, block: Block, mask: Guided) -> list[set[int]]:
        """Find the candidates that a guide places closer to the anchor than the row's pair; a tie
        is not closer."""
        similarities, bounds = self.judged(block, mask)
        closer = similarities > bounds
        return [{c for c, is_closer in enumerate(row) if is_closer} for row in closer.tolist()]

    def unsaid(self, block: Block) -> Tensor:
        """Find the comparisons of which a guide says nothing, [n, c]: NaN there, and 0 elsewhere."""
        unsaid = torch.zeros(len(self.batch), len(self._sides[block[1]]), dtype=torch.float64)
        for mask in self.objective.masks:
            if isinstance(mask, Guided):
                similarities, bounds = self.judged(block, mask)
                unsaid = unsaid + 0 * similarities + 0 * bounds
        return unsaid

    def judged(self, block: Block, mask: Guided) -> tuple[Tensor, Tensor]:
        """Find a guide's similarities, [n, c], and the bounds above which a candidate is closer,
        [n, 1]."""
        own = mask.by == "self"
        sides = {
            role: _needed(side.rows if own else side.guide) for role, side in self._sides.items()
        }
        vectors = {role: rows.detach().double() for role, rows in sides.items()}
        anchors = {role: vectors[role][self.places(role)] for role in ("query", "doc")}
        pairs = _similarities(anchors["query"], anchors["doc"], own).diagonal()
        bounds = pairs - mask.margin * (pairs.abs() if mask.kind == "relative" else 1.0) + 1e-12
        return _similarities(anchors[block[0]], vectors[block[1]], own), bounds[:, None]

    @cached_property
    def _sides(self) -> Mapping[Role, Side[Tensor]]:
        return self.batch.sides()

    @cached_property
    def _ids(self) -> dict[Role, list[int | None]]:
        return {
            role: [None] * len(side) if side.ids is None else side.ids.tolist()
            for role, side in self._sides.items()
        }

    @cached_property
    def _documents(self) -> list[int | None]:
        """The id of each row's document, [n]."""
        return [self._ids["doc"][place] for place in self.places("doc")]


def kept(rows: Tensor, precision: str) -> Tensor:
    """Return what a precision keeps of each number of each row, [n, D], as a constant beside the
    gradient of the number."""
    numbers = []
    for row in rows.tolist():
        largest, length = max(map(abs, row)), math.sqrt(sum(x * x for x in row))
        for x in row:
            if precision == "int8":
                numbers.append(round(127 * x / largest) * largest / 127 if largest else 0.0)
            elif precision == "binary":
                numbers.append(math.copysign(length / math.sqrt(len(row)), 1 if x > 0 else -1))
            else:
                numbers.append(x)
    return rows + (torch.tensor(numbers, dtype=torch.float64).reshape(rows.shape) - rows.detach())


def holds_positive(block: Block) -> bool:
    """Return True if a row's positive is among the candidates of a block."""
    return block in (("query", "doc"), ("doc", "query"))


def _similarities(anchors: Tensor, candidates: Tensor, normalised: bool) -> Tensor:
    """Compute inner products or cosines of all anchors and all candidates, [n, c]; 0 where one has
    no direction."""
    if not normalised:
        return anchors @ candidates.T
    squares = anchors.square().sum(1)[:, None] * candidates.square().sum(1)
    none = squares == 0
    return (anchors @ candidates.T / squares.masked_fill(none, 1).sqrt()).masked_fill(none, 0)


def _log_sum_exp(logits: Tensor) -> Tensor:
    return logits.logsumexp(0)


# The level that positives, [k], are credited with; of one positive all three are its logit.
_NUMERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "one": lambda logits: logits.sum(),
    "mean": lambda logits: logits.mean(),
    "sum": _log_sum_exp,
}


def _equal(ids: list[int | None], one: int | None) -> set[int]:
    """Find the places of an id, if there is one."""
    return set() if one is None else {place for place, each in enumerate(ids) if each == one}


def _joined(*sets: list[set[int]]) -> list[set[int]]:
    """Join sets row by row."""
    return [set().union(*each) for each in zip(*sets, strict=True)]


def _needed(value: Any) -> Any:
    assert value is not None, "a part of the objective needs what the batch does not have"
    return value
