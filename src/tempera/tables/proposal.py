"""Decisions on the columns of a table, as a short table in the first lines of a run's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import one_line

NOT_READ = "not read"  # the role of a column that has none
_WIDEST = 40  # letters of a name that are shown


@dataclass(frozen=True)
class Decision:
    """The role of a column, and the reason.

    Args:
        column: the name of the column, or the names of several columns.
        role: for instance query; `NOT_READ` for a column without a role.
        reason: the words behind the role: "by its name", "its texts are longer", "an option".
    """

    column: str
    role: str
    reason: str


def decision_table(decisions: Sequence[Decision], where: str) -> str:
    """Return decisions as a table for people, a line for each column, columns with a role first.

    Args:
        decisions: of every column.
        where: the name of the table, and the noun for its rows.

    >>> print(decision_table([Decision("label", NOT_READ, "holds yes and no"), Decision("question", "query", "by its name")],
    ...                      "faq.csv: pairs"))
    faq.csv: pairs
      question  read as query  by its name
      label     not read       holds yes and no
    """
    read = [each for each in decisions if each.role != NOT_READ]
    rest = [each for each in decisions if each.role == NOT_READ]
    rows = [
        (_short(each.column), _called(each.role), one_line(each.reason)) for each in [*read, *rest]
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    lines = [
        f"  {name:<{widths[0]}}  {role:<{widths[1]}}  {reason}".rstrip()
        for name, role, reason in rows
    ]
    return "\n".join([where, *lines])


def _called(role: str) -> str:
    return role if role == NOT_READ else f"read as {role}"


def _short(name: str) -> str:
    """Return a name for the table: in a single line, and cut if long."""
    name = one_line(name) or "a column without a name"
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 3]}..."
