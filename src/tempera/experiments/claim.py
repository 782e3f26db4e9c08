"""The folder of a sweep or a tuning, which goes on with what it holds, and belongs to one process
at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import OutputError
from ..io.atomic import as_output_error, refuse_inside_run, refuse_read, write_file
from ..io.console import logger
from ..io.lock import alone

_LOCK, _UNFINISHED = "lock", "unfinished"
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

    A process that is stopped or killed leaves a mark, by which the same command goes on with what
    it has made, also with `overwrite`.

    Args:
        name: of the file that says what the folder is of.
        about: its content.
        what: is to be in the folder, in words.
        overwrite: forget what it holds, unless that is the same and was interrupted.
        read: files and folders that are read: none may lie in a folder that is forgotten.
        check: is called before anything is forgotten, and may refuse.
        of: what `about` tells, in words.

    Raises:
        OutputError: it holds something else, or what is read, lies in a finished run, or another
            process has it.
    """
    refuse_inside_run(folder)
    known, unfinished = folder / name, folder / _UNFINISHED
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--output {folder} is a file; give a folder")
    if (
        folder.is_dir()
        and {path.name for path in folder.iterdir()}
        - {_LOCK, f"{name}.partial", f"{_UNFINISHED}.partial"}
        and not known.is_file()
    ):
        raise OutputError(
            f"--output {folder} holds files that are not a {what}; give another folder"
        )
    busy = f"--output {folder} is in use by another process; every {what} that runs has a folder of its own"
    with ExitStack() as stack:
        with as_output_error(folder):
            stack.enter_context(alone(folder / _LOCK, busy, _PATIENCE))
        same = known.is_file() and known.read_text(encoding="utf-8") == about
        if overwrite and same and unfinished.is_file():
            logger.info(
                f"going on with the {what} in {folder}, which was interrupted; remove that folder to begin anew"
            )
        elif overwrite:
            refuse_read(folder, list(read))
            check()
            _clear(folder, name)
        elif known.is_file() and not same:
            raise OutputError(
                f"--output {folder} holds a {what} of another {of} ({known}); give another folder, or --overwrite"
            )
        write_file(known, about.encode())
        write_file(unfinished, b"")
        try:
            yield
        except Exception:
            unfinished.unlink(missing_ok=True)  # it has ended, and was not interrupted
            raise
        else:
            unfinished.unlink(missing_ok=True)
        finally:
            with suppress(OSError):
                if not {path.name for path in folder.iterdir()} - {_LOCK, name, _UNFINISHED}:
                    known.unlink()  # nothing was made
                    unfinished.unlink(missing_ok=True)


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
