"""Columns by their names: those that are given for a role, else the usual ones; none is read without a role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..errors import ConfigError, DataError, did_you_mean

_INDEX = re.compile(r"__index_level_\d+__")  # what pandas numbers its rows by, where it has left some out


def plain(name: str) -> str:
    """A name without case and signs: user_id, userId and UserID are one.

    >>> plain("User-ID")
    'userid'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Refuse a table with two columns of one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where} has {names.count(twice)} columns named {twice!r}; give each column a name of its own")


def chosen(
    role: str,
    given: Sequence[str] | None,
    usual: Sequence[str],
    names: Sequence[str],
    where: str,
    many: bool = False,
) -> tuple[str, ...]:
    """The columns of a role: those that are given, or else what the table has of usual names.

    Args:
        given: columns that options name; None to take usual ones.
        usual: columns of the table that have a usual name.
        names: all columns of the table.
        where: what to call the table in messages.
        many: whether the role may have several columns.

    Raises:
        DataError: a given column that is not there, or several usual ones for a role of one.
    """
    for name in given or ():
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r} for data.{role}; it has {', '.join(names)}.{did_you_mean(name, names)}"
            )
    if given is not None:
        return tuple(given)
    if len(usual) > 1 and not many:
        raise DataError(
            f"{where} has {len(usual)} columns that are usual for a {role}: {', '.join(usual)}; "
            f"choose with data.{role}={usual[0]} data.metadata=[{','.join(usual[1:])}]"
        )
    return tuple(usual)


def refuse_absent(
    role: str, usual: Sequence[str], names: Sequence[str], where: str, taken: Mapping[str, str] | None = None
) -> NoReturn:
    """Refuse a table in which a role that every table has was not found.

    Args:
        taken: columns that options give to other roles.
    """
    other = next((name for name in taken or {} if plain(name) in usual), None)
    if taken and other is not None:
        raise ConfigError(
            f"{where}: column {other!r} is given as {taken[other]}, and no other is usual for the {role}; it has "
            f"{', '.join(names)}: give data.{taken[other]} another column, or name one with data.{role}=COLUMN"
        )
    raise DataError(
        f"{where} has no column that is usual for a {role} ({', '.join(usual)}); "
        f"it has {', '.join(names)}: name one with data.{role}=COLUMN"
    )


def refuse_unknown(
    names: Sequence[str],
    found: Mapping[str, Sequence[str]],
    metadata: Sequence[str],
    usual: Mapping[str, Sequence[str]],
    where: str,
) -> None:
    """Refuse columns with two roles, and columns with none that are neither metadata nor pandas' numbers of rows.

    Args:
        names: columns of the table.
        found: the columns of each role.
        metadata: columns that are not read; ["*"] is all without a role.
        usual: usual names of each role's columns.
        where: what to call the table in messages.
    """
    taken: dict[str, str] = {}
    for role, columns in found.items():
        for name in columns:
            if name in taken or name in metadata:
                other = taken.get(name, "metadata")
                raise ConfigError(f"{where}: column {name!r} is given as {other} and as {role}; keep one")
            taken[name] = role
    unknown = [name for name in names if name not in taken and name not in metadata and not _INDEX.fullmatch(name)]
    if unknown and "*" not in metadata:
        known = [name for role in usual.values() for name in role]
        raise DataError(
            f"{where}: column {unknown[0]!r} has no usual name: give its role as data.ROLE={unknown[0]}, one of "
            f"{', '.join(usual)}, or declare it: data.metadata=[{','.join(unknown)}]."
            f"{did_you_mean(unknown[0], known)}"
        )
