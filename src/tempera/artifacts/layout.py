"""The parts that the folder of every run has."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..errors import DataError
from ..io.untrusted import refuse_unsafe
from ..recommend.timeline import HISTORIES
from ..towers.saved import fingerprint
from .index import Index


class RunFolder:
    """Open the folder of a run, of texts or of interactions.

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
        """The documents or items to search, with their vectors."""
        return Index(self.folder / "index")

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the model; an index says by which model it was made."""
        return fingerprint(self.folder / "model")

    @property
    def recommends(self) -> bool:
        """True for a run on interactions."""
        return (self.folder / HISTORIES).is_file()
