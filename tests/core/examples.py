"""Batches in which everything happens, and choices of every part of an objective, to be tried in
combination."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tempera.arithmetic.ragged import Ragged
from tempera.core import pools
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness, LogQ, Margin
from tempera.core.definition import defined_losses
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.similarity import cosine, dot
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature

T, WEIGHT, STRENGTH, MARGIN = 0.3, 0.8, 3.0, 0.7
SEEDS = [
    0,
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6)),
]  # of samples of all combinations
POOLS = tuple(pool.name for pool in pools.POOLS)
GUIDES = {
    "absolute": Guided(0.1),
    "relative": Guided(0.2, "relative"),
    "self": Guided(0.15, "relative", by="self"),
}
TEACHERS = {
    None: None,
    "alone": Teacher(weight=1.0, temperature=0.2),
    "beside": Teacher(weight=0.3, temperature=0.3, student_temperature=0.2),
    "documents": Teacher(weight=0.6, pools=(pools.docs, pools.memory, pools.back_positives)),
    "own": Teacher(weight=0.7, over="own", temperature=0.4, student_temperature=0.1),
}


@dataclass(frozen=True)
class Parts:
    """One choice of every part."""

    similarity: str = "cosine"
    pools: tuple[str, ...] = ("docs",)
    logq: str | None = None
    hardness: str | None = None
    margin: bool = False
    same_id: bool = False
    known: bool = False
    guided: str | None = None
    partition: str = "joint"
    numerator: str = "one"
    hardest: int | None = None
    tile: int | None = None
    teacher: str | None = None

    @property
    def allowed(self) -> bool:
        """Whether every softmax has a positive."""
        backward = {"back_queries"} & set(self.pools)
        if self.partition == "joint":
            return bool({"docs"} & set(self.pools) or backward)
        apart = {"queries", "back_docs", "back_positives"} & set(self.pools)
        forward = {"negatives", "sampled", "memory"} & set(self.pools)
        return not apart and bool("docs" in self.pools or (backward and not forward))


def made(
    seed: int, n: int = 7, width: int = 5, bare: bool = False, shared: bool = False
) -> Batch[Tensor]:
    """Draw a batch in which everything happens: equal ids, accidental hits, rows with 0 to 3
    negatives.

    In a shared one rows share documents, each of which has an id of its own; one answers no row. A
    bare one has pairs with ids and nothing else: no negatives, nothing sampled, an empty memory, no
    weights.
    """
    draw = random.Random(seed)

    def vectors(count: int, size: int) -> Tensor:
        rows = [[draw.gauss(0, 1) for _ in range(size)] for _ in range(count)]
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, size)

    def side(count: int, ids: int, owner: list[int] | None = None) -> Side[Tensor]:
        return Side(
            vectors(count, width),
            torch.tensor([draw.randrange(ids) for _ in range(count)], dtype=torch.int64),
            torch.tensor([draw.gauss(-1, 1) for _ in range(count)], dtype=torch.float64),
            torch.nn.functional.normalize(vectors(count, 3), dim=1),
            None if owner is None else torch.tensor(owner, dtype=torch.int64),
            torch.nn.functional.normalize(vectors(count, 4), dim=1),
        )

    docs = n + 3
    query, doc, memory = side(n, n + 2), side(n, docs), side(0 if bare else 3, docs)
    apart: dict[str, Side[Tensor]] = {}
    if not bare:
        owner = [
            i
            for i, count in enumerate(draw.sample([k % 4 for k in range(n)], n))
            for _ in range(count)
        ]
        draw.shuffle(owner)
        apart = {"negatives": side(len(owner), docs, owner), "sampled": side(4, docs)}
    answer = None
    if shared:
        doc = replace(side(5, docs), ids=torch.tensor(draw.sample(range(docs), 5)))
        answer = doc.ids[[draw.randrange(4) for _ in range(n)]]
    known = Ragged.of([[draw.randrange(docs) for _ in range(draw.randrange(3))] for _ in range(n)])
    weight = None if bare else torch.tensor([draw.random() for _ in range(n)], dtype=torch.float64)
    return Batch(
        query,
        doc,
        **apart,
        memory=memory,
        weight=weight,
        known=None if bare else known,
        answer=answer,
    )


def batch_of(
    batch: Batch[Tensor],
    dtype: torch.dtype = torch.float64,
    span: range | None = None,
    grad: bool = False,
) -> Batch[Tensor]:
    """Copy a batch; with `grad`, all embeddings but the memory's are leaves of autograd."""
    sides = {
        role: side.of(
            side.rows.detach().clone().to(dtype).requires_grad_(grad and role != "memory")
        )
        for role, side in batch.sides().items()
    }
    return replace(batch, **sides, span=span)


def with_sides(
    batch: Batch[Tensor], change: Callable[[Side[Tensor]], Side[Tensor]]
) -> Batch[Tensor]:
    """The batch with every side changed."""
    return replace(batch, **{role: change(side) for role, side in batch.sides().items()})


def objective_of(parts: Parts, temperature: float | Temperature = T) -> Objective:
    """The same choice as an objective."""
    corrections = [
        *([LogQ(parts.logq, WEIGHT)] if parts.logq else []),
        *([Hardness(STRENGTH, parts.hardness)] if parts.hardness else []),
        *([Margin(MARGIN)] if parts.margin else []),
    ]
    masks = [
        *([SameId()] if parts.same_id else []),
        *([KnownPositives()] if parts.known else []),
        *([GUIDES[parts.guided]] if parts.guided else []),
    ]
    return Objective(
        {"cosine": cosine, "dot": dot}[parts.similarity],
        temperature,
        [getattr(pools, name) for name in parts.pools],
        corrections,
        masks,
        parts.partition,
        parts.numerator,
        parts.hardest,
        Memory(3) if "memory" in parts.pools else None,
        TEACHERS[parts.teacher],
        **({} if parts.tile is None else {"tile_elements": parts.tile}),
    ).double()


def defined(batch: Batch[Tensor], parts: Parts) -> Tensor:
    """Compute what the definition says of every row, [n]."""
    return defined_losses(objective_of(parts), batch)


# Choices of parts
# --------------------------------------------------------------------------------------------------


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every subset, in order."""
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)


CHOICES = {
    "similarity": ("cosine", "dot"),
    "pools": tuple(chosen for chosen in subsets(POOLS) if {"docs", "back_queries"} & set(chosen)),
    "logq": (None, "classic", "refined"),
    "hardness": (None, "others", "own", "all"),
    "margin": (False, True),
    "same_id": (False, True),
    "known": (False, True),
    "guided": (None, "absolute", "relative", "self"),
    "partition": ("joint", "per_direction"),
    "numerator": ("one", "mean", "sum"),
    "hardest": (None, 3),
    "tile": (None, 100),
    "teacher": tuple(TEACHERS),
}


def sampled(seed: int, count: int, bare: bool = False) -> list[Parts]:
    """Choices drawn with a fixed seed; in half of them the order of the pools is drawn too."""
    draw = random.Random(seed)
    found: list[Parts] = []
    while len(found) < count:
        chosen = {name: draw.choice(values) for name, values in CHOICES.items()}
        if bare:
            chosen["known"] = False
        if draw.random() < 0.5:
            chosen["pools"] = tuple(draw.sample(chosen["pools"], len(chosen["pools"])))
        if (parts := Parts(**chosen)).allowed:
            found.append(parts)
    return found
