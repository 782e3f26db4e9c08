"""Hard negatives that the evaluated model mines before it is trained again, and the check of
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

Read = Callable[
    [Role, Ints], NDArray[np.float32]
]  # positions of queries or documents to unit vectors, [.., D]


@dataclass(frozen=True)
class MiningAgain:
    """Mine hard negatives with the evaluated model before it is trained again, and check negatives
    by a cross-encoder.

    Args:
        again: negatives of a query that the model mines before it is trained again
            (`train.refit`); that training then goes on from the weights that validation has chosen.
            Where the data have negatives, something teaches, or the objective does not compare with
            negatives, nothing is mined; nor does 0 mine.
        skip: number of best ranks that are left out.
        depth: last rank that is considered.
        absolute_margin: at least 0; None applies none.
        relative_margin: 0.05 keeps what scores at most 95 % of the answer. At most 1; None applies
            none.
        cross_encoder: folder of one that judges all negatives, by `cross_margin`; its scores are
            kept by pair, in vectors/ beside the run.
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
        _ = self.mining  # refuses what is out of range

    @property
    def mining(self) -> Mining:
        """The options by which negatives are mined: `again` a query, or as many as there are
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
    """Return pairs with negatives that a model mines among the documents that are trained on, and
    the report.

    Args:
        examples: the training pairs.
        catalogue: all texts.
        rows: [n] positions of the training pairs in the catalogue.
        cross: judges the negatives.
        read: the model.
    """
    query, doc, own = catalogue.trained_on(rows)
    queries, query = np.unique(query, return_inverse=True)  # [q], [n]
    docs = np.unique(np.concatenate([doc, own.values.numpy()]))  # [c]
    doc = np.searchsorted(docs, doc)  # [n]
    answers: Pairs = np.divmod(np.unique(query * len(docs) + doc), len(docs))  # [e] each
    # Position of the document with the text of each query, or -1, [q].
    itself = places(catalogue.contents["query"][queries], catalogue.contents["doc"][docs])

    def judge(pairs: Pairs) -> NDArray[np.float32]:
        assert cross is not None
        left = catalogue.queries.take(queries[pairs[0]])
        right = catalogue.docs.take(docs[pairs[1]])
        return cross(list(zip(left, right, strict=True)))

    of_queries = read("query", queries)
    of_docs = read("doc", docs)
    search = None if options.faiss is None else by_faiss(of_docs, options.faiss)
    judged = None if cross is None else judge
    mined = mine(of_queries, of_docs, answers, options.mining, itself, judged, search)
    valid = mined.positions >= 0  # [q, negatives]
    lengths = torch.from_numpy(valid.sum(1))
    chosen = torch.from_numpy(docs[mined.positions[valid]])
    negatives = Ragged(chosen, from_lengths(lengths))[torch.from_numpy(query)]
    ids = torch.from_numpy(catalogue.doc_ids)
    return replace(examples, negatives=negatives, all_ids=ids), mined.report


def checked(
    examples: Examples, catalogue: Catalogue, cross: CrossEncoder, margin: float
) -> tuple[Examples, int]:
    """Remove negatives that a cross-encoder scores above their answer less a relative margin;
    return pairs and count."""
    assert examples.negatives is not None
    own, docs = examples.negatives, catalogue.docs
    texts = docs.take(own.values.numpy())
    ends = own.offsets.tolist()
    check = check_negatives(
        catalogue.queries.take(examples.query.numpy()),
        [[text] for text in docs.take(examples.doc.numpy())],
        [texts[start:end] for start, end in pairwise(ends)],
        lambda pairs: cross(pairs, "scoring pairs by the cross-encoder"),
        margin,
        "relative",
    )
    kept = torch.tensor([good for row in check.kept for good in row], dtype=torch.bool)
    lengths = torch.tensor([sum(row) for row in check.kept])
    negatives = Ragged(own.values[kept], from_lengths(lengths))
    return replace(examples, negatives=negatives), check.dropped
