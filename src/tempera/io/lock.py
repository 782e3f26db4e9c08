"""One process at a time, the same on Linux, macOS and Windows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import OutputError
from .console import logger


@contextmanager
def alone(path: Path, busy: str, seconds: float = 0.0, patient: bool = False) -> Iterator[None]:
    """Hold a lock file while the block runs; the lock of a process that ends, in any way, is free.

    Args:
        path: the lock file, empty, made here and removed at the end. The lock of a folder that is
            replaced lies beside the folder.
        busy: the message if another process holds the lock after `seconds`.
        seconds: to wait for another process.
        patient: show `busy` and go on waiting, instead of raising an error.

    Raises:
        OutputError: another process holds the lock, or the file is no lock, since a lock is empty.
        OSError: the lock file cannot be written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "lock"
    >>> with alone(path, "busy"), alone(path, "another process is writing"):
    ...     pass
    Traceback (most recent call last):
        ...
    tempera.errors.OutputError: another process is writing
    """
    from filelock import FileLock, Timeout  # it takes time to load

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and (path.is_dir() or path.stat().st_size):
        raise OutputError(
            f"{path} holds something, so it is no lock of Tempera: move it, or give another --output"
        )
    # An OSError if no file can be made, which the lock would take for another process.
    path.touch()
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds, poll_interval=0.1)
    except Timeout:
        if not patient:
            raise OutputError(busy) from None
        logger.info(busy)
        lock.acquire(poll_interval=0.1)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes the file on release
            path.unlink()
        lock.release()
