"""The folder of a sweep or a tuning, which goes on with what it holds, and belongs to one process
at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import OutputError
from ..io.atomic import as_output_error, refuse_read, write_file
from ..io.lock import alone

_LOCK = "lock"
_PATIENCE = 3.0  # seconds for what a killed process has started to end


@contextmanager
def claimed(
    folder: Path,
    name: str,
    about: str,
    what: str,
    overwrite: bool,
    read: Iterable[str | Path] = (),
    check: Callable[[], Any] = lambda: None,
    of: str = "configuration",
) -> Iterator[None]:
    """Make the folder, or take up what it holds, and keep it for this process; the lock ends with
    it, however it ends.

    Args:
        name: of the file that says what the folder is of.
        about: its content.
        what: is to be in the folder, in words.
        overwrite: forget what it holds.
        read: files and folders that are read: none may lie in a folder that is forgotten.
        check: is called before anything is forgotten, and may refuse.
        of: what `about` tells, in words.

    Raises:
        OutputError: it holds something else, or what is read, or another process has it.
    """
    known = folder / name
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--output {folder} is a file; give a folder")
    if (
        folder.is_dir()
        and {path.name for path in folder.iterdir()} - {_LOCK, f"{name}.partial"}
        and not known.is_file()
    ):
        raise OutputError(
            f"--output {folder} holds files that are not a {what}; give another folder"
        )
    busy = f"--output {folder} is in use by another process; every {what} that runs has a folder of its own"
    with ExitStack() as stack:
        with as_output_error(folder):
            stack.enter_context(alone(folder / _LOCK, busy, _PATIENCE))
        if overwrite:
            refuse_read(folder, list(read))
            check()
            _clear(folder, name)
        elif known.is_file() and known.read_text(encoding="utf-8") != about:
            raise OutputError(
                f"--output {folder} holds a {what} of another {of} ({known}); give another folder, or --overwrite"
            )
        write_file(known, about.encode())
        try:
            yield
        finally:
            with suppress(OSError):
                if {path.name for path in folder.iterdir()} == {_LOCK, name}:  # nothing was made
                    known.unlink()


def named_in(*options: Any) -> Iterator[str | Path]:
    """Yield every text and path in options, any of which may name a file that is read.

    >>> list(named_in("run.yaml", {"tower.model": ["a", None], "train.batch_size": 8}))
    ['run.yaml', 'tower.model', 'train.batch_size', 'a']
    """
    for each in options:
        if isinstance(each, str | Path):
            yield each
        elif isinstance(each, Mapping):
            yield from named_in(*each, *each.values())
        elif isinstance(each, list | tuple):
            yield from named_in(*each)


def _clear(folder: Path, name: str) -> None:
    """Remove everything but the lock, which somebody may wait for; last the file that says what the
    rest is."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == name):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()
