"""Hard negatives, mined by the evaluated model before the second training, and the check of
negatives by a cross-encoder.

Letters in shapes: n training pairs, q distinct queries and c distinct documents of training, e
pairs of a query and an answer, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from ...mining.hard_negatives import Mining, mine
from ...mining.search import Ints, Pairs, by_faiss
from ...mining.shortfall import Report
from .catalogue import Catalogue

_RANKS = 4  # that are searched first, for each negative of a query
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
    judged = None if cross is None else judge
    if options.faiss is None:
        positions, report = _mined_in_few_ranks(
            query_vectors, doc_vectors, answers, options.mining, itself, judged
        )
    else:
        search = by_faiss(doc_vectors, options.faiss)
        mined = mine(query_vectors, doc_vectors, answers, options.mining, itself, judged, search)
        positions, report = mined.positions, mined.report
    is_filled = positions >= 0  # [q, negatives]
    lengths = torch.from_numpy(is_filled.sum(1))
    chosen = torch.from_numpy(docs[positions[is_filled]])
    of_queries = Ragged(chosen, from_lengths(lengths))
    negatives = of_queries[torch.from_numpy(query_of)]
    ids = torch.from_numpy(catalogue.doc_ids)
    return replace(examples, negatives=negatives, all_ids=ids), report


def _mined_in_few_ranks(
    queries: NDArray[np.float32],
    docs: NDArray[np.float32],
    answers: Pairs,
    options: Mining,
    itself: Ints,
    judge: Callable[[Pairs], NDArray[np.float32]] | None,
) -> tuple[Ints, Report]:
    """Return the negatives as `mine` does, [q, negatives], and the report without candidates.

    Few ranks hold enough negatives of most queries, and take less time. All ranks are searched for
    the other queries.
    """
    ranks = options.skip + _RANKS * options.negatives
    few = replace(options, depth=min(options.depth, ranks))
    positions = mine(queries, docs, answers, few, itself, judge).positions
    short = np.flatnonzero(positions[:, -1] < 0)
    if len(short) and few.depth < options.depth:
        place = places(answers[0], short)
        own = place >= 0
        answers_of_short = place[own], answers[1][own]
        judge_short = None
        if judge is not None:
            judge_short = partial(_of_some, judge, short)
        deep = mine(queries[short], docs, answers_of_short, options, itself[short], judge_short)
        positions[short] = deep.positions
    number = (positions >= 0).sum(1)
    report = Report(
        queries=len(queries),
        answers=len(answers[0]),
        itself=int((itself >= 0).sum()),
        kept=int(number.sum()),
        short=int((number < options.negatives).sum()),
        empty=int((number == 0).sum()),
    )
    return positions, report


def _of_some(
    judge: Callable[[Pairs], NDArray[np.float32]], queries: Ints, pairs: Pairs
) -> NDArray[np.float32]:
    """Return the scores of pairs whose queries are counted among some queries."""
    return judge((queries[pairs[0]], pairs[1]))


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
