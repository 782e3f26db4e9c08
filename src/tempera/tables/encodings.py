"""Bytes of text files as UTF-8, from any compression and encoding."""

from __future__ import annotations

import codecs
import gzip
import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ..errors import ConfigError, DataError

SAVE = "save it as UTF-8"
REMEDY = f"{SAVE}, or name its encoding, such as data.encoding=latin-1"
_READ = 1 << 20  # bytes that are decoded at once
_MARKS = {  # the longer ones first, since one begins with another
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Chunks(io.RawIOBase):
    """A file of bytes from an iterator.

    >>> io.BufferedReader(Chunks(iter([b"ab", b"", b"c"]))).read()
    b'abc'
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks, self.rest = chunks, b""

    def readable(self) -> bool:
        """Return True: the file can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Write the next bytes into a buffer; return their number, 0 at the end."""
        while not self.rest:
            chunk = next(self.chunks, None)
            if chunk is None:
                return 0
            self.rest = chunk
        part = self.rest[: len(buffer)]
        buffer[: len(part)] = part
        self.rest = self.rest[len(part) :]
        return len(part)


def opened(path: Path) -> BinaryIO:
    """Open a file's bytes, decompressed by its extension, .gz or .zst."""
    kind = path.suffix.lower()
    if kind == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return gzip.open(path) if kind == ".gz" else path.open("rb")  # type: ignore[return-value]


def encoding_of(path: Path, named: str | None = None) -> str | None:
    """Return the encoding of a file: the named one, or UTF-16 or UTF-32 with a mark; None is UTF-8.

    Raises:
        ConfigError: no encoding has this name.
    """
    if named is None:
        with opened(path) as file:
            start = file.read(4)
        return next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
    try:
        with suppress(UnicodeError):
            b"a".decode(named)
    except LookupError:
        raise ConfigError(
            f"data.encoding: no encoding is called {named!r}: give one, such as latin-1, cp1252, utf-16 or gb18030"
        ) from None
    return None if codecs.lookup(named).name in ("utf-8", "ascii") else named


def opened_as_utf8(path: Path, encoding: str | None) -> BinaryIO:
    """Open a file's bytes, decompressed and in UTF-8.

    Args:
        encoding: of the file; None for UTF-8, without a check.

    Raises:
        DataError: during reading, bytes of another encoding.
    """
    if encoding is None:
        return opened(path)
    return io.BufferedReader(Chunks(_recoded(path, encoding)))


def _recoded(path: Path, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with opened(path) as file:
            while block := file.read(_READ):
                yield decoder.decode(block).encode()
            yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        reason = getattr(error, "reason", str(error))
        raise DataError(
            f"{path} is not in {encoding}: {reason}; name its encoding with data.encoding"
        ) from None
