"""BM25, the baseline that every retriever has to beat (Robertson and Zaragoza 2009), by bm25s."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .ranking import Relevant, evaluate
from .search import top_of

_CASE_CHANGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")
_GRID = {"k1": (0.9, 1.5, 2.5, 4.0), "b": (0.4, 0.75, 0.9, 1.0), "stem": (False, True)}


def words(text: str, stemmer: Any = None) -> list[str]:
    """Lower-case words, with identifiers split at underscores, digits and changes of case.

    >>> words("parseHTTPDate(raw_text2)")
    ['parse', 'http', 'date', 'raw', 'text', '2']
    """
    found = [word.lower() for word in _WORD.findall(_CASE_CHANGE.sub(" ", text))]
    return stemmer.stemWords(found) if stemmer is not None else found


@dataclass(frozen=True)
class Settings:
    """Term saturation k1, length normalisation b, and whether words are stemmed (Snowball, English)."""

    k1: float = 1.5
    b: float = 0.75
    stem: bool = False


class BM25:
    """A corpus indexed for BM25."""

    def __init__(self, docs: Sequence[str], settings: Settings) -> None:
        import bm25s

        self.settings = settings
        self.stemmer = _stemmer() if settings.stem else None
        self.index = bm25s.BM25(k1=settings.k1, b=settings.b)
        self.index.index([words(doc, self.stemmer) or [""] for doc in docs], show_progress=False)
        self.size = len(docs)

    def rank(self, queries: Sequence[str], k: int) -> NDArray[np.int64]:
        """Positions of the k best documents, best first, [q, k]; documents without a common word are -1."""
        ranked = np.full((len(queries), min(k, self.size)), -1)
        for row, query in enumerate(queries):
            known = [word for word in words(query, self.stemmer) if word in self.index.vocab_dict]
            if known:
                scores, positions = top_of(np.asarray(self.index.get_scores(known), np.float32)[None], k)
                ranked[row] = np.where(scores[0] > 0, positions[0], -1)
        return ranked


def tuned(docs: Sequence[str], queries: Sequence[str], relevant: Relevant) -> Settings:
    """The settings with the highest nDCG@10 for these queries, which must not be those of the comparison."""
    best, best_score = Settings(), -1.0
    grid = [Settings(*values) for values in product(*_GRID.values())]
    for settings in tqdm(grid, desc="tuning BM25", unit="setting", disable=None):
        ranked = BM25(docs, settings).rank(queries, 10)
        score = float(evaluate(ranked, relevant, ["ndcg@10"])["ndcg@10"].mean())
        if score > best_score:
            best, best_score = settings, score
    return best


def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")
