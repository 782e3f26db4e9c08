"""The runs that a server has open, by name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError, DataError
from .opened_run import OpenedRun
from .refusals import NOT_FOUND, Refused, invalid, unready


class Shelf:
    """Hold the runs of a server; the first is the default.

    Args:
        folders: of the runs; the name of a run is the name of its folder.

    Raises:
        ConfigError: two runs with one name.
        DataError: a folder that is missing.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        # Links are kept: a link may be led to another run, which then is taken over.
        places = [Path(os.path.abspath(folder)) for folder in folders]
        self.folders = {place.name: place for place in places}
        names = Counter(place.name for place in places)
        for name, count in names.items():
            if count > 1:
                raise ConfigError(
                    f"{count} of the runs are named {name!r}, and requests ask for a run by the name "
                    "of its folder: rename one"
                )
        for folder in folders:
            if not folder.is_dir():
                raise DataError(f"no such run: {folder}")
        self.runs: dict[str, OpenedRun] = {}
        self.is_ready = False
        self.is_stopping = False

    def get(self, name: str | None, recommends: bool | None = None) -> OpenedRun:
        """Return a run by its name; without a name, the first, or the first of a kind.

        Args:
            recommends: True for a recommender, False for a run on texts, None for either.

        Raises:
            Refused: the runs are not open yet, or there is no such run.
        """
        if not self.is_ready:
            raise unready("the runs are being opened")
        if name is None:
            return self._first(recommends)
        run = self.runs.get(name)
        if run is None:
            raise Refused(404, NOT_FOUND, f"no such model; the models are: {', '.join(self.runs)}")
        if recommends is not None and run.recommends != recommends:
            raise _other_kind(run)
        return run

    def _first(self, recommends: bool | None) -> OpenedRun:
        """Return the first run; the first of a kind, if one is asked for."""
        for run in self.runs.values():
            if recommends is None or run.recommends == recommends:
                return run
        raise _other_kind(next(iter(self.runs.values())))


def _other_kind(run: OpenedRun) -> Refused:
    if run.recommends:
        return invalid(f"{run.name} is a recommender: ask it at /v1/recommend")
    return invalid(f"{run.name} is a run on texts: ask it at /v1/search")
