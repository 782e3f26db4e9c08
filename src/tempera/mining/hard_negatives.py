"""Hard negatives: documents that a model ranks high for a query, but no answers.

Letters in shapes: q queries, c documents, D width, e pairs of a query and an answer, r ranks
considered, n negatives a query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..errors import ConfigError, DataError, is_whole, quantity, refuse_other
from .embed import StoredEmbeddings
from .guide import bound
from .indexed_shards import QUERIES, IndexedShards
from .search import Floats, Ints, Pairs, Search, exact
from .shard_search import ShardDocuments
from .shortfall import Report

Documents = Floats | ShardDocuments | IndexedShards  # vectors by position
Cross = Callable[[Pairs], NDArray[np.float32]]  # scores of pairs, [e]

BLOCK = 1024  # queries at once
_RANGES = (  # of margins: least, most, and the words of a message
    ("absolute_margin", 0.0, math.inf, " of at least 0"),
    ("relative_margin", -math.inf, 1.0, " of at most 1"),
    ("cross_margin", -math.inf, math.inf, ""),
)


@dataclass(frozen=True)
class Mining:
    """Choose hard negatives among the documents nearest to a query.

    Documents are ranked by the inner product of unit vectors, without the query's answers and the
    query itself. Of the ranks skip + 1 .. depth, a document remains if the score s fulfils, with p
    the lowest score of the query's answers,

        s <= p - absolute_margin   and   s <= p - relative_margin * |p|

    and s < p where a relative margin above 0 vanishes, at p = 0: a model that knows no word of a
    query compares it with nothing. Scores of a cross-encoder must fulfil the second condition with
    `cross_margin`. The best `negatives` are taken.

    Args:
        negatives: number of negatives of each query.
        skip: number of best ranks to leave out.
        depth: last rank to consider.
        absolute_margin: at least 0; None applies none.
        relative_margin: 0.05 keeps documents that score at most 95 % of the answer: TopK-PercPos,
            the best of seven in NV-Retriever (Moreira et al. 2024). At most 1; None applies none.
        cross_margin: relative margin for the scores of the cross-encoder.

    Raises:
        ConfigError: numbers or margins out of range.

    >>> Mining(negatives=5, skip=10).relative_margin
    0.05
    """

    negatives: Annotated[int, Field(gt=0)] = 10
    skip: Annotated[int, Field(ge=0)] = 0
    depth: Annotated[int, Field(gt=0)] = 100
    absolute_margin: float | None = None
    relative_margin: float | None = 0.05
    cross_margin: float = 0.0

    def __post_init__(self) -> None:
        for name in ("negatives", "skip", "depth"):
            count = getattr(self, name)
            refuse_other(name, count, is_whole(count), "a whole number")
            object.__setattr__(self, name, int(count))  # also of NumPy
        if self.negatives < 1 or self.skip < 0:
            raise ConfigError(
                f"negatives is {self.negatives} and skip is {self.skip}; give at least 1 and at least 0"
            )
        for name, least, most, allowed in _RANGES:
            margin = getattr(self, name)
            refuse_other(name, margin, isinstance(margin, Real | None), "a number or None")
            if margin is not None and not (math.isfinite(margin) and least <= margin <= most):
                raise ConfigError(f"{name} is {margin:g}; give a finite number{allowed}")
        if self.depth - self.skip < self.negatives:
            raise ConfigError(
                f"negatives is {self.negatives}, but the ranks {self.skip + 1} to {self.depth} hold only "
                f"{max(0, self.depth - self.skip)} documents; raise depth, or lower negatives or skip"
            )


@dataclass(frozen=True)
class Mined:
    """Negatives of q queries, best first."""

    positions: Ints  # [q, n] documents; -1 where a query has fewer negatives
    scores: NDArray[np.float32]  # [q, n] by the model; -inf where a query has fewer negatives
    # [q, n] from 1, not counting the answers and the query itself; 0 where a query has fewer
    ranks: Ints
    answer_scores: NDArray[np.float32]  # [e] scores of the answers by the model
    report: Report


def mine(
    queries: Floats | StoredEmbeddings,
    docs: Floats,
    answers: Pairs,
    options: Mining = Mining(),
    itself: Ints | None = None,
    cross: Cross | None = None,
    search: Search | None = None,
) -> Mined:
    """Mine hard negatives for every query from embeddings.

    Args:
        queries: unit vectors, [q, D].
        docs: unit vectors of distinct documents, [c, D]; float16 and memory-mapped vectors are read
            block by block.
        answers: pairs of a query and an answering document, by position and sorted by query; each
            query needs an answer.
        options: number, ranks and margins of the negatives.
        itself: position of the document that equals each query, or -1, [q].
        cross: scores of a cross-encoder for pairs of positions.
        search: finds the nearest documents; None searches exactly.

    Raises:
        DataError: a query has no answer.

    >>> found = mine(np.eye(2)[:1], np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), (np.array([0]), np.array([0])), Mining(1))
    >>> found.positions.tolist(), found.ranks.tolist()
    ([[1]], [[1]])
    """
    blocks = list(mine_blocks(queries, docs, answers, options, itself, cross, search))
    if not blocks:
        none = np.empty((0, options.negatives), np.int64)
        return Mined(none, none.astype(np.float32), none, np.empty(0, np.float32), Report())
    return Mined(
        positions=np.concatenate([block.positions for block in blocks]),
        scores=np.concatenate([block.scores for block in blocks]),
        ranks=np.concatenate([block.ranks for block in blocks]),
        answer_scores=np.concatenate([block.answer_scores for block in blocks]),
        report=sum((block.report for block in blocks), Report()),
    )


def mine_blocks(
    queries: Floats | StoredEmbeddings,
    docs: Documents,
    answers: Pairs,
    options: Mining,
    itself: Ints | None = None,
    cross: Cross | None = None,
    search: Search | None = None,
    first: int = 0,
) -> Iterator[Mined]:
    """Mine as `mine` does, `BLOCK` queries at a time from block `first` on: memory does not grow
    with the queries. A search in an index of shards has `QUERIES` blocks at once."""
    missing = np.setdiff1d(np.arange(len(queries)), answers[0])
    if len(missing):
        lost = quantity(len(missing), "queries have no answer")
        raise DataError(f"{lost}, such as query {missing[0]}: each one needs a positive")
    if itself is None:
        itself = np.full(len(queries), -1)
    find = search
    if isinstance(docs, ShardDocuments | IndexedShards):
        find = docs.search
    elif find is None:
        find = exact(docs)
    at_once = BLOCK * QUERIES if isinstance(docs, IndexedShards) else BLOCK
    for start in range(first * BLOCK, len(queries), at_once):
        stop = min(start + at_once, len(queries))
        without = _without(_between(answers, start, stop), itself[start:stop])
        searched = np.asarray(queries[start:stop], np.float32)
        scores, positions = find(searched, options.depth, without)
        for low in range(start, stop, BLOCK):
            high = min(low + BLOCK, stop)
            part = slice(low - start, high - start)
            yield _mine(
                searched[part],
                docs,
                (scores[part], positions[part]),
                _between(answers, low, high),
                itself[low:high],
                options,
                None if cross is None else _shifted(cross, low),
            )


def sampled_queries(
    queries: Floats | StoredEmbeddings, answers: Pairs, itself: Ints, count: int
) -> tuple[NDArray[np.float32], Pairs]:
    """Return `count` queries at random, [min(count, q), D], and the pairs of a query and a document
    that cannot be negatives, counted among these queries."""
    draw = np.random.default_rng(0)
    chosen = np.sort(draw.permutation(len(queries))[:count])
    place = np.full(len(queries), -1)
    place[chosen] = np.arange(len(chosen))
    rows = place[answers[0]]
    is_in = rows >= 0
    without = _without((rows[is_in], answers[1][is_in]), itself[chosen])
    return np.asarray(queries[chosen], np.float32), without


def _between(answers: Pairs, start: int, stop: int) -> Pairs:
    """Return the answers of the queries from `start` to `stop`, counted from `start`."""
    part = slice(*np.searchsorted(answers[0], (start, stop)))
    return answers[0][part] - start, answers[1][part]


def _mine(
    queries: NDArray[np.float32],
    docs: Documents,
    nearest: tuple[NDArray[np.float32], Ints],
    answers: Pairs,
    itself: Ints,
    options: Mining,
    cross: Cross | None,
) -> Mined:
    """Return the negatives of one block of queries, from the scores and positions of the nearest
    documents, [q, depth] each."""
    answer_rows, answer_docs = answers
    right = np.einsum("ed,ed->e", queries[answer_rows], np.asarray(docs[answer_docs], np.float32))
    without = _without(answers, itself)
    scores, positions = nearest
    scores = scores[:, options.skip :]  # [q, r]
    positions = positions[:, options.skip :]
    live = positions >= 0
    candidates = live.sum(1)
    dropped: dict[str, Ints] = {}

    lowest = _lowest(right, answer_rows, len(queries))[:, None]
    if options.absolute_margin is not None:
        fits = scores <= bound(lowest, options.absolute_margin, "absolute")
        dropped["absolute margin"] = _drop(live, fits)
    if options.relative_margin is not None:
        fits = scores <= bound(lowest, options.relative_margin, "relative")
        if options.relative_margin > 0:
            fits &= scores < lowest
        dropped["relative margin"] = _drop(live, fits)
    if cross is not None:
        rows, columns = np.nonzero(live)
        pairs = np.append(rows, answer_rows), np.append(positions[rows, columns], answer_docs)
        judged = cross(pairs)
        lowest_judged = _lowest(judged[len(rows) :], answer_rows, len(queries))
        limit = bound(lowest_judged, options.cross_margin, "relative")
        fits = np.ones_like(live)
        fits[rows, columns] = judged[: len(rows)] <= limit[rows]
        dropped["cross-encoder"] = _drop(live, fits)

    taken = np.argsort(~live, axis=1, kind="stable")[:, : options.negatives]  # [q, n]
    taken = np.pad(taken, ((0, 0), (0, options.negatives - taken.shape[1])), constant_values=-1)
    valid = taken >= 0
    if live.shape[1]:
        valid &= np.take_along_axis(live, taken, 1)
    chosen = np.where(valid, taken, 0)
    excluded = np.unique(without[0] * len(docs) + without[1]) // len(docs)  # each pair once
    allowed = len(docs) - np.bincount(excluded, minlength=len(queries))
    return Mined(
        positions=np.where(valid, _at(positions, chosen), -1),
        scores=np.where(valid, _at(scores, chosen), np.float32(-np.inf)),
        ranks=np.where(valid, chosen + options.skip + 1, 0),
        answer_scores=right,
        report=Report.of(
            negatives=options.negatives,
            answers=len(right),
            itself=int((itself >= 0).sum()),
            candidates=candidates,
            ranked=np.clip(np.minimum(allowed, options.depth) - options.skip, 0, None),
            dropped=dropped,
            good=live.sum(1),
        ),
    )


def _drop(live: NDArray[np.bool_], fits: NDArray[np.bool_]) -> Ints:
    """Remove unfit candidates from `live`, [q, r]; return the number removed for each query,
    [q]."""
    lost = np.asarray((live & ~fits).sum(1))
    live &= fits
    return lost


def _without(answers: Pairs, itself: Ints) -> Pairs:
    """Return the pairs that cannot be negatives, in order of queries."""
    with_itself = np.flatnonzero(itself >= 0)
    rows = np.append(answers[0], with_itself)
    columns = np.append(answers[1], itself[with_itself])
    order = np.argsort(rows, kind="stable")
    return rows[order], columns[order]


def _lowest(scores: NDArray[np.float32], rows: Ints, count: int) -> NDArray[np.float64]:
    """Return the lowest score of each query's answers, [q]."""
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, rows, scores)
    return lowest


def _at(values: NDArray[Any], columns: Ints) -> NDArray[Any]:
    """Return the values of chosen columns; zeros for values without columns."""
    if not values.shape[1]:
        return np.zeros(columns.shape, values.dtype)
    return np.take_along_axis(values, columns, 1)


def _shifted(cross: Cross, start: int) -> Cross:
    """Return the scorer for queries that are counted from `start`."""
    return lambda pairs: cross((pairs[0] + start, pairs[1]))
