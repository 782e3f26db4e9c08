"""A teacher's scores of training pairs and of their negatives: from columns of the data, or by a
cross-encoder.

Letters in shapes: n training pairs, m negatives of all of them, row after row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from ..core.ragged import spread
from ..engine.batches import Examples
from ..errors import DataError
from ..mining.guide import CrossEncoder
from .catalogue import Catalogue
from .pairs import Rows


def stored_scores(catalogue: Catalogue, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the scores that the data have of chosen pairs, [n], and of their negatives, [m].

    Raises:
        DataError: a pair or a negative without a score.
    """
    table, negatives = catalogue.pairs.table, catalogue.negatives
    own, listed = np.full(len(table), np.nan), np.empty(0)
    if "positive_score" in table.column_names:
        own = pc.fill_null(table["positive_score"], np.nan).to_numpy()
    if "negative_scores" in table.column_names:
        listed = np.concatenate(
            [chunk.flatten().to_numpy() for chunk in table["negative_scores"].chunks]
        )
    if np.isnan(own[rows]).any() or len(listed) != len(catalogue.pairs.negatives[0]):
        raise DataError(
            "train.teacher=columns needs a score of every training pair and of every negative: name the columns as "
            "data.positive_scores and data.negative_scores"
        )
    at = torch.from_numpy(rows)
    chosen = spread(negatives.offsets[:-1][at], negatives[at].lengths)
    return torch.from_numpy(own[rows]).float(), torch.from_numpy(listed[catalogue.listed]).float()[
        chosen
    ]


def judged(examples: Examples, catalogue: Catalogue, cross: CrossEncoder) -> Examples:
    """Return the pairs with a cross-encoder's scores of them and of the negatives that they have
    now."""
    query, doc, negatives = examples.query, examples.doc, examples.negatives
    if negatives is not None:
        query = torch.cat([query, query.repeat_interleave(negatives.lengths)])
        doc = torch.cat([doc, negatives.values.long()])
    queries, docs = catalogue.queries.take(query.numpy()), catalogue.docs.take(doc.numpy())
    scores = torch.from_numpy(
        cross(list(zip(queries, docs, strict=True)), "scoring pairs by the teacher")
    )
    return replace(examples, scores=(scores[: len(examples)], scores[len(examples) :]))
