"""Folders that others may have written: names that stay inside them, and JSON that is JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import DataError


def parsed(text: str | bytes) -> Any:
    """What a text of JSON says.

    Raises:
        ValueError: it is not JSON, or nested too deeply to be read.

    >>> parsed("[1, 2]")
    [1, 2]
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextmanager
def without_panics() -> Iterator[None]:
    """Libraries in Rust may panic over a damaged file, and their panic is not an Exception: make it one.

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
    """A name that a file of the folder gives for another one of its files or folders.

    Raises:
        DataError: it leads out of the folder.

    >>> inside(Path("model"), "0_Static").as_posix()
    'model/0_Static'
    >>> inside(Path("model"), "../../etc")
    Traceback (most recent call last):
        ...
    tempera.errors.DataError: model: '../../etc' leads out of the folder, and what it holds has to lie inside
    """
    if name.startswith("/") or "\0" in name or ".." in Path(name).parts:
        raise DataError(f"{folder}: {name!r} leads out of the folder, and what it holds has to lie inside")
    return folder / name


def refuse_links_out(folder: Path) -> None:
    """Refuse a folder with a link that leads out of it: it would show, or copy, what its writer was never given.

    Links of the Hugging Face hub's cache, from a snapshot to the files of the same repository, stay.

    Raises:
        DataError: says which link.
    """
    root = folder.resolve()
    around = root.parent.parent if root.parent.name == "snapshots" else root
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and not path.resolve().is_relative_to(around):
                raise DataError(f"{path} is a link that leads out of {folder}: put what it stands for in its place")
