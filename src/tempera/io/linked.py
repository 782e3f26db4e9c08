"""Copies of folders in which unchanged files are shared with the original."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path


def linked_copy(source: Path, folder: Path, without: Collection[str] = ()) -> None:
    """Fill a folder with the files of another one: hard links where the disk has them, else copies.

    A file that is to change has to be left out, or be removed before it is written again: a link is
    the file of the other folder, too.

    Args:
        source: the folder with the files.
        folder: an existing folder.
        without: names in `source` of files to leave out.

    >>> import tempfile
    >>> old, new = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    >>> for name in ("a", "b"):
    ...     size = (old / name).write_text(name)
    >>> linked_copy(old, new, without=["b"])
    >>> sorted(path.name for path in new.iterdir()), (old / "a").stat().st_nlink
    (['a'], 2)
    """
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        place = folder / name
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif name not in without:
            _link(Path(os.path.realpath(path)), place)


def _link(path: Path, place: Path) -> None:
    """Make a hard link to a file, or a copy on a disk without hard links."""
    try:
        os.link(path, place)
    except OSError:
        shutil.copy2(path, place)
