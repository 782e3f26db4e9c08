"""The folder of a sweep or a tuning, which goes on with what it holds."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import OutputError
from .outcome import write_whole


def claim(folder: Path, name: str, about: str, what: str, overwrite: bool) -> None:
    """Make the folder, or take up what it holds.

    Args:
        name: of the file that says what the folder is of.
        about: its content.
        what: is to be in the folder, in words.
        overwrite: forget what it holds.

    Raises:
        OutputError: it holds something else.
    """
    known = folder / name
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--output {folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not known.is_file():
        raise OutputError(f"--output {folder} holds files that are not a {what}; give another folder")
    if overwrite and known.is_file():
        shutil.rmtree(folder)
    if known.is_file() and known.read_text(encoding="utf-8") != about:
        raise OutputError(
            f"--output {folder} holds a {what} of another configuration ({known}); give another folder, or --overwrite"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from None
    write_whole(known, about.encode())
