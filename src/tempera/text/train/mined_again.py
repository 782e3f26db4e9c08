"""Hard negatives, mined by the evaluated model before its second training, and the check of
negatives by a cross-encoder.

Letters in shapes: n training pairs, q distinct queries and c distinct documents that are trained
on, e pairs of a query and an answer, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ...arithmetic.ragged import Ragged, from_lengths
from ...core.batch import Role
from ...engine.batches import Examples
from ...io.ids import places
from ...mining.guide import CrossEncoder, check_negatives
from ...mining.hard_negatives import Mining, mine
from ...mining.search import Ints, Pairs, by_faiss
from ...mining.shortfall import Report
from .catalogue import Catalogue

# A function from positions of queries or documents to unit vectors, [.., D].
Read = Callable[[Role, Ints], NDArray[np.float32]]


@dataclass(frozen=True)
class MiningAgain:
    """Mine hard negatives with the evaluated model before it is trained again, and check negatives
    by a cross-encoder.

    Args:
        again: negatives of a query that the model mines before it is trained again
            (`train.refit`); the second training then starts from the weights that validation has
            chosen. Nothing is mined with 0, where the data have negatives, with a
            teacher, or where the objective does not compare with negatives.
        skip: number of best ranks to leave out.
        depth: last rank to consider.
        absolute_margin: at least 0; None applies no margin.
        relative_margin: 0.05 keeps documents that score at most 95 % of the answer. At most 1; None
            applies no margin.
        cross_encoder: folder of a cross-encoder that judges all negatives, by `cross_margin`; the
            scores are kept by pair, in vectors/ beside the run.
        cross_margin: relative margin for the scores of the cross-encoder.
        faiss: search by an index, such as HNSW32; None searches exactly.

    Raises:
        ConfigError: numbers or margins out of range.

    >>> MiningAgain(again=3, skip=98).mining.negatives
    2
    """

    again: Annotated[int, Field(ge=0)] = 0
    skip: Annotated[int, Field(ge=0)] = Mining.skip
    depth: Annotated[int, Field(gt=0)] = Mining.depth
    absolute_margin: float | None = Mining.absolute_margin
    relative_margin: float | None = Mining.relative_margin
    cross_encoder: str | None = None
    cross_margin: float = Mining.cross_margin
    faiss: str | None = None

    def __post_init__(self) -> None:
        _ = self.mining  # refuses options out of range

    @property
    def mining(self) -> Mining:
        """The options of the mining: `again` negatives a query, or fewer where there are fewer
        ranks."""
        return Mining(
            negatives=max(1, min(self.again, self.depth - self.skip)),
            skip=self.skip,
            depth=self.depth,
            absolute_margin=self.absolute_margin,
            relative_margin=self.relative_margin,
            cross_margin=self.cross_margin,
        )


def with_mined(
    examples: Examples,
    catalogue: Catalogue,
    rows: Ints,
    options: MiningAgain,
    cross: CrossEncoder | None,
    read: Read,
) -> tuple[Examples, Report]:
    """Return pairs with negatives that a model mines among the training documents, and the report.

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
    """Return the pairs without negatives that a cross-encoder scores above the answer less a
    relative margin, and the number of removed negatives."""
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
