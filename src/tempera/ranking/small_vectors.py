"""Rankings by fewer and coarser numbers: vectors cut to a width, and rounded to int8 or to signs.

Letters in shapes: q queries, c documents, D width, k ranked documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .metrics import Relevant
from .nearest import Floats, Ints, scores_at, top, top_of
from .ranking import DEPTH, Ranking, depth_of

RESCORED = "binary, rescored"
BITS = {"float32": 32, "int8": 8, "binary": 1, RESCORED: 9}  # of each number of a document
CANDIDATES = 4 * DEPTH  # least number of documents that Hamming distances leave to be rescored
_ONCE = (
    1 << 24
)  # numbers of a corpus that is rounded once; of a larger one, documents are rounded for each query
_CELLS = 200_000_000  # scores of a ranking; of more, fewer queries are ranked


@dataclass(frozen=True)
class SmallVectors:
    """Unit vectors, [c, D], cut to a width and rounded, block by block as they are read.

    int8 keeps whole multiples of a 127th of the largest absolute number of a row, and binary the
    signs, as the objective's precisions do; both again as vectors of length 1.

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
    """Return the documents by the vectors of a width at each precision, best first, [q, min(depth,
    c)].

    float32, int8: by cosine of the query as it is and the rounded document. binary: by Hamming
    distance of signs. "binary, rescored": the 4 x depth nearest of these, and 400 at least, by
    cosine of the query as it is and the document in int8.

    >>> queries, docs = np.array([[0.6, 0.8]], np.float32), np.array([[0.8, 0.6], [0.6, 0.8]], np.float32)
    >>> by = ranked(queries, docs, 2, 2)
    >>> by["binary"].tolist(), by[RESCORED].tolist()
    ([[0, 1]], [[1, 0]])
    """
    kept: dict[str, Any] = {
        name: SmallVectors(docs, width, name) for name in ("float32", "int8", "binary")
    }
    whole, signs = (SmallVectors(queries, width, name)[:] for name in ("float32", "binary"))
    by = {name: top(whole, kept[name], depth)[1] for name in ("float32", "int8")}
    near = top(signs, kept["binary"], max(4 * depth, CANDIDATES))[1]
    coarse = kept["int8"][:] if len(docs) * width <= _ONCE else kept["int8"]
    again = np.take_along_axis(near, top_of(scores_at(whole, coarse, near), depth)[1], 1)
    return {**by, "binary": near[:, :depth], RESCORED: again}


def by_precision(
    queries: Floats,
    docs: Floats,
    relevant: Relevant,
    metrics: Sequence[str],
    widths: Sequence[int],
    seed: int = 0,
) -> dict[str, Any]:
    """Return the number of queries that were ranked, and the metrics and bytes of a million
    documents at each width and precision.

    Of queries with more than 200 million scores, fewer are drawn.
    """
    some = np.arange(len(queries))
    if len(queries) * len(docs) > _CELLS:
        some = np.sort(
            np.random.default_rng(seed).permutation(some)[: max(100, _CELLS // len(docs))]
        )
        relevant = relevant.of_queries(some)
    rows = []
    for width in widths:
        by = ranked(queries[some], docs, width, depth_of(metrics))
        for precision, bits in BITS.items():
            result = Ranking.of(by[precision], relevant, metrics)
            size = width * bits * 125_000  # bytes; 32 bits of a million documents are 4 MB
            rows.append(
                {"width": width, "precision": precision, "bytes": size, "metrics": result.metrics}
            )
    return {"queries": len(some), "rows": rows}


def widths_of(width: int, trained: Sequence[int] = ()) -> list[int]:
    """Return the widths to report, falling: the whole one and those that were trained, or else its
    half and quarter.

    >>> widths_of(384), widths_of(384, [64, 128])
    ([384, 192, 96], [384, 128, 64])
    """
    chosen = {width, *(trained or (width // 2, width // 4))}
    return sorted((each for each in chosen if each), reverse=True)
