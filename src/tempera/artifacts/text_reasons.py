"""The reasons of a run's scores on texts: explanations by the run's model and indexes.

Letters in shapes: n documents, c documents of the corpus, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..corpus.index import Found, Index, IndexedDocument
from ..errors import DataError
from ..io.texts import encodable
from ..towers.saved import KEPT, load
from .text_search import TextSearch

if TYPE_CHECKING:  # they take time to load, and most searches explain nothing
    from ..explain.explanation import Explanation
    from ..explain.without_words import Embed
    from ..text.judge.lexical import BM25
    from ..towers.static_steps import StaticSteps

Vectors = NDArray[np.float32]

PASSAGES = 64  # of a document, left out one at a time


@dataclass(frozen=True)
class _TextQuestion:
    """A query and the documents to explain.

    Args:
        query: text of the query.
        vector: of the query, in the width of the index, [D].
        index: the index that is searched.
        maker: fingerprint of the model that made the index.
        positions: of the documents in the index, [n].
        texts: of the documents, [n].
        scores: inner products of the query and the documents, [n].
    """

    query: str
    vector: Vectors
    index: Index
    maker: str
    positions: NDArray[np.int64]
    texts: Sequence[str]
    scores: Sequence[float]

    @property
    def vectors(self) -> Vectors:
        """Vectors of the documents, [n, D].

        Raises:
            DataError: an approximate index.
        """
        if self.index.is_approximate:
            raise DataError(
                f"{self.index.folder} is approximate, and this model is explained by the vectors of "
                "documents: give the exact index that it was built from"
            )
        return np.asarray(self.index.vectors[self.positions], np.float32)


class TextReasons(TextSearch):
    """Open a run folder for searches, and for the reasons of their scores."""

    def explain_each(
        self,
        query: str,
        documents: Sequence[str | IndexedDocument],
        hybrid: bool = False,
        index: str | Path | None = None,
        passages: int = PASSAGES,
        most: int | None = None,
    ) -> list[Explanation]:
        """Return the explanation of the score of each document for a query; see `Run.explain`.

        Args:
            query: a text.
            documents: ids of documents, or hits.
            hybrid: explain the score of words and vectors together.
            index: an exported index that was searched.
            passages: largest number of passages of a document to leave out.
            most: number of pairs of words, the largest; the others are in the rest. None is all.
        """
        return self.of_one_state(
            lambda: self._explain_each(query, documents, hybrid, index, passages, most)
        )

    def _explain_each(
        self,
        query: str,
        documents: Sequence[str | IndexedDocument],
        hybrid: bool,
        index: str | Path | None,
        passages: int,
        most: int | None,
    ) -> list[Explanation]:
        self._refuse_queries([query])
        if passages < 0:
            raise DataError(f"passages is {passages}; expected at least 0")
        searched: Index = self.index if index is None else self._once(Index, Path(index))
        question = self._question(encodable(query), documents, searched)
        by_vectors = self._by_vectors(question, passages, most)
        if not hybrid:
            return by_vectors
        return self._by_both_systems(question, by_vectors)

    def explain_words(self, query: str, hits: Sequence[IndexedDocument]) -> list[Explanation]:
        """Return the explanation of the score of each hit of `search_words`.

        >>> from tempera import Run
        >>> run = Run("runs/first")
        >>> (hits,) = run.search_words(["ada keeps"], k=1)
        >>> (explanation,) = run.explain_words("ada keeps", hits)
        >>> abs(explanation.score - hits[0].score) < 1e-6
        True
        """
        from ..explain.bm25_words import explain_words

        words: BM25 = self._once(self._words, self.index)
        positions = self.index.positions([hit.id for hit in hits])
        explanations = []
        for position, hit in zip(positions.tolist(), hits, strict=True):
            explanations.append(explain_words(words, encodable(query), position, hit.text))
        return explanations

    def _question(
        self, query: str, documents: Sequence[str | IndexedDocument], index: Index
    ) -> _TextQuestion:
        names = [each if isinstance(each, str) else each.id for each in documents]
        positions = index.positions(names)
        texts = [document.text for document in index.hits(np.zeros(len(names)), positions)]
        maker = self._maker(index) or self.fingerprint
        vector = index.fitted(self._embed([query])[0], maker)
        if index.is_approximate:
            scores = _scores_of_hits(documents)
        else:
            vectors = index.vectors[positions].astype(np.float64)
            products = vectors * vector.astype(np.float64)
            scores = products.sum(1).tolist()  # each the same, whatever the other documents
        return _TextQuestion(query, vector, index, maker, positions, texts, scores)

    def _by_vectors(
        self, question: _TextQuestion, passages: int, most: int | None
    ) -> list[Explanation]:
        """Return the explanations of similarities: exact if the model is linear for one of the
        sides."""
        from ..explain.static_words import terms
        from ..explain.word_pairs import explain_pairs

        folder = self.folder / "model"
        of_queries: StaticSteps | None = self._once(_query_steps, folder)
        of_documents: StaticSteps | None = self._once(_document_steps, folder)
        if of_queries is None and of_documents is None:
            return self._without_words(question, passages)
        width = len(question.vector)
        query = (
            question.vector if of_queries is None else terms(of_queries, question.query).cut(width)
        )
        explanations = []
        if of_documents is None:
            for vector, score in zip(question.vectors, question.scores, strict=True):
                explanations.append(explain_pairs(query, vector, score, most))
            return explanations
        for text, score in zip(question.texts, question.scores, strict=True):
            document = terms(of_documents, text).cut(width)
            explanations.append(explain_pairs(query, document, score, most))
        return explanations

    def _without_words(self, question: _TextQuestion, passages: int) -> list[Explanation]:
        """Return explanations by leaving out words of the query, and passages of the documents."""
        from ..explain.without_words import WithoutWords, explain_without

        folder = self.folder / "model"
        in_query = WithoutWords(question.query, partial(_fitted, question, self.encode))
        embed: Embed | None = None
        if passages and not (folder / KEPT).is_file():
            embed = partial(_fitted, question, self._once(_document_encoder, folder))
        explanations = []
        vectors = question.vectors
        for vector, text, score in zip(vectors, question.texts, question.scores, strict=True):
            parts = in_query.parts(vector, score, "query")
            if embed is not None:
                in_document = WithoutWords(text, embed, passages)
                parts += in_document.parts(question.vector, score, "document")
            explanations.append(explain_without(score, parts))
        return explanations

    def _by_both_systems(
        self, question: _TextQuestion, by_vectors: Sequence[Explanation]
    ) -> list[Explanation]:
        """Return the explanations of the scores of words and vectors together."""
        from ..explain.bm25_words import explain_words
        from ..explain.explanation import Half
        from ..explain.fused_parts import explain_fused
        from ..ranking.fusion import fused, mean_and_deviation
        from ..text.judge.hybrid import weight_of

        words: BM25 = self._once(self._words, question.index)
        weight: float = self._once(weight_of, self.folder)
        vector_scores = question.index.scores(question.vector[None], None)  # [1, c]
        word_scores = words.scores([question.query])  # [1, c]
        scores = fused(vector_scores, word_scores, weight)[0]
        (vector_mean,), (vector_deviation,) = mean_and_deviation(vector_scores)
        (word_mean,), (word_deviation,) = mean_and_deviation(word_scores)
        explanations = []
        for position, text, reasons in zip(
            question.positions.tolist(), question.texts, by_vectors, strict=True
        ):
            by_words = explain_words(words, question.query, position, text)
            halves = [
                Half("vectors", weight, float(vector_mean), float(vector_deviation), reasons),
                Half("words", 1 - weight, float(word_mean), float(word_deviation), by_words),
            ]
            explanations.append(explain_fused(float(scores[position]), halves))
        return explanations


def _scores_of_hits(documents: Sequence[str | IndexedDocument]) -> list[float]:
    """Return the scores of hits in an approximate index.

    Raises:
        DataError: a document that is no hit.
    """
    scores = []
    for document in documents:
        if not isinstance(document, Found):
            raise DataError(
                "an approximate index does not keep the vectors one by one: give the hits of a "
                "search in it to explain, not ids"
            )
        scores.append(document.score)
    return scores


def _query_steps(folder: Path) -> StaticSteps | None:
    from ..towers.static_steps import StaticSteps

    return StaticSteps.read(folder, "query")


def _document_steps(folder: Path) -> StaticSteps | None:
    """Return the steps of a model for documents; None for a model that embeds queries alone."""
    from ..towers.static_steps import StaticSteps

    if (folder / KEPT).is_file():
        return None
    return StaticSteps.read(folder, "doc")


def _document_encoder(folder: Path) -> Embed:
    from ..engine.devices import named  # with torch, which a static model does not need

    return load(folder, "doc", device=named("auto"))


def _fitted(question: _TextQuestion, embed: Embed, texts: Sequence[str]) -> Vectors:
    """Return the vectors of texts in the width of the index."""
    return question.index.fitted(embed(texts), question.maker)
