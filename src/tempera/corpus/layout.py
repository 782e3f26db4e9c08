"""The common parts of every run folder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import DataError, is_whole
from ..io.untrusted import refuse_unsafe
from ..task.run_files import HISTORIES
from ..towers.saved import fingerprint
from .index import Index


def refuse_depth(k: Any) -> None:
    """Raise DataError for a number of results below 1, or no whole number."""
    if not is_whole(k):
        raise DataError(f"k is {k!r}; expected a whole number of at least 1")
    if k < 1:
        raise DataError(f"k is {k}; expected at least 1")


class RunFolder:
    """Open the folder of a run, of texts or of interactions.

    Raises:
        DataError: a missing folder, if `must_exist`, or a link out of the folder.
    """

    def __init__(self, folder: str | Path, must_exist: bool = True) -> None:
        self.folder = Path(folder)
        if must_exist and not self.folder.is_dir():
            raise DataError(f"no such run: {folder}")
        refuse_unsafe(self.folder)

    @cached_property
    def index(self) -> Index:
        """Documents or items to search, with vectors."""
        if (self.folder / "modules.json").is_file():
            raise DataError(
                f"{self.folder} is a saved model without documents to search: give the folder of a run"
            )
        if not (folder := self.folder / "index").is_dir():
            raise DataError(
                f"{self.folder} is not an index: it is no run that has ended, since {folder} is missing"
            )
        return Index(folder)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the model, also held by an index."""
        return fingerprint(self.folder / "model")

    @property
    def recommends(self) -> bool:
        """True for a run on interactions."""
        return (self.folder / HISTORIES).is_file()
