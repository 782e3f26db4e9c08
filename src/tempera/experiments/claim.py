"""The folder of a sweep or a tuning, which goes on with what it holds, and belongs to one process at a time."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import OutputError
from .record import write_file

_LOCK = "lock"
_PATIENCE = 3.0  # seconds for what a killed process has started to end


@contextmanager
def claimed(folder: Path, name: str, about: str, what: str, overwrite: bool) -> Iterator[None]:
    """Make the folder, or take up what it holds, and keep it for this process; the lock ends with it, however it ends.

    Args:
        name: of the file that says what the folder is of.
        about: its content.
        what: is to be in the folder, in words.
        overwrite: forget what it holds.

    Raises:
        OutputError: it holds something else, or another process has it.
    """
    known = folder / name
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--output {folder} is a file; give a folder")
    if folder.is_dir() and {path.name for path in folder.iterdir()} - {_LOCK} and not known.is_file():
        raise OutputError(f"--output {folder} holds files that are not a {what}; give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from None
    with lock:
        _hold(lock.fileno(), folder, what)
        if overwrite:
            _clear(folder)
        elif known.is_file() and known.read_text(encoding="utf-8") != about:
            raise OutputError(
                f"--output {folder} holds a {what} of another configuration ({known}); give another folder, or --overwrite"
            )
        write_file(known, about.encode())
        yield


def _hold(file: int, folder: Path, what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise OutputError(
                    f"--output {folder} is in use by another process; every {what} that runs has a folder of its own"
                ) from None
            time.sleep(0.1)


def _clear(folder: Path) -> None:
    """Remove everything but the lock, which somebody may wait for."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()
