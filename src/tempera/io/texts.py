"""A column of texts, read from its place (on disk, if memory-mapped), and texts fit for Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Scripts without spaces between words: Thai and Lao, Burmese, Khmer, Japanese and Chinese.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_BLOCK = 1 << 16  # texts in memory at once, where all texts are read in order


def encodable(text: str) -> str:
    """Return a text fit for Arrow and tokenizers: lone surrogates, of bytes without a meaning as
    text, are replaced.

    >>> encodable("a\\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Texts(Sequence[str]):
    """Texts of an Arrow column, or of some rows of a column; a text becomes a Python string on
    reading.

    >>> texts = Texts(pa.chunked_array([["a", "b"], ["c"]]), np.array([2, 0, 2]))
    >>> len(texts), texts[0], texts[1:]
    (3, 'c', ['a', 'c'])
    """

    def __init__(self, column: pa.ChunkedArray, rows: NDArray[np.int64] | None = None) -> None:
        self.chunks = column.chunks
        self.starts = np.cumsum([0, *map(len, self.chunks)])
        self.rows = rows

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK]

    def __len__(self) -> int:
        if self.rows is None:
            return int(self.starts[-1])
        return len(self.rows)

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...
    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return self.take(np.arange(*which.indices(len(self))))
        return self.take(np.array([range(len(self))[which]]))[0]

    def take(self, which: NDArray[np.int64]) -> list[str]:
        """Return the texts at some positions."""
        texts: list[str] = self.column(which).to_pylist()
        return texts

    def column(self, which: NDArray[np.int64]) -> pa.LargeStringArray:
        """Return the texts at some positions as an Arrow column, which takes a tenth of the memory
        of Python's strings.

        >>> Texts(pa.chunked_array([["a", "b"], ["c"]])).column(np.array([2, 0])).to_pylist()
        ['c', 'a']
        """
        rows = which if self.rows is None else self.rows[which]
        chunk_of_row = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(chunk_of_row, kind="stable")
        ends = np.flatnonzero(np.diff(chunk_of_row[order])) + 1
        taken = list[pa.LargeStringArray]()
        for part in np.split(order, ends):  # the rows of one chunk
            if len(part):
                chunk = chunk_of_row[part[0]]
                rows_of_chunk = pa.array(rows[part] - self.starts[chunk])
                taken.append(self.chunks[chunk].take(rows_of_chunk).cast(pa.large_string()))
        if not taken:
            return pa.nulls(0, pa.large_string())
        texts = taken[0]
        if len(taken) > 1:
            texts = pa.concat_arrays(taken)
        if np.array_equal(order, np.arange(len(order))):
            return texts
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return texts.take(pa.array(place))

    def chosen(self, which: NDArray[np.int64]) -> Texts:
        """Return the texts at some positions, without reading them.

        >>> Texts(pa.chunked_array([["a", "b", "c"]])).chosen(np.array([2, 0]))[:]
        ['c', 'a']
        """
        texts = Texts.__new__(Texts)
        texts.chunks = self.chunks
        texts.starts = self.starts
        texts.rows = self._rows()[which]
        return texts

    def cat(self, other: Texts) -> Texts:
        """Return the texts, and then the texts of another column."""
        chunks = self.chunks + other.chunks
        rows = np.concatenate([self._rows(), other._rows() + self.starts[-1]])
        return Texts(pa.chunked_array(chunks, pa.large_string()), rows)

    def _rows(self) -> NDArray[np.int64]:
        return np.arange(len(self)) if self.rows is None else self.rows
