"""The definition of the objective in plain loops over float64 numbers, written apart from what it checks.

    loss_i = mean over groups of [ log sum_c exp(l_ic) - numerator_i ],    l_ic = s_ic / t + additions

Every table is made once for each choice of parts that it depends on, so that a hundred thousand combinations can be compared.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from tempera.core import pools
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness, LogQ, Margin
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.ragged import Ragged
from tempera.core.similarity import cosine, dot
from tempera.core.temperature import Temperature

T, WEIGHT, STRENGTH, MARGIN = 0.3, 0.8, 3.0, 0.7
GUIDES = {"absolute": Guided(0.1), "relative": Guided(0.2, "relative"), "self": Guided(0.15, "relative", by="self")}

# (anchor, candidate) of each pool.
POOLS = {
    "docs": (("query", "doc"),),
    "negatives": (("query", "negatives"),),
    "sampled": (("query", "sampled"),),
    "memory": (("query", "memory"),),
    "queries": (("query", "query"),),
    "back_queries": (("doc", "query"),),
    "back_docs": (("doc", "doc"), ("doc", "negatives")),
    "back_positives": (("doc", "doc"),),
}
Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Rows:
    """What is known of the rows of one role, as lists."""

    rows: list[list[float]]
    ids: list[int]
    logq: list[float]
    guide: list[list[float]]
    owner: list[int] | None = None


@dataclass(frozen=True, eq=False)
class Data:
    """A batch as lists; compared and hashed by identity, so that tables of it can be kept."""

    sides: dict[str, Rows]
    known: list[list[int]] | None
    weight: list[float] | None
    shared: list[int] | None = None  # where each row's document stands; None: document i is row i's

    def __len__(self) -> int:
        return len(self.sides["query"].rows)

    def at(self, role: str, i: int) -> int:
        """Where row i's own query or document stands."""
        return i if self.shared is None or role == "query" else self.shared[i]

    def owner(self, role: str) -> list[int]:
        """The row each candidate came with."""
        side = self.sides[role]
        if role == "query" or (role == "doc" and self.shared is None):
            return list(range(len(side.rows)))
        return [-1] * len(side.rows) if side.owner is None else side.owner


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

    @property
    def allowed(self) -> bool:
        """Whether every softmax has a positive."""
        return all(any(holds_positive(pair) for pair in group) for group in groups(self.pools, self.partition))


def holds_positive(pair: Pair) -> bool:
    """Whether the block holds the rows' own positives."""
    return pair in (("query", "doc"), ("doc", "query"))


def made(seed: int, n: int = 7, width: int = 5, bare: bool = False, shared: bool = False) -> Data:
    """A batch in which everything happens: equal ids, accidental hits, rows with 0 to 3 negatives.

    In a shared one rows share documents, each of which has an id of its own; one answers no row. A bare one has pairs with
    ids and nothing else: no negatives, nothing sampled, an empty memory, no weights.
    """
    draw = random.Random(seed)

    def vectors(count: int, size: int, unit: bool = False) -> list[list[float]]:
        found = [[draw.gauss(0, 1) for _ in range(size)] for _ in range(count)]
        return [[x / math.sqrt(inner(row, row)) for x in row] for row in found] if unit else found

    def rows(count: int, ids: int, owner: list[int] | None = None) -> Rows:
        return Rows(
            vectors(count, width),
            [draw.randrange(ids) for _ in range(count)],
            [draw.gauss(-1, 1) for _ in range(count)],
            vectors(count, 3, unit=True),
            owner,
        )

    docs = n + 3
    sides = {"query": rows(n, n + 2), "doc": rows(n, docs), "memory": rows(0 if bare else 3, docs)}
    if not bare:
        owner = [i for i, count in enumerate(draw.sample([k % 4 for k in range(n)], n)) for _ in range(count)]
        draw.shuffle(owner)
        sides |= {"negatives": rows(len(owner), docs, owner), "sampled": rows(4, docs)}
    at = None
    if shared:
        distinct = rows(5, docs)
        sides["doc"] = replace(distinct, ids=draw.sample(range(docs), 5))
        at = [draw.randrange(4) for _ in range(n)]
    known = [[draw.randrange(docs) for _ in range(draw.randrange(3))] for _ in range(n)]
    return Data(sides, None if bare else known, None if bare else [draw.random() for _ in range(n)], at)


# What is compared with ---------------------------------------------------------------------------------------------


def batch_of(
    data: Data, dtype: torch.dtype = torch.float64, span: range | None = None, grad: bool = False
) -> Batch[Tensor]:
    """The same as a batch of tensors; with `grad`, all embeddings but the memory's are leaves of autograd."""

    def side(role: str) -> Side[Tensor] | None:
        if role not in data.sides:
            return None
        rows = data.sides[role]
        width = len(data.sides["query"].rows[0])
        emb = torch.tensor(rows.rows, dtype=dtype).reshape(-1, width).requires_grad_(grad and role != "memory")
        guide = torch.tensor(rows.guide, dtype=torch.float64).reshape(-1, 3)
        ids, logq = torch.tensor(rows.ids, dtype=torch.int64), torch.tensor(rows.logq, dtype=torch.float64)
        return Side(emb, ids, logq, guide, None if rows.owner is None else torch.tensor(rows.owner, dtype=torch.int64))

    sides = {role: side(role) for role in ("query", "doc", "negatives", "sampled", "memory")}
    weight = None if data.weight is None else torch.tensor(data.weight, dtype=torch.float64)
    known = None if data.known is None else Ragged.of(data.known)
    answer = None if data.shared is None else torch.tensor([data.sides["doc"].ids[at] for at in data.shared])
    return Batch(**sides, weight=weight, known=known, span=span, answer=answer)


def with_sides(batch: Batch[Tensor], change: Callable[[Side[Tensor]], Side[Tensor]]) -> Batch[Tensor]:
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
        **({} if parts.tile is None else {"tile_elements": parts.tile}),
    )


# The definition ----------------------------------------------------------------------------------------------------


def inner(a: Sequence[float], b: Sequence[float]) -> float:
    """Inner product of two vectors."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def groups(names: tuple[str, ...], partition: str) -> list[list[Pair]]:
    """The blocks of each softmax."""
    found: dict[str, list[Pair]] = {}
    for anchor, candidate in itertools.chain.from_iterable(POOLS[name] for name in names):
        direction = f"{anchor}>{'query' if candidate == 'query' else 'doc'}"
        found.setdefault(direction if partition == "per_direction" else "", []).append((anchor, candidate))
    return list(found.values())


@cache
def similarities(data: Data, kind: str, pair: Pair) -> list[list[float]]:
    """s_ic of a block."""
    table = []
    for a in (data.sides[pair[0]].rows[data.at(pair[0], i)] for i in range(len(data))):
        row = []
        for c in data.sides[pair[1]].rows:
            length = math.sqrt(inner(a, a)) * math.sqrt(inner(c, c)) if kind == "cosine" else 1.0
            row.append(inner(a, c) / length)
        table.append(row)
    return table


@cache
def candidates(data: Data, pair: Pair, i: int) -> list[int]:
    """The columns that are candidates of row i at all."""
    owner = data.owner(pair[1])
    if pair[0] == pair[1]:
        return [c for c in range(len(owner)) if c != data.at(pair[0], i)]
    if pair == ("doc", "negatives"):
        return [c for c in range(len(owner)) if owner[c] != i]
    return list(range(len(owner)))


@cache
def same_id(data: Data, pair: Pair, i: int) -> set[int]:
    """The columns that are row i's query or document by their ids."""
    query, doc, ids = data.sides["query"].ids, data.sides["doc"].ids, data.sides[pair[1]].ids
    mine = doc[data.at("doc", i)]
    if pair[1] == "query":
        return {j for j in range(len(ids)) if query[j] == query[i] or doc[data.at("doc", j)] == mine}
    if pair[1] == "doc":  # also a document of another row of the same query
        others = {data.at("doc", j) for j in range(len(query)) if query[j] == query[i]}
        return others | {c for c in range(len(ids)) if ids[c] == mine}
    return {c for c in range(len(ids)) if ids[c] == mine}


@cache
def known(data: Data, pair: Pair, i: int) -> set[int]:
    """The columns that are known to go with row i."""
    assert data.known is not None
    doc, ids = data.sides["doc"].ids, data.sides[pair[1]].ids
    if pair[1] == "query":
        of = [doc[data.at("doc", j)] for j in range(len(data))]
        return {j for j in range(len(ids)) if of[j] in data.known[i] or of[i] in data.known[j]}
    return {c for c in range(len(ids)) if ids[c] in data.known[i]}


@cache
def guided(data: Data, kind: str, pair: Pair, i: int) -> set[int]:
    """The columns that a guide finds closer to the anchor than the pair."""
    if kind == "self":
        pair_value = similarities(data, "cosine", ("query", "doc"))[i][data.at("doc", i)]
        values = similarities(data, "cosine", pair)[i]
        bound = pair_value - 0.15 * abs(pair_value)
    else:
        query, doc = data.sides["query"].guide[i], data.sides["doc"].guide[data.at("doc", i)]
        pair_value = inner(query, doc)
        values = [inner(query if pair[0] == "query" else doc, c) for c in data.sides[pair[1]].guide]
        bound = pair_value - (0.1 if kind == "absolute" else 0.2 * abs(pair_value))
    return {c for c, value in enumerate(values) if value > bound}


@cache
def positives(data: Data, pair: Pair, i: int, several: bool) -> set[int]:
    """The columns of row i's positives; `several` adds those of other rows that are known to be."""
    if not holds_positive(pair):
        return set()
    own = {data.at(pair[1], i)}
    if several:
        own |= same_id(data, pair, i)
        if data.known is not None:
            own |= known(data, pair, i)
    return own


@cache
def left_out(data: Data, by_id: bool, by_known: bool, guide: str | None, pair: Pair, i: int) -> set[int]:
    """The columns that the masks leave out, if they are no positives."""
    found: set[int] = set()
    if by_id:
        found |= same_id(data, pair, i)
    if by_known:
        found |= known(data, pair, i)
    if guide:
        found |= guided(data, guide, pair, i)
    return found


@dataclass(frozen=True)
class Split:
    """The logits of one row in one block."""

    positive: list[float] = field(default_factory=list)
    negative: list[float] = field(default_factory=list)


@cache
def split(data: Data, parts: Parts, pair: Pair, several: bool, i: int) -> Split:
    """Logits of row i's positives and of the negatives that no mask leaves out; parts that play no role here are default."""
    owner, logq = data.owner(pair[1]), data.sides[pair[1]].logq
    forward = pair[0] == "query" and pair[1] != "query"
    mine = positives(data, pair, i, several)
    out = left_out(data, parts.same_id, parts.known, parts.guided, pair, i)
    found = Split()
    for c in candidates(data, pair, i):
        s = similarities(data, parts.similarity, pair)[i][c]
        logit = s / T
        if c in mine:
            if parts.logq == "classic":
                logit -= WEIGHT * logq[c]
            if parts.margin:
                logit -= MARGIN
            found.positive.append(logit)
        elif c not in out:
            if parts.logq:
                logit -= WEIGHT * logq[c]
            if parts.hardness and forward:
                own = owner[c] == i
                if parts.hardness == "all" or own == (parts.hardness == "own"):
                    logit += STRENGTH * s
            found.negative.append(logit)
    return found


def log_sum_exp(logits: list[float]) -> float:
    """log sum exp."""
    top = max(logits)
    return top + math.log(sum(math.exp(logit - top) for logit in logits))


def losses(data: Data, parts: Parts) -> list[float]:
    """loss_i of every row."""
    here = replace(parts, pools=(), partition="joint", numerator="one", hardest=None, tile=None)
    total = [0.0] * len(data)
    softmaxes = groups(parts.pools, parts.partition)
    for blocks in softmaxes:
        blocks = [pair for pair in blocks if pair[1] in data.sides]
        first = next(k for k, pair in enumerate(blocks) if holds_positive(pair))
        for i in range(len(data)):
            per_block = [
                split(data, here, pair, parts.numerator != "one" and k == first, i) for k, pair in enumerate(blocks)
            ]
            negative = [logit for block in per_block for logit in block.negative]
            if parts.hardest is not None:
                negative = sorted(negative, reverse=True)[: parts.hardest]
            positive = per_block[first].positive
            # With one positive these three are the same.
            level = {"one": sum, "mean": lambda x: sum(x) / len(x), "sum": log_sum_exp}[parts.numerator](positive)
            everything = [logit for block in per_block for logit in block.positive] + negative
            total[i] += (log_sum_exp(everything) - level) / len(softmaxes)
    return total


# Choices of parts --------------------------------------------------------------------------------------------------


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every subset, in order."""
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)


CHOICES = {
    "similarity": ("cosine", "dot"),
    "pools": tuple(chosen for chosen in subsets(tuple(POOLS)) if {"docs", "back_queries"} & set(chosen)),
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
