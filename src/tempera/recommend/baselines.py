"""Baselines that a recommender has to beat: popularity, item-kNN, EASE and transition counts.

Letters in shapes: u users, e events, c items of the catalogue, r queries of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..errors import ConfigError, DataError
from .full_catalogue import Histories, Scores

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Count = Annotated[int, Field(gt=0)]

_LIMIT = 20_000  # items: a table of items by items then holds 3.2 GB, and to invert it takes four of them


@dataclass(frozen=True)
class Observed:
    """Hold interactions user after user, the oldest first; baselines learn only from those of `train`.

    >>> Observed(np.array([2, 0, 2]), np.array([0, 1, 3]), 3, np.array([True, True, False])).counts.tolist()
    [1, 0, 1]
    """

    item: NDArray[np.integer]  # [e] codes from 0 to items - 1
    offsets: Ints  # [u + 1]: user j's are `offsets[j]` to `offsets[j + 1]`
    items: int  # c
    train: NDArray[np.bool_]  # [e]

    @property
    def counts(self) -> Ints:
        """Training events of each item, [c]."""
        return np.bincount(self.item[self.train], minlength=self.items)

    def of_training(self) -> tuple[Ints, Ints]:
        """Items and offsets of the training events alone."""
        before = np.concatenate([[0], np.cumsum(self.train)])
        return self.item[self.train].astype(np.int64), before[self.offsets]


class FittedBaseline(Protocol):
    """A baseline fitted to the training events."""

    def scores(self, histories: Histories) -> Floats:
        """Return the score of every item for each history, [r, c], in an array that the caller may overwrite."""


class Baseline(Protocol):
    """A model that can be fitted to events."""

    def fit(self, events: Observed) -> FittedBaseline:
        """Learn from the training events."""


@dataclass(frozen=True)
class Popular:
    """Score items by their number of training events, for everyone alike."""

    def fit(self, events: Observed) -> _Constant:
        """Count the training events of each item."""
        return _Constant(events.counts.astype(np.float32))


@dataclass(frozen=True)
class ItemKNN:
    """Score items by cosines of their users: score(j) = sum over items i of the history of cos(i, j).

    x_ui says how often user u had item i in training, cos(i, j) = x_i x_j / (|x_i| |x_j|). Of the history only the
    `neighbours` that are nearest to j count, and j itself does not (Sarwar et al. 2001; a sum, as events have no grades).

    Args:
        neighbours: of each item; of equal cosines those with the smaller codes.
        last: items of the history that count; None for all. An item that stands there twice counts twice.
    """

    neighbours: Count = 100
    last: Count | None = 10

    def fit(self, events: Observed) -> ItemToItem:
        """Count the users that each two items have in common."""
        gram = _gram(events, "item-kNN")
        length = np.sqrt(np.maximum(gram.diagonal(), 1))
        gram /= length
        gram /= length[:, None]
        np.fill_diagonal(gram, 0)
        for cosines in gram:
            cosines[np.argsort(-cosines, kind="stable")[self.neighbours :]] = 0
        return ItemToItem(np.ascontiguousarray(gram.T, np.float32), self.last)


@dataclass(frozen=True)
class Ease:
    """The linear autoencoder with no weight of an item on itself that is nearest to the training events.

    With X as in `ItemKNN`, P = (X'X + regularisation * I)^-1 and B_ij = -P_ij / P_jj, B_ii = 0, the score of j is the sum
    of B_ij over items i of the history (Steck 2019, the closed form).

    Args:
        regularisation: towards 0, in counts.
        last: as for `ItemKNN`. Steck takes the whole history; where what comes next is asked, the latest few say more.
    """

    regularisation: Annotated[float, Field(gt=0)] = 1000.0
    last: Count | None = 3

    def fit(self, events: Observed) -> ItemToItem:
        """Invert a table of items by items: seconds for 3,000 items, and eight times as long for twice as many."""
        gram = _gram(events, "EASE")
        gram[np.diag_indices(events.items)] += self.regularisation
        inverse = np.linalg.inv(gram)
        weights = np.divide(inverse, -inverse.diagonal(), out=gram)
        np.fill_diagonal(weights, 0)
        return ItemToItem(weights.astype(np.float32), self.last)


@dataclass(frozen=True)
class Transitions:
    """Score items by how often they soon followed those of the history, discounted by popularity (a Markov chain).

    C_ij = sum over events j of training, over its user's events i that stand g = 1 to `window` places before it, of
    decay^(g - 1). The score of j is the sum, over the items i that stand g = 1 to `window` places before the query, of
    decay^(g - 1) C_ij / sum_k C_ik, divided by (training events of j)^discount, where no event counts as one.

    Args:
        window: places, of the training events alone.
        decay: what each place further back counts less by.
        discount: of popular items, from 0 (none) to 1.
    """

    window: Count = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    discount: Annotated[float, Field(ge=0, le=1)] = 0.3

    def fit(self, events: Observed) -> ItemToItem:
        """Count pairs of items that follow each other."""
        table = _table(events, "transition counts")
        item, offsets = events.of_training()
        user = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        for gap in range(1, self.window + 1):
            same = user[gap:] == user[:-gap]
            pairs = item[:-gap][same] * events.items + item[gap:][same]
            np.add.at(table.reshape(-1), pairs, self.decay ** (gap - 1))
        table /= np.maximum(table.sum(1, keepdims=True), np.finfo(table.dtype).tiny)
        table /= np.maximum(events.counts, 1) ** self.discount
        return ItemToItem(table.astype(np.float32), self.window, self.decay)


@dataclass(frozen=True)
class _Constant:
    """Return the same scores for every history."""

    of_items: Floats  # [c]

    def scores(self, histories: Histories) -> Floats:
        """Return a copy of the scores for each history."""
        return np.tile(self.of_items, (len(histories), 1))


@dataclass(frozen=True)
class ItemToItem:
    """The score of item j is the sum over the history of decay^(places from its end) weights_ij; 0 without a history."""

    weights: Floats  # [c, c]
    last: int | None = None
    decay: float = 1.0

    def scores(self, histories: Histories) -> Floats:
        """Return the scores by one product for each history, which is short compared with the catalogue."""
        rows = histories if self.last is None else histories.last(self.last)
        scores = np.zeros((len(rows), len(self.weights)), np.float32)
        fading = (self.decay ** np.arange(rows.lengths.max(initial=0))[::-1]).astype(np.float32)
        for row, start, stop in zip(scores, rows.starts.tolist(), rows.stops.tolist()):
            if stop > start:
                np.matmul(fading[start - stop :], self.weights[rows.items[start:stop]], out=row)
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
# Where histories have no order.
UNORDERED: dict[str, Baseline] = {"popularity": Popular(), "item-kNN": ItemKNN(last=None), "EASE": Ease(last=None)}


def refuse_many(items: int, what: str) -> None:
    """Raise ConfigError if there are too many items for a table of items by items.

    Raises:
        ConfigError: there are more.
    """
    if items > _LIMIT:
        raise ConfigError(
            f"{what} needs a table of items by items, but {items:,} items exceed the limit of {_LIMIT:,}: leave it out"
        )


def _table(events: Observed, what: str) -> NDArray[np.float64]:
    """Return zeros, [c, c]."""
    refuse_many(events.items, what)
    if not events.train.any():
        raise DataError(f"{what} has no training events to learn from")
    return np.zeros((events.items, events.items))


def _gram(events: Observed, what: str) -> NDArray[np.float64]:
    """Return the number of users that each two items have in common, X'X, [c, c]."""
    table = _table(events, what)
    item, offsets = events.of_training()
    flat = table.reshape(-1)
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        had = item[start:stop]
        np.add.at(flat, (had[:, None] * events.items + had).reshape(-1), 1.0)
    return table
