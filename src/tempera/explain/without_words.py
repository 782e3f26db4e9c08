"""A similarity by leaving out one word at a time, for models that are not linear in their words.

Letters in shapes: n words or passages, D width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..io.texts import UNSPACED
from .explanation import Explanation, Part

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]

NOTE = (
    "an approximation: the model reads all words together, and a part is the score minus the score "
    "without the word, or without the passage of the document"
)
_SIGNS = re.compile(r"^\W+|\W+$")  # around a word, not shown
_LETTER = UNSPACED.pattern.removesuffix("+")  # one letter of a script without spaces
_WORD = re.compile(rf"{_LETTER}|(?:(?!{_LETTER})\S)+")


def passages_of(text: str, most: int | None = None) -> list[str]:
    """Return the words of a text in order; of a text with more than `most` words, `most` passages
    of about as many words each.

    In scripts without spaces between words, a letter is a word.

    >>> passages_of("how, to reset?"), passages_of("a b c d e", 2)
    (['how,', 'to', 'reset?'], ['a b c', 'd e'])
    """
    return [text[start:stop] for start, stop in _spans(text, most)]


def _spans(text: str, most: int | None) -> list[tuple[int, int]]:
    """Return the start and the end of each word or passage of a text."""
    spans = [match.span() for match in _WORD.finditer(text)]
    if most is None or len(spans) <= most:
        return spans
    length = -(-len(spans) // most) if most else len(spans)
    passages = []
    for first in range(0, len(spans), length):
        last = min(first + length, len(spans)) - 1
        passages.append((spans[first][0], spans[last][1]))
    return passages


class WithoutWords:
    """The vectors of a text without each of its words or passages.

    Args:
        text: to divide.
        embed: map texts to vectors.
        most: number of passages; None divides into words.
    """

    def __init__(self, text: str, embed: Embed, most: int | None = None) -> None:
        spans = _spans(text, most)
        self.passages = [text[start:stop] for start, stop in spans]
        self.vectors: Vectors | None = None  # [n, D]
        if spans:
            self.vectors = embed([text[:start] + text[stop:] for start, stop in spans])

    def parts(self, other: Vectors, score: float, side: str) -> list[Part]:
        """Return a part for each word or passage.

        Args:
            other: vector of the other side, [D].
            score: of the whole texts.
            side: "query" or "document".
        """
        if self.vectors is None:
            return []
        scores = self.vectors.astype(np.float64) @ other.astype(np.float64)
        parts = []
        for passage, without in zip(self.passages, scores.tolist(), strict=True):
            label = _SIGNS.sub("", passage) or passage
            if side == "document":
                label = f"document: {label[:40]}"
            parts.append(Part(label, score - without, {"side": side, "word": passage}))
        return parts


def explain_without(score: float, parts: Sequence[Part]) -> Explanation:
    """Return the explanation of a score by what it loses without each word."""
    return Explanation.of("leave_one_out", False, score, parts, notes=(NOTE,))
