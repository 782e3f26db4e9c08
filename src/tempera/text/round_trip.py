"""Pairs whose query a language model has written for its document: those that find it again are trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..io.console import progress_bar
from .lexical import Lexical
from .pairs import TRAINABLE, Pairs

_BLOCK = 1000  # queries that are ranked at once


def found_again(pairs: Pairs, k: int) -> Pairs:
    """Return pairs with a column that tells whether their document is among the first `k` that BM25 finds by their query.

    Round-trip consistency (Alberti et al. 2019; Dai et al. 2023, Promptagator): a query that does not find the document that it was
    written for is about something else, or too general. All distinct documents are searched. Only training leaves such pairs out:
    a test on queries that BM25 has chosen would find BM25 perfect.

    >>> pairs = Pairs.of(["red fox", "a text"], ["the quick red fox", "blue whales"])
    >>> found_again(pairs, k=1).trainable.tolist()
    [True, False]
    """
    first, number = pairs.distinct("doc")
    texts, query = pairs.distinct("query")
    index, trainable = Lexical(pairs.texts("doc", first)).index(), np.zeros(len(pairs), bool)
    with progress_bar("looking for the documents of generated queries", len(texts), "query") as bar:
        for start in range(0, len(texts), _BLOCK):
            ranking = index.rank(pairs.texts("query", texts[start : start + _BLOCK]), k)  # [<= block, k]
            own = (query >= start) & (query < start + _BLOCK)
            trainable[own] = (ranking[query[own] - start] == number[own, None]).any(1)
            bar.update(len(ranking))
    return replace(pairs, table=pairs.table.append_column(TRAINABLE, pa.array(trainable)))
