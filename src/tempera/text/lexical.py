"""BM25, the baseline that every retriever has to beat (Robertson and Zaragoza 2009), by bm25s."""

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


class BM25:
    """A corpus indexed for BM25.

    Args:
        docs: the words of each document, already stemmed if `settings` say so.
    """

    def __init__(self, docs: Sequence[list[str]], settings: Settings) -> None:
        import bm25s

        self.index = bm25s.BM25(k1=settings.k1, b=settings.b)
        self.index.index([doc or [""] for doc in docs], show_progress=False)
        self.size = len(docs)

    def rank(self, queries: Sequence[list[str]], k: int) -> NDArray[np.int64]:
        """Return positions of the k best documents, best first, [q, k]; documents without a common word are -1."""
        ranked = np.full((len(queries), min(k, self.size)), -1)
        for row, query in enumerate(queries):
            known = [word for word in query if word in self.index.vocab_dict]
            if known:
                scores, positions = top_of(np.asarray(self.index.get_scores(known), np.float32)[None], k)
                ranked[row] = np.where(scores[0] > 0, positions[0], -1)
        return ranked


class Lexical:
    """BM25 over a corpus, with settings tuned one after the other on queries of their own."""

    def __init__(self, docs: Sequence[str]) -> None:
        self.plain = [words(doc) for doc in docs]
        self.settings = Settings()

    @cached_property
    def stemmer(self) -> Any:
        """Snowball's English stemmer."""
        import Stemmer

        return Stemmer.Stemmer("english")

    @cached_property
    def stemmed(self) -> list[list[str]]:
        """The corpus, stemmed."""
        return [self.stemmer.stemWords(doc) for doc in self.plain]

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
