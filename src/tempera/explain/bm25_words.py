"""The score of BM25 as a sum over the words of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .explanation import Explanation, Part

if TYPE_CHECKING:  # recommenders are explained, too, and import nothing of texts
    from ..text.judge.lexical import BM25


def explain_words(index: BM25, query: str, position: int, document: str) -> Explanation:
    """Return the score of a document by the words of a query, in the order of the words.

    A word that stands repeatedly in the query counts repeatedly. Words that the document does not
    hold have the value 0.

    Args:
        index: of the words of all documents.
        query: text of the query.
        position: of the document in the index.
        document: text of the document, to count the words.

    >>> from tempera.text.judge.lexical import Lexical
    >>> explanation = explain_words(Lexical(["a cat", "a dog"]).index(), "the cat", 0, "a cat")
    >>> [(part.label, round(part.value, 3)) for part in explanation.parts]
    [('cat', 0.277), ('the', 0.0)]
    """
    from ..text.judge.lexical import words

    times_in_query = Counter(words(query))
    spelled = list(times_in_query)
    terms = _terms(spelled, index)
    times_in_document = Counter(_terms(words(document), index))
    score = np.float32(0)  # as a search adds up, in the order of the words
    value_of = {}
    for spelling, term in zip(spelled, terms, strict=True):
        value_of[spelling] = _value(index, term, position)
    for word in words(query):
        score += value_of[word]

    parts = []
    for word, term in zip(spelled, terms, strict=True):
        number = index.number.get(term)
        holding = 0
        if number is not None:
            holding = int(index.offsets[number + 1] - index.offsets[number])
        fields: dict[str, Any] = {"word": word}
        if term != word:
            fields["stem"] = term
        fields["in_query"] = times_in_query[word]
        fields["in_document"] = times_in_document[term]
        fields["documents"] = holding
        parts.append(Part(word, times_in_query[word] * float(value_of[word]), fields))
    return Explanation.of("words", True, float(score), parts)


def _terms(spelled: Sequence[str], index: BM25) -> list[str]:
    """Return words as the index has them: stemmed if the index is."""
    if not index.settings.stem:
        return list(spelled)
    from ..text.judge.lexical import stemmer

    stems: list[str] = stemmer().stemWords(spelled)
    return stems


def _value(index: BM25, term: str, position: int) -> np.float32:
    """Return the part of a word in the score of a document; 0 if the document does not hold the
    word."""
    number = index.number.get(term)
    if number is None:
        return np.float32(0)
    holding = index.docs[index.offsets[number] : index.offsets[number + 1]]
    place = int(np.searchsorted(holding, position))
    if place == len(holding) or holding[place] != position:
        return np.float32(0)
    value: np.float32 = index.parts[index.offsets[number] + place]
    return value
