"""Hard negatives, mined by the evaluated model before the second training, and the check of
negatives by a cross-encoder.

Letters in shapes: n training pairs, q distinct queries and c distinct documents of training, e
pairs of a query and an answer, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from ...arithmetic.ragged import Ragged, from_lengths
from ...core.batch import Role
from ...engine.batches import Examples
from ...io.ids import places
from ...mining.again import MiningAgain
from ...mining.guide import CrossEncoder, check_negatives
from ...mining.hard_negatives import mine
from ...mining.search import Ints, Pairs, by_faiss
from ...mining.shortfall import Report
from .catalogue import Catalogue

# A function from positions of queries or documents to unit vectors, [.., D].
Read = Callable[[Role, Ints], NDArray[np.float32]]


def with_mined(
    examples: Examples,
    catalogue: Catalogue,
    rows: Ints,
    options: MiningAgain,
    cross: CrossEncoder | None,
    read: Read,
) -> tuple[Examples, Report]:
    """Return pairs with negatives that a model mines among the training documents, in place of
    their own negatives, and the report.

    Args:
        examples: the training pairs.
        catalogue: all texts.
        rows: [n] positions of the training pairs in the catalogue.
        cross: the cross-encoder that judges the negatives, if any.
        read: the model, as a function.
    """
    query, doc, own = catalogue.trained_on(rows)
    queries, query_of = np.unique(query, return_inverse=True)  # [q], [n]
    docs = np.unique(np.concatenate([doc, own.values.numpy()]))  # [c]
    doc_of = np.searchsorted(docs, doc)  # [n]
    pairs = np.unique(query_of * len(docs) + doc_of)
    answers: Pairs = np.divmod(pairs, len(docs))  # [e] each
    # Position of the document with the text of each query, or -1, [q].
    itself = places(catalogue.contents["query"][queries], catalogue.contents["doc"][docs])

    def judge(pairs: Pairs) -> NDArray[np.float32]:
        assert cross is not None
        left = catalogue.queries.take(queries[pairs[0]])
        right = catalogue.docs.take(docs[pairs[1]])
        return cross(list(zip(left, right, strict=True)))

    query_vectors = read("query", queries)
    doc_vectors = read("doc", docs)
    search = None if options.faiss is None else by_faiss(doc_vectors, options.faiss)
    judged = None if cross is None else judge
    mined = mine(query_vectors, doc_vectors, answers, options.mining, itself, judged, search)
    is_filled = mined.positions >= 0  # [q, negatives]
    lengths = torch.from_numpy(is_filled.sum(1))
    chosen = torch.from_numpy(docs[mined.positions[is_filled]])
    of_queries = Ragged(chosen, from_lengths(lengths))
    negatives = of_queries[torch.from_numpy(query_of)]
    ids = torch.from_numpy(catalogue.doc_ids)
    return replace(examples, negatives=negatives, all_ids=ids), mined.report


def checked(
    examples: Examples, catalogue: Catalogue, cross: CrossEncoder, margin: float
) -> tuple[Examples, int]:
    """Return the pairs without some negatives, and the number of removed negatives: a cross-encoder
    scores each of them above p - margin * |p|, with p the score of the answer."""
    own = examples.negatives
    assert own is not None
    docs = catalogue.docs
    texts = docs.take(own.values.numpy())
    check = check_negatives(
        catalogue.queries.take(examples.query.numpy()),
        [[text] for text in docs.take(examples.doc.numpy())],
        [texts[start:end] for start, end in pairwise(own.offsets.tolist())],
        lambda pairs: cross(pairs, "scoring pairs by the cross-encoder"),
        margin,
        "relative",
    )
    kept = list[bool]()
    for row in check.kept:
        kept += row
    lengths = torch.tensor([sum(row) for row in check.kept])
    values = own.values[torch.tensor(kept, dtype=torch.bool)]
    negatives = Ragged(values, from_lengths(lengths))
    return replace(examples, negatives=negatives), check.dropped
