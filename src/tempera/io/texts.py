"""A column of texts that is read where it lies: on disk, if it is memory-mapped; and what every
text has to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_BLOCK = 1 << 16  # texts in memory at once, where all are read in order


def encodable(text: str) -> str:
    """Return text that Arrow and tokenizers can hold: lone surrogates, of bytes that are no text,
    are replaced.

    >>> encodable("a\\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Texts(Sequence[str]):
    """Texts of an Arrow column, or of some of its rows; only those that are asked for become Python
    strings.

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
        return int(self.starts[-1]) if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...
    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return self.take(np.arange(*which.indices(len(self))))
        return self.take(np.array([range(len(self))[which]]))[0]

    def take(self, which: NDArray[np.int64]) -> list[str]:
        """The texts at these positions."""
        rows = which if self.rows is None else self.rows[which]
        chunk = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(chunk, kind="stable")
        taken: list[str] = []
        for part in np.split(order, np.flatnonzero(np.diff(chunk[order])) + 1):
            if len(part):
                at = chunk[part[0]]
                taken += self.chunks[at].take(pa.array(rows[part] - self.starts[at])).to_pylist()
        if np.array_equal(order, np.arange(len(order))):
            return taken
        texts = [""] * len(taken)
        for place, text in zip(order.tolist(), taken, strict=True):
            texts[place] = text
        return texts

    def cat(self, other: Texts) -> Texts:
        """These texts, then the other's."""
        first, second = (np.arange(len(t)) if t.rows is None else t.rows for t in (self, other))
        whole = Texts(pa.chunked_array([*self.chunks, *other.chunks], pa.large_string()))
        whole.rows = np.concatenate([first, second + self.starts[-1]])
        return whole
