"""Computations that requests ask of a run: many requests of one kind are one computation.

Letters in shapes: n texts, D width.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from ..corpus.index import Found
from .bounds import PARTS
from .opened_run import OpenedRun

if TYPE_CHECKING:  # they take time to load
    from ..explain.explanation import Explanation
    from ..recommender.recommender import Recommendations

Vectors = NDArray[np.float32]

# Letters of all texts up to which a static model is asked in the loop of the server: another
# thread would take longer to wake than they take to embed.
_FEW_LETTERS = 20_000
# Numbers of an index up to which a few queries are searched in the loop.
_FEW_NUMBERS = 1_000_000
_FEW_QUERIES = 16
NOTHING = "the model knows no word of query {}, so that the order of its hits says nothing"


@dataclass(frozen=True)
class Embedding:
    """Embed texts; the answer to each text is its vector, [D]."""

    run: OpenedRun
    most = 64  # texts of a computation
    label = "embeddings"

    def is_light(self, texts: Sequence[str]) -> bool:
        """Return True if the texts are embedded sooner than another thread wakes."""
        return self.run.is_static and sum(map(len, texts)) <= _FEW_LETTERS

    def __call__(self, texts: Sequence[str]) -> Sequence[Vectors]:
        places: dict[str, int] = {}
        for text in texts:
            places.setdefault(text, len(places))
        vectors = self.run.run.encode(list(places))  # [n, D]
        return [vectors[places[text]] for text in texts]


class QueryAnswer(NamedTuple):
    """The hits of a query, with an explanation of each if it was asked for.

    Args:
        is_unread: True if the model knows no word of the query.
    """

    hits: list[Found]
    is_unread: bool
    explanations: list[Explanation] | None


@dataclass(frozen=True)
class Search:
    """Search for queries; the answer to each query is `QueryAnswer`."""

    run: OpenedRun
    k: int
    threshold: float | None
    where: str | None
    hybrid: bool | Literal["words"]
    explain: bool = False
    most = 64
    label = "search"

    def is_light(self, queries: Sequence[str]) -> bool:
        """Return True if the documents and the letters are few and the model is static."""
        few = len(queries) <= _FEW_QUERIES and self.where is None and not self.explain
        few = few and sum(map(len, queries)) <= _FEW_LETTERS
        numbers = self.run.documents * (8 if self.hybrid else 1)
        return self.run.is_static and few and numbers * self.run.width <= _FEW_NUMBERS

    def __call__(self, queries: Sequence[str]) -> list[QueryAnswer]:
        distinct = list(dict.fromkeys(queries))
        every = self._hits(distinct)
        answers = {}
        for query, hits in zip(distinct, every, strict=True):
            explanations = self._explanations(query, hits) if self.explain else None
            answers[query] = QueryAnswer(hits, self._is_unread(query, hits), explanations)
        return [answers[query] for query in queries]

    def _hits(self, queries: list[str]) -> list[list[Found]]:
        """Return the hits of each query."""
        run = self.run.run
        if self.hybrid == "words":
            return run.search_words(queries, self.k, self.where)
        return run.search_each(
            queries,
            self.k,
            threshold=self.threshold,
            hybrid=self.hybrid,
            where=self.where,
            exact=False,
        )

    def _explanations(self, query: str, hits: list[Found]) -> list[Explanation]:
        """Return where the score of each hit comes from."""
        if self.hybrid == "words":
            return self.run.run.explain_words(query, hits)
        return self.run.run.explain_each(query, hits, self.hybrid, passages=0, most=PARTS)

    def _is_unread(self, query: str, hits: Sequence[Found]) -> bool:
        """Return True if the model knows no word of a query: all scores are 0, or the query has
        the vector of unknown words."""
        if not hits or self.hybrid:
            return False
        if not any(hit.score for hit in hits):
            return True
        unknown = self.run.unknown_score
        if unknown is None or (self.where is None and abs(hits[0].score - unknown) > 1e-5):
            return False
        return self.run.run.is_unknown(query)


@dataclass(frozen=True)
class Question:
    """A question to a recommender, by a user, a history, or both, or by an item.

    Args:
        options: of `Recommender.recommend`.
        explain: True to explain the score of each item.
    """

    user: Any
    history: list[Any] | None
    options: Mapping[str, Any]
    explain: bool = False


class ItemsAnswered(NamedTuple):
    """The items for a question, the history that they follow from, and an explanation of each item
    if it was asked for."""

    items: Recommendations
    history: list[dict[str, str]]
    explanations: list[Explanation] | None


@dataclass(frozen=True)
class Recommending:
    """Recommend items; the answer to each question is `ItemsAnswered`, or an error."""

    run: OpenedRun
    most = 8
    label = "recommend"

    def is_light(self, questions: Sequence[Question]) -> bool:
        """Return False: towers multiply."""
        return False

    def __call__(self, questions: Sequence[Question]) -> list[Any]:
        answers: list[Any] = []
        for question in questions:
            try:
                answers.append(self._answer(question))
            except Exception as error:  # an answer, so that the other questions get theirs
                answers.append(error)
        return answers

    def _answer(self, question: Question) -> ItemsAnswered:
        """Return the items for a question, and the history that they follow from."""
        from .held_histories import past_items  # with torch, which texts do not need

        run = self.run.run
        items = run.recommend(question.user, question.history, **question.options)
        if question.options.get("similar") is not None:
            return ItemsAnswered(items, [], None)
        now = question.options.get("now")
        history = past_items(run.recommender, question.user, question.history, now)
        explanations = None
        if question.explain:
            explanations = run.explain_item(items.hits, question.user, question.history, now=now)
        return ItemsAnswered(items, history, explanations)


Work = Embedding | Search | Recommending


def cut(vectors: Sequence[Vectors], width: int) -> list[Vectors]:
    """Return the first numbers of vectors, [D] -> [width] each, again with length 1."""
    shorter = []
    for vector in vectors:
        first = vector[:width]
        norm = float(np.sqrt(first @ first))
        shorter.append(np.ascontiguousarray(first / max(norm, 1e-12), np.float32))
    return shorter


def embeddings_json(name: str, vectors: Sequence[Vectors], as_base64: bool, words: int) -> bytes:
    """Return the answer to a request for embeddings."""
    data = []
    for index, vector in enumerate(vectors):
        shown: Any = vector
        if as_base64:
            shown = b2a_base64(np.ascontiguousarray(vector, "<f4").data, newline=False).decode()
        data.append({"object": "embedding", "index": index, "embedding": shown})
    return orjson.dumps(
        {
            "object": "list",
            "data": data,
            "model": name,
            "usage": {"prompt_tokens": words, "total_tokens": words},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def search_json(name: str, answers: Sequence[QueryAnswer]) -> bytes:
    """Return the answer to a request for hits."""
    results = []
    notes = []
    for number, answer in enumerate(answers, 1):
        results.append(_explained([_hit(hit) for hit in answer.hits], answer.explanations))
        if answer.is_unread:
            notes.append(NOTHING.format(number))
    return as_json({"model": name, "results": results, "notes": notes})


def _explained(
    hits: list[dict[str, Any]], explanations: Sequence[Explanation] | None
) -> list[dict[str, Any]]:
    """Return hits with the largest parts of their explanations, if there are any."""
    if explanations is not None:
        for hit, explanation in zip(hits, explanations, strict=True):
            hit["explanation"] = explanation.largest(PARTS).json()
    return hits


def _hit(hit: Found) -> dict[str, Any]:
    return {
        "id": hit.id,
        "score": hit.score,
        "probability": hit.probability,
        "text": hit.text,
        "name": hit.name,
        "place": hit.place,
        "columns": hit.columns,
    }


def recommendations_json(name: str, answer: ItemsAnswered) -> bytes:
    """Return the answer to a question to a recommender."""
    results = []
    for hit in answer.items.hits:
        results.append(
            {
                "id": hit.id,
                "score": hit.score,
                "name": hit.name,
                "text": hit.text,
                "columns": hit.columns,
            }
        )
    return as_json(
        {
            "model": name,
            "results": _explained(results, answer.explanations),
            "notes": list(answer.items.notes),
            "history": answer.history,
        }
    )


def as_json(answer: Any) -> bytes:
    """Return an answer as JSON; columns may hold dates, and numbers beyond 64 bits, as texts."""
    return orjson.dumps(
        answer, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    )
