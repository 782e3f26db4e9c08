"""Ids of texts: 64-bit hashes of their content, of their form or of the ids that were given."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_BLOCK = 1 << 16  # texts whose forms are in memory at once
# White space that is not one space between words, in a text of ASCII. Vertical tabs and separators
# are white space of Python's `str.split`, but not of the library that searches here.
_UNEVEN = r"^ | $|  |[\t-\r\x1c-\x1f]"


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


def form(text: str) -> str:
    """The form of a text by which it is the same text as another: without regard to case, white
    space and the way in which Unicode writes a letter (NFKC).

    Whatever a text of the test is compared with, to hold it out or to say that a model knows it,
    is compared in this form.

    >>> form(" Cafe\u0301\n  OPEN "), form("caf\u00e9 \uff4f\uff50\uff45\uff4e")
    ('café open', 'café open')
    """
    if text.isascii():
        return " ".join(text.lower().split())
    # Letters without case may be composed of others: they are normalised again.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def form_ids(texts: pa.Array | pa.ChunkedArray) -> Ids:
    """The id of the form of every text of a column, [n]: equal ids are the same text.

    A text that is in its form already has the id of its content.

    >>> texts = pa.array(["A  cafe\u0301", "a caf\u00c9", "a cafe"], pa.large_string())
    >>> len(set(form_ids(texts).tolist())), form_ids(texts)[2] == content_id("a cafe")
    (2, True)
    """
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    blocks = (
        chunk.slice(start, _BLOCK) for chunk in chunks for start in range(0, len(chunk), _BLOCK)
    )
    parts = [_signed(_form_hashes(block.cast(pa.large_string()))) for block in blocks]
    return np.concatenate([*parts, np.empty(0, np.int64)])


def _form_hashes(texts: pa.LargeStringArray) -> list[int]:
    """Return the hashes of the forms of some texts, unsigned.

    Most texts need nothing but lower case, which Arrow writes for all of them at once: they are
    hashed where they lie, and a million takes less than half a second.
    """
    lowered = pc.utf8_lower(texts)
    _, ends, data = lowered.buffers()
    places = np.frombuffer(ends, np.int64)[lowered.offset : lowered.offset + len(texts) + 1]
    letters = memoryview(data) if data is not None else memoryview(b"")
    hashes = [
        xxhash.xxh3_64_intdigest(letters[start:end]) for start, end in pairwise(places.tolist())
    ]
    uneven = pc.match_substring_regex(lowered, _UNEVEN)
    others = pc.or_(uneven, pc.invert(pc.string_is_ascii(texts)))
    for at in np.flatnonzero(others.to_numpy(zero_copy_only=False)).tolist():
        hashes[at] = xxhash.xxh3_64_intdigest(form(texts[at].as_py()).encode())
    return hashes


def given_ids(values: pa.Array) -> Ids:
    """64-bit hashes of ids that were given, texts or integers, [n]; 7 and "7" are one id."""
    return _hashes(values.cast(pa.large_string()).fill_null("").to_pylist())


def _hashes(keys: Iterable[str]) -> Ids:
    return _signed([xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) for key in keys])


def _signed(hashes: list[int]) -> Ids:
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
