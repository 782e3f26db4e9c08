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

SPARSE = 200_000  # items: more have too many pairs for a sparse table
DENSE = 20_000  # items: a dense table of them takes 1.6 GB
_CELLS = 1 << 22  # pairs of items that are counted at once
# Items of EASE while its settings are chosen. Of more, the most frequent are solved: the time rises
# with their third power, and settings of histories are about the same. Without an order, EASE has
# one regularisation for more items.
SOLVED = 5_000
_AGAIN = 2_000_000  # training events; with more, a table is counted only once


@dataclass(frozen=True)
class Observed:
    """Hold interactions user after user, the oldest first; baselines learn only from the events of
    `train`.

    >>> Observed(np.array([2, 0, 2]), np.array([0, 1, 3]), 3, np.array([True, True, False])).counts.tolist()
    [1, 0, 1]
    """

    item: NDArray[np.integer]  # [e] codes from 0 to items - 1
    offsets: Ints  # [u + 1]: user j has events `offsets[j]` to `offsets[j + 1]`
    items: int  # c
    train: NDArray[np.bool_]  # [e]
    # the table that was counted last, by its baseline and settings
    latest: dict[Any, Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def counts(self) -> Ints:
        """Training events of each item, [c]."""
        return np.bincount(self.item[self.train], minlength=self.items)

    def of_training(self) -> tuple[Ints, Ints]:
        """Items and offsets of the training events alone."""
        before = np.concatenate([[0], np.cumsum(self.train)])
        return self.item[self.train].astype(np.int64), before[self.offsets]

    def once(self, name: str, options: Sequence[float], count: Callable[[], Table]) -> Table:
        """Return the table of a baseline with these options; the table of the last call is not
        counted again.

        Raises:
            DataError: no training events.
        """
        key = (name, *options)
        if key not in self.latest:
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
        """The largest number of items for which the model is fitted."""

    def fit(self, events: Observed) -> FittedBaseline:
        """Learn from the training events."""

    def __hash__(self) -> int: ...


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

    x_ui is the number of times that user u had item i in training, cos(i, j) = x_i x_j / (|x_i|
    |x_j|). Of the history only the `neighbours` nearest to j count, and j does not (Sarwar et al.
    2001; a sum, as events have no grades).

    Args:
        neighbours: of each item; of equal cosines the smaller codes.
        last: items of the history that count; None for all. A repeated item counts repeatedly.
        decay: factor of the weight for each place further back in the history.
    """

    neighbours: Count = 100
    last: Count | None = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0

    most = SPARSE

    def fit(self, events: Observed) -> ItemToItem:
        """Count the users that each two items have in common."""
        table = events.once("item-kNN", [self.neighbours], lambda: self._cosines(events))
        return ItemToItem(table, self.last, self.decay)

    def _cosines(self, events: Observed) -> Table:
        """Return the cosine of each item to its nearest neighbours, [c, c], in their columns."""
        had = _had(events, np.float64)
        square = np.maximum(had.power(2).sum(0), 1)  # [c] |x_i|^2
        parts = []
        for rows, gram in _products(had):
            row = np.repeat(np.arange(rows.start, rows.stop), np.diff(gram.indptr))
            # cos^2 |x_i|^2: equal numbers for equal cosines of a row
            gram.data **= 2
            gram.data /= square[gram.indices]
            gram.data[gram.indices == row] = 0
            near = largest(gram, self.neighbours)
            own = np.repeat(square[rows], np.diff(near.indptr))
            near.data = np.sqrt(near.data / own).astype(np.float32)
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
        items: number of items of X, those with most training events; the others have no weights.
            None is all.
        regularisation: towards 0, in counts.
        last: as for `ItemKNN`. Steck takes the whole history; for the next item the latest few say
            more.
        decay: as for `ItemKNN`.
    """

    regularisation: Annotated[float, Field(gt=0)] = 1000.0
    last: Count | None = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    items: Count | None = None

    @property
    def most(self) -> float:
        """The largest number of items whose dense table fits half of the free memory."""
        return min(DENSE, math.sqrt(psutil.virtual_memory().available / 8))

    def fit(self, events: Observed) -> ItemToItem:
        """Invert a table of items by items: seconds for 3,000 items, and eight times as long for
        twice as many."""
        items = min(events.items, self.items or events.items)
        table = events.once(
            "EASE", [self.regularisation, items], lambda: self._weights(events, items)
        )
        return ItemToItem(table, self.last, self.decay)

    def _weights(self, events: Observed, items: int) -> Floats:
        """Return B, [c, c], of the items with most events."""
        had = _had(events, np.float32)
        if items == events.items:
            return self._weights_of(had)
        most_first = np.argsort(-events.counts, kind="stable")
        frequent = np.sort(most_first[:items])
        table = np.zeros((events.items, events.items), np.float32)
        table[np.ix_(frequent, frequent)] = self._weights_of(had[:, frequent])
        return table

    def _weights_of(self, had: Table) -> Floats:
        """Return B of X, [u, c] -> [c, c]."""
        items = had.shape[1]
        table = np.empty((items, items), np.float32, order="F")
        for rows, gram in _products(had):
            table[:, rows] = gram.toarray().T  # X'X is symmetric
        table[np.diag_indices(items)] += self.regularisation
        table, failed = lapack.spotrf(table, lower=1, overwrite_a=1)  # Cholesky's factor, in place
        if failed:
            raise DataError(
                f"EASE with a regularisation of {self.regularisation:g} cannot be solved: raise it"
            )
        table, _ = lapack.spotri(table, lower=1, overwrite_c=1)  # P, in the lower triangle alone
        for column in range(items):
            table[column, column + 1 :] = table[column + 1 :, column]
        table = table.T  # the same numbers, row by row, as products need them
        table /= -table.diagonal()
        np.fill_diagonal(table, 0)
        weights: Floats = table
        return weights


@dataclass(frozen=True)
class Transitions:
    """Score items by the number of times that they soon followed items of the history, discounted
    by popularity (a Markov chain).

    C_ij = sum over events j of training, and events i of the same user g = 1 to `window` places
    before j, of 1 / g^slope; the `successors` largest of each i count. The score of j is the sum,
    over the items i that stand g = 1 to `last` places before the query, of decay^(g - 1) C_ij /
    (n_i^share n_j^discount), where n are training events, at least 1.

    Args:
        window: places, of the training events alone.
        slope: of the weight of a pair over the places between.
        share: of C_ij among the events of i, from 0 (the count) to 1 (the share).
        discount: of popular items, from 0 (no discount) to 1.
        last: items of the history that count; None for all.
        decay: factor of the weight for each place further back in the history.
        successors: of each item; of equal counts the smaller codes.
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
        """Count pairs of items where the second soon follows the first."""
        options = (self.window, self.slope, self.successors)
        counts = events.once("transitions", options, lambda: self.counts(events))
        usual = np.maximum(events.counts, 1).astype(np.float32)
        before = np.repeat(usual**-self.share, np.diff(counts.indptr))
        after = (usual**-self.discount)[counts.indices]
        weights = counts.copy()
        weights.data *= before * after
        return ItemToItem(weights, self.last, self.decay)

    def counts(self, events: Observed) -> Table:
        """Return C, [c, c]."""
        item, offsets = events.of_training()
        end = np.repeat(offsets[1:], np.diff(offsets))  # of each event's user
        order = np.argsort(item, kind="stable")  # events by item
        start = np.concatenate([[0], np.cumsum(np.bincount(item, minlength=events.items))])
        gaps = np.arange(1, self.window + 1)
        weight = gaps.astype(np.float32) ** -self.slope
        parts = []
        for rows in _runs(start, _CELLS // self.window):
            first = order[start[rows.start] : start[rows.stop]]
            second = first[:, None] + gaps  # [events, window]
            inside = second < end[first][:, None]
            row = np.broadcast_to((item[first] - rows.start)[:, None], inside.shape)[inside]
            column = item[second[inside]]
            values = np.broadcast_to(weight, inside.shape)[inside]
            shape = (rows.stop - rows.start, events.items)
            counts = sparse.coo_array((values, (row, column)), shape).tocsr()
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
    """The score of item j is the sum over items i of the history of decay^(places from its end)
    weights_ij; 0 without a history.

    An item that is newer than the weights counts nothing, and keeps its place in the history.
    """

    weights: Table  # [c, c]
    last: int | None = None
    decay: float = 1.0

    def scores(self, histories: Histories) -> Floats:
        """Return the scores, [r, c], by one product of a sparse matrix of the histories with the
        weights."""
        if self.last is not None:
            histories = histories.last(self.last)
        known = self.weights.shape[0]
        query, items = histories.pairs()
        ends = histories.lengths.cumsum()
        age = ends[query] - np.arange(len(items)) - 1  # places from the end
        fading = (self.decay**age).astype(np.float32)
        fading[items >= known] = 0
        read = sparse.csr_array(
            (fading, items.clip(max=known - 1), np.concatenate([[0], ends])),
            (len(histories), known),
        )
        product = read @ self.weights
        scores: Floats = product.toarray() if sparse.issparse(product) else product
        return scores


def by_history(fitted: FittedBaseline, histories: Histories) -> Scores:
    """Return a function from a slice of the queries to their scores, for ranking."""
    return lambda rows: fitted.scores(histories[rows])


BASELINES: dict[str, Baseline] = {
    "popularity": Popular(),
    "item-kNN": ItemKNN(),
    "EASE": Ease(),
    "transitions": Transitions(),
}
# baselines with sparse weights not below 0, which a run can keep beside its vectors
COUNTING = ("item-kNN", "transitions")
# settings that are tried on validation, one option after the other
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
# baselines of histories without an order
UNORDERED: dict[str, Baseline] = {
    "popularity": Popular(),
    "item-kNN": ItemKNN(last=None, decay=1.0),
    "EASE": Ease(last=None, decay=1.0),
}


def grid(
    system: str, events: Observed, ordered: bool = True
) -> Mapping[str, Sequence[float | None]]:
    """Return the settings of a baseline to choose among, by option.

    Settings that need another table are left out where there are many events.

    Args:
        ordered: False leaves out the options by which the latest events of a history count more.
    """
    left_out: set[str] = set()
    if events.train.sum() > _AGAIN:
        left_out |= {"neighbours", "window", "slope"}
    if not ordered:
        left_out |= {"last", "decay"}
    if ordered or events.items > SOLVED:
        left_out.add("regularisation")
    options = _GRID.get(system, {})
    return {name: values for name, values in options.items() if name not in left_out}


def tuned(
    baseline: Any, grid: Mapping[str, Sequence[float | None]], score: Callable[[Any], float]
) -> Any:
    """Return a baseline with the settings that score highest, chosen one option after the other; of
    equal settings the first.

    >>> tuned(Transitions(), {"window": (5, 10), "decay": (0.5, 0.9)}, lambda each: -each.window + each.decay).window
    5
    """
    for option, values in grid.items():
        candidates = [replace(baseline, **{option: value}) for value in values]
        baseline = max(candidates, key=score)
    return baseline


def largest(table: Table, most: int) -> Table:
    """Return sparse rows with only the largest values of each row that are above 0; of equal values
    the smaller columns.

    >>> largest(sparse.csr_array(np.array([[3.0, 5.0, 3.0, 0.0]])), 2).toarray().tolist()
    [[3.0, 5.0, 0.0, 0.0]]
    """
    table.sort_indices()
    rows = table.shape[0]
    lengths = np.diff(table.indptr)
    least = np.zeros(rows, table.data.dtype)  # the smallest value of a row that may stay
    for i in np.flatnonzero(lengths > most):
        values = table.data[table.indptr[i] : table.indptr[i + 1]]
        least[i] = max(0, np.partition(values, -most)[-most])
    row = np.repeat(np.arange(rows), lengths)
    stays = table.data > least[row]
    # Of the values equal to the smallest, the first fill the places that are left in their row.
    equal = np.flatnonzero((table.data == least[row]) & ~stays & (table.data > 0))
    place = np.arange(len(equal)) - np.searchsorted(row[equal], row[equal])
    left = most - np.bincount(row[stays], minlength=rows)
    stays[equal[place < left[row[equal]]]] = True
    kept = np.flatnonzero(stays)
    counts = np.bincount(row[kept], minlength=rows)
    indptr = np.concatenate([[0], counts.cumsum()])
    values = table.data[kept].astype(np.float32)
    return sparse.csr_array((values, table.indices[kept], indptr), table.shape)


def _had(events: Observed, dtype: type[np.floating]) -> Table:
    """Return X: the number of times that each user had each item in training, [u, c]."""
    items, offsets = events.of_training()
    ones = np.ones(len(items), dtype)
    had = sparse.csr_array((ones, items, offsets), (len(offsets) - 1, events.items))
    had.sum_duplicates()
    return had


def _products(had: Table) -> Iterator[tuple[slice, Table]]:
    """Yield rows of X'X for X, [u, c]: consecutive items with a limited number of pairs."""
    users = had.T.tocsr()
    pairs = np.minimum((users != 0) @ np.diff(had.indptr), had.shape[1])  # at most, of each item
    for rows in _runs(np.concatenate([[0], pairs.cumsum()]), _CELLS):
        yield rows, (users[rows] @ had).tocsr()


def _runs(start: Ints, most: int) -> Iterator[slice]:
    """Yield consecutive items with a limited number of events, or a single item with more.

    Args:
        start: [c + 1] number of events before each item.
    """
    first = 0
    while first < len(start) - 1:
        last = max(first + 1, int(np.searchsorted(start, start[first] + most, side="right")) - 1)
        yield slice(first, last)
        first = last
