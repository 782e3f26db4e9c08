"""Columns by their names: those that are given for a role, else the usual ones; none is read without a role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import ConfigError, DataError, did_you_mean


def plain(name: str) -> str:
    """A name without case and signs: user_id, userId and UserID are one.

    >>> plain("User-ID")
    'userid'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def columns_of(
    names: Sequence[str],
    usual: Mapping[str, Sequence[str]],
    given: Mapping[str, str | None],
    metadata: Sequence[str],
    where: str,
) -> dict[str, str]:
    """The column of every role that a table has.

    Args:
        names: columns of the table.
        usual: usual names of each role's column, as `plain` makes them.
        given: the column of each role, None to look for a usual one.
        metadata: columns that are not read; ["*"] is all without a role.
        where: what to call the table in messages.

    Raises:
        DataError: a column that is missing, ambiguous, without role or there twice; says what there is to choose.
        ConfigError: one that is given two roles.

    >>> columns_of(["userId", "movieId"], {"user": ["userid"], "item": ["movieid"]}, {}, (), "a.csv")
    {'user': 'userId', 'item': 'movieId'}
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where} has {names.count(twice)} columns named {twice!r}; give each column a name of its own")
    free = [name for name in names if name not in (*given.values(), *metadata)]
    found: dict[str, str] = {}
    for role in usual:
        name = given.get(role) or _usual(role, usual[role], free, where)
        if name is None:
            continue
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r} for data.{role}; it has {', '.join(names)}.{did_you_mean(name, names)}"
            )
        other = next((before for before, column in found.items() if column == name), None)
        if other or name in metadata:
            raise ConfigError(f"{where}: column {name!r} is given as {other or 'metadata'} and as {role}; keep one")
        found[role] = name
    _refuse_unknown([name for name in free if name not in found.values()], usual, metadata, where)
    return found


def _usual(role: str, usual: Sequence[str], free: Sequence[str], where: str) -> str | None:
    matching = [name for name in free if plain(name) in usual]
    if len(matching) > 1:
        raise DataError(
            f"{where} has {len(matching)} columns that are usual for a {role}: {', '.join(matching)}; "
            f"choose with data.{role}={matching[0]} data.metadata=[{','.join(matching[1:])}]"
        )
    return matching[0] if matching else None


def _refuse_unknown(
    unknown: Sequence[str], usual: Mapping[str, Sequence[str]], metadata: Sequence[str], where: str
) -> None:
    if unknown and "*" not in metadata:
        raise DataError(
            f"{where}: column {unknown[0]!r} has no usual name: give its role as data.ROLE={unknown[0]}, one of "
            f"{', '.join(usual)}, or declare it: data.metadata=[{','.join(unknown)}]."
            f"{did_you_mean(plain(unknown[0]), [name for role in usual.values() for name in role])}"
        )
