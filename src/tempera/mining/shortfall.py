"""A report on mining: candidates that each filter dropped, and why queries got too few
negatives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import quantity

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Report:
    """Counts of the candidates by their fate, and of the queries with too few negatives. Reports of
    blocks add up."""

    queries: int = 0
    answers: int = (
        0  # pairs of a query and a document that answers it, which never become negatives
    )
    itself: int = 0  # queries that are also a document, which is never their negative
    candidates: int = 0  # documents in the rank range, over all queries
    dropped: dict[str, int] = field(default_factory=dict)  # by the first filter that refuses each
    spare: int = 0  # acceptable negatives beyond the number requested
    kept: int = 0
    short: int = 0  # queries with fewer negatives than requested
    empty: int = 0  # queries without any negative
    # these queries by the filter that took most of their candidates, or by what left too few of them
    short_by: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(
        default_factory=dict
    )  # rows of the files that were not read, by reason

    @classmethod
    def of(
        cls,
        negatives: int,
        answers: int,
        itself: int,
        candidates: Ints,
        ranked: Ints,
        dropped: dict[str, Ints],
        good: Ints,
    ) -> Report:
        """Report on one block of queries.

        A query with too few negatives is counted under the filter that took most of its candidates.
        If it had too few candidates to begin with, it is counted under the ranks, or under the
        search where an exact one would have found enough.

        Args:
            negatives: how many a query gets.
            answers: pairs of a query and its answer.
            itself: queries that are also a document.
            candidates: documents that the search found in the rank range of each query, [q].
            ranked: documents that an exact search finds there, [q].
            dropped: candidates that each filter took, [q] each.
            good: acceptable negatives of each query, [q].
        """
        kept = np.minimum(good, negatives)
        short = kept < negatives
        most = np.iinfo(np.int64).max
        few = np.where(ranked < negatives, most, 0)
        missed = np.where((candidates < negatives) & (ranked >= negatives), most, 0)
        blame = np.argmax(np.stack([few, missed, *dropped.values()]), axis=0)
        return cls(
            queries=len(good),
            answers=answers,
            itself=itself,
            candidates=int(candidates.sum()),
            dropped={name: int(count.sum()) for name, count in dropped.items()},
            spare=int((good - kept).sum()),
            kept=int(kept.sum()),
            short=int(short.sum()),
            empty=int((kept == 0).sum()),
            short_by={
                name: n
                for i, name in enumerate(["ranks", "search", *dropped])
                if (n := int((short & (blame == i)).sum()))
            },
        )

    def __add__(self, other: Report) -> Report:
        return Report(
            **{name: _plus(value, getattr(other, name)) for name, value in vars(self).items()},
        )

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        means = {
            "ranks": "too few documents in the rank range",
            "search": "the approximate search, which found too few documents: search exactly (no --faiss), or by an index that "
            "visits more, such as HNSW32",
        }
        lines = [
            *(f"left out: {quantity(count, reason)}" for reason, count in self.left_out.items()),
            f"{self.queries:,} queries with {self.answers:,} answers: {self.kept:,} negatives of {self.candidates:,} candidates",
            *(f"dropped by {name}: {count:,}" for name, count in self.dropped.items()),
            f"acceptable, but not needed: {self.spare:,}",
            f"queries that are also a document: {self.itself:,}",
            f"queries with too few negatives: {self.short:,} ({self.empty:,} have none)",
        ]
        return lines + [
            f"  mostly because of {means.get(name, name)}: {count:,}"
            for name, count in self.short_by.items()
        ]


def _plus(a: Any, b: Any) -> Any:
    if not isinstance(a, dict):
        return a + b
    return {name: a.get(name, 0) + b.get(name, 0) for name in dict.fromkeys((*a, *b))}
