"""BM25, the baseline that every retriever has to beat (Robertson and Zaragoza 2009)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..io.console import progress_bar
from ..ranking.metrics import Relevant, evaluate
from ..ranking.nearest import top_of

_CASE_CHANGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")
_BLOCK = 1 << 22  # scores that are held at once
_GRID: dict[str, tuple[Any, ...]] = {"b": (0.4, 0.75, 0.9, 1.0), "k1": (0.9, 1.5, 2.5, 4.0), "stem": (False, True)}


def words(text: str) -> list[str]:
    """Return lower-case words, with identifiers split at underscores, digits and changes of case.

    >>> words("parseHTTPDate(raw_text2)")
    ['parse', 'http', 'date', 'raw', 'text', '2']
    """
    return _WORD.findall(_CASE_CHANGE.sub(" ", text).lower())


@dataclass(frozen=True)
class Settings:
    """Term saturation k1, length normalisation b, and whether words are stemmed (Snowball, English)."""

    k1: float = 1.5
    b: float = 0.75
    stem: bool = False


class Counts:
    """Counts of words by document, [e] entries in the order of words and then documents: what every setting has in common.

    Args:
        docs: the words of each document, already stemmed if settings say so.
    """

    def __init__(self, docs: Sequence[list[str]]) -> None:
        filled = [doc or [""] for doc in docs]
        self.lengths = np.array([len(doc) for doc in filled])  # [c]
        self.vocabulary: dict[str, int] = {}
        codes = [self.vocabulary.setdefault(word, len(self.vocabulary)) for doc in filled for word in doc]
        keys = np.array(codes) * len(filled) + np.repeat(np.arange(len(filled)), self.lengths)
        distinct, counts = np.unique(keys, return_counts=True)
        self.word, self.doc = np.divmod(distinct, len(filled))
        self.count = counts.astype(np.float32)
        self.holding = np.bincount(self.word, minlength=len(self.vocabulary))  # documents of each word

    def scores(self, settings: Settings) -> NDArray[np.float32]:
        """Return the score that each entry adds to a document, [e], as Lucene computes it (Kamphuis et al. 2020, table 1)."""
        n, share = len(self.lengths), self.lengths / self.lengths.mean()
        idf = np.log(1 + (n - self.holding + 0.5) / (self.holding + 0.5)).astype(np.float32)
        saturation = settings.k1 * ((1 - settings.b) + settings.b * share)
        scores: NDArray[np.float32] = (idf[self.word] * (self.count / (saturation[self.doc] + self.count))).astype(
            np.float32
        )
        return scores


class BM25:
    """A corpus indexed for BM25.

    Args:
        docs: the words of each document, already stemmed if `settings` say so, or their counts.
    """

    def __init__(self, docs: Sequence[list[str]] | Counts, settings: Settings) -> None:
        self.counts = docs if isinstance(docs, Counts) else Counts(docs)
        self.entries = self.counts.scores(settings)
        self.ends = np.concatenate([[0], self.counts.holding.cumsum()])

    def scores(self, query: Sequence[str]) -> NDArray[np.float32]:
        """Return the score of each document for the words of a query, [c]; 0 without a common word."""
        scores = np.zeros(len(self.counts.lengths), np.float32)
        for code in (self.counts.vocabulary[word] for word in query if word in self.counts.vocabulary):
            entries = slice(self.ends[code], self.ends[code + 1])
            scores[self.counts.doc[entries]] += self.entries[entries]
        return scores

    def rank(self, queries: Sequence[list[str]], k: int) -> NDArray[np.int64]:
        """Return positions of the k best documents, best first, [q, k]; documents without a common word are -1."""
        documents = len(self.counts.lengths)
        ranked = np.full((len(queries), min(k, documents)), -1)
        block = max(1, _BLOCK // documents)
        for start in range(0, len(queries), block):
            scores, positions = top_of(np.stack([self.scores(query) for query in queries[start : start + block]]), k)
            ranked[start : start + block] = np.where(scores > 0, positions, -1)
        return ranked


class Lexical:
    """BM25 over a corpus, with settings tuned one after the other on queries of their own."""

    def __init__(self, docs: Sequence[str]) -> None:
        self.words = [words(doc) for doc in docs]
        self.settings = Settings()

    @cached_property
    def stemmer(self) -> Any:
        """Snowball's English stemmer."""
        import Stemmer

        return Stemmer.Stemmer("english")

    @cached_property
    def plain(self) -> Counts:
        """The words of the corpus."""
        return Counts(self.words)

    @cached_property
    def stemmed(self) -> Counts:
        """The corpus, stemmed."""
        return Counts([self.stemmer.stemWords(doc) for doc in self.words])

    def rank(self, queries: Sequence[str], k: int, settings: Settings | None = None) -> NDArray[np.int64]:
        """Return positions of the k best documents, best first, [q, k]; -1 for none."""
        settings = settings or self.settings
        tokens = [words(query) for query in queries]
        if settings.stem:
            tokens = [self.stemmer.stemWords(query) for query in tokens]
        return BM25(self.stemmed if settings.stem else self.plain, settings).rank(tokens, k)

    def tune(self, queries: Sequence[str], relevant: Relevant) -> None:
        """Take the b, then the k1, then the stemming with the highest nDCG@10 for these queries.

        The queries must not be those of the comparison.
        """

        def score(settings: Settings) -> float:
            bar.update()
            return float(evaluate(self.rank(queries, 10, settings), relevant, ["ndcg@10"])["ndcg@10"].mean())

        with progress_bar("tuning BM25", sum(map(len, _GRID.values())), "setting") as bar:
            for option, values in _GRID.items():
                self.settings = max((replace(self.settings, **{option: value}) for value in values), key=score)
