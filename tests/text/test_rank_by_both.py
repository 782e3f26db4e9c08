"""Rankings by words and vectors together, of candidates, against the scores of all documents in
loops."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from tempera.text.judge import hybrid
from tempera.text.judge.hybrid import RankedByBoth, rank_by_both
from tempera.text.judge.lexical import BM25, Lexical

WEIGHTS = (0.0, 0.1, 0.5, 0.9, 1.0)
DEPTH = 10
DOCS = 600
VOCABULARY = [a + b for a in "bcdfghk" for b in "aeiou"]


class Case:
    """A corpus, its index of words, and queries; the third query has no word of the corpus."""

    def __init__(self, width: int = 16, alike: bool = False) -> None:
        generator = np.random.default_rng(2)
        vectors = generator.normal(size=(DOCS + 30, width)).astype(np.float32)
        if alike:
            vectors[:DOCS] = vectors[0]
        vectors[5] = vectors[500]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        self.docs, self.queries = vectors[:DOCS], vectors[DOCS:]
        self.texts = [
            " ".join(generator.choice(VOCABULARY, int(generator.integers(1, 12))))
            for _ in range(DOCS)
        ]
        self.questions = [" ".join(generator.choice(VOCABULARY, 3)) for _ in range(30)]
        self.questions[2] = "zzz"
        self.words: BM25 = Lexical(self.texts).index()

    def ranked(self) -> RankedByBoth:
        return rank_by_both(self.queries, self.docs, self.questions, self.words, WEIGHTS, DEPTH)

    def fused(self, query: int, weight: float) -> list[float]:
        """The fused scores of all documents, in float64."""
        products = [
            sum(float(a) * float(b) for a, b in zip(self.queries[query], doc)) for doc in self.docs
        ]
        by_words = [float(score) for score in self.words.scores([self.questions[query]])[0]]
        both = [0.0] * DOCS
        for scores, share in ((products, weight), (by_words, 1 - weight)):
            mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
            if deviation > 1e-6:
                for i, score in enumerate(scores):
                    both[i] += share * (score - mean) / deviation
        return both


def refuse_other_ranking(case: Case, ranked: RankedByBoth) -> None:
    for j, weight in enumerate(WEIGHTS):
        for i in range(len(case.questions)):
            scores = case.fused(i, weight)
            best = sorted(range(DOCS), key=lambda doc: (-round(scores[doc], 6), doc))[:DEPTH]
            row = ranked.fused[j][i].tolist()
            assert len(set(row)) == DEPTH
            for doc, expected in zip(row, best, strict=True):
                assert scores[doc] == pytest.approx(scores[expected], abs=2e-5), (weight, i)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of queries that are compared with all documents, from now on; candidates are
    few."""
    counts: list[int] = []
    compare = hybrid._compared_with_all

    def counted(queries: np.ndarray, *rest: object) -> RankedByBoth:
        counts.append(len(queries))
        return compare(queries, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hybrid, "_compared_with_all", counted)
    monkeypatch.setattr(hybrid, "_SMALL", 100)
    return counts


@pytest.mark.parametrize("candidates", [25, 150, DOCS])
def test_candidates_are_ranked_as_all_documents(
    monkeypatch: pytest.MonkeyPatch, compared: list[int], candidates: int
) -> None:
    monkeypatch.setattr(hybrid, "CANDIDATES", candidates)
    case = Case()
    ranked = case.ranked()
    refuse_other_ranking(case, ranked)
    assert np.array_equal(ranked.words, case.words.rank(case.questions, DEPTH))
    # Few candidates prove some rankings, and all documents prove every ranking.
    most = {25: 29, 150: 10, DOCS: 0}[candidates]
    assert sum(compared) <= most and (candidates != 25 or sum(compared) > 3)


def test_equal_vectors_are_compared_with_all(
    monkeypatch: pytest.MonkeyPatch, compared: list[int]
) -> None:
    monkeypatch.setattr(hybrid, "CANDIDATES", 50)
    case = Case(alike=True)
    refuse_other_ranking(case, case.ranked())
    assert compared == [30]


def test_a_small_corpus_is_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    refuse_other_ranking(case, case.ranked())
