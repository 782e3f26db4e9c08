"""What mining did: what was dropped by which filter, and why queries fell short."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Report:
    """What became of the candidates, and why queries fell short. Reports of blocks add up."""

    queries: int = 0
    answers: int = 0  # pairs of a query and a document that answers it: none of them can become a negative
    itself: int = 0  # queries that are a document, which cannot become their negative either
    candidates: int = 0  # documents in the rank range, over all queries
    dropped: dict[str, int] = field(default_factory=dict)  # by the first filter that refuses
    spare: int = 0  # good, and not needed
    kept: int = 0
    short: int = 0  # queries with fewer negatives than asked for
    empty: int = 0  # and without any
    short_by: dict[str, int] = field(default_factory=dict)  # by what took most of their candidates
    left_out: dict[str, int] = field(default_factory=dict)  # rows of the files that were not read, by reason

    @classmethod
    def of(
        cls, negatives: int, answers: int, itself: int, candidates: Ints, dropped: dict[str, Ints], good: Ints
    ) -> Report:
        """Of one block, from what each query had, lost and has left, [q] each.

        A query that falls short does so by what took most of its candidates; too few of them come first.
        """
        kept = np.minimum(good, negatives)
        short = kept < negatives
        few = np.where(candidates < negatives, np.iinfo(np.int64).max, 0)
        blame = np.argmax(np.stack([few, *dropped.values()]), axis=0)
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
                name: n for i, name in enumerate(["ranks", *dropped]) if (n := int((short & (blame == i)).sum()))
            },
        )

    def __add__(self, other: Report) -> Report:
        return Report(
            **{name: _plus(value, getattr(other, name)) for name, value in vars(self).items()},
        )

    def lines(self) -> list[str]:
        """For people."""
        means = {"ranks": "too few documents in the rank range"}
        lines = [
            *(f"left out: {count:,} {reason}" for reason, count in self.left_out.items()),
            f"{self.queries:,} queries with {self.answers:,} answers: {self.kept:,} negatives of {self.candidates:,} candidates",
            *(f"dropped by {name}: {count:,}" for name, count in self.dropped.items()),
            f"good and not needed: {self.spare:,}",
            f"queries that are a document themselves: {self.itself:,}",
            f"queries with too few negatives: {self.short:,}, of which without any: {self.empty:,}",
        ]
        return lines + [
            f"  mostly because of {means.get(name, name)}: {count:,}" for name, count in self.short_by.items()
        ]


def _plus(a: Any, b: Any) -> Any:
    if not isinstance(a, dict):
        return a + b
    return {name: a.get(name, 0) + b.get(name, 0) for name in dict.fromkeys((*a, *b))}
