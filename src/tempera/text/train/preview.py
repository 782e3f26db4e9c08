"""A preview of training data on texts: rows with their roles, token lengths, repeats, negatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...arithmetic.ragged import Ragged
from ...task.showcase import SHOWN, extent, quantiles
from ..read.pairs import Rows
from .catalogue import Catalogue

_CHARACTERS = 200


def summary(catalogue: Catalogue, rows: Rows, queries: Ragged, docs: Ragged) -> dict[str, Any]:
    """Return three training rows, quantiles of token lengths, rates of repeats, negatives a query.

    Args:
        rows: [n] training pairs.
        queries: tokens of the distinct queries, [p].
        docs: tokens of the distinct documents, [u].

    A text counts as being at the limit if two texts have the largest number of tokens: where a
    tower cuts texts, all cut texts are at the limit.
    """
    query = catalogue.query_of[rows]
    doc = catalogue.doc_of[rows]
    negatives = catalogue.negatives[torch.from_numpy(rows)]
    doc_lengths = docs.lengths.numpy()
    tokens = {
        "query": quantiles(queries.lengths.numpy()[query]),
        "doc": quantiles(doc_lengths[doc]),
    }
    if len(negatives.values):
        tokens["negatives"] = quantiles(doc_lengths[negatives.values.numpy()])
    return {
        "unit": "tokens",
        "rows": [_shown(catalogue, int(row), queries, docs) for row in rows[:SHOWN]],
        "tokens": tokens,
        "repeated": {
            "query": 1 - len(np.unique(query)) / len(rows),
            "doc": 1 - len(np.unique(doc)) / len(rows),
        },
        "negatives": extent("hard negatives per row", negatives.lengths.numpy()),
        "dropped": dict(catalogue.pairs.dropped),
    }


def _shown(catalogue: Catalogue, row: int, queries: Ragged, docs: Ragged) -> dict[str, Any]:
    """Return a row as text: each role's text with the number of tokens."""
    query = int(catalogue.query_of[row])
    doc = int(catalogue.doc_of[row])
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
