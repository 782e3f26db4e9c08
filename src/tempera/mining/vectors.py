"""A store of vectors on disk, addressed by content: each vector is computed once.

Letters in shapes: n texts, m rows of the store, G width.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import DataError
from ..io.atomic import append, as_output_error, write_file
from ..io.console import progress_bar
from ..io.documents import read_json
from ..io.ids import places
from ..io.lock import alone
from ..ranking.nearest import refuse_not_finite

if TYPE_CHECKING:  # it would load torch
    from ..arithmetic.ragged import Ragged

Keys = NDArray[np.bytes_]
Rows = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]

SHARD = 4096  # rows that are computed and written to disk together; a kill loses at most as many
_WIDEST = 1 << 24  # largest width that is believed
_BYTES = 4  # of a float32
_RECORD = np.dtype([("key", "S16"), ("check", "<u8")])


def keys_of(texts: Sequence[str]) -> Keys:
    """Return 128-bit hashes of texts, exactly as they are, [n]."""
    return _keys(text.encode("utf-8", "surrogatepass") for text in texts)


def keys_of_pairs(pairs: Sequence[tuple[str, str]]) -> Keys:
    """Return 128-bit hashes of pairs of texts, [n]."""

    def contents() -> Iterator[bytes]:
        for first, second in pairs:
            a = first.encode("utf-8", "surrogatepass")
            b = second.encode("utf-8", "surrogatepass")
            yield b"%d\0%b%b" % (len(a), a, b)

    return _keys(contents())


def keys_of_rows(rows: Ragged) -> Keys:
    """Return 128-bit hashes of rows of numbers, such as the tokens of texts, [n]."""
    values = rows.values.numpy().astype("<i4")
    return _keys(values[start:end].tobytes() for start, end in pairwise(rows.offsets.tolist()))


@dataclass
class Store:
    """Vectors by key, in a folder that grows and is never rewritten.

    A shard is written to disk before its keys, each key with a checksum of its row. So a kill costs
    one shard at most, and an incomplete end is detected and dropped. Any number of processes may
    read; one process at a time writes, and others wait.

    Args:
        folder: holds a subfolder for each space of vectors.
        space: identifies everything but the text that determines a vector: hashes of the model and
            of its reading of texts.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()), "lengths")
    >>> rows = store.fill(keys_of(["a", "bcd", "a"]), lambda missing: np.array([[1.0], [3.0]], np.float32))
    >>> rows.tolist(), store.vectors[rows].ravel().tolist()
    ([0, 1, 0], [1.0, 3.0, 1.0])
    """

    folder: Path
    space: str
    computed: int = 0  # number of rows that this object computed
    _keys: Keys = field(default_factory=lambda: np.empty(0, "S16"), repr=False)
    _order: Rows = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder) / f"{self.space}-float32"
        self._read()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def vectors(self) -> Floats:
        """All vectors, memory-mapped, [m, G]."""
        shape = len(self), self._width() or 0
        if not len(self):
            return np.empty(shape, np.float32)
        vectors: Floats = np.memmap(self._file("vectors"), np.float32, "r", shape=shape)
        return vectors

    def find(self, keys: Keys) -> Rows:
        """Return the row of each key, [n]; -1 for a key that the store lacks."""
        return places(keys, self._keys, self._order)

    def fill(
        self, keys: Keys, compute: Callable[[Rows], Floats], progress: str | None = None
    ) -> Rows:
        """Return the row of each key, [n]; missing vectors are computed first, each distinct key
        once.

        Args:
            keys: of the vectors, [n].
            compute: returns the vectors, [s, G], of positions in `keys`, [s].
            progress: label of the progress bar; None shows none.

        Raises:
            DataError: a vector is not finite, or has another width.
            OutputError: the folder cannot be written.
        """
        rows = self.find(keys)
        if (rows >= 0).all():
            return rows
        with as_output_error(self.folder):
            busy = f"waiting for another process that is writing vectors to {self.folder}"
            with alone(self._file("lock"), busy, seconds=2.0, patient=True):
                self._read()
                unknown = np.flatnonzero(self.find(keys) < 0)
                first = np.unique(keys[unknown], return_index=True)[1]
                missing = np.sort(unknown[first])  # each distinct key once
                self._cut()
                with progress_bar(progress, len(missing), "row") as bar:
                    for start in range(0, len(missing), SHARD):
                        chosen = missing[start : start + SHARD]
                        self._append(keys[chosen], compute(chosen))
                        bar.update(len(chosen))
                self._read()
        return self.find(keys)

    def _append(self, keys: Keys, vectors: Floats) -> None:
        """Write vectors, and then their keys, to the end of the files."""
        width = self._width()
        if vectors.ndim != 2 or len(vectors) != len(keys) or width not in (None, vectors.shape[1]):
            expected = f"({len(keys)}, {'width' if width is None else width})"
            raise DataError(
                f"{self.folder} keeps other vectors: the model returned vectors of shape {vectors.shape}; expected {expected}"
            )
        stored = np.ascontiguousarray(vectors, np.float32)
        refuse_not_finite(stored, "texts as float32")
        if width is None:
            write_file(self._file("about.json"), json.dumps({"width": vectors.shape[1]}).encode())
        records = np.empty(len(keys), _RECORD)
        records["key"] = keys
        records["check"] = _checks(keys, stored)
        append(self._file("vectors"), stored.tobytes())
        append(self._file("keys"), records.tobytes())
        self.computed += len(keys)

    def _read(self) -> None:
        """Read the keys up to the last complete row."""
        width = self._width()
        if width is None:
            return
        count = _size(self._file("keys")) // _RECORD.itemsize
        count = min(count, _size(self._file("vectors")) // max(1, width * _BYTES))
        records = np.fromfile(self._file("keys"), _RECORD, count) if count else np.empty(0, _RECORD)
        tail = max(0, count - SHARD)  # earlier rows were durable before the last shard was begun
        self._keys = np.ascontiguousarray(records["key"])
        right = _checks(self._keys[tail:], self.vectors[tail:]) == records["check"][tail:]
        if not right.all():
            self._keys = self._keys[: tail + int(right.argmin())]
        self._order = np.argsort(self._keys)

    def _cut(self) -> None:
        """Remove the remains of a killed writer after the last complete row."""
        width = self._width() or 0
        whole = {"keys": _RECORD.itemsize * len(self), "vectors": width * _BYTES * len(self)}
        for name, size in whole.items():
            if _size(self._file(name)) > size:
                os.truncate(self._file(name), size)

    def _width(self) -> int | None:
        """Return the width of the vectors; None before the first vector."""
        try:
            width = read_json(self._file("about.json"))["width"]
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise DataError(
                f"{self.folder.parent} is no folder, in which vectors can be kept: give another"
            ) from None
        except (OSError, ValueError, KeyError, TypeError):
            width = None
        if type(width) is not int or not 0 < width <= _WIDEST:
            raise DataError(
                f"{self.folder} is not a store of vectors; remove it to compute it again"
            ) from None
        return width

    def _file(self, name: str) -> Path:
        return self.folder / name


def _keys(contents: Iterable[bytes]) -> Keys:
    """Return 128-bit hashes, [n]."""
    digests = b"".join(xxhash.xxh3_128_digest(content) for content in contents)
    return np.frombuffer(digests, "S16")


def _checks(keys: Keys, vectors: Floats) -> NDArray[np.uint64]:
    """Return a checksum of each key and its vector, [n]."""
    checks = np.empty(len(keys), np.uint64)
    for i, (key, row) in enumerate(zip(keys, np.asarray(vectors), strict=True)):
        checks[i] = xxhash.xxh3_64_intdigest(bytes(key).ljust(16, b"\0") + row.tobytes())
    return checks


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 if there is no file."""
    return path.stat().st_size if path.exists() else 0
