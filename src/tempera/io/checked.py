"""Large files of a folder with a manifest: each block is compared on its first reading."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from .manifest import BLOCK, WHOLE, Manifest


class Blocks:
    """The blocks of a large file, each compared on first reading."""

    def __init__(self, manifest: Manifest, name: str) -> None:
        self.manifest = manifest
        self.name = name
        self.expected = manifest.files[name]
        path = manifest.folder / name
        size = path.stat().st_size
        if size != self.expected.size:
            fault = f"it has {size:,} bytes, and {self.expected.size:,} were written"
            raise manifest.damaged(name, fault)
        self.all_right = manifest.is_compared(name)
        # 1 for each block that was compared
        self.right = bytearray([self.all_right] * len(self.expected.sums))
        with path.open("rb") as file:
            self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def compare(self, numbers: Iterable[int]) -> None:
        """Compare the blocks with some numbers, unless compared before."""
        for number in numbers:
            if self.right[number]:
                continue
            part = memoryview(self.content)[number * BLOCK : (number + 1) * BLOCK]
            if xxhash.xxh3_64_hexdigest(part) != self.expected.sums[number]:
                fault = f"the checksum of its block {number:,} differs"
                raise self.manifest.damaged(self.name, fault)
            self.right[number] = 1
        self.all_right = all(self.right)

    def bytes_compared(self, start: int, stop: int) -> None:
        """Compare the blocks of the bytes from `start` up to `stop`."""
        if start < stop:
            self.compare(range(start // BLOCK, (stop - 1) // BLOCK + 1))


def _blocks(path: Path) -> Blocks | None:
    """Return the blocks of a large file of a manifest; None for any other file, after comparing the
    file as a whole."""
    manifest = Manifest.around(path)
    if manifest is None:
        return None
    name = manifest.name_of(path)
    expected = manifest.files.get(name)
    if expected is not None and expected.size > WHOLE and path.is_file():
        return Blocks(manifest, name)
    manifest.refuse_damaged(path)
    return None


class CheckedRows:
    """Rows of an array in a large file; each block of the file is compared on its first reading.

    Rows are indexed as in an array. NumPy takes the whole array, and compares all blocks first.

    Args:
        rows: the array.
        start: the array's first byte in the file.
        blocks: of the file.
    """

    def __init__(self, rows: NDArray[Any], start: int, blocks: Blocks) -> None:
        self.rows = rows
        self.start = start
        self.blocks = blocks
        self.shape = rows.shape
        self.dtype = rows.dtype
        self.ndim = rows.ndim
        self.size = rows.size
        self.nbytes = rows.nbytes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        self._compare(key[0] if isinstance(key, tuple) else key)
        return self.rows[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self._compare(slice(None))
        if copy:
            return np.array(self.rows, dtype)
        return np.asarray(self.rows, dtype)

    def _compare(self, rows: Any) -> None:
        if self.blocks.all_right:
            return
        stride = self.rows.strides[0]
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self.rows))
            self.blocks.bytes_compared(self.start + start * stride, self.start + stop * stride)
            return
        first = self.start + np.arange(len(self.rows))[rows] * stride
        last = first + stride - 1
        numbers = np.unique([first // BLOCK, last // BLOCK])
        self.blocks.compare(numbers.tolist())
        if stride > BLOCK:  # a row may have blocks between its first and its last block
            for at in np.atleast_1d(first).tolist():
                self.blocks.bytes_compared(at, at + stride)


def mapped_rows(path: Path) -> NDArray[Any] | CheckedRows:
    """Map the array of a .npy file into memory, compared with the manifest of its folder.

    Raises:
        DataError: the file has changed since it was written.
        OSError: there is no such file.
        ValueError: the file is no .npy file.
    """
    blocks = _blocks(path)
    if blocks is not None:
        blocks.compare([0])  # with the shape
    rows = np.lib.format.open_memmap(path, mode="r")
    if blocks is None:
        return rows
    if not rows.flags.c_contiguous or rows.ndim == 0:
        blocks.compare(range(len(blocks.right)))
        return rows
    # The mapping by which blocks are compared: another would count in the memory of the process.
    content = np.frombuffer(blocks.content, rows.dtype, rows.size, rows.offset)
    return CheckedRows(content.reshape(rows.shape), rows.offset, blocks)


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file; objects are never unpickled.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no .npy file, or holds objects.
    """
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError):
        raise
    except Exception as error:  # the header is read as Python, by tokenize and ast
        raise ValueError(str(error) or type(error).__name__) from None
    return array


class _CheckedFile(io.RawIOBase):
    """A large file; each block is compared on first reading."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.blocks.expected.size}
        self.at = max(0, start[whence] + offset)
        return self.at

    def readinto(self, buffer: Any) -> int:
        stop = min(self.at + len(buffer), self.blocks.expected.size)
        self.blocks.bytes_compared(self.at, stop)
        size = max(0, stop - self.at)
        buffer[:size] = self.blocks.content[self.at : self.at + size]
        self.at += size
        return size


def checked_file(path: Path) -> Path | io.RawIOBase:
    """Return a file to read in parts: the path of a small file, after comparing the file, or an
    open large file, for comparing each block on first reading.

    Raises:
        DataError: the file has changed since it was written; also during reading.
    """
    blocks = _blocks(path)
    if blocks is None:
        return path
    return _CheckedFile(blocks)
