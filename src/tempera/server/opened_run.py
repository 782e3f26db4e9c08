"""A run that is open and warm: all its files are read, and nothing is opened by a request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..artifacts.run_folder import Run
from ..errors import DataError
from ..task.run_files import WORDS
from ..towers.saved import is_static
from ..towers.word_ids import UNKNOWN

# The state of a folder: name, inode, time and size of each file.
State = tuple[tuple[str, int, int, int], ...]

_WARM = "a first query"
# Folders of a run that no answer depends on, and files for people.
_ASIDE = {"export", "checkpoints", "evaluated"}
_FOR_PEOPLE = (".html", ".md", ".svg", ".png", ".partial", ".lock")


def state_of(folder: Path) -> State | None:
    """Return the state of a run's files; None while the folder is not there.

    A folder that is replaced, and a file that is replaced or written, have another state.
    """
    try:
        state = []
        for here, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name not in _ASIDE]
            for name in files:
                if not name.endswith(_FOR_PEOPLE):
                    path = os.path.join(here, name)
                    about = os.stat(path)
                    state.append((path, about.st_ino, about.st_mtime_ns, about.st_size))
    except OSError:
        return None
    return tuple(sorted(state)) or None


class OpenedRun:
    """A run that is open, with what a request has to know about it.

    Args:
        name: by which requests ask for it.
        folder: of the run.

    Raises:
        TemperaError: the run does not open.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.state = state_of(folder)
        self.run = Run(folder)
        self.results: dict[str, Any] = self.run.results
        self.recommends = self.run.recommends
        self.created = int((folder / "metrics.json").stat().st_mtime)
        self.documents = len(self.run.index.documents)
        self.columns: list[str] = list(self.run.index.columns.column_names)
        self.is_static = False
        self.is_calibrated = False
        self.has_words = False
        self.unknown_score: float | None = None
        if self.recommends:
            self._warm_recommender()
        else:
            self._warm_texts()

    def _warm_texts(self) -> None:
        """Open the model, the vectors and the calibration, and search once."""
        self.is_static = is_static(self.folder / "model")
        self.has_words = (self.folder / WORDS).is_file()
        hits = self.run.search(_WARM, k=1, exact=False)
        self.is_calibrated = bool(hits) and hits[0].probability is not None
        self.width = self.run.encode([_WARM]).shape[1]
        if self.is_static:
            hits = self.run.search(UNKNOWN, k=1, exact=False)
            self.unknown_score = hits[0].score if hits else None

    def warm_rest(self) -> None:
        """Open the index of words, for which a first answer by vectors need not wait."""
        if not self.recommends and self.has_words:
            self.run.search(_WARM, k=1, hybrid=True, exact=False)

    def _warm_recommender(self) -> None:
        """Open the towers, the histories and the counts by a recommendation to a first user."""
        from .held_histories import hold_histories

        recommender = self.run.recommender
        hold_histories(recommender)
        self.has_words = recommender.counts is not None
        self.columns = recommender.items.table.column_names  # of a filter (where)
        users = recommender.users.table["id"]
        if len(users) > 1:
            recommender.recommend(users[0].as_py(), k=1)
        else:
            recommender.recommend(history=[], k=1)

    def users(self, prefix: str, limit: int) -> list[str]:
        """Return the first users of a recommender whose ids begin with a prefix."""
        import pyarrow.compute as pc

        ids = self.run.recommender.users.table["id"][:-1]  # the last is an unknown user
        names: list[str] = ids.filter(pc.starts_with(ids, prefix))[:limit].to_pylist()
        return names

    @property
    def facts(self) -> dict[str, Any]:
        """The run among the models of the server, in OpenAI's form."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tempera",
            "kind": "recommender" if self.recommends else "texts",
            "documents": self.documents,
            "calibrated": self.is_calibrated,
            "hybrid": self.has_words,
            "columns": self.columns,
        }

    def refuse_changed(self) -> None:
        """Raise DataError if a file was replaced while the run was being opened."""
        if self.state is None or state_of(self.folder) != self.state:
            raise DataError(f"{self.folder} is being written")
