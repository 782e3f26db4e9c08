"""The output folder of a sweep or a tuning: the folder belongs to one process at a time, and an
interrupted sweep or tuning is resumed."""

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

_LOCK = "lock"
_UNFINISHED = "unfinished"
_PATIENCE = 3.0  # seconds in which the children of a killed process end, and free the lock


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
    """Make the folder, or resume the work in the folder, and keep the folder for this process.

    The lock ends with the process, in any case. A stopped or killed process leaves the file
    `unfinished`: the same command then resumes the work, also with `overwrite`.

    Args:
        folder: the output folder.
        name: name of the file about the work.
        about: content of the file.
        what: the kind of work, "sweep" for example, for messages.
        overwrite: forget the earlier work in the folder, except the same work, interrupted.
        read: files and folders to read; none may lie in a folder to be forgotten.
        check: called before anything is forgotten, and able to refuse the work.
        of: the options in `about`, for messages.

    Raises:
        OutputError: the folder holds something else, or a file to read; the folder lies in a
            finished run; or another process has the folder.
    """
    refuse_inside_run(folder)
    about_file = folder / name
    unfinished = folder / _UNFINISHED
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--output {folder} is a file; give a folder")
    if folder.is_dir() and not about_file.is_file():
        ours = {_LOCK, f"{name}.partial", f"{_UNFINISHED}.partial"}
        if any(path.name not in ours for path in folder.iterdir()):
            raise OutputError(
                f"--output {folder} holds files that are not a {what}; give another folder"
            )
    busy = f"--output {folder} is in use by another process; every {what} that runs has a folder of its own"
    with ExitStack() as stack:
        with as_output_error(folder):
            stack.enter_context(alone(folder / _LOCK, busy, _PATIENCE))
        same = about_file.is_file() and about_file.read_text(encoding="utf-8") == about
        if overwrite and same and unfinished.is_file():
            logger.info(
                f"going on with the {what} in {folder}, which was interrupted; remove that folder to begin anew"
            )
        elif overwrite:
            refuse_read(folder, list(read))
            check()
            _clear(folder, name)
        elif about_file.is_file() and not same:
            raise OutputError(
                f"--output {folder} holds a {what} of another {of} ({about_file}); give another folder, or --overwrite"
            )
        write_file(about_file, about.encode())
        write_file(unfinished, b"")
        try:
            yield
        except Exception:
            unfinished.unlink(missing_ok=True)  # the work has failed, and was not interrupted
            raise
        else:
            unfinished.unlink(missing_ok=True)
        finally:
            with suppress(OSError):
                results = {path.name for path in folder.iterdir()} - {_LOCK, name, _UNFINISHED}
                if not results:
                    about_file.unlink()
                    unfinished.unlink(missing_ok=True)


def possible_paths(*options: Any) -> Iterator[str | Path]:
    """Yield every text and path in options, since any may name a file to read.

    >>> list(possible_paths("run.yaml", {"tower.model": ["a", None], "train.batch_size": 8}))
    ['run.yaml', 'tower.model', 'train.batch_size', 'a']
    """
    for each in options:
        if isinstance(each, str | Path):
            yield each
        elif isinstance(each, Mapping):
            yield from possible_paths(*each, *each.values())
        elif isinstance(each, list | tuple):
            yield from possible_paths(*each)


def _clear(folder: Path, name: str) -> None:
    """Remove everything but the lock, since another process may wait for the lock.

    The file about the work goes last: a kill meanwhile leaves a known folder.
    """
    for path in sorted(folder.iterdir(), key=lambda path: path.name == name):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()
