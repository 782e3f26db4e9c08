"""Evaluation of a recommender: ranking metrics by user and item group, and the popularity and
coverage of the lists.

Letters in shapes: q queries, c items of the catalogue, K depth of a list, m metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...parallel.distributed import ALONE, Group
from ...ranking.compare import SCORES, Bounds, Comparison, Difference, bootstrap_columns, compare
from .full_catalogue import TIES, Histories, Ranks, Scores, metrics_of, rank
from .popularity import TIERS, Popularity, coverage, exposure, gini

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

METRICS = ("hit@10", "ndcg@10", "mrr@10", "hit@100")
LENGTHS = (0, 1, 6, 21, 101)  # where the ranges of history lengths begin
SEEN = ("excluded", "included")
DEPTH = 10
_DRAWS = 1000  # resamples


@dataclass(frozen=True)
class Row:
    """Hold the metrics of some queries, with the items of the histories left out or left in."""

    seen: str  # a name of SEEN
    which: str  # all, a tier of the items to find, or a range of history lengths
    queries: int
    metrics: dict[str, Difference]


@dataclass(frozen=True)
class Recommended:
    """Hold ranks and lists of a recommender, with one right item for each query, or several.

    `str` is a table: the metrics with seen items left out and left in, by tier of the item to find
    and by length of the history, with 95 % bootstrap intervals; then measures of the lists.
    Coverage and Gini are of all lists together and get no interval: fewer different lists, as in a
    resample, always cover less.
    """

    ranks: Ranks
    target: Ints  # [q] the item to find, or the items to find of all queries, [t]
    lengths: Ints  # [q] items of the history
    popularity: Popularity
    names: tuple[str, ...] = METRICS  # of metrics
    users: Ints | None = None  # [q] the bootstrap draws users; None: it draws queries
    query: Ints | None = None  # [t] of each item to find, rising; None: each query has one item

    @classmethod
    def of(
        cls,
        scores: Scores,
        target: Ints,
        seen: Histories,
        popularity: Popularity,
        metrics: Sequence[str] = METRICS,
        users: Ints | None = None,
        k: int = DEPTH,
        query: Ints | None = None,
        aside: Histories | None = None,
        group: Group = ALONE,
    ) -> Recommended:
        """Rank the whole catalogue for each query, and list the k best items not seen before.

        Args:
            seen: the history of each query, q rows; lengths of histories group the queries.
            aside: items left out beside the history, q rows.
            group: processes that divide the queries, see `rank`.

        Raises:
            ConfigError: an unknown metric.
            DataError: no queries, or data refused by `rank`.
        """
        metrics_of(np.ones(1, np.int64), metrics)  # refuses a wrong name before a long run
        if not len(target):
            raise DataError(
                "no queries to evaluate a recommender on; give the split more of the data"
            )
        ranks = rank(scores, len(popularity.counts), target, seen, k, query, aside, group)
        return cls(
            ranks, target, seen.lengths, popularity, tuple(dict.fromkeys(metrics)), users, query
        )

    def right(self, query: int) -> tuple[list[int], int]:
        """Return the items to find for a query, and the best rank among the items."""
        places = np.array([query])
        if self.query is not None:
            places = np.flatnonzero(self.query == query)
        return self.target[places].tolist(), int(self.ranks.excluded[places].min())

    @cached_property
    def per_query(self) -> dict[str, Floats]:
        """Each metric of each query; with seen items included the name is `hit@10, seen
        included`."""
        values = metrics_of(self.ranks.excluded, self.names, self.query)
        included = metrics_of(self.ranks.included, self.names, self.query)
        for name in included:
            values[f"{name}, seen included"] = included[name]
        return values

    @cached_property
    def rows(self) -> list[Row]:
        """Metrics of every part of the queries, with seen items left out and left in; empty parts
        are omitted."""
        values = np.stack(list(self.per_query.values()), 1)  # [q, 2 m]
        m = len(self.names)
        excluded, included = [], []
        for name, mask in self.parts.items():
            if not mask.any():
                continue
            intervals = self._intervals(values, mask)
            queries = int(mask.sum())
            metrics = dict(zip(self.names, intervals[:m]))
            metrics_included = dict(zip(self.names, intervals[m:]))
            excluded.append(Row("excluded", name, queries, metrics))
            included.append(Row("included", name, queries, metrics_included))
        return [*excluded, *included]

    @property
    def parts(self) -> dict[str, NDArray[np.bool_]]:
        """True for the queries of each part, [q] each, by the name of the part."""
        parts = {"all": np.ones(len(self.lengths), bool)}
        if self.query is None:
            tier = self.popularity.tiers[self.target]
            for place, name in enumerate(TIERS):
                parts[name] = tier == place
        for start, end in pairwise(LENGTHS):
            name = f"history {start}" if end == start + 1 else f"history {start}-{end - 1}"
            parts[name] = (start <= self.lengths) & (self.lengths < end)
        parts[f"history {LENGTHS[-1]}+"] = self.lengths >= LENGTHS[-1]
        return parts

    @cached_property
    def lists(self) -> dict[str, float | Difference]:
        """Measures of the lists: share of places by tier, novelty in bits, coverage and Gini."""
        top = self.ranks.top
        if not top.shape[1]:
            return {}
        places = self.popularity.places(top)
        shares = places / places.sum(1, keepdims=True)  # no list is empty
        every = np.ones(len(top), bool)
        novelty = self.popularity.novelty(top)[:, None]
        measures: dict[str, float | Difference] = dict(zip(TIERS, self._intervals(shares, every)))
        measures["novelty"] = self._intervals(novelty, every, bounds=None)[0]
        shown = exposure(top, self.ranks.items)
        measures["coverage"] = coverage(shown)
        measures["gini"] = gini(shown)
        return measures

    @property
    def metrics(self) -> dict[str, float]:
        """Means over all queries, named as in `per_query`."""
        return {name: float(values.mean()) for name, values in self.per_query.items()}

    def intervals(self) -> dict[str, Difference]:
        """Return the means with intervals."""
        excluded, included = (row.metrics for row in self.rows if row.which == "all")
        return dict(zip(self.per_query, [*excluded.values(), *included.values()]))

    def against(self, other: Recommended) -> dict[str, Comparison]:
        """Compare with another system on the same queries; the bootstrap draws and swaps users."""
        own = _by_user(self.per_query, self.users)
        others = _by_user(other.per_query, self.users)
        queries = len(self.lengths)
        return {
            name: replace(comparison, queries=queries)
            for name, comparison in compare(own, others, _DRAWS).items()
        }

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        lists: dict[str, Any] = {}
        for name, measure in self.lists.items():
            lists[name] = asdict(measure) if isinstance(measure, Difference) else measure
        return {
            "queries": len(self.lengths),
            "items": self.ranks.items,
            "ties": TIES,
            "depth": self.ranks.top.shape[1],
            "rows": [asdict(row) for row in self.rows],
            "lists": lists,
        }

    def __str__(self) -> str:
        lines = [f"{len(self.lengths):,} queries, {self.ranks.items:,} items; {TIES}"]
        for seen in SEEN:
            names = "".join(f"  {name:<23}" for name in self.names)
            lines += ["", f"{'seen items ' + seen:<24}{'queries':>9}{names}"]
            for row in self.rows:
                if row.seen == seen:
                    cells = "".join(f"  {_cell(interval)}" for interval in row.metrics.values())
                    lines.append(f"  {row.which:<22}{row.queries:>9,}{cells}")
        lines.append("")
        if self.lists:
            lines.append(f"lists of {self.ranks.top.shape[1]}")
        for name, measure in self.lists.items():
            cell = _cell(measure) if isinstance(measure, Difference) else f"{measure:.4f}"
            lines.append(f"  {_LISTS[name]:<31}  {cell}")
        return "\n".join(line.rstrip() for line in lines)

    def _intervals(
        self, values: Floats, mask: NDArray[np.bool_], bounds: Bounds | None = SCORES
    ) -> list[Difference]:
        users = None if self.users is None else self.users[mask]
        return bootstrap_columns(values[mask], users, draws=_DRAWS, bounds=bounds)


_LISTS = {
    **{tier: f"places with items of the {tier}" for tier in TIERS},
    "novelty": "novelty in bits",
    "coverage": "coverage of the catalogue",
    "gini": "Gini of the exposure",
}


def _by_user(per_query: dict[str, Floats], users: Ints | None) -> dict[str, Floats]:
    """Return sums of each user, scaled so that the mean over users is the mean over queries."""
    if users is None:
        return per_query
    _, at = np.unique(users, return_inverse=True)
    scale = (at.max(initial=0) + 1) / max(1, len(at))
    return {name: np.bincount(at, values) * scale for name, values in per_query.items()}


def _cell(interval: Difference) -> str:
    """Return a mean with an interval.

    >>> _cell(Difference(0.27368, 0.262, 0.2849, 0.95))
    '0.2737 [0.2620, 0.2849]'
    """
    return f"{interval.mean:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
