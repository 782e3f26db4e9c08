"""Rows that hold a history and the item that follows it, as events that come once each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..errors import DataError
from ..tables.tables import TableBlock


@dataclass
class RunningHistories:
    """Find the events that each row adds to the rows of its user before it.

    Data for sequential recommenders repeat a user's history in every row: `a | b`, `a b | c`,
    `a b c | d`, sometimes cut to the latest items, or the longest first. A row adds its history and
    its item, or the item alone if the history is how what is known of the user ends, or nothing if
    what is known begins with both. Without users, rows that continue each other are of one session.

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
        """Return the items that each row adds, [r]; without users, also the session of each row.

        Raises:
            DataError: a row that neither continues nor repeats what its user's rows before it hold.
        """
        added, sessions = list[list[Any]](), list[int]()
        for row, (history, item) in enumerate(zip(histories, items, strict=True)):
            whole = [*(history or ()), *([] if item is None else [item])]
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
        """Return what a row adds; None if it has nothing to do with what is known."""
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
