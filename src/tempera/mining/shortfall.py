"""A report on mining: the candidates dropped by each filter, and the queries with too few
negatives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import quantity
from ..io.documents import parsed

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Report:
    """Counts of the candidates by their fate, and of the queries with too few negatives. Reports of
    blocks add up."""

    queries: int = 0
    answers: int = 0  # pairs of a query and a document that answers it, which are never negatives
    itself: int = 0  # queries that are also a document, which is never their negative
    candidates: int = 0  # documents in the rank range, over all queries
    dropped: dict[str, int] = field(
        default_factory=dict
    )  # candidates by the filter that drops them
    spare: int = 0  # acceptable negatives beyond the number requested
    kept: int = 0
    short: int = 0  # queries with fewer negatives than requested
    empty: int = 0  # queries without any negative
    # Queries with fewer negatives than requested, by the filter that took most of their candidates,
    # or by the ranks or the search that left too few candidates.
    short_by: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)  # unread rows of the files, by reason
    # Share of the nearest documents that an index finds, of a sample of queries.
    recall: float | None = None
    cpu_seconds: float = field(default=0.0, compare=False)  # of all threads

    def text(self) -> str:
        """Return the report as a JSON text, from which `of_text` makes it again."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str | bytes) -> Report:
        """Return the report of a JSON text.

        Raises:
            ValueError: the text is no report.
            TypeError: likewise.
        """
        report = cls(**parsed(text))
        for name, usual in vars(cls()).items():
            value = getattr(report, name)
            if isinstance(usual, dict):
                is_right = isinstance(value, dict) and all(map(_is_number, value.values()))
            else:
                is_right = _is_number(value) or (value is None and usual is None)
            if not is_right:
                raise ValueError(f"{name} is {value!r}")
        return report

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

        A query with too few negatives is counted under the filter that took most candidates. A
        query with too few candidates to begin with is counted under the ranks, or under the search
        if an exact search finds enough candidates.

        Args:
            negatives: requested number for each query.
            answers: pairs of a query and an answer.
            itself: queries that are also a document.
            candidates: documents found in the rank range of each query, [q].
            ranked: documents found there by an exact search, [q].
            dropped: candidates taken by each filter, [q] each.
            good: acceptable negatives of each query, [q].
        """
        kept = np.minimum(good, negatives)
        short = kept < negatives
        most = np.iinfo(np.int64).max
        few = np.where(ranked < negatives, most, 0)
        missed = np.where((candidates < negatives) & (ranked >= negatives), most, 0)
        blame = np.argmax(np.stack([few, missed, *dropped.values()]), axis=0)
        short_by = {}
        for number, name in enumerate(["ranks", "search", *dropped]):
            count = int((short & (blame == number)).sum())
            if count:
                short_by[name] = count
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
            short_by=short_by,
        )

    def __add__(self, other: Report) -> Report:
        sums = {name: _plus(value, getattr(other, name)) for name, value in vars(self).items()}
        return Report(**sums)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        means = {
            "ranks": "too few documents in the rank range",
            "search": "the approximate search, which found too few documents: search exactly (no --faiss), or by an index that "
            "visits more, such as HNSW32",
        }
        lines = [f"left out: {quantity(count, reason)}" for reason, count in self.left_out.items()]
        lines.append(
            f"{self.queries:,} queries with {self.answers:,} answers: {self.kept:,} negatives of {self.candidates:,} candidates"
        )
        lines += [f"dropped by {name}: {count:,}" for name, count in self.dropped.items()]
        lines.append(f"acceptable, but not needed: {self.spare:,}")
        lines.append(f"queries that are also a document: {self.itself:,}")
        lines.append(f"queries with too few negatives: {self.short:,} ({self.empty:,} have none)")
        for name, count in self.short_by.items():
            lines.append(f"  mostly because of {means.get(name, name)}: {count:,}")
        if self.recall is not None:
            lines.append(f"share of the nearest documents that the index finds: {self.recall:.1%}")
        lines.append(f"CPU time: {cpu_time(self.cpu_seconds)}")
        return lines


def cpu_time(seconds: float) -> str:
    """Return the time of a CPU in words.

    >>> cpu_time(7.4), cpu_time(5400)
    ('7 seconds', '1.50 hours')
    """
    if seconds < 360:
        return f"{seconds:,.0f} seconds"
    return f"{seconds / 3600:,.2f} hours"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _plus(a: Any, b: Any) -> Any:
    """Return the sum of numbers, or of dictionaries of numbers; None is nothing."""
    if a is None or b is None:
        return b if a is None else a
    if not isinstance(a, dict):
        return a + b
    total = dict(a)
    for name, count in b.items():
        total[name] = total.get(name, 0) + count
    return total
