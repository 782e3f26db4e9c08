"""Rankings by fewer and coarser numbers: vectors cut to a width, and rounded to int8 or to signs.

Letters in shapes: q queries, c documents, D width, k ranked documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .metrics import Relevant
from .nearest import Floats, Ints, scores_at, top, top_of
from .ranking import DEPTH, Ranking, depth_of

RESCORED = "binary, rescored"
BITS = {"float32": 32, "int8": 8, "binary": 1, RESCORED: 9}  # of each number of a document
CANDIDATES = 4 * DEPTH  # least number of documents that Hamming distances leave to be rescored
_ONCE = 1 << 24  # most numbers of a corpus to round once; larger ones are rounded for each query
# Scores of a ranking; of more, fewer queries are ranked. A dozen rankings of 14 million scores take
# a tenth of the CPU seconds of training on 12,000 pairs.
_CELLS = 5_000_000
_FEWEST = 400  # queries that are ranked, in however large a corpus


@dataclass(frozen=True)
class SmallVectors:
    """Unit vectors, [c, D], cut to a width and rounded, block by block as they are read.

    int8 keeps whole multiples of a 127th of the largest absolute number of a row, and binary keeps
    the signs, as the objective's precisions do; the rounded vectors have length 1.

    >>> vectors = SmallVectors(np.array([[0.6, 0.8, 0.0]], np.float32), 2, "binary")
    >>> [[round(number, 4) for number in row] for row in vectors[0:1].tolist()]
    [[0.7071, 0.7071]]
    """

    vectors: Floats
    width: int
    precision: str = "float32"

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: Any) -> Floats:
        """Return some of the vectors, [.., width]."""
        part = np.asarray(self.vectors[rows], np.float32)[:, : self.width]
        if self.precision == "binary":
            one = np.float32(self.width**-0.5)
            return np.where(part > 0, one, -one)
        if self.precision == "int8":
            largest = np.maximum(part.max(1, keepdims=True), -part.min(1, keepdims=True))
            part = part * (127 / np.maximum(largest, 1e-28))
            np.rint(part, out=part)
        elif self.width == self.vectors.shape[1]:
            return part
        norms = np.sqrt(np.einsum("nd,nd->n", part, part))[:, None]
        unit: Floats = part * (1 / np.maximum(norms, 1e-12))
        return unit


def ranked(queries: Floats, docs: Floats, width: int, depth: int) -> dict[str, Ints]:
    """Return the documents by the vectors of a width, best first, [q, min(depth, c)], at each
    precision.

    float32, int8: by cosine of the whole query and the rounded document. binary: by Hamming
    distance of signs. "binary, rescored": the 4 x depth nearest documents by Hamming distance, and
    at least 400, by cosine of the whole query and the document in int8.

    >>> queries, docs = np.array([[0.6, 0.8]], np.float32), np.array([[0.8, 0.6], [0.6, 0.8]], np.float32)
    >>> by = ranked(queries, docs, 2, 2)
    >>> by["binary"].tolist(), by[RESCORED].tolist()
    ([[0, 1]], [[1, 0]])
    """
    whole: Any = SmallVectors(docs, width)
    int8: Any = SmallVectors(docs, width, "int8")
    signs: Any = SmallVectors(docs, width, "binary")
    whole_queries = SmallVectors(queries, width)[:]
    signs_of_queries = SmallVectors(queries, width, "binary")[:]
    near = top(signs_of_queries, signs, max(4 * depth, CANDIDATES))[1]
    rounded = int8[:] if len(docs) * width <= _ONCE else int8
    rescored = top_of(scores_at(whole_queries, rounded, near), depth)[1]
    return {
        "float32": top(whole_queries, whole, depth)[1],
        "int8": top(whole_queries, int8, depth)[1],
        "binary": near[:, :depth],
        RESCORED: np.take_along_axis(near, rescored, 1),
    }


def by_precision(
    queries: Floats,
    docs: Floats,
    relevant: Relevant,
    metrics: Sequence[str],
    widths: Sequence[int],
    seed: int = 0,
    near: Ints | None = None,
) -> dict[str, Any]:
    """Return the number of ranked queries and documents, and the metrics and the bytes of a million
    documents at each width and precision.

    If all queries have more than 5 million scores, some queries are drawn, at least 400. They are
    ranked among the documents that are near any of them, and the relevant documents: others would
    be found by the coarsest vectors alone.

    Args:
        near: the documents nearest to each query by whole vectors, [q, k]; None ranks all documents.
    """
    some = np.arange(len(queries))
    if len(queries) * len(docs) > _CELLS:
        count = max(_FEWEST, _CELLS // len(docs))
        some = np.sort(np.random.default_rng(seed).permutation(some)[:count])
        relevant = relevant.of_queries(some)
        if near is not None:
            near = near[some, : 2 * depth_of(metrics)]
            chosen = np.unique(np.concatenate([near.ravel(), relevant.doc]))
            docs = docs[chosen]
            relevant = replace(relevant, doc=np.searchsorted(chosen, relevant.doc))
    rows = []
    for width in widths:
        by = ranked(queries[some], docs, width, depth_of(metrics))
        for precision, bits in BITS.items():
            result = Ranking.of(by[precision], relevant, metrics)
            size = width * bits * 125_000  # bytes; 32 bits of a million documents are 4 MB
            row = {"width": width, "precision": precision, "bytes": size}
            rows.append({**row, "metrics": result.metrics})
    return {"queries": len(some), "documents": len(docs), "rows": rows}


def widths_of(width: int, trained: Sequence[int] = ()) -> list[int]:
    """Return the widths to report, falling: the whole width and the trained widths, or else its
    half and quarter.

    >>> widths_of(384), widths_of(384, [64, 128])
    ([384, 192, 96], [384, 128, 64])
    """
    chosen = {width}
    chosen.update(trained or (width // 2, width // 4))
    chosen.discard(0)
    return sorted(chosen, reverse=True)
