"""Ids of texts: 64-bit hashes of a text's content, of its form, or of the text's id in a file."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_BLOCK = 1 << 14  # texts whose forms or strings are in memory at once
# White space that is not one space between words, in a text of ASCII. Vertical tabs and separators
# are white space of Python's `str.split`, but not of the library that searches here.
_UNEVEN = r"^ | $|  |[\t-\r\x1c-\x1f]"


def content_id(text: str) -> int:
    """Return the id of a text: a 64-bit hash of the text with runs of white space as one space.

    >>> content_id("a  b") == content_id(" a b\\n"), content_id("a b") == content_id("A b")
    (True, False)
    """
    return int(content_ids([text])[0])


def content_ids(texts: Iterable[str] | pa.Array | pa.ChunkedArray) -> Ids:
    """Return the id of every text, [n]."""
    if isinstance(texts, pa.Array | pa.ChunkedArray):
        texts = _one_by_one(texts)
    return _hashes(" ".join(text.split()) for text in texts)


def _one_by_one(texts: pa.Array | pa.ChunkedArray) -> Iterator[str]:
    """Yield the texts of a column, of which few are Python's strings at a time."""
    for start in range(0, len(texts), _BLOCK):
        yield from texts.slice(start, _BLOCK).to_pylist()


def form(text: str) -> str:
    r"""Return the form of a text, common to equal texts: without regard to case, white space and
    the way in which Unicode writes a letter (NFKC).

    Texts of the test are held out, or reported as known to a model, by their form.

    >>> form(" Cafe\u0301\n  OPEN "), form("caf\u00e9 \uff4f\uff50\uff45\uff4e")
    ('café open', 'café open')
    """
    if text.isascii():
        return " ".join(text.lower().split())
    # Letters without case may be composed of others: they are normalised again.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def form_ids(texts: pa.Array | pa.ChunkedArray) -> Ids:
    """Return the id of the form of every text of a column, [n]: equal ids are equal texts.

    A text equal to its form has the id of its content.

    >>> texts = pa.array(["A  cafe\u0301", "a caf\u00c9", "a cafe"], pa.large_string())
    >>> len(set(form_ids(texts).tolist())), bool(form_ids(texts)[2] == content_id("a cafe"))
    (2, True)
    """
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    ids = [np.empty(0, np.int64)]
    for chunk in chunks:
        for start in range(0, len(chunk), _BLOCK):
            block = chunk.slice(start, _BLOCK).cast(pa.large_string())
            ids.append(_signed(_form_hashes(block)))
    return np.concatenate(ids)


def _form_hashes(texts: pa.LargeStringArray) -> list[int]:
    """Return the hashes of the forms of texts, unsigned.

    Most texts need only lower case, written by Arrow for all texts at once. Such texts are hashed
    in Arrow's memory, and a million takes less than half a second.
    """
    lowered = pc.utf8_lower(texts)
    _, offsets, data = lowered.buffers()
    ends = np.frombuffer(offsets, np.int64)[lowered.offset : lowered.offset + len(texts) + 1]
    letters = memoryview(data if data is not None else b"")
    spans = pairwise(ends.tolist())
    hashes = [xxhash.xxh3_64_intdigest(letters[start:end]) for start, end in spans]
    uneven = pc.match_substring_regex(lowered, _UNEVEN)
    others = pc.or_(uneven, pc.invert(pc.string_is_ascii(texts)))
    for at in np.flatnonzero(others.to_numpy(zero_copy_only=False)).tolist():
        hashes[at] = xxhash.xxh3_64_intdigest(form(texts[at].as_py()).encode())
    return hashes


def given_ids(values: pa.Array) -> Ids:
    """Return 64-bit hashes of the ids in a file, texts or integers, [n]; 7 and "7" are the same
    id."""
    return _hashes(values.cast(pa.large_string()).fill_null("").to_pylist())


def _hashes(keys: Iterable[str]) -> Ids:
    return _signed([xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) for key in keys])


def _signed(hashes: list[int]) -> Ids:
    return (np.array(hashes, np.uint64) ^ np.uint64(1 << 63)).view(np.int64)


def places(keys: NDArray[Any], among: NDArray[Any], order: Ids | None = None) -> Ids:
    """Return the position in `among` of each key, [n]; -1 for a key not in `among`.

    Args:
        keys: to look up.
        among: distinct keys, in any order.
        order: the positions in `among` by rising key; None sorts here.

    >>> places(np.array([5, 6, 7]), np.array([7, 5])).tolist()
    [1, -1, 0]
    """
    if not len(among):
        return np.full(len(keys), -1)
    if order is None:
        order = np.argsort(among)
    rank = np.searchsorted(among, keys, sorter=order).clip(max=len(order) - 1)
    at = order[rank]
    return np.where(among[at] == keys, at, -1)


def falling(ids: pa.Array | pa.ChunkedArray) -> Ids:
    """Return the order of falling ids as texts, [n]: trec_eval's order of documents with equal
    scores.

    >>> falling(pa.array([9, 10, 2])).tolist()
    [0, 2, 1]
    """
    order = pc.sort_indices(ids.cast(pa.large_string()), sort_keys=[("", "descending")])
    rows: Ids = order.to_numpy().astype(np.int64)
    return rows


def mixed(ids: Ids, salt: Ids | int) -> Ids:
    """Return ids mixed with a salt, bijectively for each salt, [n]: the finalizer of splitmix64
    (Steele et al. 2014).

    >>> a = mixed(np.array([1, 2, 1]), np.array([5, 5, 6]))
    >>> len(set(a.tolist())), bool((a == mixed(np.array([1, 2, 1]), np.array([5, 5, 6]))).all())
    (3, True)
    """
    salts = np.atleast_1d(np.asarray(salt, np.int64)).astype(np.uint64)
    salts = salts * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    z = ids.astype(np.uint64) ^ salts
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return z.view(np.int64)
