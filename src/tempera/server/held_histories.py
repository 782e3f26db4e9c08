"""The past events of a recommender's users, held in memory.

A run that is replaced on disk while it is served must not be asked for a history again: its file is
then that of another run.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..recommend.judge.past_events import PastEvents, nothing
from ..recommender.recommender import Recommender
from ..recommender.stored_histories import StoredHistories

_SHOWN = 200  # latest items of a history that an answer shows


class HeldHistories(StoredHistories):
    """Hold the histories of all users.

    Args:
        stored: the histories on disk.
    """

    def __init__(self, stored: StoredHistories) -> None:
        super().__init__(stored.path, stored.model, stored.known["items"])
        self.known = stored.known
        self._held = stored.table.combine_chunks()
        names = self._held["id"].cast(pa.large_string()).to_pylist()
        self._row_of = {name: row for row, name in enumerate(names)}
        self.clock  # noqa: B018  # it is read now

    @property
    def table(self) -> pa.Table:
        """The file as it was read."""
        return self._held

    def of(self, user: pa.Scalar) -> PastEvents:
        """Return the past events of one user."""
        row = self._row_of.get(user.as_py())
        if row is None:
            return nothing()
        return self._past(self._held.slice(row, 1))


def past_items(recommender: Recommender, user: Any, history: Any, now: Any) -> list[dict[str, str]]:
    """Return the latest items that a question to a recommender is answered by, each with id and
    name: those of the history given, or those known of the user at the moment."""
    if history is not None:
        codes: Any = recommender.codes(recommender.id_texts("item", history).to_pylist())
    else:
        (name,) = recommender.id_texts("user", [user]).to_pylist()
        position = pc.index(recommender.users.table["id"], name).as_py()
        past = recommender.past(position if name and position >= 0 else None)
        moment = recommender.moment(now)
        if moment is not None:
            past = past.until(moment)
        codes = past.items.each[0]
    documents = recommender.index.documents.select(["id", "name"])
    shown: list[dict[str, str]] = documents.take(pa.array(codes[-_SHOWN:])).to_pylist()
    return shown


def hold_histories(recommender: Recommender) -> None:
    """Read the histories of a recommender once, in place of at each question."""
    recommender.stored = HeldHistories(recommender.stored)
