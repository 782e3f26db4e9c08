"""Explanations of recommended items: by a user's events and features, and by counts.

Letters in shapes: k items to explain, l events, c items of the catalogue, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus.index import Found, Index, IndexedDocument
from ..errors import DataError, quantity
from ..ranking.fusion import mean_and_deviation
from ..recommend.judge.baselines import ItemToItem
from ..recommend.judge.counts import Counting
from ..recommend.judge.past_events import Moment, PastEvents
from ..recommender.recommender import BLANK, Recommender
from .explanation import Explanation, Half, Part
from .fused_parts import explain_fused
from .static_words import of_length_one
from .user_terms import HIDDEN, Origin, user_terms

Codes = NDArray[np.int64]

WITHOUT = (
    "an approximation: the model reads all events together, and a part is the score minus the score "
    "without the event"
)
SHARES = "counts enter by the square root of their sum, and each event has its share of the sum"


@dataclass(frozen=True)
class _ItemQuestion:
    """A question to a recommender, and the items to explain.

    Args:
        recommender: with a row for the user.
        row: of the user; None for an unknown user.
        past: events of the user, one row.
        moment: of the question.
        index: of the items.
        positions: of the items to explain in the index, [k].
        vector: of the user, [1, D].
    """

    recommender: Recommender
    row: int | None
    past: PastEvents
    moment: Moment | None
    index: Index
    positions: Codes
    vector: NDArray[np.float32]

    @property
    def history(self) -> Codes:
        """Codes of the items of the past events, the latest last, [l]."""
        codes: Codes = self.past.items.each[0].astype(np.int64)
        return codes

    @property
    def pauses(self) -> NDArray[np.float32]:
        """The time since the last event, [1]."""
        return self.past.pauses(None if self.moment is None else self.moment.now)

    @property
    def vectors(self) -> NDArray[np.float64]:
        """Vectors of the items, [k, D]."""
        return np.asarray(self.index.vectors[self.positions], np.float64)

    @cached_property
    def events(self) -> list[Found]:
        """The items of the past events, the latest last, [l]."""
        return self.recommender.index.hits(np.zeros(len(self.history)), self.history)

    def event(self, place: int, value: float) -> Part:
        """Return the part of a past event, counted from the end: 1 is the latest."""
        item = self.events[-place]
        when = "latest" if place == 1 else f"{_ordinal(place)} latest"
        fields = {"event": item.id, "name": item.name, "place": place}
        return Part(f"{item.name or item.id} ({when})", value, fields)


def _ordinal(number: int) -> str:
    """Return a number as an ordinal.

    >>> [_ordinal(number) for number in (2, 3, 11, 21)]
    ['2nd', '3rd', '11th', '21st']
    """
    ending = "th"
    if number % 100 not in (11, 12, 13):
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def explain_items(
    recommender: Recommender,
    items: Sequence[Any],
    user: Any = None,
    history: Sequence[Any] | None = None,
    now: Any = None,
    hybrid: bool | None = None,
    context: Mapping[str, Any] | None = None,
    before: Any = None,
    index: str | Path | None = None,
) -> list[Explanation]:
    """Return the explanation of the score of each item for a user, for a history, or for both.

    Args:
        recommender: of the run.
        items: hits of `Recommender.recommend`, or ids of items.
        user, history, now, hybrid, context, before, index: as in `Recommender.recommend`.

    Raises:
        DataError: as `Recommender.recommend` does; an unknown item; or an approximate index.
    """
    if context:
        recommender = recommender.within(context)
    if user is None and history is None:
        raise DataError("give a user, a history, or both")
    moment = recommender.moment(now, before)
    served, row, past = recommender.question(user, history, moment)
    counting = recommender.counting(hybrid, index)
    searched = recommender.index if index is None else Index(Path(index))
    names = [each.id if isinstance(each, IndexedDocument) else each for each in items]
    ids = recommender.id_texts("item", names).to_pylist()
    codes = recommender.codes(ids)
    if searched.is_approximate:
        raise DataError(
            f"{searched.folder} is approximate: explain by the run's own index, or by an exact one"
        )
    vector = searched.fitted(served.vectors_of([row], past, moment), recommender.fingerprint)
    positions = searched.positions(ids)
    question = _ItemQuestion(served, row, past, moment, searched, positions, vector)
    if not past.items.lengths[0] and not vector.any():
        return [_by_popularity(int(count)) for count in recommender.popularity[codes]]
    by_vectors = _by_vectors(question)
    if counting is None:
        return by_vectors
    return _by_both(question, counting, by_vectors)


def _by_popularity(count: int) -> Explanation:
    label = "training events of the item"
    part = Part(label, float(count), {"label": label})
    return Explanation("events", True, float(count), (part,), (BLANK,))


def _by_vectors(question: _ItemQuestion) -> list[Explanation]:
    """Return the explanations of inner products: exact if the users' tower is linear."""
    scores = question.vectors @ question.vector[0].astype(np.float64)  # [k]
    contexts = None if question.past.contexts is None else question.past.contexts.each
    frame = question.recommender.frame(
        [question.row], question.past.items.each, question.pauses, contexts
    )
    terms = user_terms(question.recommender.tower, frame)
    if terms is None:
        return _without_events(question, scores)
    rows = terms.rows
    width = question.vectors.shape[1]
    if width < rows.shape[1]:
        rows = of_length_one(rows[:, :width])
    values = rows @ question.vectors.T  # [n, k]
    notes = (HIDDEN,) if terms.has_hidden_units else ()
    read = sum(origin.place is not None for origin in terms.origins)
    if read < len(question.history):
        earlier = quantity(len(question.history) - read, "earlier events")
        notes = (*notes, f"not read by the model: {earlier}")
    explanations = []
    for column, score in zip(values.T.tolist(), scores.tolist(), strict=True):
        parts = []
        for origin, value in zip(terms.origins, column, strict=True):
            if value:
                parts.append(_part(question, origin, value))
        explanations.append(Explanation.of("events", True, score, parts, notes=notes))
    return explanations


def _part(question: _ItemQuestion, origin: Origin, value: float) -> Part:
    if origin.place is not None:
        return question.event(origin.place, value)
    label = f"{origin.of}: {origin.name}"
    fields = {"label": label, "feature": origin.name, "of": origin.of}
    return Part(label, value, fields)


def _without_events(question: _ItemQuestion, scores: NDArray[np.float64]) -> list[Explanation]:
    """Return explanations by leaving out one event at a time, of those that the model may read."""
    history = question.recommender.options.history
    assert history is not None
    count = len(question.history)
    read = range(max(0, count - history.last), count)
    items = [np.delete(question.history, event) for event in read]
    contexts = None
    if question.past.contexts is not None:
        contexts = [np.delete(question.past.contexts.each[0], event) for event in read]
    differences = np.zeros((0, len(scores)))
    if items:
        users = [question.row] * len(items)
        pauses = np.repeat(question.pauses, len(items))
        vectors = question.recommender.vectors(users, items, pauses, contexts)
        fitted = question.index.fitted(vectors, question.recommender.fingerprint).astype(np.float64)
        differences = scores - fitted @ question.vectors.T  # [l, k]
    explanations = []
    for column, score in zip(differences.T.tolist(), scores.tolist(), strict=True):
        parts = [question.event(count - event, value) for event, value in zip(read, column)]
        explanations.append(Explanation.of("leave_one_out", False, score, parts, notes=(WITHOUT,)))
    return explanations


def _by_both(
    question: _ItemQuestion, counting: Counting, by_vectors: Sequence[Explanation]
) -> list[Explanation]:
    """Return the explanations of scores by counts and vectors together."""
    vector_scores = question.index.scores(
        question.vector, question.recommender.fingerprint
    )  # [1, c]
    counted = counting.counted(question.past.items, vector_scores.shape[1])  # [1, c]
    scores = counting.fused(vector_scores, question.past.items)[0]
    weight = counting.fusion.weight if counted.any() else 1.0  # the vectors alone without counts
    (vector_mean,), (vector_deviation,) = mean_and_deviation(vector_scores)
    (count_mean,), (count_deviation,) = mean_and_deviation(counted)
    explanations = []
    for position, reasons in zip(question.positions.tolist(), by_vectors, strict=True):
        score = float(counted[0, position])
        by_counts = _by_counts(question, counting.fitted, position, score)
        halves = [
            Half("vectors", weight, float(vector_mean), float(vector_deviation), reasons),
            Half("counts", 1 - weight, float(count_mean), float(count_deviation), by_counts),
        ]
        explanations.append(explain_fused(float(scores[position]), halves))
    return explanations


def _by_counts(question: _ItemQuestion, fitted: ItemToItem, item: int, score: float) -> Explanation:
    """Return the square root of an item's counts by events.

    With c_e = decay^(places from the end) weights[item of e, item], the score is sqrt(sum of c_e),
    and the part of an event is c_e / sqrt(sum of c_e).
    """
    known = fitted.weights.shape[0]
    history = question.history.tolist()
    counts = {}  # of each event with counts, by the event's place from the end
    for place, code in enumerate(reversed(history), 1):
        is_read = fitted.last is None or place <= fitted.last
        if not is_read or code >= known or item >= known:
            continue
        count = fitted.decay ** (place - 1) * float(fitted.weights[code, item])
        if count:
            counts[place] = count
    root = math.sqrt(math.fsum(counts.values()))
    parts = [question.event(place, count / root) for place, count in counts.items()]
    return Explanation.of("events", True, score, parts, notes=(SHARES,))
