"""Columns by role: the columns named by options, else the columns with usual names; a column
without a role is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import ConfigError, DataError, article, did_you_mean, quantity
from .tables import TableBlock, refuse_repeated

Columns = Mapping[str, tuple[str, ...]]  # of each role that a table has
# Letters of the longest name of a column; a longer name is the first row of a table without names.
_LONGEST_NAME = 40
_SHOWN = 9  # usual names that a message has
# The numbers of rows, which pandas keeps where it has left rows out.
_INDEX = re.compile(r"__index_level_\d+__")


def plain(name: str) -> str:
    """Return a name without case and signs: user_id, userId and UserID are equal.

    >>> plain("User-ID")
    'userid'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True)
class RoleTable:
    """The possible roles of the columns of a table, and the usual names of each role, without case
    and signs.

    Args:
        usual: usual names of each role's columns.
        needed: roles of every table.
        numbered: patterns of further usual names, by role; a role with patterns may have several
            columns.
        unread: names of columns never to be read.

    >>> from types import SimpleNamespace
    >>> table = RoleTable({"user": ("user", "user_id"), "item": ("item",)}, ("user", "item"))
    >>> table.columns(SimpleNamespace(user=None, item="sku", metadata=()), ["User-ID", "sku"], "a.csv")
    {'user': ('User-ID',), 'item': ('sku',)}
    """

    usual: Mapping[str, tuple[str, ...]]
    needed: tuple[str, ...]
    numbered: Mapping[str, re.Pattern[str]] | None = None
    unread: tuple[str, ...] = ()

    def columns(self, options: Any, names: Sequence[str], where: str) -> Columns:
        """Return the columns of every role in a table.

        Args:
            options: has an attribute for each role, None or the chosen columns, and `metadata`:
                columns not to be read, ["*"] for all without a role.
            names: all columns of the table.
            where: the name of the table in messages.

        Raises:
            DataError: a missing, ambiguous or repeated column, or a column without a role; the
                message names the choices.
            ConfigError: a column with two roles.
        """
        refuse_repeated(names, where)
        chosen = {role: _tuple(getattr(options, role)) for role in self.usual}
        taken = dict.fromkeys(options.metadata, "metadata")
        for role, of_role in chosen.items():
            taken.update(dict.fromkeys(of_role or (), role))
        free = [name for name in names if name not in taken]
        columns = {}
        for role in self.usual:
            columns[role] = self._columns(role, chosen[role], free, names, where)
        for role in self.needed:
            if not columns[role]:
                self._refuse_absent(role, taken, names, where)
        self._refuse_unknown(columns, options.metadata, names, where)
        return {role: of_role for role, of_role in columns.items() if of_role}

    def suits(self, options: Mapping[str, Any], names: Sequence[str]) -> bool:
        """Return True if options or usual names give a column to every needed role of a table.

        >>> RoleTable({"user": ("user",), "item": ("item",)}, ("user", "item")).suits({"item": "sku"}, ["User", "sku"])
        True
        """
        return all(self.has(role, options, names) for role in self.needed)

    def chosen(self, options: Mapping[str, Any]) -> list[str]:
        """Return the columns of the options for any role.

        >>> RoleTable({"user": ("user",), "item": ("item",)}, ()).chosen({"item": "sku", "path": "a"})
        ['sku']
        """
        names = list[str]()
        for role in self.usual:
            names += _tuple(options.get(role)) or ()
        return names

    def has(self, role: str, options: Mapping[str, Any], names: Sequence[str]) -> bool:
        """Return True if an option or a usual name gives a column to a role."""
        return bool(options.get(role) or self.usual_columns(role, names))

    def usual_columns(self, role: str, names: Sequence[str]) -> list[str]:
        """Return the columns with usual names of a role."""
        usual = set(map(plain, self.usual[role]))
        return [name for name in names if plain(name) in usual]

    def options(self, columns: Columns) -> dict[str, Any]:
        """Return the options that choose some columns."""
        options: dict[str, Any] = {}
        for role, names in columns.items():
            has_several = self.numbered is not None and role in self.numbered
            options[role] = names if has_several else names[0]
        return options

    def _columns(
        self,
        role: str,
        chosen: tuple[str, ...] | None,
        free: Sequence[str],
        names: Sequence[str],
        where: str,
    ) -> tuple[str, ...]:
        """Return the columns of a role: the chosen columns, else the free columns with usual
        names."""
        if chosen is not None:
            for name in chosen:
                if name not in names:
                    near = did_you_mean(name, names)
                    raise DataError(
                        f"{where} has no column {name!r} for data.{role}; it has {', '.join(names)}.{near}"
                    )
            return chosen
        usual = self.usual_columns(role, free)
        if self.numbered is not None and role in self.numbered:
            pattern = self.numbered[role]
            usual.extend(name for name in free if pattern.fullmatch(name))
            return tuple(usual)
        if len(usual) > 1:
            raise DataError(
                f"{where} has {len(usual)} columns that are usual for {article(role)}: {', '.join(usual)}; "
                f"choose with data.{role}={usual[0]} data.metadata=[{','.join(usual[1:])}]"
            )
        return tuple(usual)

    def _refuse_absent(
        self, role: str, role_of: Mapping[str, str], names: Sequence[str], where: str
    ) -> NoReturn:
        has = f"it has {', '.join(names) or 'no columns'}"
        others = self.usual_columns(role, list(role_of))
        if others:
            other = others[0]
            other_role = role_of[other]
            advice = f"give data.{other_role} another column"
            if other_role == "metadata":
                advice = "take it out of data.metadata"
            raise ConfigError(
                f"{where}: column {other!r} is given as {other_role}, and no other is usual for the {role}; {has}: "
                f"{advice}, or name one with data.{role}=COLUMN"
            )
        usual = self.usual[role]
        shown = ", ".join(usual[:_SHOWN])
        if len(usual) > _SHOWN:
            shown += ", ..."
        raise DataError(
            f"{where} has no column that is usual for {article(role)} ({shown}); {has}: "
            f"name one with data.{role}=COLUMN{headless(names)}"
        )

    def _refuse_unknown(
        self, columns: Columns, metadata: Sequence[str], names: Sequence[str], where: str
    ) -> None:
        """Refuse columns with two roles, and columns without a role, apart from metadata and from
        numbers of rows."""
        role_of = dict.fromkeys(metadata, "metadata")
        for role, of_role in columns.items():
            for name in of_role:
                if name in role_of:
                    raise ConfigError(
                        f"{where}: column {name!r} is given as {role_of[name]} and as {role}; keep one"
                    )
                role_of[name] = role
        unknown = []
        for name in names:
            if name in role_of or name in self.unread or _INDEX.fullmatch(name):
                continue
            unknown.append(name)
        if unknown and "*" not in metadata:
            usual = [name for of_role in self.usual.values() for name in of_role]
            near = did_you_mean(unknown[0], usual)
            raise DataError(
                f"{where}: column {unknown[0]!r} has no usual name: give its role as data.ROLE={unknown[0]}, one of "
                f"{', '.join(self.usual)}, or declare it: data.metadata=[{','.join(unknown)}].{near}"
            )


def headless(names: Sequence[str]) -> str:
    """Return an advice for a file with likely data in the first line, since a name is too long; ""
    for any other file."""
    if max(map(len, names), default=0) <= _LONGEST_NAME:
        return ""
    return ", or begin the file with a line of names, if its first line holds none"


class ColumnsSoFar:
    """The columns of each role, chosen again where a block of rows brings columns absent from
    earlier blocks.

    Args:
        choose: returns the columns of each role, from the names of all columns and the name of the
            table.
        needed: roles with a column in every file.
    """

    def __init__(
        self, choose: Callable[[Sequence[str], str], Columns], needed: Sequence[str] = ()
    ) -> None:
        self.choose = choose
        self.needed = needed
        self.files: list[str] = []
        self.names: list[str] = []
        self.columns: Columns = {}
        self._noted: dict[str, set[str]] = {}  # the files of each note

    def of(self, blocks: Iterable[TableBlock]) -> Iterator[TableBlock]:
        """Pass on the blocks whose files hold rows; `columns` are the columns of the latest
        block."""
        for block in blocks:
            for note in block.notes:
                self._noted.setdefault(note, set()).add(block.file)
            if not len(block.table) and block.origin is None:
                continue
            names = block.table.column_names
            if block.file not in self.files:
                self._refuse_other_table(block.file, names)
                self.files.append(block.file)
            new = [name for name in names if name not in self.names or names.count(name) > 1]
            if new or not self.columns:
                where = block.file
                earlier = [name for name in self.names if name not in names]
                if earlier:
                    where += f" with what was read before it ({', '.join(earlier)})"
                self.names.extend(new)
                self.columns = self.choose(self.names, where)
            yield block

    def _refuse_other_table(self, file: str, names: Sequence[str]) -> None:
        """Refuse a file that is no part of the table read before: the file shares no column with
        the table, or lacks the columns of a needed role."""
        if not self.files:
            return
        lacking = [role for role in self.needed if set(self.columns[role]).isdisjoint(names)]
        if set(names).isdisjoint(self.names):
            why = "shares none of them"
        elif lacking:
            why = f"lacks {' and '.join(self.columns[role][0] for role in lacking)}"
        else:
            return
        raise DataError(
            f"{file} has the columns {', '.join(names)}, and {self.files[0]} has {', '.join(self.names)}: "
            f"it {why}, so they are no parts of one table; give one of them as data.path, or the folder of a retrieval set "
            "with tables called corpus, queries and qrels"
        )

    @property
    def unread(self) -> list[str]:
        """Return the columns without a role."""
        with_role = set[str]()
        for names in self.columns.values():
            with_role.update(names)
        return [name for name in self.names if name not in with_role]

    @property
    def notes(self) -> list[str]:
        """Return the notes on unusual forms of the files, as parts of a sentence."""
        notes = []
        for note, files in self._noted.items():
            several = ""
            if len(files) > 1:
                several = f" and {quantity(len(files) - 1, 'other files')}"
            notes.append(f"{min(files)}{several}: {note}")
        return notes

    def sentence(self, file: str, rows: str) -> str:
        """Return a sentence with the columns of each role, and the columns not read.

        Args:
            file: the name of the table.
            rows: the noun for the rows.
        """
        roles = ", ".join(f"{role} = {', '.join(names)}" for role, names in self.columns.items())
        parts = [f"{file} holds {rows}: {roles}"]
        unread = [name or "a column without a name" for name in self.unread]
        if unread:
            parts.append(f"not read: {', '.join(unread)}")
        return "; ".join(parts + self.notes)


def _tuple(columns: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    if isinstance(columns, str):
        return (columns,)
    return columns
