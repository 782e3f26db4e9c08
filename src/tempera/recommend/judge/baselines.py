"""Baselines that a recommender has to beat: popularity, item-kNN, EASE and transition counts.

Letters in shapes: u users, e events, c items of the catalogue, r queries of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray
from pydantic import Field
from scipy import sparse
from scipy.linalg import lapack

from ...errors import DataError
from .full_catalogue import Histories, Scores

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Table = Any  # sparse rows of items by items, [c, c]; of EASE a dense array

# Items: more than the first have too many pairs, and of the second a dense table takes 1.6 GB.
SPARSE, DENSE = 200_000, 20_000
_CELLS = 1 << 22  # pairs of items that are counted at once
_AGAIN = 2_000_000  # training events; with more, a table is counted only once


@dataclass(frozen=True)
class Observed:
    """Hold interactions user after user, the oldest first; baselines learn only from those of
    `train`.

    >>> Observed(np.array([2, 0, 2]), np.array([0, 1, 3]), 3, np.array([True, True, False])).counts.tolist()
    [1, 0, 1]
    """

    item: NDArray[np.integer]  # [e] codes from 0 to items - 1
    offsets: Ints  # [u + 1]: user j's are `offsets[j]` to `offsets[j + 1]`
    items: int  # c
    train: NDArray[np.bool_]  # [e]
    latest: dict[Any, Table] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # the table counted last

    @property
    def counts(self) -> Ints:
        """Training events of each item, [c]."""
        return np.bincount(self.item[self.train], minlength=self.items)

    def of_training(self) -> tuple[Ints, Ints]:
        """Items and offsets of the training events alone."""
        before = np.concatenate([[0], np.cumsum(self.train)])
        return self.item[self.train].astype(np.int64), before[self.offsets]

    def once(self, name: str, options: Sequence[float], count: Callable[[], Table]) -> Table:
        """Return a table, which is not counted again while only other settings of its baseline
        change."""
        if (key := (name, *options)) not in self.latest:
            if not self.train.any():
                raise DataError(f"{name} has no training events to learn from")
            self.latest.clear()
            self.latest[key] = count()
        return self.latest[key]


class FittedBaseline(Protocol):
    """A baseline fitted to the training events."""

    def scores(self, histories: Histories) -> Floats:
        """Return the score of every item for each history, [r, c], in an array that the caller may
        overwrite."""


class Baseline(Protocol):
    """A model that can be fitted to events."""

    @property
    def most(self) -> float:
        """The largest number of items that it is fitted to."""

    def fit(self, events: Observed) -> FittedBaseline:
        """Learn from the training events."""


@dataclass(frozen=True)
class Popular:
    """Score items by their number of training events, for everyone alike."""

    most = float("inf")

    def fit(self, events: Observed) -> _Constant:
        """Count the training events of each item."""
        return _Constant(events.counts.astype(np.float32))


@dataclass(frozen=True)
class ItemKNN:
    """Score items by cosines of their users: score(j) = sum over items i of the history of
    decay^(places from its end) cos(i, j).

    x_ui says how often user u had item i in training, cos(i, j) = x_i x_j / (|x_i| |x_j|). Of the
    history only the `neighbours` that are nearest to j count, and j itself does not (Sarwar et al.
    2001; a sum, as events have no grades).

    Args:
        neighbours: of each item; of equal cosines those with the smaller codes.
        last: items of the history that count; None for all. An item that stands there twice counts
            twice.
        decay: what each place further back in the history counts less by.
    """

    neighbours: Count = 100
    last: Count | None = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0

    most = SPARSE

    def fit(self, events: Observed) -> ItemToItem:
        """Count the users that each two items have in common."""
        return ItemToItem(
            events.once("item-kNN", [self.neighbours], lambda: self._cosines(events)),
            self.last,
            self.decay,
        )

    def _cosines(self, events: Observed) -> Table:
        had = _had(events, np.float64)
        square, parts = np.maximum(had.power(2).sum(0), 1), []
        for rows, gram in _products(had):
            of = np.repeat(np.arange(rows.start, rows.stop), np.diff(gram.indptr))
            gram.data **= 2
            gram.data /= square[gram.indices]  # equal numbers for equal cosines of a row
            gram.data[gram.indices == of] = 0
            near = largest(gram, self.neighbours)
            near.data = np.sqrt(near.data / np.repeat(square[rows], np.diff(near.indptr))).astype(
                np.float32
            )
            parts.append(near)
        return sparse.vstack(parts).T.tocsr()


@dataclass(frozen=True)
class Ease:
    """The linear autoencoder with no weight of an item on itself that is nearest to the training
    events.

    With X as in `ItemKNN`, P = (X'X + regularisation * I)^-1 and B_ij = -P_ij / P_jj, B_ii = 0, the
    score of j is the sum of B_ij over items i of the history (Steck 2019, the closed form), each
    times decay^(places from its end).

    Args:
        regularisation: towards 0, in counts.
        last: as for `ItemKNN`. Steck takes the whole history; where what comes next is asked, the
            latest few say more.
        decay: as for `ItemKNN`.
    """

    regularisation: Annotated[float, Field(gt=0)] = 1000.0
    last: Count | None = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8

    @property
    def most(self) -> float:
        """The largest number of items of which a dense table fits half of the free memory."""
        return min(DENSE, math.sqrt(psutil.virtual_memory().available / 8))

    def fit(self, events: Observed) -> ItemToItem:
        """Invert a table of items by items: seconds for 3,000 items, and eight times as long for
        twice as many."""
        return ItemToItem(
            events.once("EASE", [self.regularisation], lambda: self._weights(events)),
            self.last,
            self.decay,
        )

    def _weights(self, events: Observed) -> Table:
        table = np.empty((events.items, events.items), np.float32, order="F")
        for rows, gram in _products(_had(events, np.float32)):
            table[:, rows] = gram.toarray().T  # which is symmetric
        table[np.diag_indices(events.items)] += self.regularisation
        table, failed = lapack.spotrf(table, lower=1, overwrite_a=1)  # Cholesky's factor, in place
        if failed:
            raise DataError(
                f"EASE with a regularisation of {self.regularisation:g} cannot be solved: raise it"
            )
        table, _ = lapack.spotri(table, lower=1, overwrite_c=1)  # fills the lower triangle alone
        for column in range(events.items):
            table[column, column + 1 :] = table[column + 1 :, column]
        table = table.T  # the same numbers, row by row, as products need them
        table /= -table.diagonal()
        np.fill_diagonal(table, 0)
        return table


@dataclass(frozen=True)
class Transitions:
    """Score items by how often they soon followed those of the history, discounted by popularity (a
    Markov chain).

    C_ij = sum over events j of training, over its user's events i that stand g = 1 to `window`
    places before it, of 1 / g^slope; the `successors` largest of each i count. The score of j is
    the sum, over the items i that stand g = 1 to `last` places before the query, of decay^(g - 1)
    C_ij / (n_i^share n_j^discount), where n are training events, at least 1.

    Args:
        window: places, of the training events alone.
        slope: of the weight of a pair over the places between.
        share: of C_ij among the events of i, from 0 (the count itself) to 1 (its share).
        discount: of popular items, from 0 (none) to 1.
        last: items of the history that count; None for all.
        decay: what each place further back in the history counts less by.
        successors: of each item; of equal counts those with the smaller codes.
    """

    window: Count = 20
    slope: Annotated[float, Field(ge=0)] = 0.5
    share: Share = 0.5
    discount: Share = 0.2
    last: Count | None = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 0.7
    successors: Count = 200

    most = SPARSE

    def fit(self, events: Observed) -> ItemToItem:
        """Count pairs of items that follow each other."""
        options = self.window, self.slope, self.successors
        counts = events.once("transitions", options, lambda: self.counts(events))
        usual = np.maximum(events.counts, 1).astype(np.float32)
        weights = counts.copy()
        weights.data *= (
            np.repeat(usual**-self.share, np.diff(counts.indptr))
            * (usual**-self.discount)[counts.indices]
        )
        return ItemToItem(weights, self.last, self.decay)

    def counts(self, events: Observed) -> Table:
        """Return C, [c, c]."""
        item, offsets = events.of_training()
        end = np.repeat(offsets[1:], np.diff(offsets))
        order, n = np.argsort(item, kind="stable"), events.items
        weight = np.arange(1, self.window + 1, dtype=np.float32) ** -self.slope
        start, parts = np.concatenate([[0], np.cumsum(np.bincount(item, minlength=n))]), []
        for rows in _runs(start, _CELLS // self.window):
            first = order[start[rows.start] : start[rows.stop]]
            second = first[:, None] + np.arange(1, self.window + 1)
            inside = second < end[first][:, None]
            of, at = item[first] - rows.start, item[second[inside]]
            pairs = np.broadcast_to(of[:, None], inside.shape)[inside], at
            values = np.broadcast_to(weight, inside.shape)[inside]
            counts = sparse.coo_array((values, pairs), (rows.stop - rows.start, n)).tocsr()
            parts.append(largest(counts, self.successors))
        return sparse.vstack(parts, format="csr")


@dataclass(frozen=True)
class _Constant:
    """Return the same scores for every history."""

    of_items: Floats  # [c]

    def scores(self, histories: Histories) -> Floats:
        """Return a copy of the scores for each history."""
        return np.tile(self.of_items, (len(histories), 1))


@dataclass(frozen=True)
class ItemToItem:
    """The score of item j is the sum over the history of decay^(places from its end) weights_ij; 0
    without a history.

    An item that is newer than the weights counts nothing, and keeps its place.
    """

    weights: Table  # [c, c]
    last: int | None = None
    decay: float = 1.0

    def scores(self, histories: Histories) -> Floats:
        """Return the scores by one product of the histories' items, [r, c], which are few, with the
        weights."""
        read = histories if self.last is None else histories.last(self.last)
        ends = read.lengths.cumsum()
        query, items = read.pairs()
        fading = (self.decay ** (ends[query] - np.arange(len(items)) - 1)).astype(np.float32)
        rows, counted = np.concatenate([[0], ends]), self.weights.shape[0]
        fading[items >= counted] = 0
        product = (
            sparse.csr_array((fading, items.clip(max=counted - 1), rows), (len(read), counted))
            @ self.weights
        )
        scores: Floats = product.toarray() if sparse.issparse(product) else product
        return scores


def by_history(fitted: FittedBaseline, histories: Histories) -> Scores:
    """Return the scores of a block of queries, by the history of each, as ranking needs them."""
    return lambda rows: fitted.scores(histories[rows])


BASELINES: dict[str, Baseline] = {
    "popularity": Popular(),
    "item-kNN": ItemKNN(),
    "EASE": Ease(),
    "transitions": Transitions(),
}
COUNTING = (
    "item-kNN",
    "transitions",
)  # with sparse weights not below 0, which a run can keep beside its vectors
# What is tried on validation, one option after the other.
_GRID: Mapping[str, Mapping[str, Sequence[float | None]]] = {
    "item-kNN": {"neighbours": (20, 100, 400), "last": (3, 10, None), "decay": (0.8, 1.0)},
    "EASE": {"last": (3, 10, None), "decay": (0.8, 1.0), "regularisation": (100.0, 300.0, 1000.0)},
    "transitions": {
        "window": (5, 10, 20, 40),
        "slope": (0.0, 0.25, 0.5, 1.0),
        "decay": (0.6, 0.7, 0.8, 0.9),
        "share": (0.0, 0.25, 0.5, 0.75),
        "discount": (0.0, 0.1, 0.2, 0.4),
    },
}
# Where histories have no order.
UNORDERED: dict[str, Baseline] = {
    "popularity": Popular(),
    "item-kNN": ItemKNN(last=None, decay=1.0),
    "EASE": Ease(last=None, decay=1.0),
}


def grid(
    system: str, events: Observed, ordered: bool = True
) -> Mapping[str, Sequence[float | None]]:
    """Return the settings of a baseline to choose among; of many events those alone that need no
    other table.

    Args:
        ordered: False leaves out those by which the latest events of a history count more.
    """
    again = events.train.sum() <= _AGAIN
    few = not ordered and events.items <= _SOLVED
    left = (
        (() if again else _TABLE)
        + (() if ordered else _ORDER)
        + (() if few else ("regularisation",))
    )
    return {name: values for name, values in _GRID.get(system, {}).items() if name not in left}


def tuned(
    baseline: Any, grid: Mapping[str, Sequence[float | None]], score: Callable[[Any], float]
) -> Any:
    """Return a baseline with the settings that score highest, chosen one option after the other; of
    equal ones the first.

    >>> tuned(Transitions(), {"window": (5, 10), "decay": (0.5, 0.9)}, lambda each: -each.window + each.decay).window
    5
    """
    for option, values in grid.items():
        baseline = max((replace(baseline, **{option: value}) for value in values), key=score)
    return baseline


# items of which EASE is solved for each regularisation, where there is no order to choose
_SOLVED = 5_000
_ORDER = ("last", "decay")
_TABLE = ("neighbours", "window", "slope")  # settings that need another table


def largest(table: Table, most: int) -> Table:
    """Return sparse rows with only the largest values of each that are above 0; of equal ones those
    with the smaller columns.

    >>> largest(sparse.csr_array(np.array([[3.0, 5.0, 3.0, 0.0]])), 2).toarray().tolist()
    [[3.0, 5.0, 0.0, 0.0]]
    """
    table.sort_indices()
    rows, lengths = table.shape[0], np.diff(table.indptr)
    least = np.zeros(rows, table.data.dtype)  # the value that the last of a row has to reach
    for i in np.flatnonzero(lengths > most):
        values = table.data[table.indptr[i] : table.indptr[i + 1]]
        least[i] = max(0, np.partition(values, -most)[-most])
    row = np.repeat(np.arange(rows), lengths)
    stays = table.data > least[row]
    equal = np.flatnonzero((table.data == least[row]) & ~stays & (table.data > 0))
    first = np.searchsorted(row[equal], row[equal])  # of the equal ones of a row, among all of them
    left = most - np.bincount(row[stays], minlength=rows)
    stays[equal[np.arange(len(equal)) - first < left[row[equal]]]] = True
    kept = np.flatnonzero(stays)
    counts = np.bincount(row[kept], minlength=rows)
    values = (
        table.data[kept].astype(np.float32),
        table.indices[kept],
        np.concatenate([[0], counts.cumsum()]),
    )
    return sparse.csr_array(values, table.shape)


def _had(events: Observed, dtype: type[np.floating]) -> Table:
    """Return how often each user had each item in training, X, [u, c]."""
    items, offsets = events.of_training()
    had = sparse.csr_array(
        (np.ones(len(items), dtype), items, offsets), (len(offsets) - 1, events.items)
    )
    had.sum_duplicates()
    return had


def _products(had: Table) -> Iterator[tuple[slice, Table]]:
    """Yield rows of X'X for X, [u, c], some items at a time: as many as have a limited number of
    pairs."""
    users = had.T.tocsr()
    pairs = np.minimum((users != 0) @ np.diff(had.indptr), had.shape[1])
    for rows in _runs(np.concatenate([[0], pairs.cumsum()]), _CELLS):
        yield rows, (users[rows] @ had).tocsr()


def _runs(start: Ints, most: int) -> Iterator[slice]:
    """Yield consecutive items with a limited number of events, or one item that has more."""
    first = 0
    while first < len(start) - 1:
        last = max(first + 1, int(np.searchsorted(start, start[first] + most, side="right")) - 1)
        yield slice(first, last)
        first = last
