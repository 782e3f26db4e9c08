"""Files and folders from untrusted writers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DataError

_LONGEST_NAME = 255  # bytes of a name in a folder, on every usual disk
_SHOWN = 60  # letters of a longer name in a message


@contextmanager
def without_panics() -> Iterator[None]:
    """Turn a panic into an Exception: libraries in Rust may panic over a damaged file, and a panic
    is no Exception.

    Raises:
        ValueError: instead of a panic, with its message.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of no module that could be imported
            raise
        raise ValueError(str(error)) from None


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file or folder named in a file of `folder`.

    Raises:
        DataError: the name leads out of the folder, or no file has such a name.

    >>> inside(Path("model"), "0_Static").as_posix()
    'model/0_Static'
    >>> inside(Path("model"), "../../etc")
    Traceback (most recent call last):
        ...
    tempera.errors.DataError: model: '../../etc' leads out of the folder, and what it holds has to lie inside
    """
    if name.startswith("/") or "\0" in name or ".." in Path(name).parts:
        raise DataError(
            f"{folder}: {name!r} leads out of the folder, and what it holds has to lie inside"
        )
    try:
        longest = max(map(len, os.fsencode(name).split(b"/")))
    except UnicodeEncodeError:
        raise DataError(f"{folder}: {name!r} is no name of a file") from None
    if longest > _LONGEST_NAME:
        raise DataError(
            f"{folder}: {name[:_SHOWN]!r} and more is no name of a file: it is too long"
        )
    return folder / name


def refuse_irregular(path: Path) -> None:
    """Refuse a path of neither a file nor a folder: reading a pipe or a device may never end.

    Raises:
        DataError: says which path.

    >>> refuse_irregular(Path("/dev/zero"))
    Traceback (most recent call last):
        ...
    tempera.errors.DataError: /dev/zero is not a regular file
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DataError(f"{path} is not a regular file")


def refuse_unsafe(folder: Path) -> None:
    """Refuse a folder with a link to the outside, a pipe or a device.

    A link to the outside would show, or copy, files never given to the folder's writer; reading a
    pipe may never end. Links of the Hugging Face hub's cache, from a snapshot to the files of the
    same repository, are allowed.

    Raises:
        DataError: says which path.
    """
    root = folder.resolve()
    around = root.parent.parent if root.parent.name == "snapshots" else root
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and not path.resolve().is_relative_to(around):
                raise DataError(
                    f"{path} is a link that leads out of {folder}: put what it stands for in its place"
                )
            refuse_irregular(path)
