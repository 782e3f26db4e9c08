"""Pairs whose query a language model has written for its document, of which those that are found again are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..io.ids import content_ids
from .lexical import Lexical
from .pairs import Pairs


def found_again(pairs: Pairs, k: int) -> tuple[Pairs, Pairs]:
    """Return the pairs whose document is among the first `k` that BM25 finds by their query, and the other documents, to be ranked.

    Round-trip consistency (Alberti et al. 2019; Dai et al. 2023, Promptagator): a query that does not find the document that it was
    written for is about something else, or too general. All distinct documents are searched. Pairs that are left out are counted.

    >>> pairs = Pairs.of(["red fox", "a text"], ["the quick red fox", "blue whales"])
    >>> kept, others = found_again(pairs, k=1)
    >>> kept.texts("query"), others.texts("doc"), list(kept.dropped.values())
    (['red fox'], ['blue whales'], [1])
    """
    first, number = pairs.distinct("doc")
    texts, query = pairs.distinct("query")
    ranking = Lexical(pairs.texts("doc", first)).rank(pairs.texts("query", texts), k)  # [u, k]
    kept = (ranking[query] == number[:, None]).any(1)
    lost = Counter(
        {f"generated queries that do not find their document among the first {k} of BM25": int((~kept).sum())}
    )
    others = np.delete(first, number[kept])
    table = pairs.table.select(["doc", "doc_id", "name", "place"]).take(others)
    blank = pa.array([""] * len(others), pa.large_string())
    table = table.append_column("query", blank).append_column("query_id", pa.array(content_ids(blank)))
    counted = dict(Counter(pairs.dropped) + lost)
    return replace(pairs, table=pairs.table.filter(pa.array(kept)), dropped=counted), Pairs(table)
