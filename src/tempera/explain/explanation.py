"""An explanation of a score: parts, each with a value, that add up to the score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import one_line

Kind = Literal["tokens", "words", "fused", "events", "leave_one_out"]

_SHOWN = 10  # parts in a table
_IN_LINE = 5  # parts in a line below a hit
# An exact explanation that misses more of the score, relative to scores above 1, is not called
# exact: the index then holds another vector than the model gives for the text.
_ROUNDING = 1e-5


def is_rounding(missed: float, score: float) -> bool:
    """Return True if the parts of a score miss no more of the score than rounding does."""
    return abs(missed) <= _ROUNDING * max(1.0, abs(score))


@dataclass(frozen=True)
class Part:
    """A part of a score.

    Args:
        label: names the part for a reader.
        value: what the part adds to the score, with a sign.
        fields: what the part is of, for JSON.
    """

    label: str
    value: float
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.value:+.3f} {self.label}"

    def json(self) -> dict[str, Any]:
        """Return the part as a JSON object."""
        return {**self.fields, "value": self.value}


@dataclass(frozen=True)
class Half:
    """One of the two systems of a fused score: a query's scores are standardised over the corpus
    and weighted.

    Args:
        system: name of the system.
        weight: of the system.
        mean: of the query's scores over the corpus.
        deviation: standard deviation of the query's scores over the corpus; 0 if all scores are
            equal, and the system then adds 0.
        explanation: of the system's own score.
    """

    system: str
    weight: float
    mean: float
    deviation: float
    explanation: Explanation

    @property
    def factor(self) -> float:
        """The value of one unit of the system's own score in the fused score."""
        return self.weight / self.deviation if self.deviation else 0.0

    def json(self) -> dict[str, Any]:
        """Return the half as a JSON object."""
        return {
            "system": self.system,
            "weight": self.weight,
            "mean": self.mean,
            "deviation": self.deviation,
            "explanation": self.explanation.json(),
        }


@dataclass(frozen=True)
class Explanation:
    """The parts of a score, the largest first: parts + rest = score.

    Args:
        kind: "tokens": pairs of words of the query and the document, by the vectors of their
            tokens; "words": words of the query, by BM25; "events": past events of a user;
            "leave_one_out": words or events, each by the score without it; "fused": the parts of
            two systems, in units of the fused score.
        exact: True if the parts are the terms of the sum that the model computes; False for an
            approximation.
        score: as the search or the recommendation has it.
        parts: the largest first, by magnitude.
        notes: on what the parts mean, for the reader.
        words: the words of each side with their tokens; for "tokens" alone.
        halves: the two systems of a fused score.

    >>> parts = [Part("ada", 0.5, {"word": "ada"}), Part("bob", -0.625, {"word": "bob"})]
    >>> explanation = Explanation.of("words", True, 0.0, parts)
    >>> print(explanation)
    score 0.000, in 2 parts (words)
      -0.625  bob
      +0.500  ada
      +0.125  rest
    >>> explanation.largest(1).line()
    '-0.625 bob | rest +0.625'
    """

    kind: Kind
    exact: bool
    score: float
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    words: Mapping[str, Any] = field(default_factory=dict)
    halves: tuple[Half, ...] = ()

    @classmethod
    def of(
        cls, kind: Kind, exact: bool, score: float, parts: Iterable[Part], **others: Any
    ) -> Explanation:
        """Return an explanation with the largest parts first; of equal parts, the order stays."""
        ordered = sorted(parts, key=lambda part: -abs(part.value))
        return cls(kind, exact, score, tuple(ordered), **others)

    @property
    def rest(self) -> float:
        """The score without the parts."""
        return self.score - math.fsum(part.value for part in self.parts)

    def largest(self, count: int) -> Explanation:
        """Return the explanation with the largest parts alone, of its halves, too; the values of
        the other parts are in the rest."""
        halves = []
        for half in self.halves:
            halves.append(replace(half, explanation=half.explanation.largest(count)))
        return replace(self, parts=self.parts[:count], halves=tuple(halves))

    def json(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        document: dict[str, Any] = {
            "kind": self.kind,
            "exact": self.exact,
            "score": self.score,
            "parts": [part.json() for part in self.parts],
            "rest": self.rest,
            "notes": list(self.notes),
        }
        document.update(self.words)
        if self.halves:
            document["explanations"] = [half.json() for half in self.halves]
        return document

    def line(self) -> str:
        """Return the largest parts and the rest in one line."""
        shown = self.largest(_IN_LINE)
        texts = [one_line(str(part)) for part in shown.parts]
        texts.append(f"rest {shown.rest:+.3f}")
        if not self.exact:
            texts.append("approximate")
        return " | ".join(texts)

    def __str__(self) -> str:
        kind = self.kind.replace("_", " ")
        approximate = "" if self.exact else ", an approximation"
        lines = [f"score {self.score:.3f}, in {len(self.parts):,} parts ({kind}){approximate}"]
        shown = self.largest(_SHOWN)
        for part in shown.parts:
            lines.append(f"  {part.value:+.3f}  {one_line(part.label)}")
        left_out = len(self.parts) - len(shown.parts)
        name = f"rest, of it {left_out:,} smaller parts" if left_out else "rest"
        lines.append(f"  {shown.rest:+.3f}  {name}")
        for half in self.halves:
            lines.append(
                f"  {half.system}: weight {half.weight:g}, score {half.explanation.score:.3f}, "
                f"mean {half.mean:.3f} and deviation {half.deviation:.3f} over the corpus"
            )
        lines.extend(f"note: {one_line(note)}" for note in self.notes)
        return "\n".join(lines)
