"""The objective as it is defined, in plain loops over float64 numbers: what the tiles are checked against.

    loss_i = mean over softmaxes of [ log sum_c exp(l_ic) - level_i ],    l_ic = s_ic / t + corrections

Shares no line with the tiles. Takes some 10 microseconds a candidate, so it is for small batches.

Letters: i a row, c a candidate, a the anchor of row i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .batch import Batch
from .corrections import Hardness, LogQ, Margin
from .masks import Guided, KnownPositives, SameId
from .matryoshka import Matryoshka
from .objective import Objective
from .similarity import cosine

Vector = list[float]


def defined_losses(objective: Objective | Matryoshka, batch: Batch[Tensor]) -> list[float]:
    """Loss of every row of a whole batch.

    >>> import torch
    >>> from .batch import Side
    >>> eye = torch.eye(3)
    >>> [round(loss, 4) for loss in defined_losses(Objective(temperature=1.0), Batch(Side(eye), Side(eye)))]
    [0.5514, 0.5514, 0.5514]
    """
    if isinstance(objective, Matryoshka):
        total = [0.0] * len(batch)
        for width, weight in zip(objective.widths, objective.weights, strict=True):
            part = defined_losses(objective.objective, batch.map(lambda rows, w=width: rows[:, :w]))  # type: ignore[misc]
            total = [a + weight * b for a, b in zip(total, part, strict=True)]
        return total
    softmaxes: dict[str, list[tuple[str, str]]] = {}
    for anchor, candidate in (pair for pool in objective.pools for pair in pool.blocks):
        kinds = f"{anchor}>{'query' if candidate == 'query' else 'doc'}"
        softmaxes.setdefault(kinds if objective.partition == "per_direction" else "", []).append((anchor, candidate))
    rows = _Rows.of(objective, batch)
    return [math.fsum(rows.loss(i, pairs) for pairs in softmaxes.values()) / len(softmaxes) for i in range(len(batch))]


@dataclass
class _Rows:
    """A batch as lists."""

    objective: Objective
    vectors: dict[str, list[Vector]]
    ids: dict[str, list[int] | None]
    logq: dict[str, list[float] | None]
    guide: dict[str, list[Vector] | None]
    owner: dict[str, list[int]]
    known: list[list[int]]
    doc_of: list[int]  # where each row's document stands
    temperature: float

    @classmethod
    def of(cls, objective: Objective, batch: Batch[Tensor]) -> _Rows:
        sides = batch.sides()
        known: list[list[int]] = [[] for _ in range(len(batch))]
        if batch.known is not None:
            known = [batch.known[[i]].values.tolist() for i in range(len(batch))]
        owner: dict[str, list[int]] = {role: _list(side.owner) or [-1] * len(side) for role, side in sides.items()}
        owner["query"], doc_of = list(range(len(batch))), list(range(len(batch)))
        if batch.answer is None:
            owner["doc"] = doc_of
        else:
            ids = _there(batch.doc.ids).tolist()
            doc_of = [ids.index(answer) for answer in batch.answer.tolist()]
        return cls(
            objective,
            {role: side.rows.detach().double().tolist() for role, side in sides.items()},
            {role: _list(side.ids) for role, side in sides.items()},
            {role: _list(side.logq) for role, side in sides.items()},
            {role: _list(side.guide) for role, side in sides.items()},
            owner,
            known,
            doc_of,
            objective.temperature.value if batch.temperature is None else batch.temperature,
        )

    def loss(self, i: int, pairs: Sequence[tuple[str, str]]) -> float:
        """Row i's loss in the softmax over some blocks."""
        here = [pair for pair in pairs if pair[1] in self.vectors]
        held = next(pair for pair in here if _holds_positive(pair))
        several = self.objective.numerator != "one"
        positives, negatives, level_of = [], [], []
        for pair in here:
            own = {self._place(i, pair[1])} if _holds_positive(pair) else set()
            if several and pair == held:
                own |= {
                    c for c in range(len(self.vectors[pair[1]])) if self._same_id(i, pair, c) or self._known(i, pair, c)
                }
            for c in range(len(self.vectors[pair[1]])):
                if c in own:
                    positives.append(self._positive(i, pair, c))
                    level_of += positives[-1:] if pair == held else []
                elif not self._own_kind(i, pair, c) and not self._masked(i, pair, c):
                    negatives.append(self._negative(i, pair, c))
        if self.objective.hardest is not None:
            negatives = sorted(negatives)[-self.objective.hardest :]
        levels = {"one": level_of[0], "mean": math.fsum(level_of) / len(level_of), "sum": _log_sum_exp(level_of)}
        return _log_sum_exp([*positives, *negatives]) - levels[self.objective.numerator]

    def _place(self, i: int, role: str) -> int:
        """Where row i's own query or document stands."""
        return self.doc_of[i] if role == "doc" else i

    def _similarity(self, a: Vector, c: Vector, normalised: bool) -> float:
        return _inner(a, c) / (math.sqrt(_inner(a, a) * _inner(c, c)) if normalised else 1.0)

    def _score(self, i: int, pair: tuple[str, str], c: int) -> float:
        normalised = self.objective.similarity == cosine
        return self._similarity(self.vectors[pair[0]][self._place(i, pair[0])], self.vectors[pair[1]][c], normalised)

    def _positive(self, i: int, pair: tuple[str, str], c: int) -> float:
        logit = self._score(i, pair, c) / self.temperature
        for part in self.objective.corrections:
            if isinstance(part, LogQ) and part.kind == "classic":
                logit -= part.weight * _there(self.logq[pair[1]])[c]
            elif isinstance(part, Margin):
                logit -= part.margin
        return logit

    def _negative(self, i: int, pair: tuple[str, str], c: int) -> float:
        score = self._score(i, pair, c)
        logit = score / self.temperature
        for part in self.objective.corrections:
            if isinstance(part, LogQ):
                logit -= part.weight * _there(self.logq[pair[1]])[c]
            elif isinstance(part, Hardness) and pair[0] == "query" and pair[1] != "query":
                own = self.owner[pair[1]][c] == i
                logit += part.strength * score if part.on == "all" or own == (part.on == "own") else 0.0
        return logit

    def _own_kind(self, i: int, pair: tuple[str, str], c: int) -> bool:
        """The anchor itself, or a document's own negatives: no candidates at all."""
        if pair == ("doc", "negatives"):
            return self.owner["negatives"][c] == i
        return pair[0] == pair[1] and c == self._place(i, pair[1])

    def _masked(self, i: int, pair: tuple[str, str], c: int) -> bool:
        found = False
        for mask in self.objective.masks:
            if isinstance(mask, SameId):
                found |= self._same_id(i, pair, c)
            elif isinstance(mask, KnownPositives):
                found |= self._known(i, pair, c)
            elif isinstance(mask, Guided):
                found |= self._guided(mask, i, pair, c)
        return found

    def _same_id(self, i: int, pair: tuple[str, str], c: int) -> bool:
        query, doc, ids = self.ids["query"], self.ids["doc"], self.ids[pair[1]]
        mine = None if doc is None else doc[self.doc_of[i]]
        if pair[1] in ("query", "doc"):
            rows = [c] if pair[1] == "query" else [j for j, place in enumerate(self.doc_of) if place == c]
            same_query = any(query is not None and query[j] == query[i] for j in rows)
            return same_query or (doc is not None and doc[self.doc_of[c] if pair[1] == "query" else c] == mine)
        return ids is not None and doc is not None and ids[c] == mine

    def _known(self, i: int, pair: tuple[str, str], c: int) -> bool:
        doc = self.ids["doc"]
        if pair[1] == "query":
            mine, theirs = (None if doc is None else doc[self.doc_of[j]] for j in (i, c))
            return doc is not None and (theirs in self.known[i] or mine in self.known[c])
        ids = self.ids[pair[1]]
        return ids is not None and ids[c] in self.known[i]

    def _guided(self, mask: Guided, i: int, pair: tuple[str, str], c: int) -> bool:
        rows: Any = self.vectors if mask.by == "self" else self.guide
        own = mask.by == "self"
        pair_value = self._similarity(_there(rows["query"])[i], _there(rows["doc"])[self.doc_of[i]], own)
        value = self._similarity(_there(rows[pair[0]])[self._place(i, pair[0])], _there(rows[pair[1]])[c], own)
        bound = pair_value - mask.margin * (abs(pair_value) if mask.kind == "relative" else 1.0)
        return value > bound + 1e-12  # a tie is not above


def _holds_positive(pair: tuple[str, str]) -> bool:
    return pair in (("query", "doc"), ("doc", "query"))


def _inner(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _log_sum_exp(logits: list[float]) -> float:
    top = max(logits)
    return top + math.log(math.fsum(math.exp(logit - top) for logit in logits))


def _list(values: Tensor | None) -> Any:
    return None if values is None else values.tolist()


def _there(values: Any) -> Any:
    assert values is not None, "a part of the objective needs what the batch does not have"
    return values
