"""A fused score as the parts of its two systems."""

from __future__ import annotations

from collections.abc import Sequence

from .explanation import Explanation, Half, Part

NOTE = (
    "parts are in units of the fused score; the rest is what the means of the corpus take away "
    "from the score"
)


def explain_fused(score: float, halves: Sequence[Half]) -> Explanation:
    """Return a fused score by the parts of the systems.

    score = sum over systems of weight (s - mean) / deviation, and s = sum of parts + rest. A part
    of s adds weight / deviation times its value to the score, and the rest of the score is the
    constant -sum of weight mean / deviation.

    Args:
        score: of the document or item in the search.
        halves: the systems, each with the explanation of its own score s.
    """
    parts = []
    for half in halves:
        for part in half.explanation.parts:
            value = half.factor * part.value
            if value:
                label = f"{half.system}: {part.label}"
                parts.append(Part(label, value, {"system": half.system, **part.fields}))
    exact = all(half.explanation.exact for half in halves)
    notes = [NOTE]
    for half in halves:
        notes += half.explanation.notes
    return Explanation.of("fused", exact, score, parts, notes=tuple(notes), halves=tuple(halves))
