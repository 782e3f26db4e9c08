"""The similarity of two vectors as a sum over pairs of words.

Letters in shapes: m words of the query, n words of the document, D width.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .explanation import Explanation, Part, is_rounding
from .static_words import Rows, TextWord, WordRows

Vector = NDArray[np.float32]

OTHER_TEXT = (
    "the text of the document does not give the vector that the index holds, so the parts miss some "
    "of the score: the run keeps the beginning of the text alone, or the index rounds its vectors"
)


def explain_pairs(
    query: WordRows | Vector, document: WordRows | Vector, score: float, most: int | None = None
) -> Explanation:
    """Return the inner product of two vectors by pairs of words.

    With q = sum of rows a_i and d = sum of rows b_j, q . d = sum over i, j of a_i . b_j: the parts
    are exact. If the terms of one side alone are known, the parts are of the words of that side.

    Args:
        query: terms of the vector, or the vector, [D].
        document: terms of the vector, or the vector, [D].
        score: of the document in the search.
        most: number of parts, the largest; the others are in the rest. None is all, of which two
            long texts have a hundred thousand.
    """
    left, query_words = _side(query)
    right, document_words = _side(document)
    values = left @ right.T  # [m, n]
    order = np.argsort(-np.abs(values), axis=None, kind="stable")[:most]
    of_query, of_document = np.unravel_index(order, values.shape)
    largest_first = values.ravel()[order].tolist()
    parts = []
    for i, j, value in zip(of_query.tolist(), of_document.tolist(), largest_first, strict=True):
        fields = {}
        if query_words is not None:
            fields["query_token"] = query_words[i].text
        if document_words is not None:
            fields["document_token"] = document_words[j].text
        if value:
            parts.append(Part(" ~ ".join(fields.values()), value, fields))
    words = {}
    if query_words is not None:
        words["query_words"] = [word.json() for word in query_words]
    if document_words is not None:
        words["document_words"] = [word.json() for word in document_words]
    missed = score - math.fsum(values.ravel().tolist())
    if is_rounding(missed, score):
        return Explanation("tokens", True, score, tuple(parts), words=words)
    return Explanation("tokens", False, score, tuple(parts), (OTHER_TEXT,), words)


def _side(side: WordRows | Vector) -> tuple[Rows, list[TextWord] | None]:
    """Return the rows of a side, and the words of the rows; one row without a word for a vector."""
    if isinstance(side, WordRows):
        return side.rows, list(side.words)
    return side.astype(np.float64)[None], None
