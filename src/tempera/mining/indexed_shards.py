"""Approximate search in shards of vectors: an index of FAISS chooses candidates, and their exact
scores decide.

Letters in shapes: q queries, c documents, m documents in memory, n rows of the index, D width, k
documents a query, K candidates a query, e pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..corpora.many_shards import ROWS
from ..errors import DataError
from ..io.faiss_files import read_faiss
from ..io.manifest import refuse_damaged
from ..io.require import require
from ..ranking.nearest import top_of
from ..task.run_files import DOCUMENTS, FAISS_FILE
from ..towers.stamp import Stamp
from .search import Ints, Pairs
from .shard_search import ShardDocuments, Vectors

QUERIES = 16  # blocks of queries whose candidates are scored in one pass over the shards
_WIDER = 3  # candidates for each document that is asked for: codes rank them roughly
_FIRST = 64  # the first share of the clusters that is tried is one in so many
SAMPLED = 200  # queries that are compared with every document, to know the recall
_AGAIN = 10  # times as many queries, by which the time of one is told from that of a pass
_PAIRS = 1 << 14  # candidates whose vectors are in memory at once


@dataclass(frozen=True)
class IndexedShards:
    """Documents by position, as `ShardDocuments`, and an index of their vectors.

    Args:
        documents: in memory and in shards.
        index: IVF-PQ of FAISS over all rows of the encoded corpus, and behind them the documents in
            memory that are no row of it, [n].
        position: of the document of each number of the index; -1 for a row that is no document,
            [n].
        row: number in the index of each document in memory, [m].
        probes: number of clusters that a search visits.
    """

    documents: ShardDocuments
    index: Any
    position: Ints
    row: Ints
    probes: int

    @classmethod
    def read(cls, documents: ShardDocuments, known: Ints, folder: Path) -> IndexedShards:
        """Read an index that `tempera export` has made of the encoded corpus, and add the documents
        that the corpus lacks, in memory.

        Args:
            known: row of the corpus of each document in memory, or -1, [m].
            folder: of the export.

        Raises:
            DataError: no such index, or one of other vectors.
            MissingLibrary: FAISS is not installed.
        """
        shards = documents.shards
        index = _read_index(folder)
        _refuse_other(index, folder, documents)
        new = np.flatnonzero(known < 0)
        row = known.copy()
        row[new] = len(shards) + np.arange(len(new))
        for start in range(0, len(new), ROWS):
            index.add(np.ascontiguousarray(documents.near[new[start : start + ROWS]]))
        position = np.full(index.ntotal, -1)
        position[documents.rows] = len(documents.near) + np.arange(len(documents.rows))
        position[row] = np.arange(len(row))
        return cls(documents, index, position, row, index.nprobe)

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, positions: Ints) -> Vectors:
        """Return vectors of documents in memory, such as answers."""
        return self.documents[positions]

    def search(self, queries: Vectors, k: int, without: Pairs) -> tuple[Vectors, Ints]:
        """Return scores and positions of the k nearest of the candidates, best first, [q, k] each,
        as `ShardDocuments.search` does of all documents; the scores are exact.

        In memory are the index, the candidates, and a block of a shard, which is read once.

        Args:
            without: excluded pairs, as positions of queries, ascending, and of documents, [e] each.
        """
        numbers, positions = self._candidates(queries, k, without)
        scores = self._scores(queries, numbers, positions)
        k = min(k, len(self), scores.shape[1])
        best, columns = top_of(scores, k)
        nearest = np.take_along_axis(positions, columns, 1)
        return best, np.where(np.isneginf(best), -1, nearest)

    def tuned(
        self, queries: Vectors, k: int, without: Pairs, recall: float
    ) -> tuple[IndexedShards, float]:
        """Return the documents with the number of probes that a recall needs, and its recall: the
        share of the k nearest of a sample of queries, compared exactly, that is found.

        The numbers are 1/64 of the clusters, twice as many, and so on up to all of them.
        """
        _, exact = self.documents.search(queries, k, without)
        clusters = self.index.nlist
        probes = max(1, clusters // _FIRST)
        while True:
            tuned = replace(self, probes=probes)
            share = _share_found(exact, tuned._candidates(queries, k, without)[1])
            if share >= recall or probes == clusters:
                return tuned, share
            probes = min(2 * probes, clusters)

    def cpu_seconds(
        self, queries: Vectors, k: int, without: Pairs, count: int, block: int
    ) -> float:
        """Return the estimated seconds of a CPU for the search of `count` queries, in passes over
        `block` of them, by the search of a sample and of ten times the sample."""
        few = _seconds(lambda: self.search(queries, k, without))
        repeated = np.concatenate([queries] * _AGAIN)
        nothing = np.empty(0, np.int64)
        many = _seconds(lambda: self.search(repeated, k, (nothing, nothing)))
        of_query = max(0.0, many - few) / (len(repeated) - len(queries))
        of_pass = max(0.0, few - of_query * len(queries))
        return of_query * count + of_pass * -(-count // block)

    def _candidates(self, queries: Vectors, k: int, without: Pairs) -> tuple[Ints, Ints]:
        """Return numbers in the index and positions of the documents that the index finds nearest,
        [q, K] each; -1 for none, for what is excluded and for rows that are no documents."""
        most_excluded = int(np.bincount(without[0], minlength=1).max())
        count = min(_WIDER * (k + most_excluded), self.index.ntotal)
        visited = _faiss().SearchParametersIVF(nprobe=self.probes)
        queries = np.ascontiguousarray(queries, np.float32)
        numbers = self.index.search(queries, count, params=visited)[1]
        positions = np.where(numbers < 0, -1, self.position[numbers])
        pairs = np.arange(len(queries))[:, None] * len(self) + positions
        positions[np.isin(pairs, without[0] * len(self) + without[1])] = -1
        return np.where(positions < 0, -1, numbers), positions

    def _scores(self, queries: Vectors, numbers: Ints, positions: Ints) -> Vectors:
        """Return the inner products of queries and candidates, [q, K]; -inf for none."""
        width = numbers.shape[1]
        flat = numbers.ravel()
        order = np.argsort(flat, kind="stable")
        rising = flat[order]
        scores = np.full(len(flat), -np.inf, np.float32)

        def compare(vectors: Vectors, first: int) -> None:
            low, high = np.searchsorted(rising, (first, first + len(vectors)))
            for start in range(low, high, _PAIRS):
                stop = min(start + _PAIRS, high)
                places = order[start:stop]
                rows = vectors[rising[start:stop] - first]
                scores[places] = np.einsum("ed,ed->e", rows, queries[places // width])

        for block in self.documents.shards.blocks():
            compare(block.vectors, block.first)
        first = len(self.documents.shards)
        added = np.flatnonzero(self.row >= first)
        for start in range(0, len(added), ROWS):
            compare(self.documents.near[added[start : start + ROWS]], first + start)
        return scores.reshape(numbers.shape)


def _share_found(exact: Ints, candidates: Ints) -> float:
    """Return the share of the exact nearest documents, [q, k], among the candidates, [q, K]: their
    exact scores put those that are found in front."""
    hits = 0
    for nearest, of_query in zip(exact, candidates, strict=True):
        hits += len(np.intersect1d(nearest[nearest >= 0], of_query))
    return hits / max(1, int((exact >= 0).sum()))


def _seconds(work: Callable[[], object]) -> float:
    """Return the seconds of a CPU that work takes, of all threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


def _read_index(folder: Path) -> Any:
    path = folder / FAISS_FILE
    if not path.is_file():
        raise DataError(
            f"{folder} holds no index of an encoded corpus: make one by tempera export FOLDER --to faiss, and give "
            "FOLDER/export/faiss"
        )
    index = read_faiss(path)
    if not isinstance(index, _faiss().IndexIVF):
        raise DataError(f"{path} has no clusters to visit: export the encoded corpus to faiss")
    return index


def _faiss() -> Any:
    require("faiss", "approximate search")
    import faiss

    return faiss


def _refuse_other(index: Any, folder: Path, documents: ShardDocuments) -> None:
    """Raise DataError if an index is not of the vectors of an encoded corpus."""
    shards = documents.shards
    refuse_damaged(folder / DOCUMENTS)
    try:
        with pa.memory_map(str(folder / DOCUMENTS)) as file:
            metadata = pa.ipc.open_file(file).schema.metadata
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{folder / DOCUMENTS} cannot be read: {error}") from None
    stamp = Stamp.read(metadata, folder)
    if stamp is not None:
        stamp.refuse_other(shards.fingerprint, folder)
    if (index.ntotal, index.d) != (len(shards), shards.width):
        raise DataError(
            f"{folder} indexes {index.ntotal:,} vectors of {index.d} numbers, and {shards.place.address} has {len(shards):,} of "
            f"{shards.width}: export it again"
        )
