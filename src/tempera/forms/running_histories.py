"""Rows of a history and its next item, as events without repeats."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..errors import DataError
from ..tables.tables import TableBlock


@dataclass
class RunningHistories:
    """Find the events of each row beyond the earlier rows of the same user.

    Data for sequential recommenders repeat a user's history in every row: `a | b`, `a b | c`, `a b
    c | d`, sometimes cut to the latest items, or the longest first. A row adds its history and its
    item. If the known events of the user end with the history, the row adds the item alone. If the
    known events begin with history and item, the row adds nothing. Without users, rows that
    continue each other are a session.

    >>> import pyarrow as pa
    >>> running = RunningHistories("items", "item")
    >>> block = TableBlock(pa.table({"user": [7, 7, 8]}), "a.inter")
    >>> running.added(block, [7, 7, 8], [["a", "b"], ["a", "b", "c"], ["d"]], ["c", "d", "a"])[0]
    [['a', 'b', 'c'], ['d'], ['d', 'a']]
    """

    history: str  # column
    item: str  # column of what follows
    known: dict[Hashable, list[Any]] = field(default_factory=dict)  # events of each user so far
    sessions: int = 0  # without users

    def added(
        self,
        block: TableBlock,
        users: Sequence[Hashable] | None,
        histories: Sequence[list[Any] | None],
        items: Sequence[Any],
    ) -> tuple[list[list[Any]], list[int] | None]:
        """Return the new items of each row, [r]; without users, also the session of each row.

        Raises:
            DataError: a row that neither continues nor repeats the events of its user's earlier
                rows.
        """
        added = list[list[Any]]()
        sessions = list[int]()
        for row, (history, item) in enumerate(zip(histories, items, strict=True)):
            whole = list(history or ())
            if item is not None:
                whole.append(item)
            if users is None:
                if self._new(self.known.get(self.sessions, []), history or [], whole) is None:
                    self.known.pop(self.sessions, None)
                    self.sessions += 1
                user: Hashable = self.sessions
                sessions.append(self.sessions)
            else:
                user = users[row]
            known = self.known.setdefault(user, [])
            new = self._new(known, history or [], whole)
            if new is None and {*known}.isdisjoint(history or ()):
                new = whole  # another session of the same user
            if new is None:
                self._refuse(block, row, user)
            known += new
            added.append(new)
        return added, sessions if users is None else None

    def _new(self, known: list[Any], history: list[Any], whole: list[Any]) -> list[Any] | None:
        """Return the new items of a row; None if the row neither continues nor repeats the known
        items."""
        if not known or whole[: len(known)] == known:
            return whole[len(known) :]
        if known[: len(whole)] == whole:
            return []
        if history == known[len(known) - len(history) :]:
            return whole[len(history) :]
        return None

    def _refuse(self, block: TableBlock, row: int, user: Hashable) -> NoReturn:
        raise DataError(
            f"{block.file}, row {block.number(row)}: column {self.history!r} does not go on from the row of {user!r} "
            f"before it: sort the rows of a user by the length of {self.history!r}, or read each row as a session "
            f"without what follows it, with data.item={self.history} data.metadata=[{self.item}]"
        )
