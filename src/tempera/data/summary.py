"""What a run would train on, before it does: rows with their roles, lengths, repeats, negatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..core.ragged import Ragged
from .catalogue import Catalogue
from .pairs import Rows

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
SHOWN = 3
_CHARACTERS = 200


def summary(catalogue: Catalogue, rows: Rows, queries: Ragged, docs: Ragged) -> dict[str, Any]:
    """Of the training rows: three of them, quantiles of their token lengths, rates of repeats, negatives a query.

    Args:
        rows: [n] pairs that are trained on.
        queries: tokens of the distinct queries, [p], and
        docs: documents, [u], as the tower reads them.

    A text is at the limit if it has as many tokens as the longest of all and another one has so, too: where a tower
    cuts its texts, all that it has cut are among them.
    """
    own = catalogue.negatives[torch.from_numpy(rows)]
    return {
        "rows": [_shown(catalogue, int(row), queries, docs) for row in rows[:SHOWN]],
        "tokens": {
            "query": _lengths(queries.lengths[torch.from_numpy(catalogue.query_of[rows])]),
            "doc": _lengths(docs.lengths[torch.from_numpy(catalogue.doc_of[rows])]),
            **({"negatives": _lengths(docs.lengths[own.values])} if len(own.values) else {}),
        },
        "repeated": {
            "query": 1 - len(np.unique(catalogue.query_of[rows])) / len(rows),
            "doc": 1 - len(np.unique(catalogue.doc_of[rows])) / len(rows),
        },
        "negatives": {
            "least": int(own.lengths.min()),
            "mean": len(own.values) / len(rows),
            "most": int(own.lengths.max()),
        },
        "dropped": dict(catalogue.pairs.dropped),
    }


def _shown(catalogue: Catalogue, row: int, queries: Ragged, docs: Ragged) -> dict[str, Any]:
    """One row: each role's text, and how many tokens it has."""
    query, doc = int(catalogue.query_of[row]), int(catalogue.doc_of[row])
    negatives = catalogue.negatives[row : row + 1].values.numpy()

    def text(value: str, tokens: int) -> dict[str, Any]:
        return {"text": value[:_CHARACTERS], "characters": len(value), "tokens": tokens}

    return {
        "place": catalogue.pairs.texts("place", np.array([row]))[0],
        "query": text(catalogue.queries[query], len(queries[query : query + 1].values)),
        "doc": text(catalogue.docs[doc], len(docs[doc : doc + 1].values)),
        "negatives": [
            text(words, len(docs[at : at + 1].values))
            for at, words in zip(negatives.tolist(), catalogue.docs.take(negatives))
        ],
    }


def _lengths(lengths: torch.Tensor) -> dict[str, float]:
    """Quantiles of token lengths, and the share of texts at the limit.

    >>> _lengths(torch.tensor([1, 2, 4, 4]))
    {'0%': 1.0, '50%': 2.0, '90%': 4.0, '99%': 4.0, '100%': 4.0, 'at_limit': 0.5}
    """
    values = lengths.numpy()
    found = np.quantile(values, QUANTILES, method="inverted_cdf")
    longest = int((values == values.max()).sum())
    at_limit = longest / len(values) if longest > 1 else 0.0
    return {**{f"{share:.0%}": float(value) for share, value in zip(QUANTILES, found)}, "at_limit": at_limit}
