"""The folder of a run: what every one has."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..errors import DataError
from ..io.untrusted import refuse_unsafe
from ..recommend.timeline import HISTORIES
from ..towers.saved import fingerprint
from .index import Index


class RunFolder:
    """What every run has, of texts or of interactions.

    Raises:
        DataError: no such folder, where it has to be there, or one with a link that leads out of it.
    """

    def __init__(self, folder: str | Path, there: bool = True) -> None:
        self.folder = Path(folder)
        if there and not self.folder.is_dir():
            raise DataError(f"no such run: {folder}")
        refuse_unsafe(self.folder)

    @cached_property
    def index(self) -> Index:
        """What is searched in: documents or items, with their vectors."""
        return Index(self.folder / "index")

    @cached_property
    def fingerprint(self) -> str:
        """Which model this is: the index says by which one it was made."""
        return fingerprint(self.folder / "model")

    @property
    def recommends(self) -> bool:
        """Whether it is a run on interactions."""
        return (self.folder / HISTORIES).is_file()
