"""Decisions on the columns of a table, as a short table in the first lines of a run's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import one_line

NOT_READ = "not read"  # the role of a column that has none
KEPT = "kept"  # and of one whose values are kept with the documents
_ORDER = (KEPT, NOT_READ)  # of the columns without a role, behind those with one
_WIDEST = 40  # letters of a name that are shown


@dataclass(frozen=True)
class Decision:
    """The role of a column, and the reason.

    Args:
        column: the name of the column, or the names of several columns.
        role: for instance query; `KEPT` or `NOT_READ` for a column without a role.
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
    in_order = sorted(decisions, key=_place)
    names = [_short(each.column) for each in in_order]
    roles = [_called(each.role) for each in in_order]
    width = max(map(len, names), default=0)
    width_of_roles = max(map(len, roles), default=0)
    lines = [where]
    for name, role, each in zip(names, roles, in_order, strict=True):
        line = f"  {name:<{width}}  {role:<{width_of_roles}}  {one_line(each.reason)}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _place(decision: Decision) -> int:
    """Return the place of a decision in the table: roles first."""
    if decision.role in _ORDER:
        return 1 + _ORDER.index(decision.role)
    return 0


def _called(role: str) -> str:
    return role if role in _ORDER else f"read as {role}"


def _short(name: str) -> str:
    """Return a name for the table: in a single line, and cut if long."""
    name = one_line(name) or "a column without a name"
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 3]}..."
