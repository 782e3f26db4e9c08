"""The batch of an objective: rows, and everything known about each row.

Letters in shapes: b rows of this device, n rows of all devices, m documents that are not a row's
pair, D embedding width, G guide width, T teacher width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from ..arithmetic.abilities import sent
from ..arithmetic.ragged import Ragged, Shared
from ..errors import DataError, article
from .temperature import refuse_temperature

Role = Literal["query", "doc", "negatives", "sampled", "memory"]
ROLES: tuple[Role, ...] = ("query", "doc", "negatives", "sampled", "memory")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
X = TypeVar("X")
Y = TypeVar("Y")


@dataclass(frozen=True)
class Side(Generic[X]):
    """The rows of a role.

    Args:
        rows: the features before the towers, and the embeddings, [n, D], after them.
        ids: [n] integers, kept as int64; equal ids are the same text or item.
        logq: [n] natural log of the expected number of copies of the row in a batch.
        guide: [n, G] a guide model's unit vectors of the same rows.
        owner: [n] integers, kept as int64: the row of a negative, -1 for none; None for pairs.
        teacher: [n, T] a teacher's unit vectors of the same rows.

    Raises:
        DataError: rows in an array or a list; a field that is no tensor with a number for each row
            (for guide and teacher a vector); ids or owners that are no integers.

    >>> side = Side(torch.eye(3), ids=torch.tensor([7, 8, 9]))
    >>> len(side), side[1:].ids.tolist()
    (3, [8, 9])
    """

    rows: X
    ids: Tensor | None = None
    logq: Tensor | None = None
    guide: Tensor | None = None
    owner: Tensor | None = None
    teacher: Tensor | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.rows, "to"):
            raise DataError(
                f"a side has rows of {kind_of(self.rows)}, and no tensor: write torch.as_tensor(rows), or Ragged.of(rows)"
            )
        for name in ("ids", "logq", "guide", "owner", "teacher"):
            _check_column(self, name, len(self))

    def __len__(self) -> int:
        return len(self.rows)  # type: ignore[arg-type]

    def __getitem__(self, rows: Any) -> Side[X]:
        """Return the chosen rows, with everything known about them."""
        chosen: Any = {}
        for field in fields(self):
            value = getattr(self, field.name)
            chosen[field.name] = None if value is None else value[rows]
        return Side(**chosen)

    def to(self, device: torch.device) -> Side[X]:
        """Return the same side with rows, logq and vectors on another device; ids and owners
        stay."""
        moved: Any = {}
        for name in ("rows", "logq", "guide", "teacher"):
            value = getattr(self, name)
            if value is None:
                continue
            on_device = sent(value, device)
            if on_device is not value:
                moved[name] = on_device
        return replace(self, **moved) if moved else self

    def of(self, rows: Y) -> Side[Y]:
        """Return the same side with other `rows`: embeddings in place of features."""
        return replace(self, rows=rows)  # type: ignore[arg-type, return-value]


def _extremes(values: Tensor | None) -> Sequence[float]:
    """Return the least and the greatest value, or nan; nothing without values, or where a device
    would be waited for."""
    if values is None or values.device.type != "cpu" or not len(values):
        return ()
    least, most = values.aminmax()
    return least.item(), most.item()


def kind_of(value: Any) -> str:
    """Return the dtype of a tensor, or the type of anything else."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def _check_column(holder: Side[Any] | Batch[Any], name: str, rows: int) -> None:
    """Raise DataError for a field that is no tensor of a number, or of a guide and a teacher a
    vector, for each row; keep integers as int64."""
    value = getattr(holder, name)
    if value is None:
        return
    owned = article(type(holder).__name__.lower())
    whole = name in ("ids", "owner", "answer")
    if not isinstance(value, Tensor) or (whole and value.dtype not in _INTEGERS):
        kind = "integers" if whole else "numbers"
        raise DataError(
            f"{owned} has {name} of {kind_of(value)}: give a tensor of {kind}, one for each row"
        )
    if value.dim() and len(value) != rows:
        raise DataError(f"{owned} of {rows} rows has {name} of {len(value)}: give one for each row")
    is_vector = name in ("guide", "teacher")
    if value.dim() != (2 if is_vector else 1):
        wanted = "vector" if is_vector else "number"
        raise DataError(
            f"{owned} has {name} of the shape {[*value.shape]}: give one {wanted} for each row"
        )
    if whole:  # torch reads uint8 as a mask, and does not compare integers of two kinds
        object.__setattr__(holder, name, value.long())


@dataclass(frozen=True)
class Batch(Generic[X]):
    """Row i pairs query i with doc i; with `answer`, query i with the document of id answer[i],
    present in doc once.

    Args:
        query: [n] queries.
        doc: [n] documents, or [d] distinct documents shared by rows.
        negatives: [m] wrong answers, each with an owner.
        sampled: [m] documents drawn apart from the pairs.
        memory: [m] documents of past batches, without gradient.
        weight: [n] how much each row counts, 1 if None.
        known: n rows: the ids of every document known to answer each query.
        span: the rows this device answers for, all if None.
        answer: [n] id of each row's document; None where doc i is row i's.
        temperature: in place of the objective's temperature, then without a gradient.

    Raises:
        DataError: queries and documents of different number, an answer to documents without ids,
            negatives without owner, weights below 0, or a field of another kind or length.
        ConfigError: a temperature of 0 or below.

    >>> q, d = torch.randn(4, 8), torch.randn(4, 8)
    >>> len(Batch(Side(q), Side(d, ids=torch.arange(4))))
    4
    >>> Batch(Side(q), Side(d[:2], ids=torch.tensor([8, 9])), answer=torch.tensor([9, 8, 8, 9])).answers.tolist()
    [1, 0, 0, 1]
    """

    query: Side[X]
    doc: Side[X]
    negatives: Side[X] | None = None
    sampled: Side[X] | None = None
    memory: Side[X] | None = None
    weight: Tensor | None = None
    known: Ragged | Shared | None = None
    span: range | None = None
    answer: Tensor | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        for role in ROLES:
            side = getattr(self, role)
            if not isinstance(side, Side) and (side is not None or role in ("query", "doc")):
                raise DataError(
                    f"a batch has {role} of {kind_of(side)}: give a Side, such as Side(rows)"
                )
        if self.answer is None and len(self.query) != len(self.doc):
            raise DataError(
                f"a batch pairs queries with documents, and has {len(self.query)} and {len(self.doc)}"
            )
        if self.answer is not None and self.doc.ids is None:
            raise DataError("answer names the document of every query, by id: give doc its ids")
        if self.negatives is not None:
            self._check_owner(self.negatives)
        for name in ("weight", "answer"):
            _check_column(self, name, len(self))
        if not isinstance(self.known, Ragged | Shared | None):
            raise DataError(
                f"a batch has known of {kind_of(self.known)}: give a Ragged, such as Ragged.of([[7, 8], [8]])"
            )
        if self.known is not None and len(self.known) != len(self):
            raise DataError(
                f"a batch of {len(self)} rows has known of {len(self.known)}: give one for each row"
            )
        for weight in _extremes(self.weight):
            if weight < 0:  # a loss that is not finite is found in the step, which names its rows
                raise DataError(f"a batch has a row of weight {weight}: give weights of 0 or more")
        if self.temperature is not None:
            refuse_temperature(self.temperature)

    def _check_owner(self, negatives: Side[X]) -> None:
        """Raise DataError for negatives without owner, or an owner that is no row."""
        if negatives.owner is None:
            raise DataError(
                "negatives need an owner: the row each one came with, Side(rows, owner=...)"
            )
        for row in _extremes(negatives.owner):
            if not -1 <= row < len(self.query):
                raise DataError(
                    f"a batch of {len(self.query)} rows has a negative of row {row}: count them from 0"
                )

    def __len__(self) -> int:
        return len(self.query)

    @property
    def local(self) -> slice:
        """This device's rows."""
        if self.span is None:
            return slice(0, len(self))
        return slice(self.span.start, self.span.stop)

    @cached_property
    def answers(self) -> Tensor:
        """Return the position of each row's document among the documents, [n], on the host.

        Raises:
            DataError: an answer that is not among the documents.
        """
        if self.answer is None:
            return torch.arange(len(self))
        assert self.doc.ids is not None
        answer = self.answer.cpu()
        ordered, order = self.doc.ids.cpu().sort(stable=True)
        at = torch.searchsorted(ordered, answer).clamp_(max=max(0, len(ordered) - 1))
        if not torch.equal(ordered[at], answer):
            lost = answer[ordered[at] != answer][0]
            raise DataError(f"a batch has the answer {int(lost)}, and no document of that id")
        return order[at]

    @property
    def doc_ids(self) -> Tensor | None:
        """The id of each row's document, [n]; None where documents have none."""
        return self.doc.ids if self.answer is None else self.answer

    def sides(self) -> Mapping[Role, Side[X]]:
        """Return every present side by role."""
        return self._sides

    @cached_property
    def _sides(self) -> Mapping[Role, Side[X]]:
        sides: dict[Role, Side[X]] = {}
        for role in ROLES:
            side = getattr(self, role)
            if side is not None:
                sides[role] = side
        return sides

    def of(self, rows: Mapping[Role, Y]) -> Batch[Y]:
        """Return the same batch with other `rows` for every side: embeddings in place of
        features."""
        changed: Any = {role: side.of(rows[role]) for role, side in self.sides().items()}
        return replace(self, **changed)  # type: ignore[return-value]

    def map(self, fn: Callable[[X], Y]) -> Batch[Y]:
        """Apply `fn` to the rows of every side."""
        return self.of({role: fn(side.rows) for role, side in self.sides().items()})

    def to(self, device: torch.device) -> Batch[X]:
        """Return the same batch with rows on another device; ids and the like stay, so that nothing
        waits for a copy."""
        moved: Any = {}
        for role, side in self.sides().items():
            on_device = side.to(device)
            if on_device is not side:
                moved[role] = on_device
        return replace(self, **moved) if moved else self

    def shares(self) -> Tensor:
        """Return the weight of each of this device's rows in the mean over all devices, [b]."""
        weight = torch.ones(len(self), dtype=torch.float64)
        if self.weight is not None:
            weight = self.weight.cpu().double()
        tiny = torch.finfo(weight.dtype).tiny  # rows may all weigh nothing
        return weight[self.local] / weight.sum().clamp_min(tiny)


def as_batch(queries: Batch[Tensor] | Tensor, documents: Tensor | None = None) -> Batch[Tensor]:
    """Return the batch of two tensors, [b, D] each; row i of both is a pair. A batch is returned
    unchanged.

    Raises:
        DataError: a single tensor, or tensors of different length.

    >>> len(as_batch(torch.eye(3), torch.eye(3)))
    3
    """
    if isinstance(queries, Batch) and documents is None:
        return queries
    if (
        isinstance(queries, Tensor)
        and isinstance(documents, Tensor)
        and queries.dim()
        and documents.dim()
    ):
        return Batch(Side(queries), Side(documents))
    raise DataError(
        "an objective takes two tensors, queries and documents, or one Batch, which holds both"
    )


def take(batch: Batch[X], rows: Tensor) -> Batch[X]:
    """Return chosen rows of a batch, with their negatives.

    Negatives without owner, samples, and shared documents stay whole: `answer` finds the shared
    documents.

    >>> negatives = Side(torch.eye(3), owner=torch.tensor([0, 1, -1]))
    >>> chosen = take(Batch(Side(torch.eye(3)), Side(torch.eye(3)), negatives), torch.tensor([1, 2]))
    >>> len(chosen), chosen.negatives.owner.tolist()
    (2, [0, -1])
    """
    changed: Any = {"query": batch.query[rows]}
    if batch.answer is None:
        changed["doc"] = batch.doc[rows]
    if batch.negatives is not None and batch.negatives.owner is not None:
        # The place of each row among the chosen; the last, which an owner of -1 finds, stays -1.
        place = torch.full((len(batch) + 1,), -1)
        place[rows] = torch.arange(len(rows))
        owner = place[batch.negatives.owner]
        kept = (owner >= 0) | (batch.negatives.owner < 0)
        changed["negatives"] = replace(batch.negatives[kept], owner=owner[kept])
    for name in ("weight", "known", "answer"):
        value = getattr(batch, name)
        changed[name] = None if value is None else value[rows]
    return replace(batch, **changed)


def divide(batch: Batch[X], part: int, parts: int) -> Batch[X]:
    """Return the rows of a batch for one of several processes: consecutive pairs with their
    negatives, and samples.

    Shared documents are divided apart from the rows; after the gather, `answer` finds the documents
    again.

    >>> whole = Batch(Side(torch.eye(5)), Side(torch.eye(5)))
    >>> print([len(divide(whole, part, 2)) for part in range(2)])
    [2, 3]
    """
    if parts == 1:
        return batch
    mine = take(batch, torch.arange(len(batch))[_share(len(batch), part, parts)])
    changed: Any = {}
    if batch.answer is not None:
        changed["doc"] = batch.doc[_share(len(batch.doc), part, parts)]
    if mine.negatives is not None and mine.negatives.owner is not None and part:
        # The first process has the negatives of no row.
        changed["negatives"] = mine.negatives[mine.negatives.owner >= 0]
    if batch.sampled is not None:
        changed["sampled"] = batch.sampled[_share(len(batch.sampled), part, parts)]
    return replace(mine, **changed)


def _share(count: int, part: int, parts: int) -> slice:
    """Return the rows of one of several parts of nearly equal size."""
    return slice(count * part // parts, count * (part + 1) // parts)
