"""Indexes of FAISS from files of any origin.

FAISS believes the numbers of a file: an index whose parts do not fit together is read, and ends the
process at the first search. The parts of the usual kinds are compared here first.

Letters in shapes: c vectors, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .manifest import refuse_damaged
from .require import require
from .untrusted import refuse_irregular

_WIDEST = 1 << 24
_MOST_BITS = 16
_BLOCKS = 1 << 16  # codes of the sizes of blocks of queries, four bits a block
# Bytes for a part of an index: tables that FAISS computes are larger than the file.
_ROOM = 1 << 30
_TABLES = 16


class _Unsound(ValueError):
    """Parts of an index that do not fit together."""


def read_faiss(path: Path) -> Any:
    """Return the index in a file.

    Raises:
        DataError: the file differs from its manifest, is not readable, or holds an index whose
            parts do not fit together.
        MissingLibrary: FAISS is not installed.
    """
    require("faiss", f"reading {path}")
    faiss = _faiss()
    refuse_irregular(path)
    refuse_damaged(path)
    try:
        with _bounded(max(_ROOM, _TABLES * path.stat().st_size)):
            index = faiss.read_index(str(path))
        _refuse_unsound(index)
    except (RuntimeError, OSError, MemoryError, ValueError) as error:
        reason = f": {error}" if isinstance(error, _Unsound) else ""
        raise DataError(f"{path} is not a readable FAISS index{reason}") from None
    return index


def _faiss() -> Any:
    """Return the library; its own types lack a part of its names."""
    import faiss

    return faiss


@contextmanager
def _bounded(size: int) -> Iterator[None]:
    """Let FAISS take so many bytes for a part of an index; its versions before 1.14 have no
    bound."""
    faiss = _faiss()
    bound = getattr(faiss, "set_deserialization_vector_byte_limit", None)
    if bound is None:
        yield
        return
    before = faiss.get_deserialization_vector_byte_limit()
    bound(size)
    try:
        yield
    finally:
        bound(before)


def _refuse_unsound(index: Any, width: int | None = None, count: int | None = None) -> None:
    """Raise _Unsound if the parts of an index do not fit together.

    Args:
        index: of any kind; kinds without a check are refused.
        width: D, of an index inside of another.
        count: c, likewise.
    """
    _demand(index is not None, "one of its parts is missing")
    faiss = _faiss()
    index = faiss.downcast_index(index)
    if not 0 < index.d <= _WIDEST or not 0 <= index.ntotal < 1 << 48 or not index.is_trained:
        raise _Unsound(f"{index.ntotal} vectors of {index.d} numbers")
    if (width, count) != (None, None) and (index.d, index.ntotal) != (width, count):
        raise _Unsound("one of its parts has another size")
    if index.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
        raise _Unsound("an unknown metric")
    for kind, check in _checks().items():
        if isinstance(index, kind):
            check(index)
            return
    raise _Unsound(f"{type(index).__name__} is not read here; give its vectors as .npy")


def _checks() -> dict[type, Callable[[Any], None]]:
    """Return the check of each kind of an index, the more special kind first."""
    faiss = _faiss()
    return {
        faiss.IndexIDMap: _check_id_map,
        faiss.IndexRefine: _check_refine,
        faiss.IndexHNSW: _check_hnsw,
        faiss.IndexIVF: _check_ivf,
        faiss.IndexFlatCodes: _check_codes,
    }


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise _Unsound(what)


def _check_id_map(index: Any) -> None:
    _demand(index.id_map.size() == index.ntotal, "it has not an id for each vector")
    _refuse_unsound(index.index, index.d, index.ntotal)


def _check_refine(index: Any) -> None:
    _demand(index.k_factor >= 1, f"a factor of {index.k_factor}")
    _refuse_unsound(index.base_index, index.d, index.ntotal)
    _refuse_unsound(index.refine_index, index.d, index.ntotal)


def _check_codes(index: Any) -> None:
    """Check an index of one code for each vector."""
    faiss = _faiss()
    _demand(
        index.codes.size() == index.ntotal * index.code_size, "it has not a code for each vector"
    )
    if isinstance(index, faiss.IndexFlat):
        size = 4 * index.d
    elif isinstance(index, faiss.IndexScalarQuantizer):
        size = _scalar_size(index.sq, index.d)
    elif isinstance(index, faiss.IndexPQ):
        size = _product_size(index.pq, index.d)
    elif isinstance(index, faiss.IndexLSH):
        _demand(not index.rotate_data and not index.train_thresholds, "signs of another kind")
        _demand(index.nbits == index.d, "other signs than numbers")
        size = (index.nbits + 7) // 8
    else:
        raise _Unsound(f"{type(index).__name__} is not read here; give its vectors as .npy")
    _demand(index.code_size == size, f"codes of {index.code_size} bytes")


def _scalar_size(quantizer: Any, width: int) -> int:
    """Return the bytes of a code of one number for each number."""
    faiss = _faiss()
    kind = quantizer.qtype
    bits = {
        faiss.ScalarQuantizer.QT_8bit: 8,
        faiss.ScalarQuantizer.QT_4bit: 4,
        faiss.ScalarQuantizer.QT_6bit: 6,
        faiss.ScalarQuantizer.QT_fp16: 16,
    }
    _demand(kind in bits, "an unknown kind of codes")
    ranges = 0 if kind == faiss.ScalarQuantizer.QT_fp16 else 2 * width
    _demand(quantizer.d == width, "codes of another width")
    _demand(quantizer.trained.size() == ranges, "not a range for each number")
    return (bits[kind] * width + 7) // 8


def _product_size(quantizer: Any, width: int) -> int:
    """Return the bytes of a code of product quantisation."""
    parts = quantizer.M
    bits = quantizer.nbits
    _demand(0 < bits <= _MOST_BITS, f"codes of {bits} bits")
    _demand(0 < parts <= width and quantizer.d == width, "codes of another width")
    _demand(quantizer.dsub * parts == width, "parts of another width")
    _demand(quantizer.ksub == 1 << bits, "another number of centroids")
    _demand(quantizer.centroids.size() == width << bits, "not all centroids")
    return int((bits * parts + 7) // 8)


def _check_hnsw(index: Any) -> None:
    """Check a graph: every edge leads to a vector."""
    faiss = _faiss()
    _refuse_unsound(index.storage, index.d, index.ntotal)
    graph = index.hnsw
    levels = faiss.vector_to_array(graph.levels)
    offsets = faiss.vector_to_array(graph.offsets)
    edges = faiss.vector_to_array(graph.neighbors)
    room = faiss.vector_to_array(graph.cum_nneighbor_per_level)
    _demand(len(levels) == index.ntotal, "not a level for each vector")
    _demand(len(offsets) == index.ntotal + 1, "not a place for each vector")
    _demand(bool((np.diff(room) >= 0).all()) and bool((room >= 0).all()), "levels of no room")
    if not index.ntotal:
        _demand(graph.entry_point == -1, "an entry without a vector")
        return
    _demand(bool((levels >= 1).all()) and int(levels.max()) < len(room), "unknown levels")
    sizes = np.diff(offsets.astype(np.int64))
    _demand(int(offsets[0]) == 0 and np.array_equal(sizes, room[levels]), "other edges than levels")
    _demand(len(edges) == int(offsets[-1]), "other edges than levels")
    _demand(int(edges.min(initial=-1)) >= -1, "an edge to no vector")
    _demand(int(edges.max(initial=-1)) < index.ntotal, "an edge to no vector")
    _demand(0 <= graph.entry_point < index.ntotal, "an entry without a vector")
    _demand(graph.max_level == levels[graph.entry_point] - 1, "an entry of another level")
    _demand(int(levels.max()) - 1 == graph.max_level, "an entry of another level")
    # An edge of a level leads to a vector of that level.
    for level in range(1, int(levels.max())):
        of_level = np.flatnonzero(levels > level)
        low = offsets[of_level].astype(np.int64) + int(room[level])
        high = offsets[of_level].astype(np.int64) + int(room[level + 1])
        for first, last in zip(low.tolist(), high.tolist(), strict=True):
            ends = edges[first:last]
            _demand(bool((levels[ends[ends >= 0]] > level).all()), "an edge to a lower level")


def _check_ivf(index: Any) -> None:
    """Check clusters: every code belongs to a vector."""
    faiss = _faiss()
    _demand(index.invlists is not None and index.nlist == index.invlists.nlist, "other clusters")
    _refuse_unsound(index.quantizer, index.d, index.nlist)
    _demand(index.nprobe > 0, "no clusters to visit")
    index.nprobe = min(index.nprobe, max(1, index.nlist))  # FAISS takes memory for all of them
    lists = faiss.downcast_InvertedLists(index.invlists)
    if isinstance(index, faiss.IndexIVFPQFastScan):
        if index.fine_quantizer is None:
            # FAISS 1.15 leaves it out when it reads, and ends the process at `reconstruct`.
            index.fine_quantizer = index.pq
        _demand(index.implem == 0, f"an unknown search, {index.implem}")
        _demand(0 <= index.qbs < _BLOCKS and 0 <= index.qbs2 < _BLOCKS, "blocks of another size")
        _demand(index.pq.nbits == 4 and index.M == index.pq.M, "codes of another width")
        size = _product_size(index.pq, index.d)
        _demand(index.M2 == (index.M + 1) // 2 * 2, "codes of another width")
        _demand(index.bbs > 0 and index.bbs % 32 == 0, "blocks of another size")
        _demand(isinstance(lists, faiss.BlockInvertedLists), "clusters of another kind")
        _demand(lists.n_per_block == index.bbs, "blocks of another size")
        _demand(lists.block_size == index.bbs * index.M2 // 2, "blocks of another size")
    elif isinstance(index, faiss.IndexIVFPQ):
        size = _product_size(index.pq, index.d)
    elif isinstance(index, faiss.IndexIVFFlat):
        size = 4 * index.d
    elif isinstance(index, faiss.IndexIVFScalarQuantizer):
        size = _scalar_size(index.sq, index.d)
    else:
        raise _Unsound(f"{type(index).__name__} is not read here; give its vectors as .npy")
    _demand(index.code_size == size, f"codes of {index.code_size} bytes")
    if not isinstance(lists, faiss.BlockInvertedLists):
        _demand(isinstance(lists, faiss.ArrayInvertedLists), "clusters of another kind")
        _demand(lists.code_size == size, "codes of another width")
    # Before memory is taken for so many vectors as the file says.
    total = sum(lists.list_size(number) for number in range(index.nlist))
    _demand(total == index.ntotal, "not one code for each vector")
    is_seen = np.zeros(index.ntotal, bool)
    for number in range(index.nlist):
        length = lists.list_size(number)
        if isinstance(lists, faiss.ArrayInvertedLists):
            codes = lists.codes.at(number).size()
            _demand(codes == length * size, "not a code for each vector")
        if length:
            ids = faiss.rev_swig_ptr(lists.get_ids(number), length)
            _demand(ids.min() >= 0 and ids.max() < index.ntotal, "a code of no vector")
            is_seen[ids] = True
    _demand(bool(is_seen.all()), "not one code for each vector")
