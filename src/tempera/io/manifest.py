"""The manifest of a folder: the size and the checksum of each file, compared on reading the file.

Files of up to 64 MiB are compared as a whole on opening. Of a larger file, mapped into memory or
read in parts, each block of 4 MiB is compared on its first reading. Manifests guard against silent
errors of disks and copies, not against people, because people can write a manifest, too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any

import xxhash

from ..errors import DataError

MANIFEST = "tempera-manifest.json"
FORMAT = 1
WHOLE = 64 << 20  # bytes of the largest file with one checksum
BLOCK = 4 << 20  # bytes with a checksum of their own in a larger file
PART = 1 << 18  # bytes read at once, which stay in the processor's cache
_FOR_PEOPLE = (".md", ".html", ".svg", ".png")  # of no influence on any answer
# Of no influence on a model's vectors either; the readers of these files compare them.
_BESIDE_MODELS = ("calibration.", "trained.npy")
# Nanoseconds after which an unchanged time says that the content of a file is unchanged, too: a
# file that was written a moment ago may be written again within one tick of the disk's clock.
_SURE_AGE = 2_000_000_000
# Files that this process has found whole, and manifests that it has read, each with its state then.
_compared: dict[str, tuple[Any, ...]] = {}
_manifests: dict[Path, tuple[Any, ...]] = {}


@dataclass(frozen=True)
class FileSum:
    """The size of a file, and its checksum (xxh3), or the checksums of its blocks."""

    size: int
    sums: tuple[str, ...]  # one, or one for each block of a file that is larger than `WHOLE`

    @classmethod
    def of(cls, path: Path) -> FileSum:
        """Return the size and the checksums of a file."""
        size = path.stat().st_size
        with path.open("rb") as file:
            return cls(size, tuple(_sum(file, step) for step in _steps(size)))

    def fault(self, path: Path) -> str | None:
        """Return the difference between a file and the file as written; None without a
        difference."""
        try:
            size = path.stat().st_size
            if size != self.size:
                return f"it has {size:,} bytes, and {self.size:,} were written"
            with path.open("rb") as file:
                for expected, step in zip(self.sums, _steps(size), strict=True):
                    if _sum(file, step) != expected:
                        return "its checksum differs"
        except (FileNotFoundError, NotADirectoryError):
            return "it is missing"
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"
        return None


def _steps(size: int) -> Iterator[int]:
    """Yield the number of bytes behind each checksum of a file."""
    if size <= WHOLE:
        yield size
        return
    for start in range(0, size, BLOCK):
        yield min(BLOCK, size - start)


def _sum(file: Any, size: int) -> str:
    """Return the checksum of the next bytes of a file."""
    digest = xxhash.xxh3_64()
    while size:
        part = file.read(min(PART, size))
        if not part:
            break
        digest.update(part)
        size -= len(part)
    return digest.hexdigest()


@dataclass(frozen=True)
class Manifest:
    """The files of a folder, by their names in the folder, apart from inner folders with their own
    manifest."""

    folder: Path
    files: Mapping[str, FileSum]

    @classmethod
    def of(cls, folder: Path) -> Manifest:
        """Return the manifest of a folder's present files."""
        return cls(folder, {name: FileSum.of(folder / name) for name in names_in(folder)})

    @classmethod
    def around(cls, path: Path) -> Manifest | None:
        """Return the manifest of a file or folder, from the nearest folder with a manifest: the
        path itself or a folder above; None without a manifest.

        Raises:
            DataError: the manifest is damaged, or of a later version.
        """
        real = Path(os.path.realpath(path))
        for folder in (real, *real.parents):
            state = _state(folder / MANIFEST)
            if state is None:
                continue
            known = _manifests.get(folder)
            if known is not None and known[0] == state:
                remembered: Manifest = known[1]
                return remembered
            manifest = _read(folder)
            if _is_old(state):
                _manifests[folder] = state, manifest
            return manifest
        return None

    @classmethod
    def of_folder(cls, folder: Path) -> Manifest:
        """Return the manifest that lies in a folder; raises DataError as `around` does, or for a
        folder without a manifest."""
        return _read(Path(os.path.realpath(folder)))

    def name_of(self, path: Path) -> str:
        """Return the name of a file or folder in the manifest's folder; "" for the folder
        itself."""
        name = Path(os.path.realpath(path)).relative_to(self.folder).as_posix()
        return "" if name == "." else name

    def within(self, name: str) -> list[str]:
        """Return the names of the files in an inner folder; "" gives all files."""
        if not name:
            return list(self.files)
        return [each for each in self.files if each.startswith(f"{name}/")]

    def with_files(self, names: Iterable[str]) -> Manifest:
        """Return the manifest with the present state of some files; missing files are left out."""
        files = dict(self.files)
        for name in names:
            files.pop(name, None)
            path = self.folder / name
            if path.is_file():
                files[name] = FileSum.of(path)
        return Manifest(self.folder, files)

    def without_files(self, names: Iterable[str]) -> Manifest:
        """Return the manifest without some files."""
        left_out = set(names)
        files = {name: each for name, each in self.files.items() if name not in left_out}
        return Manifest(self.folder, files)

    def content(self) -> bytes:
        """Return the bytes of the manifest's file; the last entry is the checksum of all
        entries."""
        files: dict[str, Any] = {}
        for name, each in sorted(self.files.items()):
            files[name] = {"size": each.size}
            if each.size <= WHOLE:
                files[name]["xxh3"] = each.sums[0]
            else:
                files[name]["blocks"] = each.sums
        own = xxhash.xxh3_64_hexdigest(json.dumps(files, sort_keys=True).encode())
        about = {"made_by": "tempera", "format": FORMAT, "files": files, "xxh3": own}
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        return text.encode("utf-8", "surrogateescape")

    def refuse_damaged(self, path: Path) -> None:
        """Raise DataError if a file has changed; of a folder, all files with an influence on
        answers are compared."""
        name = self.name_of(path)
        if name in self.files:
            self._refuse(name)
            return
        for each in self.within(name):
            beside = PurePosixPath(each).name.startswith(_BESIDE_MODELS)
            if not beside and not each.endswith(_FOR_PEOPLE):
                self._refuse(each)

    def is_compared(self, name: str) -> bool:
        """Return True if this process has found a file whole, and the file has not changed since."""
        path = self.folder / name
        return _compared.get(str(path)) == (_state(path), self.files[name])

    def damaged(self, name: str, fault: str) -> DataError:
        """Return the error for a changed file."""
        return DataError(
            f"{self.folder / name} is damaged ({fault}): restore it from a copy, or make {self.folder} "
            f"again; if you have changed it yourself: tempera check {quote(str(self.folder))} --accept"
        )

    def _refuse(self, name: str) -> None:
        if self.is_compared(name):
            return
        path = self.folder / name
        expected = self.files[name]
        state = _state(path)
        fault = expected.fault(path)
        if fault is not None:
            raise self.damaged(name, fault)
        if state is not None and _is_old(state):
            _compared[str(path)] = state, expected


def _is_old(state: tuple[int, ...]) -> bool:
    return time.time_ns() - state[0] > _SURE_AGE


def _state(path: Path) -> tuple[int, ...] | None:
    """Return the times, the size and the place on disk of a file; None if there is no such file."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino


def _read(folder: Path) -> Manifest:
    """Read a manifest."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        about = json.loads(content.decode("utf-8", "surrogateescape"))
        version = about["format"]
        if type(version) is int and version > FORMAT:
            raise DataError(
                f"{path} is of a later version of Tempera (format {version}; this one reads {FORMAT}): "
                "upgrade tempera"
            )
        files = {}
        for name, each in about["files"].items():
            sums = each.get("blocks") or [each["xxh3"]]
            files[name] = FileSum(each["size"], tuple(sums))
        manifest = Manifest(folder, files)
        if manifest.content() != content:
            raise ValueError("its own checksum differs")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged ({error or type(error).__name__}): restore it from a copy; without it the "
            "folder is opened, and nothing in it is compared"
        ) from None
    return manifest


def names_in(folder: Path) -> list[str]:
    """Return the names of all files in a folder, sorted.

    The folder's manifest, inner folders with a manifest, and unfinished files are left out.
    """
    names = list[str]()
    for here, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not Path(here, each, MANIFEST).is_file()]
        for each in files:
            if each != MANIFEST and not each.endswith(".partial"):
                names.append(Path(here, each).relative_to(folder).as_posix())
    return sorted(names)


def refuse_damaged(*paths: Path) -> None:
    """Compare files and folders with the manifest of their folder; a file or folder without a
    manifest passes.

    Of a folder, two kinds of files are left out: pages and pictures for people, and files beside a
    model without an influence on vectors.

    Raises:
        DataError: a file is missing, or is not as it was written; says which.
    """
    for path in paths:
        manifest = Manifest.around(path)
        if manifest is not None:
            manifest.refuse_damaged(path)


def first_fault(folder: Path) -> str | None:
    """Return the first changed file of a folder, by its manifest, with the difference; None without
    a changed file."""
    manifest = Manifest.around(folder)
    if manifest is None:
        return None
    for name in manifest.within(manifest.name_of(folder)):
        fault = manifest.files[name].fault(manifest.folder / name)
        if fault is not None:
            return f"{name}: {fault}"
    return None


def refuse_not_whole(folder: Path) -> None:
    """Compare every file of a folder with its manifest, also pages and pictures.

    Raises:
        DataError: a file is missing, or is not as it was written; says which.
    """
    manifest = Manifest.around(folder)
    if manifest is None:
        return
    for name in manifest.within(manifest.name_of(folder)):
        manifest.refuse_damaged(manifest.folder / name)


def is_recorded(path: Path) -> bool:
    """Return True if a manifest has the checksum of a file."""
    manifest = Manifest.around(path)
    return manifest is not None and manifest.name_of(path) in manifest.files
