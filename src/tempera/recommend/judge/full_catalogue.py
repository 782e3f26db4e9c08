"""Exact ranks of items among the whole catalogue, in blocks, with seen items left out and left in.

Letters in shapes: q queries, r queries of a block, c items of the catalogue, D width, K depth of a
list, v items of all histories together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...io.flat import spread
from ...parallel.distributed import ALONE, Group
from ...ranking.metrics import parsed
from ...ranking.nearest import refuse_not_finite, top_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
# From a slice of the queries to their scores of every item, [r, c], in an array that the caller may
# overwrite.
Scores = Callable[[slice], Floats]

TIES = "rank = 1 + items with a higher score + items with an equal score and a smaller code"
_CELLS = 1 << 22  # scores held at once: within the processor's cache
# least and most queries at once: with fewer, a product costs twice as much a query
_ROWS = (16, 1024)


@dataclass(frozen=True)
class Histories:
    """Hold the history of each query: row i holds `items[starts[i]:stops[i]]`, oldest first.

    Rows may overlap, so a user's events serve all later queries of the user.

    >>> events = Histories(np.array([4, 2, 9]), np.array([0, 0]), np.array([2, 3]))
    >>> events.last(1).pairs()[1].tolist()
    [2, 9]
    """

    items: NDArray[np.integer]  # [v] codes
    starts: Ints  # [q]
    stops: Ints  # [q]

    @classmethod
    def of(cls, items: NDArray[np.integer], offsets: Ints) -> Histories:
        """Return rows one after the other: row i holds `items[offsets[i]:offsets[i + 1]]`."""
        return cls(items, offsets[:-1], offsets[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice | Ints) -> Histories:
        return replace(self, starts=self.starts[rows], stops=self.stops[rows])

    @property
    def lengths(self) -> Ints:
        """Items of each row, [q]."""
        return self.stops - self.starts

    @property
    def each(self) -> list[NDArray[np.integer]]:
        """Items of every row."""
        return [self.items[start:stop] for start, stop in zip(self.starts, self.stops)]

    def joined(self, other: Histories) -> Histories:
        """Return rows with the items of both, in new memory.

        >>> rows = [Histories.of(np.array(codes), np.array([0, 1, 2])) for codes in ([4, 2], [9, 7])]
        >>> [row.tolist() for row in rows[0].joined(rows[1]).each]
        [[4, 9], [2, 7]]
        """
        row, items = self.pairs()
        other_row, other_items = other.pairs()
        order = np.argsort(np.concatenate([row, other_row]), kind="stable")
        both = np.concatenate([items, other_items])[order]
        lengths = self.lengths + other.lengths
        return Histories.of(both, np.concatenate([[0], lengths.cumsum()]))

    def only(self, kept: NDArray[np.bool_]) -> Histories:
        """Return rows with only the items where `kept` is True, in the order of `pairs`."""
        row = np.repeat(np.arange(len(self)), self.lengths)
        lengths = np.bincount(row[kept], minlength=len(self))
        return Histories.of(self.values[kept], np.concatenate([[0], lengths.cumsum()]))

    def last(self, items: int) -> Histories:
        """Return the latest items of each row."""
        return replace(self, starts=np.maximum(self.starts, self.stops - items))

    def pairs(self) -> tuple[Ints, Ints]:
        """Return the row of each item, and the items, one after the other."""
        items: Ints = self.values.astype(np.int64)
        return np.repeat(np.arange(len(self)), self.lengths), items

    @property
    def values(self) -> NDArray[Any]:
        """The contents of the rows, one after the other."""
        return self.items[spread(self.starts, self.lengths)]


@dataclass(frozen=True)
class Ranks:
    """Hold the rank of every item to find, from 1, and the best items of each query.

    `excluded` leaves out the items of the query's history, `included` ranks all items. An item to
    find is never left out, even if the history holds the item. Equal scores are ranked by code.
    """

    excluded: Ints  # [t] of every target; [q] where each query has one
    included: Ints  # [t]
    top: Ints  # [q, K] the best items without the history; -1 where there are no more
    items: int


def inner(queries: Floats, items: Floats) -> Scores:
    """Return scores as inner products of vectors, [q, D] and [c, D], in scratch memory of a single
    block.

    Raises:
        DataError: vectors with values other than finite numbers.
    """
    refuse_not_finite(queries, "queries")
    refuse_not_finite(items, "items")
    across = np.ascontiguousarray(items, np.float32).T
    scratch = np.empty((0, len(items)), np.float32)

    def scores(rows: slice) -> Floats:
        nonlocal scratch
        block = np.ascontiguousarray(queries[rows], np.float32)
        if len(scratch) < len(block):
            scratch = np.empty((len(block), len(items)), np.float32)
        return np.matmul(block, across, out=scratch[: len(block)])

    return scores


def rank(
    scores: Scores,
    items: int,
    target: Ints,
    seen: Histories,
    k: int = 0,
    of: Ints | None = None,
    aside: Histories | None = None,
    group: Group = ALONE,
) -> Ranks:
    """Rank each query's targets among all items, with the query's history left out and left in, in
    a single pass over the scores.

    Rank = 1 + items with a higher score + items with an equal score and a smaller code, by the
    float32 scores without rounding. Memory holds a block of scores, whatever the numbers of queries
    and items.

    Args:
        scores: of a block of queries, such as `inner(queries, items)` or a baseline's.
        items: c, the number of items in the catalogue.
        target: the code of the next item, [q], or of all items to find, [t].
        seen: each query's history, q rows.
        k: length of the lists in `Ranks.top`; 0 for no lists.
        of: [t] the query of each target, rising; None where each query has a single target.
        aside: items to leave out beside each query's history, q rows.
        group: processes with the same arguments, each of which ranks a part of the queries.

    Raises:
        DataError: a code outside the catalogue, unequal numbers of histories and targets, nan among
            the scores.

    >>> scores = np.array([[0.9, 0.5, 0.7]], np.float32)
    >>> ranks = rank(lambda rows: scores[rows].copy(), 3, np.array([1]), Histories.of(np.array([0]), np.array([0, 1])), 2)
    >>> ranks.excluded.tolist(), ranks.included.tolist(), ranks.top.tolist()
    ([2], [3], [[2, 1]])
    """
    query = np.arange(len(target)) if of is None else of
    _check(items, target, seen, query)
    if aside is not None:
        _check(items, target, aside, query)
    included = np.empty(len(target), np.int64)
    excluded = np.empty(len(target), np.int64)
    queries = len(seen) if len(target) else 0
    top = np.full((queries, min(k, items)), -1)
    # Parts begin where blocks begin: a block of one process has the scores of one alone.
    mine = group.part(queries, block_size(items))
    for rows in query_blocks(queries, items):
        if not mine.start <= rows.start < mine.stop:
            continue
        block = _refuse_nan(scores(rows), rows)
        part = slice(*np.searchsorted(query, [rows.start, rows.stop]))  # of the targets
        code = target[part]
        row = query[part] - rows.start
        own = block[row, code]
        at, left_out = _left_out(query[part], seen, aside)
        if of is not None:
            # An item to find of a query is left out for none of the query's other targets.
            finds = np.isin(row[at] * items + left_out, row * items + code)
            at, left_out = at[~finds], left_out[~finds]
        above = _seen_above(
            block[row[at], left_out], own[at], left_out < code[at], at * items + left_out
        )
        included[part] = _count(block, row, code)
        excluded[part] = included[part] - np.bincount(above // items, minlength=len(code))
        if k:
            block[row[at], left_out] = -np.inf
            block[row, code] = own
            top[rows] = _list(block, k)
    targets = slice(*np.searchsorted(query, [mine.start, mine.stop]))
    return Ranks(
        group.all_gather_array(excluded[targets]),
        group.all_gather_array(included[targets]),
        group.all_gather_array(top[mine]),
        items,
    )


def _left_out(query: Ints, seen: Histories, aside: Histories | None) -> tuple[Ints, Ints]:
    """Return the items left out of the ranking of some queries' targets: the place of the target,
    and the code of the item."""
    at, codes = seen[query].pairs()
    if aside is None:
        return at, codes
    more_at, more_codes = aside[query].pairs()
    return np.concatenate([at, more_at]), np.concatenate([codes, more_codes])


def metrics_of(
    ranks: Ints, metrics: Sequence[str], of: Ints | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return each metric for each query from the ranks of the query's right items, [q].

    The values are equal to `ranking.metrics.evaluate` of the lists. With one item, hit@k = recall@k
    = 1 where rank <= k, precision@k = 1/k, mrr@k = map@k = 1/rank and ndcg@k = 1/log2(rank + 1),
    each 0 below k. Any k is exact, and mrr at the size of the catalogue is the mean reciprocal rank
    of the literature.

    Args:
        ranks: of the right item of each query, [q], or of the right items of all queries, [t].
        of: [t] the query of each right item, with one or more for each query; None for a single
            right item each.

    >>> {name: value.tolist() for name, value in metrics_of(np.array([1, 3, 4]), ["hit@3", "mrr@3"]).items()}
    {'hit@3': [1.0, 1.0, 0.0], 'mrr@3': [1.0, 0.3333333333333333, 0.0]}
    >>> metrics_of(np.array([4, 1, 9]), ["recall@5"], np.array([0, 0, 0]))["recall@5"].tolist()
    [0.6666666666666666]
    """
    query = np.arange(len(ranks)) if of is None else of
    order = np.lexsort((ranks, query))
    place, query = ranks[order].astype(np.float64), query[order]
    counts = np.bincount(query)
    before = counts.cumsum() - counts  # right items of earlier queries
    nth = np.arange(len(place)) - before[query] + 1  # place among the query's right items
    values: dict[str, NDArray[np.float64]] = {}
    for name in metrics:
        kind, k = parsed(name)
        worth = np.where(place <= k, _WORTH[kind](place, nth, counts[query], k), 0.0)
        values[name] = np.bincount(query, worth).astype(np.float64)
    return values


_Worth = Callable[[NDArray[np.float64], Ints, Ints, int], NDArray[np.float64]]
# by metric: the worth of one right item, from its rank, its place among the right items of the
# query, the number of right items and k
_WORTH: dict[str, _Worth] = {
    "hit": lambda rank, nth, right, k: 1.0 * (nth == 1),
    "recall": lambda rank, nth, right, k: 1 / right,
    "precision": lambda rank, nth, right, k: np.full_like(rank, 1 / k),
    "mrr": lambda rank, nth, right, k: (nth == 1) / rank,
    "map": lambda rank, nth, right, k: nth / rank / right,
    "ndcg": lambda rank, nth, right, k: 1 / np.log2(rank + 1) / _ideal(right, k),
}


def _ideal(right: Ints, k: int) -> NDArray[np.float64]:
    """Return the discounted gain of a list with all right items first, up to k."""
    places = np.minimum(right, k)
    discounts = 1 / np.log2(np.arange(places.max(initial=0)) + 2)
    gains: NDArray[np.float64] = np.cumsum(discounts)[places - 1]
    return gains


def _check(items: int, target: Ints, seen: Histories, of: Ints) -> None:
    """Raise DataError for another number of histories than of queries, or an unknown item."""
    if len(target) and (len(target) != len(of) or len(seen) != of[-1] + 1):
        raise DataError(
            f"{len(target):,} targets, but {len(seen):,} histories; expected one history for each target"
        )
    for what, codes in (("target", target), ("history item", seen.items)):
        wrong = (codes < 0) | (codes >= items)
        if wrong.any():
            at = int(wrong.argmax())
            raise DataError(f"{what} {at} is item {int(codes[at])}; expected 0 to {items - 1}")


def query_blocks(queries: int, items: int) -> Iterator[slice]:
    """Yield slices of queries, small enough to hold the scores of all items in little memory."""
    size = block_size(items)
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


def block_size(items: int) -> int:
    """Return the number of queries of a block."""
    least, most = _ROWS
    return min(max(least, _CELLS // items), most)


def _refuse_nan(block: Floats, rows: slice) -> Floats:
    """Return the block; raise DataError for a NaN: the query would get the first rank, as no score
    is above a NaN."""
    if np.isnan(block.max(initial=-np.inf)):
        row = rows.start + int(np.isnan(block).any(1).argmax())
        raise DataError(f"scores of query {row} are NaN: the model has diverged")
    return block


def _count(block: Floats, rows: Ints, target: Ints) -> Ints:
    """Return ranks of the targets of some rows among all items, [t]."""
    ranks = np.empty(len(target), np.int64)
    for i, (place, at) in enumerate(zip(rows.tolist(), target.tolist())):
        row = block[place]
        higher_or_equal = np.count_nonzero(row[:at] >= row[at])
        higher = np.count_nonzero(row[at + 1 :] > row[at])
        ranks[i] = 1 + higher_or_equal + higher
    return ranks


def _seen_above(scores: Floats, own: Floats, smaller: NDArray[np.bool_], keys: Ints) -> Ints:
    """Return keys of the seen items ranked above the target, each once."""
    is_above = (scores > own) | ((scores == own) & smaller)
    above = np.sort(keys[is_above])  # in place of the slower `unique`
    return above[np.diff(above, prepend=-1) > 0]


def _list(block: Floats, k: int) -> Ints:
    """Return the k items with the highest scores, [r, K]; -1 where the score is -inf."""
    best, positions = top_of(block, k)
    return np.where(np.isneginf(best), -1, positions)
