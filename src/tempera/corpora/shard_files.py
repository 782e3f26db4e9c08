"""The shards of a corpus: files, folders, globs, data sets of `save_to_disk`, and addresses of
object stores."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import DataError, MissingLibrary
from ..io.require import require
from ..io.untrusted import refuse_irregular
from ..tables.tables import ending, files_of, is_table

_LOCAL = "file://"
_PATTERN = "*?["


@dataclass(frozen=True)
class CorpusShard:
    """A file with rows of a corpus.

    Args:
        name: of the shard in a folder of vectors, without an ending; unique in a corpus.
        address: path, or address of an object store.
        size: bytes.
        state: the time of its last change, or the tag of an object store.
    """

    name: str
    address: str
    size: int
    state: str

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Give the shard as a local file; a shard of an object store is fetched for the block.

        Raises:
            DataError: the shard is missing, or has changed since it was listed.
        """
        self.refuse_changed()
        if not is_remote(self.address):
            yield Path(self.address)
            return
        system, place = file_system(self.address)
        with tempfile.TemporaryDirectory(prefix="tempera-") as folder:
            local = Path(folder) / PurePosixPath(place).name
            system.get_file(place, str(local))
            yield local

    def refuse_changed(self) -> None:
        """Raise DataError if the shard is missing, or has changed since it was listed."""
        now = _shard(self.name, self.address)
        if (now.size, now.state) != (self.size, self.state):
            raise DataError(
                f"{self.address} was changed while it was read: run the command again when nobody writes to it"
            )


def is_remote(address: str) -> bool:
    """Return True for the address of an object store, such as s3://bucket/corpus.

    >>> is_remote("s3://bucket/corpus"), is_remote("corpus/*.parquet"), is_remote("file:///corpus")
    (True, False, False)
    """
    return "://" in address and not address.startswith(_LOCAL)


def file_system(address: str) -> tuple[Any, str]:
    """Return the file system of fsspec for an address, and the path in it.

    Raises:
        MissingLibrary: fsspec, or its library for the object store, is not installed.
        DataError: an unknown object store.
    """
    require("fsspec", f"reading {address}")
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(address)
    except ImportError as error:
        raise MissingLibrary(f"{address}: {error}") from None
    except ValueError as error:
        raise DataError(f"{address}: {error}") from None
    return system, str(path)


def shards_of(corpus: Sequence[str]) -> list[CorpusShard]:
    """Return the shards of a corpus, in order.

    Args:
        corpus: paths of files or folders, patterns with *, or addresses of object stores.

    Raises:
        DataError: a missing file, a file that is no table, a corpus without shards, or two shards
            whose vectors would have the same name.
    """
    shards: list[CorpusShard] = []
    for each in corpus:
        of_address = _remote(each) if is_remote(each) else _local(each.removeprefix(_LOCAL))
        if not of_address:
            raise DataError(f"{each}: no shard is there; give tables, such as .parquet or .jsonl")
        shards += of_address
    named: dict[str, CorpusShard] = {}
    for shard in shards:
        other = named.setdefault(shard.name, shard)
        if other is not shard:
            raise DataError(
                f"the vectors of {other.address} and of {shard.address} would both be {shard.name}.parquet: "
                "rename one of them, or give the folder around both"
            )
    return shards


def _local(pattern: str) -> list[CorpusShard]:
    path = Path(pattern)
    if any(sign in pattern for sign in _PATTERN) and not path.exists():
        files = [Path(each) for each in sorted(glob.glob(pattern, recursive=True))]
        files = [each for each in files if each.is_file() and is_table(each)]
    else:
        refuse_irregular(path)
        if not path.exists():
            raise DataError(f"no such file or folder: {pattern}")
        files = files_of(path)
    around = path if path.is_dir() else _common([str(each) for each in files])
    return [_shard(_name(str(each), str(around)), str(each)) for each in files]


def _remote(address: str) -> list[CorpusShard]:
    system, path = file_system(address)
    scheme = address.partition("://")[0]
    if any(sign in path for sign in _PATTERN):
        files = system.glob(path)
    elif system.isdir(path):
        files = system.find(path)
    elif system.isfile(path):
        files = [path]
    else:
        raise DataError(f"no such file or folder: {address}")
    files = sorted(str(each) for each in files if is_table(Path(str(each))))
    around = path if system.isdir(path) else str(_common(files))
    return [_shard(_name(each, around), f"{scheme}://{each.lstrip('/')}") for each in files]


def _common(files: Sequence[str]) -> Path:
    """Return the folder around all files."""
    if not files:
        return Path()
    return Path(os.path.commonpath([os.path.dirname(each) for each in files]))


def _name(file: str, around: str) -> str:
    """Return the name of a shard: its path in the corpus, without the ending of its format.

    >>> _name("corpus/de/part-0.jsonl.gz", "corpus")
    'de/part-0'
    """
    name = PurePosixPath(os.path.relpath(file, around or ".")).as_posix()
    return name.removesuffix(ending(Path(file))) if ending(Path(file)) else name


def _shard(name: str, address: str) -> CorpusShard:
    """Return a shard as it is now."""
    try:
        if not is_remote(address):
            refuse_irregular(Path(address))
            about = os.stat(address)
            return CorpusShard(name, address, about.st_size, str(about.st_mtime_ns))
        system, path = file_system(address)
        return CorpusShard(name, address, int(system.size(path)), str(system.ukey(path)))
    except FileNotFoundError:
        raise DataError(f"the shard {address} is missing") from None
