"""The index of words and its searches beside bm25s with numba: CPU seconds and answers.

    pip install bm25s==0.3.16 numba==0.68.1
    python bench/words.py

Documents of several numbers of short texts are made from the words of texts that TEMPERA_DATA
names, as often as these texts have them. Both sides index all documents and rank 100 of them for
1,000 queries, in one thread and in turns. bm25s takes its own tokens of the same texts, or, for the
comparison of the answers, the same tokens. numba compiles before the first round.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections import Counter
from typing import Any

import bm25s
import numpy as np
import pyarrow.parquet as parquet

from _harness import Aim, alternate, finish, table
from _sets import DATA
from tempera.text.judge.lexical import BM25, Settings, WordCounts, words

SIZES = (8_000, 60_000, 500_000)
QUERIES, DEPTH, ROUNDS = 1_000, 100, 3
SETTINGS = Settings()
_LONGEST = 12  # words of a text, at least 5


def frequent_words(most: int = 30_000) -> tuple[np.ndarray, np.ndarray]:
    """Return the most frequent words of some texts, with their shares."""
    counts = Counter[str]()
    for name in ("captions/pairs_train.parquet", "medquad/pairs.parquet"):
        rows = parquet.read_table(DATA / name)
        for column in rows.columns[:2]:
            for text in column.to_pylist()[:60_000]:
                counts.update(words(str(text or "")))
    chosen = counts.most_common(most)
    shares = np.array([count for _, count in chosen], float)
    return np.array([word for word, _ in chosen], object), shares / shares.sum()


def texts(count: int, seed: int, spelled: np.ndarray, shares: np.ndarray) -> list[str]:
    """Return texts of 5 to 12 words drawn by their shares."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(5, _LONGEST + 1, count)
    numbers = np.searchsorted(shares.cumsum(), draw.random((count, _LONGEST)))
    drawn = spelled[numbers.clip(max=len(spelled) - 1)]
    return [" ".join(row[:length]) for row, length in zip(drawn, lengths, strict=True)]


def indexed(docs: list[str]) -> BM25:
    """Return our index."""
    return BM25.of(WordCounts.of(docs), SETTINGS)


def indexed_by_bm25s(docs: list[str]) -> Any:
    """Return the index of bm25s, with its own tokens."""
    index = bm25s.BM25(k1=SETTINGS.k1, b=SETTINGS.b, backend="numba")
    tokens = bm25s.tokenize(docs, stopwords=None, token_pattern=r"\w+", show_progress=False)
    index.index(tokens, show_progress=False)
    return index


def ranked_by_bm25s(index: Any, queries: list[str]) -> np.ndarray:
    """Return what bm25s ranks, [q, k]."""
    tokens = bm25s.tokenize(
        queries, stopwords=None, token_pattern=r"\w+", show_progress=False, return_ids=False
    )
    found, _ = index.retrieve(tokens, k=DEPTH, n_threads=1, show_progress=False)
    ranked: np.ndarray = np.asarray(found)
    return ranked


def largest_difference(docs: list[str], queries: list[str]) -> float:
    """Return the largest difference of the scores of both sides, with the same tokens."""
    peer = bm25s.BM25(k1=SETTINGS.k1, b=SETTINGS.b)
    peer.index([words(doc) for doc in docs], show_progress=False)
    ours = indexed(docs)
    largest = 0.0
    for query in queries:
        known = [word for word in words(query) if word in peer.vocab_dict]
        gap = np.abs(peer.get_scores(known) - ours.scores([query])[0]).max()
        largest = max(largest, float(gap))
    return largest


def compared(count: int, docs: list[str], queries: list[str]) -> dict[str, Any]:
    """Return the seconds of both sides for a number of documents."""
    ours, theirs = indexed(docs), indexed_by_bm25s(docs)
    seconds = alternate(
        {
            "index": lambda: indexed(docs),
            "bm25s index": lambda: indexed_by_bm25s(docs),
            "queries": lambda: ours.rank(queries, DEPTH),
            "bm25s queries": lambda: ranked_by_bm25s(theirs, queries),
        },
        ROUNDS,
    )
    both = seconds["index"] + seconds["queries"]
    seconds["ratio"] = both / (seconds["bm25s index"] + seconds["bm25s queries"])
    return {"documents": count, **seconds}


def main() -> None:
    spelled, shares = frequent_words()
    docs = texts(max(SIZES), 0, spelled, shares)
    queries = texts(QUERIES, 1, spelled, shares)
    ranked_by_bm25s(indexed_by_bm25s(docs[:1000]), queries)  # compiles
    figures = [compared(count, docs[:count], queries) for count in SIZES]
    names = ["index", "bm25s index", "queries", "bm25s queries", "ratio"]
    rows = [
        [f"{each['documents']:,}", *(f"{each[name]:.2f}" for name in names)] for each in figures
    ]
    table(["documents", *names], rows)
    difference = largest_difference(docs[: SIZES[0]], queries[:200])
    aims = [Aim("largest difference of a score from bm25s", difference, 0.0)]
    for each in figures:
        name = f"CPU seconds of an index and 1,000 queries / bm25s, {each['documents']:,} documents"
        aims.append(Aim(name, each["ratio"], 1.0))
    packages = ["tempera", "bm25s", "numba", "numpy", "scipy", "pyarrow"]
    finish("words", {"sizes": figures, "difference": difference}, aims, packages)


if __name__ == "__main__":
    main()
