"""Pairs whose query a language model has written for its document: those that find it again are
trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..io.console import progress_bar
from ..mining.embed import read_by
from ..ranking.nearest import top
from .lexical import Lexical
from .pairs import TRAINABLE, Pairs

_BLOCK = 1000  # queries that are ranked at once


def found_again(pairs: Pairs, k: int, model: Path | None = None) -> Pairs:
    """Return pairs with a column that tells whether their document is among the first `k` that are
    found by their query.

    Round-trip consistency (Alberti et al. 2019; Dai et al. 2023, Promptagator): a query that does
    not find the document that it was written for is about something else, or too general. All
    distinct documents are searched. Only training leaves such pairs out: if a test did, it would
    hold only queries for which BM25 finds the document, and BM25 would seem perfect.

    Args:
        model: folder of the saved model that finds them by its vectors; None is BM25.

    >>> pairs = Pairs.of(["red fox", "a text"], ["the quick red fox", "blue whales"])
    >>> found_again(pairs, k=1).trainable.tolist()
    [True, False]
    """
    first, number = pairs.distinct("doc")
    texts, query = pairs.distinct("query")
    docs, trainable = pairs.texts("doc", first), np.zeros(len(pairs), bool)
    rank = Lexical(docs).index().rank if model is None else _by_vectors(model, docs)
    with progress_bar("looking for the documents of generated queries", len(texts), "query") as bar:
        for start in range(0, len(texts), _BLOCK):
            ranking = rank(pairs.texts("query", texts[start : start + _BLOCK]), k)  # [<= block, k]
            own = (query >= start) & (query < start + _BLOCK)
            trainable[own] = (ranking[query[own] - start] == number[own, None]).any(1)
            bar.update(len(ranking))
    return replace(pairs, table=pairs.table.append_column(TRAINABLE, pa.array(trainable)))


def _by_vectors(
    model: Path, docs: Sequence[str]
) -> Callable[[Sequence[str], int], NDArray[np.int64]]:
    """Return a function to the positions of the documents that are nearest to queries, best first,
    [q, k]."""
    vectors, encode = read_by(model, "doc")(docs), read_by(model, "query")
    return lambda queries, k: top(encode(queries), vectors, k)[1]
