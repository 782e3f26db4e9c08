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
    """Return three of the training rows, quantiles of their token lengths, rates of repeats,
    negatives a query.

    Args:
        rows: [n] pairs that are trained on.
        queries: tokens of the distinct queries, [p], and
        docs: documents, [u], as the tower reads them.

    A text is at the limit if it has as many tokens as the longest of all and another one has so,
    too: where a tower cuts its texts, all that it has cut are among them.
    """
    own = catalogue.negatives[torch.from_numpy(rows)]
    return {
        "unit": "tokens",
        "rows": [_shown(catalogue, int(row), queries, docs) for row in rows[:SHOWN]],
        "tokens": {
            "query": quantiles(queries.lengths.numpy()[catalogue.query_of[rows]]),
            "doc": quantiles(docs.lengths.numpy()[catalogue.doc_of[rows]]),
            **(
                {"negatives": quantiles(docs.lengths.numpy()[own.values.numpy()])}
                if len(own.values)
                else {}
            ),
        },
        "repeated": {
            "query": 1 - len(np.unique(catalogue.query_of[rows])) / len(rows),
            "doc": 1 - len(np.unique(catalogue.doc_of[rows])) / len(rows),
        },
        "negatives": extent("hard negatives per row", own.lengths.numpy()),
        "dropped": dict(catalogue.pairs.dropped),
    }


def _shown(catalogue: Catalogue, row: int, queries: Ragged, docs: Ragged) -> dict[str, Any]:
    """Return one row as text: each role's text with its number of tokens."""
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
