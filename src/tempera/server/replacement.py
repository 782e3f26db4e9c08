"""Runs that are replaced on disk, taken over while the server goes on.

A run that is written again, or swapped by a rename, is opened and warmed beside the open one, and
then takes its place: requests that wait keep the run that they were given. The old files stay
readable until the last of them is answered, since an open file outlives its name. A run that does
not open is refused once, and the old one goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread
from time import perf_counter
from typing import TypeVar

from ..errors import TemperaError
from ..io.console import logger
from ..io.manifest import refuse_damaged
from .opened_run import OpenedRun, State, state_of

Change = TypeVar("Change")

EVERY = 1.0  # seconds between two looks at a folder


class Replacement:
    """Look at the folders of runs, and take over the runs that are replaced.

    Args:
        runs: returns the open runs, by name.
        take: is called in the watching thread with a run to take over.
        refuse: is called there with the name of a run that does not open.
        every: seconds between two looks.
    """

    def __init__(
        self,
        runs: Callable[[], dict[str, OpenedRun]],
        take: Callable[[OpenedRun], None],
        refuse: Callable[[str], None],
        every: float = EVERY,
    ) -> None:
        self.runs = runs
        self.take = take
        self.refuse = refuse
        self.every = every
        self.refused: dict[str, State] = {}
        self._opening = Lock()
        self._stopped = Event()
        self._thread = Thread(target=self._watch, name="tempera-watch", daemon=True)

    def start(self) -> None:
        """Start to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to look."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self.every):
            for name in self.runs():
                with self._opening:
                    self.look(name)

    def changed(self, name: str, change: Callable[[Path], Change]) -> Change:
        """Change the folder of a run, take the new run over, and return the result of the change.

        Raises:
            TemperaError: the change is impossible, and the folder is as before.
        """
        with self._opening:
            run = self.runs()[name]
            result = change(run.folder)
            self.take(_opened_whole(run))
        return result

    def look(self, name: str) -> None:
        """Look at the folder of a run once."""
        run = self.runs()[name]
        state = state_of(run.folder)
        # A folder that is not there is about to be swapped, or was taken away by mistake.
        if state is None or state in (run.state, self.refused.get(run.name)):
            return
        began = perf_counter()
        try:
            new = _opened_whole(run)
            if new.recommends != run.recommends:
                logger.info(f"{run.name} was a run of another kind")
        except Exception as error:
            if state_of(run.folder) != state:
                return  # it is still being written: the next look tells
            self.refused[run.name] = state
            self.refuse(run.name)
            logger.error(f"refused: the new {run.name} does not open: {_line(error)}")
            return
        self.refused.pop(run.name, None)
        self.take(new)
        logger.info(f"taken over: the new {run.name}, open after {perf_counter() - began:.1f} s")


def _opened_whole(run: OpenedRun) -> OpenedRun:
    """Return the run that is in the folder of a run now, open and warm, with every file as its
    manifest says.

    Raises:
        TemperaError: the run does not open, or is being written.
    """
    refuse_damaged(run.folder)
    new = OpenedRun(run.name, run.folder)
    new.warm_rest()
    new.refuse_changed()
    return new


def _line(error: Exception) -> str:
    if isinstance(error, TemperaError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"


def open_all(folders: dict[str, Path]) -> dict[str, OpenedRun]:
    """Return all runs, open and warm. A large file is compared with its manifest block by block, on
    the first reading of each, and not as a whole, which would take longer than a first answer.

    Raises:
        TemperaError: a run does not open.
    """
    return {name: OpenedRun(name, folder) for name, folder in folders.items()}
