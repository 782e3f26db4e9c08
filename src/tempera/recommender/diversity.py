"""Lists of different items: maximal marginal relevance by the items' vectors.

Letters in shapes: n users, m candidates of a user, k items of a list, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

Floats = NDArray[np.float32]
Codes = NDArray[np.int64]

_TIMES = 10  # candidates for each place of a list
_LEAST = 100  # candidates of a short list


def refuse_diversity(diversity: Any) -> None:
    """Raise DataError for a diversity outside of 0 to 1, or no number."""
    if not isinstance(diversity, int | float | np.number) or isinstance(diversity, bool):
        raise DataError(f"diversity is {diversity!r}; expected a number from 0 to 1")
    if not 0 <= diversity <= 1:
        raise DataError(
            f"diversity is {diversity:g}; expected 0 (the best items) to 1 (the items least alike)"
        )


def candidates_of(k: int) -> int:
    """Return the number of best items among which a list of k different items is chosen."""
    return max(_TIMES * k, _LEAST)


def diverse(
    scores: Floats, codes: Codes, vectors: Any, k: int, diversity: float
) -> tuple[Floats, Codes]:
    """Return the scores and the codes of k different items of each user, [n, k] each, in the order
    of choice.

    The items are chosen one after the other by maximal marginal relevance, argmax over the
    candidates i that are not chosen of (1 - l) r_i - l max over the chosen j of cos(v_i, v_j), with
    l the diversity (Carbonell and Goldstein 1998). The first choice is the best item. r_i is the
    score between the user's lowest candidate, 0, and the best, 1: scores may be cosines, inner
    products, counts or standard deviations, and in this scale one weight means the same for all of
    them, beside a cosine of at most 1. Of equal choices the earlier candidate is taken.

    Args:
        scores: of the candidates, best first, [n, m]; -inf is no candidate.
        codes: of the candidates, [n, m].
        vectors: of all items, an array or rows of a file, [i, D].
        k: length of the lists; where there are fewer candidates, the rest has the score -inf.
        diversity: l, from 0, which changes nothing, to 1.

    >>> items = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    >>> best = np.array([[0.9, 0.8, 0.5]], np.float32), np.array([[0, 1, 2]])
    >>> diverse(*best, items, k=2, diversity=0.5)[1].tolist()
    [[0, 2]]
    """
    k = min(k, scores.shape[1])
    chosen_scores = np.full((len(scores), k), -np.inf, np.float32)
    chosen_codes = np.full((len(scores), k), -1, np.int64)
    for row in range(len(scores)):
        left = np.isfinite(scores[row])
        order = _order(scores[row][left], np.asarray(vectors[codes[row][left]]), k, diversity)
        chosen_scores[row, : len(order)] = scores[row][left][order]
        chosen_codes[row, : len(order)] = codes[row][left][order]
    return chosen_scores, chosen_codes


def _order(scores: Floats, vectors: Floats, k: int, diversity: float) -> Codes:
    """Return the places of the chosen candidates of a user, [k] or fewer.

    Args:
        scores: of the candidates, [m].
        vectors: of the candidates, [m, D].
    """
    if not len(scores):
        return np.empty(0, np.int64)
    relevance = _between_0_and_1(scores.astype(np.float64))
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(length, 1e-12)
    order = [0]  # candidates are sorted
    nearest = (unit @ unit[0]).astype(np.float64)  # [m] the largest cosine to a chosen item
    is_left = np.ones(len(scores), bool)
    is_left[0] = False
    while len(order) < min(k, len(scores)):
        worth = (1 - diversity) * relevance - diversity * nearest
        worth[~is_left] = -np.inf
        best = int(worth.argmax())
        order.append(best)
        is_left[best] = False
        np.maximum(nearest, unit @ unit[best], out=nearest)
    return np.array(order)


def _between_0_and_1(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores scaled to 0 for the lowest and 1 for the highest; all 0 if they are equal."""
    span = scores.max() - scores.min()
    if not span:
        return np.zeros(len(scores))
    scaled: NDArray[np.float64] = (scores - scores.min()) / span
    return scaled
