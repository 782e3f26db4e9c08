"""The words of a text as terms of its vector, for models that are linear in the vectors of tokens.

Letters in shapes: t tokens, n words, v vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..io.texts import UNSPACED, encodable
from ..towers.static_steps import StaticSteps, UnitLength

if TYPE_CHECKING:
    from tokenizers import Encoding

Rows = NDArray[np.float64]

PROMPT, BIAS = "[prompt]", "[bias]"  # terms that are no words of the text


@dataclass(frozen=True)
class TextWord:
    """A distinct word of a text.

    Args:
        text: as the word stands in the text, at first.
        tokens: of the word; none of a prompt.
        times: the number of times that the word stands in the text.
    """

    text: str
    tokens: tuple[str, ...] = ()
    times: int = 1

    def json(self) -> dict[str, Any]:
        """Return the word as a JSON object."""
        return {"word": self.text, "tokens": list(self.tokens), "times": self.times}


@dataclass(frozen=True)
class WordRows:
    """The terms of a text's vector: the rows, [n, D], add up to the vector."""

    words: Sequence[TextWord]  # [n]
    rows: Rows  # [n, D]

    def cut(self, width: int) -> WordRows:
        """Return the terms of the vector's first `width` numbers, again with length 1; of a vector
        without more numbers, the same terms."""
        if width >= self.rows.shape[1]:
            return self
        return WordRows(self.words, of_length_one(self.rows[:, :width]))


def terms(side: StaticSteps, text: str) -> WordRows:
    """Return the terms of the vector of a text by a static model; none for a text without tokens.

    A normalisation is one factor for all terms, and the bias of a linear layer a term of its own.
    """
    text = side.prompt + encodable(text)
    encoding = side.parts.tokenizer.encode(text, add_special_tokens=False)
    words, word_of = words_of(encoding, text, len(side.prompt))
    vectors = side.parts.table[np.array(encoding.ids, np.int64)]
    rows = _sums(vectors, word_of, len(words)) / max(1, len(word_of))
    for step in side.steps:
        if isinstance(step, UnitLength):
            rows = of_length_one(rows)
            continue
        rows = rows @ step.weight.T
        if step.bias is not None:
            words.append(TextWord(BIAS))
            rows = np.concatenate([rows, step.bias[None]])
    rows = rows[:, : side.width]
    if side.unit:
        rows = of_length_one(rows)
    return WordRows(words, rows)


def words_of(encoding: Encoding, text: str, start: int = 0) -> tuple[list[TextWord], list[int]]:
    """Return the distinct words of a text, and the word of each token, [t].

    Words are equal if their letters are, apart from case, and their tokens. In scripts without
    spaces between words, a token is a word.

    Args:
        start: length of the prompt before the text; the tokens of the prompt are one word.
    """
    tokens = encoding.tokens
    places: dict[Any, int] = {}
    first_seen: list[tuple[str, tuple[str, ...]]] = []  # letters and tokens of each word
    times: list[int] = []
    word_of: list[int] = []
    for group, first, last in _groups(encoding, text):
        pieces = tuple(tokens[i] for i in group)
        letters = text[first:last].strip() or "".join(pieces)
        if first < start:
            letters, pieces = PROMPT, ()
        place = places.setdefault((letters.casefold(), pieces), len(places))
        if place == len(times):
            first_seen.append((letters, pieces))
            times.append(0)
        times[place] += 1
        word_of += [place] * len(group)
    words = []
    for (letters, pieces), count in zip(first_seen, times, strict=True):
        words.append(TextWord(letters, pieces, count))
    return words, word_of


def _groups(encoding: Encoding, text: str) -> Iterator[tuple[list[int], int, int]]:
    """Yield the tokens of each word of a text, in order, and the start and end of the word."""
    offsets = encoding.offsets
    numbers = encoding.word_ids
    for number, places in groupby(range(len(numbers)), key=numbers.__getitem__):
        group = list(places)
        first, last = offsets[group[0]][0], offsets[group[-1]][1]
        if number is not None and not UNSPACED.search(text, first, last):
            yield group, first, last
            continue
        for place in group:
            yield [place], *offsets[place]


def _sums(vectors: NDArray[np.float32], word_of: Sequence[int], words: int) -> Rows:
    """Return the sum of the vectors of each word, [t, D] -> [n, D]; each word has a token."""
    if not words:
        return np.zeros((0, vectors.shape[1]))
    order = np.argsort(word_of, kind="stable")
    starts = np.searchsorted(np.asarray(word_of)[order], np.arange(words))
    sums: Rows = np.add.reduceat(vectors[order].astype(np.float64), starts, axis=0)
    return sums


def of_length_one(rows: Rows) -> Rows:
    """Return the terms of a vector of length 1, from the terms of a vector, [n, D]; the terms of 0
    stay."""
    length = np.linalg.norm(rows.sum(0))
    unit: Rows = rows / max(float(length), 1e-12)
    return unit
