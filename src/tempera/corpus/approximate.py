"""Approximate nearest neighbours through FAISS (Douze et al. 2024): a graph, or clusters of
compressed vectors.

Letters in shapes: q queries, c documents, D width.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..io.faiss_files import read_faiss
from ..io.require import require
from ..ranking.nearest import top
from ..task.run_files import FAISS_FILE

Vectors = NDArray[np.float32]

FILE = FAISS_FILE
KINDS = ("hnsw", "ivf_pq", "ivf_fast", "int8", "binary")
# By kind: the numbers of a vector that a code stands for, the bits of a code as FAISS names them, and
# the clusters of which a search visits one.
_IVF = {"ivf_pq": (4, "x8", 8), "ivf_fast": (2, "x4fs", 4)}
# documents that a search of a graph keeps at least; where these are as many as its hits, it loses a
# tenth and more
_VISITED = 128
# Times as many documents as hits that a search of signs leaves to be ranked again, where the reader
# asks for nothing else.
_AGAIN = 40
_USUAL = 100  # hits that a reader asks for at most, as a rule
CODES = 256  # values of a byte: product quantisation learns each from one vector at least


def write(path: Path, vectors: Vectors, kind: str) -> None:
    """Build an index of vectors, [c, D], by inner product.

    The file holds the settings of a search, so `faiss.read_index(path).search(queries, k)` finds
    the share of neighbours reported by `overlap`.

    hnsw: 32 neighbours for each uncompressed vector (Malkov and Yashunin 2018). ivf_pq: about 4
    sqrt(c) clusters, and a search visits one in eight; a byte for every four numbers of a vector
    (Jegou et al. 2011). ivf_fast: as many clusters, of which a search visits one in four, and half a
    byte for every two numbers, which FAISS compares in registers (Andre et al. 2015): a third of
    the time of ivf_pq and less, and a rougher ranking. int8: a byte for each number, between the least and the largest of the
    column. binary: signs, searched by Hamming distance, and int8 by which the nearest are ranked
    again: 40 for each hit, or as many as a corpus below 4,000 documents has for 100 hits.

    Raises:
        ConfigError: the kind is unknown.
        DataError: there are too few documents to learn the compression from.
        MissingLibrary: faiss is not installed.
    """
    faiss = _faiss()
    count, width = vectors.shape
    if kind == "hnsw":
        index = faiss.index_factory(width, "HNSW32,Flat", faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 200
        index.hnsw.efSearch = _VISITED
    elif kind in _IVF:
        if count < CODES:
            raise DataError(
                f"IVF-PQ needs at least {CODES} documents, but there are {count}; give --kind hnsw"
            )
        index = trained_ivf_pq(vectors, count, kind)
    elif kind in ("int8", "binary"):
        index = faiss.IndexScalarQuantizer(
            width, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        if kind == "binary":
            signs = faiss.IndexLSH(width, width, False, False)
            signs.metric_type = faiss.METRIC_INNER_PRODUCT  # by which the refinement is ordered
            index = faiss.IndexRefine(signs, index)
            # Where more are to be ranked again than there are documents, FAISS finds nothing.
            index.k_factor = max(1, min(_AGAIN, count // _USUAL))
        index.train(np.ascontiguousarray(vectors))
    else:
        raise ConfigError(f"unknown approximate index {kind!r}; choose one of {', '.join(KINDS)}")
    index.add(np.ascontiguousarray(vectors))
    write_index(index, path)


def write_index(index: Any, path: Path) -> None:
    """Write an index of FAISS piece by piece.

    The writer of FAISS reports a full disk as an error of its own, and as one array of bytes the
    index would be in memory twice.
    """
    with path.open("wb") as file:
        _faiss().write_index(index, _faiss().PyCallbackIOWriter(file.write))


def trained_ivf_pq(sample: Vectors, count: int, kind: str = "ivf_pq") -> Any:
    """Return an empty IVF-PQ index for `count` vectors, with clusters and codes learned from some
    of them, [n, D].

    The clusters are about 4 sqrt(count), and at most a 39th of the sample.

    Args:
        kind: ivf_pq or ivf_fast, see `write`.

    Raises:
        MissingLibrary: faiss is not installed.
    """
    faiss = _faiss()
    width = sample.shape[1]
    clusters = max(1, min(int(4 * math.sqrt(count)), len(sample) // 39))
    numbers, bits, share = _IVF[kind]
    possible = range(1, max(2, width // numbers + 1))
    parts = max(part for part in possible if width % part == 0)
    codes = f"IVF{clusters},PQ{parts}{bits}"
    index = faiss.index_factory(width, codes, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = max(1, clusters // share)
    if kind == "ivf_pq":
        # It takes 10 s and more, for a kind of search that is not used here.
        index.do_polysemous_training = False
    # Otherwise FAISS prints 32 lines of advice to use more documents.
    index.pq.cp.min_points_per_centroid = 1
    index.train(np.ascontiguousarray(sample))
    return index


class Approximate:
    """An approximate index, read into memory."""

    def __init__(self, path: Path) -> None:
        self.index = read_faiss(path)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents c and width D."""
        return self.index.ntotal, self.index.d

    def top(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Return scores and positions of about the k nearest, best first, [q, m] each; m is the
        least number of hits of a query."""
        queries = np.ascontiguousarray(queries, np.float32)
        k = min(k, self.index.ntotal)
        scores, positions = self.index.search(queries, k, params=self._parameters(k))
        clusters = getattr(self.index, "nlist", 0)
        probes = getattr(self.index, "nprobe", 0)
        short = np.flatnonzero((positions < 0).any(1))  # queries with too few hits
        while probes < clusters and len(short):
            probes *= 2
            more = _faiss().SearchParametersIVF(nprobe=probes)
            scores[short], positions[short] = self.index.search(queries[short], k, params=more)
            short = np.flatnonzero((positions < 0).any(1))
        count = int((positions >= 0).sum(1).min(initial=positions.shape[1]))
        return scores[:, :count], positions[:, :count]

    def _parameters(self, k: int) -> Any:
        """Return the parameters of a search for k hits: the number of documents that the search
        keeps on the way.

        The number is no attribute of the index, which other threads search at the same time.
        """
        if hasattr(self.index, "k_factor"):
            from ..ranking.small_vectors import CANDIDATES

            candidates = min(max(4 * k, CANDIDATES), self.index.ntotal)
            return _faiss().IndexRefineSearchParameters(k_factor=max(1.0, candidates / max(1, k)))
        if hasattr(self.index, "hnsw"):
            return _faiss().SearchParametersHNSW(efSearch=max(_VISITED, 4 * k))
        return None


def overlap(path: Path, vectors: Vectors) -> float:
    """Return the share of the 10 exact nearest neighbours that FAISS finds in the file, as the mean
    over 200 documents."""
    rows = np.random.default_rng(0).permutation(len(vectors))[:200]
    queries = np.ascontiguousarray(vectors[rows], np.float32)
    _, exact = top(queries, vectors, 10)
    return share_found(path, queries, exact)


def share_found(path: Path, queries: Vectors, exact: NDArray[np.int64]) -> float:
    """Return the share of the exact nearest neighbours, [q, k], that FAISS finds in the file, as
    the mean over queries, [q, D]."""
    _, approximate = Approximate(path).index.search(queries, exact.shape[1])
    shares = []
    for nearest, hits in zip(exact, approximate):
        shares.append(len(np.intersect1d(nearest, hits)) / len(nearest))
    return float(np.mean(shares))


def _faiss() -> Any:
    require("faiss", "an approximate index")
    import faiss

    return faiss
