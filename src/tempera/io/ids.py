"""Ids of texts: 64-bit hashes of their content, or of the ids that were given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def content_id(text: str) -> int:
    """The id of a text: a 64-bit hash of it with runs of white space as one space.

    >>> content_id("a  b") == content_id(" a b\\n"), content_id("a b") == content_id("A b")
    (True, False)
    """
    return int(content_ids([text])[0])


def content_ids(texts: Iterable[str] | pa.Array | pa.ChunkedArray) -> Ids:
    """The id of every text, [n]."""
    texts = texts.to_pylist() if isinstance(texts, pa.Array | pa.ChunkedArray) else texts
    return _hashes(" ".join(text.split()) for text in texts)


def given_ids(values: pa.Array) -> Ids:
    """64-bit hashes of ids that were given, texts or integers, [n]; 7 and "7" are one id."""
    return _hashes(values.cast(pa.large_string()).fill_null("").to_pylist())


def _hashes(keys: Iterable[str]) -> Ids:
    hashes = [xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) for key in keys]
    return (np.array(hashes, np.uint64) ^ np.uint64(1 << 63)).view(np.int64)


def places(keys: NDArray[Any], among: NDArray[Any], order: Ids | None = None) -> Ids:
    """Return the position in `among` of each key, [n]; -1 for one that is not there.

    Args:
        order: of rising `among`; None sorts it here.

    >>> places(np.array([5, 6, 7]), np.array([7, 5])).tolist()
    [1, -1, 0]
    """
    if not len(among):
        return np.full(len(keys), -1)
    order = np.argsort(among) if order is None else order
    at = order[np.searchsorted(among, keys, sorter=order).clip(max=len(order) - 1)]
    return np.where(among[at] == keys, at, -1)


def falling(ids: pa.Array | pa.ChunkedArray) -> Ids:
    """The order of falling ids as texts, in which trec_eval ranks documents with equal scores, [n].

    >>> falling(pa.array([9, 10, 2])).tolist()
    [0, 2, 1]
    """
    order: Ids = pc.sort_indices(
        ids.cast(pa.large_string()), sort_keys=[("", "descending")]
    ).to_numpy()
    return order.astype(np.int64)


def mixed(ids: Ids, salt: Ids | int) -> Ids:
    """Ids made others by a salt, one way for each: the finalizer of splitmix64 (Steele et al.
    2014), [n].

    >>> a = mixed(np.array([1, 2, 1]), np.array([5, 5, 6]))
    >>> len(set(a.tolist())), bool((a == mixed(np.array([1, 2, 1]), np.array([5, 5, 6]))).all())
    (3, True)
    """
    salted = np.atleast_1d(np.asarray(salt, np.int64)).astype(np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    ) + np.uint64(0x632BE59BD9B4E019)
    z = ids.astype(np.uint64) ^ salted
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out: Ids = (z ^ (z >> np.uint64(31))).view(np.int64)
    return out
