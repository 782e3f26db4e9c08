"""The common parts of every run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DataError, TemperaError, is_whole
from ..io.atomic import is_between
from ..io.manifest import MANIFEST
from ..io.untrusted import refuse_unsafe
from ..task.run_files import HISTORIES
from ..towers.saved import fingerprint
from .index import Index

Part = TypeVar("Part")
_TRIES = 20
_PAUSE = 0.05  # seconds between tries, while a folder is being replaced
_STATE = (MANIFEST, "index/documents.arrow")  # files that change with every change of a run


def refuse_depth(k: Any) -> None:
    """Raise DataError for a number of results below 1, or no whole number."""
    if not is_whole(k):
        raise DataError(f"k is {k!r}; expected a whole number of at least 1")
    if k < 1:
        raise DataError(f"k is {k}; expected at least 1")


class RunFolder:
    """Open the folder of a run, of texts or of interactions.

    Parts of a run are opened when they are needed, and stay open. Another process may replace the
    folder meanwhile, as when documents are added: then all parts are opened again, so that parts of
    two states never meet in an answer.

    Raises:
        DataError: a missing folder, if `must_exist`, or a link out of the folder.
    """

    def __init__(self, folder: str | Path, must_exist: bool = True) -> None:
        self.folder = Path(folder)
        self._wait()
        if must_exist and not self.folder.is_dir():
            raise DataError(f"no such run: {folder}")
        refuse_unsafe(self.folder)
        self._state = self._present_state()
        self._replacements = 0  # that were noticed

    @cached_property
    def index(self) -> Index:
        """Documents or items to search, with vectors."""
        return self.opened(self._open_index)

    def _open_index(self) -> Index:
        if (self.folder / "modules.json").is_file():
            raise DataError(
                f"{self.folder} is a saved model without documents to search: give the folder of a run"
            )
        if not (folder := self.folder / "index").is_dir():
            raise DataError(
                f"{self.folder} is not an index: it is no run that has ended, since {folder} is missing"
            )
        return Index(folder)

    def opened(self, part: Callable[[], Part]) -> Part:
        """Return a part of the run that lay in the folder as a whole while it was opened.

        Where the folder was replaced since other parts were opened, these are forgotten.

        Args:
            part: opens the part.

        Raises:
            TemperaError, OSError: the part cannot be opened.
        """
        for _ in range(_TRIES):
            self._wait()
            state = self._present_state()
            if state != self._state:
                self._forget()
                self._state = state
                self._replacements += 1
            try:
                result = part()
            except (TemperaError, OSError):
                if self._present_state() == state and not is_between(self.folder):
                    raise
                continue
            if self._present_state() == state:
                return result
        raise DataError(f"{self.folder} is replaced again and again; try again later")

    def of_one_state(self, answer: Callable[[], Part]) -> Part:
        """Return an answer whose parts are all of one state of the folder.

        Args:
            answer: makes the answer, and opens parts that it needs.
        """
        for _ in range(_TRIES):
            before = self._replacements
            try:
                result = answer()
            except TemperaError:
                if self._replacements == before:
                    raise
                continue
            if self._replacements == before:
                return result
        raise DataError(f"{self.folder} is replaced again and again; try again later")

    def _present_state(self) -> tuple[Any, ...]:
        """Return the state of the files that change with every change of the run."""
        state = list[Any]()
        for name in _STATE:
            try:
                about = (self.folder / name).stat()
                state.append((about.st_ino, about.st_mtime_ns, about.st_size))
            except OSError:
                state.append(None)
        return tuple(state)

    def _wait(self) -> None:
        """Wait for a folder that is just being replaced."""
        for _ in range(_TRIES):
            if not is_between(self.folder):
                return
            time.sleep(_PAUSE)

    def _forget(self) -> None:
        """Forget every part that was opened."""
        for kind in type(self).__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, cached_property):
                    self.__dict__.pop(name, None)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the model, also held by an index."""
        return self.opened(lambda: fingerprint(self.folder / "model"))

    @property
    def recommends(self) -> bool:
        """True for a run on interactions."""
        return (self.folder / HISTORIES).is_file()
