"""The folder of a corpus of vectors, on a disk or in an object store: files appear whole or not at
all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

from ..io.atomic import as_output_error, new_file
from .shard_files import file_system, is_remote

PARTIAL = ".partial"


class OutputPlace(Protocol):
    """Files by their names in a folder."""

    @property
    def address(self) -> str:
        """The path or the address of the folder."""

    @property
    def local(self) -> Path | None:
        """The folder on this disk; None for an object store."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Replace the content of a file at once."""

    def writing(self, name: str) -> Any:
        """Give a local file to write, in a context; the file has its name when the block ends
        without an error."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if there is no such file."""

    def names(self, folder: str) -> set[str]:
        """Return the names of all files in an inner folder, inner folders included."""

    def opened(self, name: str) -> Any:
        """Return a file for a reader of Parquet: a path, or an open file."""


@dataclass(frozen=True)
class LocalFolder:
    """A folder on a disk, which several processes may share."""

    folder: Path
    # Several processes may write the same file, with the same bytes.
    mark: str = field(default_factory=lambda: f".{os.getpid()}-{token_hex(4)}")

    @property
    def address(self) -> str:
        return str(self.folder)

    @property
    def local(self) -> Path | None:
        return self.folder

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as partial:
            partial.write_bytes(content)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        with new_file(self.folder / name, self.mark) as partial:
            yield partial

    def size(self, name: str) -> int | None:
        try:
            return (self.folder / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> set[str]:
        place = self.folder / folder
        names = set()
        for path in place.rglob("*"):
            if path.is_file() and not path.name.endswith(PARTIAL):
                names.add(path.relative_to(place).as_posix())
        return names

    def opened(self, name: str) -> Any:
        return self.folder / name


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of an object store, through fsspec."""

    address: str

    @property
    def local(self) -> Path | None:
        return None

    def read(self, name: str) -> bytes | None:
        system, path = self._place(name)
        try:
            content: bytes = system.cat_file(path)
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as partial:
            partial.write_bytes(content)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        system, path = self._place(name)
        with as_output_error(Path(name)), tempfile.TemporaryDirectory(prefix="tempera-") as folder:
            local = Path(folder) / "file"
            yield local
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            # The name of an upload under way is its own, and only a whole upload is moved.
            partial = f"{path}.{token_hex(4)}{PARTIAL}"
            try:
                system.put_file(str(local), partial)
                system.mv(partial, path)
            except BaseException:
                with suppress(Exception):
                    system.rm_file(partial)
                raise

    def size(self, name: str) -> int | None:
        system, path = self._place(name)
        try:
            return int(system.size(path))
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> set[str]:
        system, path = self._place(folder)
        try:
            files = system.find(path)
        except FileNotFoundError:
            return set()
        names = set()
        for file in files:
            name = str(file).removeprefix(path).lstrip("/")
            if not name.endswith(PARTIAL):
                names.add(name)
        return names

    def opened(self, name: str) -> Any:
        system, path = self._place(name)
        return system.open(path, "rb")

    def _place(self, name: str) -> tuple[Any, str]:
        system, path = file_system(self.address)
        return system, f"{path.rstrip('/')}/{name}"


def place_of(address: str) -> OutputPlace:
    """Return a folder by its path, or by its address in an object store."""
    if is_remote(address):
        return RemoteFolder(address)
    return LocalFolder(Path(address.removeprefix("file://")))
