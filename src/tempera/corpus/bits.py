"""Candidates of a search in a large corpus: the documents whose vectors have the most bits in common
with the vector of the query.

A bit says if a number of a vector is above the mean of its column: vectors with a small angle
between them share most of these signs (Charikar 2002). Narrow vectors have few signs, so their
numbers are compared with further thresholds, evenly spread over the numbers of a column. FAISS
counts the bits in which a query and a document differ, and the documents with the fewest are then
ranked by their whole vectors. Of 100,000 vectors of 512 numbers a search reads 6 MB instead of 205
(bench/serve.py).

Letters in shapes: q queries, c documents, D width, L thresholds of a number, m candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..io.console import logger
from ..io.manifest import refuse_damaged
from ..ranking.fusion import Moments

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
Doubles = NDArray[np.float64]

FILE = "bits.safetensors"
LARGE = 20_000  # documents from which a comparison of bits costs less than of whole vectors
_LEAST = 800  # candidates of a query
_EACH = 8  # candidates for each hit
_WIDE = 384  # numbers whose signs are enough
_ENOUGH = 512  # bits of a narrower vector
_BLOCK = 4096  # vectors that are read at once
_CHECKSUM = "vectors"  # in the metadata of the file: the checksum of the vectors


@dataclass(frozen=True)
class Bits:
    """The bits of a corpus's unit vectors; and the mean and the covariance of the vectors, from which
    follow the mean and the deviation of all inner products of a query.

    >>> bits = Bits.of(np.eye(384, dtype=np.float32))
    >>> bits.codes.shape, bits.codes[0, :3].tolist()
    ((384, 48), [128, 0, 0])
    >>> mean, deviation = bits.moments(np.eye(1, 384, dtype=np.float32))
    >>> mean.round(4).tolist(), deviation.round(4).tolist()
    ([0.0026], [0.051])
    """

    codes: NDArray[np.uint8]  # [c, L D / 8]
    thresholds: Vectors  # [L, D]
    mean: Doubles  # [D]
    covariance: Doubles  # [D, D]

    @classmethod
    def of(cls, vectors: Vectors) -> Bits:
        """Return the bits of vectors, [c, D], which are read block by block."""
        count, width = vectors.shape
        moments = Moments.of(vectors)
        mean, covariance = moments.mean, moments.covariance
        levels = _levels(width)
        deviations = np.outer(_quantiles(levels), np.sqrt(covariance.diagonal()))
        thresholds = (mean + deviations).astype(np.float32)
        codes = np.empty((count, -(-levels * width // 8)), np.uint8)
        for part in _parts(count):
            codes[part] = _codes(vectors[part], thresholds)
        return cls(codes, thresholds, mean, covariance)

    def near(self, queries: Vectors, count: int) -> Positions:
        """Return the positions of the candidates of each query, [q, D] -> [q, count], ascending."""
        import faiss

        threads = faiss.omp_get_max_threads()
        # A single query has no work for a second thread, and would wait for its start.
        faiss.omp_set_num_threads(1)
        try:
            codes = _codes(queries, self.thresholds)
            _, positions = faiss.knn_hamming(codes, self.codes, count, variant="mc")
        finally:
            faiss.omp_set_num_threads(threads)
        rising: Positions = np.sort(positions, axis=1)
        return rising

    def moments(self, queries: Vectors) -> tuple[Doubles, Doubles]:
        """Return the mean and the standard deviation of the inner products of each query, [q, D],
        with all documents, [q] each."""
        return Moments(self.mean, self.covariance)(queries)

    def write(self, folder: Path, checksum: str) -> None:
        """Write the bits beside the vectors of an index.

        Args:
            checksum: of the vectors.
        """
        from safetensors.numpy import save

        # The library's own writer does not say that a disk is full as other files do.
        (folder / FILE).write_bytes(save(asdict(self), {_CHECKSUM: checksum}))

    @classmethod
    def read(cls, folder: Path, checksum: str, shape: tuple[int, int]) -> Bits | None:
        """Return the bits in the folder of an index; None if there are none, or if they are of
        other vectors.

        Args:
            checksum: of the index's vectors.
            shape: of the index's vectors, c and D.

        Raises:
            DataError: the file is damaged.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        refuse_damaged(path)
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                made_of = (file.metadata() or {}).get(_CHECKSUM)
                names = list(file.keys())
                bits = cls(**{name: file.get_tensor(name) for name in names})
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise _damaged(path, str(error)) from None
        if made_of != checksum:
            logger.info(f"{path} is of other vectors: the bits are computed again")
            return None
        bits._refuse_other(shape, path)
        return bits

    def _refuse_other(self, shape: tuple[int, int], path: Path) -> None:
        """Raise DataError unless the arrays are those of vectors of a shape."""
        count, width = shape
        levels = _levels(width)
        expected: dict[str, tuple[Any, tuple[int, ...]]] = {
            "codes": (np.uint8, (count, -(-levels * width // 8))),
            "thresholds": (np.float32, (levels, width)),
            "mean": (np.float64, (width,)),
            "covariance": (np.float64, (width, width)),
        }
        for name, (kind, size) in expected.items():
            array = getattr(self, name)
            if array.dtype != kind or array.shape != size:
                raise _damaged(path, f"{name} is {array.dtype} {array.shape}; expected {size}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise _damaged(path, f"{name} is not finite")


def _damaged(path: Path, fault: str) -> DataError:
    return DataError(
        f"{path} is damaged ({fault}): delete it; without this file the bits are computed at opening"
    )


def _levels(width: int) -> int:
    """Return the number of thresholds of a number, which is odd.

    >>> [_levels(width) for width in (768, 384, 256, 128, 32)]
    [1, 1, 3, 5, 17]
    """
    if width >= _WIDE:
        return 1
    return _ENOUGH // width // 2 * 2 + 1


def _quantiles(levels: int) -> Doubles:
    """Return the points that divide a normal distribution into equal parts, [L].

    >>> _quantiles(3).round(2).tolist()
    [-0.67, 0.0, 0.67]
    """
    normal = NormalDist()
    return np.array([normal.inv_cdf(i / (levels + 1)) for i in range(1, levels + 1)])


def _codes(vectors: Vectors, thresholds: Vectors) -> NDArray[np.uint8]:
    """Return a bit for each number and threshold, 1 if the number is above, [n, D] -> [n, L D / 8]."""
    above = vectors[:, None, :] > thresholds  # [n, L, D]
    return np.packbits(above.reshape(len(vectors), -1), axis=1)


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, start + _BLOCK)


def are_cheaper(shape: tuple[int, int], k: int) -> bool:
    """Return True if a search for k documents by bits costs less than an exact search, and FAISS is
    installed.

    >>> are_cheaper((1000, 512), 10)
    False
    """
    count, _ = shape
    return count >= LARGE and 4 * candidates(k) <= count and find_spec("faiss") is not None


def candidates(k: int) -> int:
    """Return the number of candidates of a search for k documents.

    >>> candidates(10), candidates(1000)
    (800, 8000)
    """
    return max(_LEAST, _EACH * k)
