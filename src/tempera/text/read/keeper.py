"""The columns of a source that a run keeps with its documents (`data.keep`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, NoReturn

import pyarrow as pa

from ...errors import DataError, did_you_mean
from ...tables.columns import plain
from ...tables.kept_columns import (
    TEXT,
    as_dates,
    columns_of,
    longest,
    plain_values,
    records,
    typed,
    with_records,
)
from ...tables.nested import with_paths
from ...tables.tables import TableBlock
from ...tables.vector_files import COLUMNS

LETTERS = 200  # most letters of the values of a column that is kept without being named
_TOO_LONG = f"some of more than {LETTERS} letters"
_METADATA = ("metadata", "meta")  # records whose fields count as columns
_UNNAMED = re.compile(r"|__index_level_\d+__")  # names of no column, and of pandas' numbers of rows


class Keeper:
    """Keep columns of the rows of one source, block after block.

    Columns of separated values are texts, and get a type at the end, by all of their values.

    Args:
        named: columns to keep, with a role or without; None keeps every column without a role whose
            values have at most 200 letters, and whose type is plain, as
            `tables.kept_columns.plain_values` says. The fields of a record called metadata count as
            columns.
    """

    def __init__(self, named: Sequence[str] | None) -> None:
        self.named = named
        self.left_out: dict[str, str] = {}  # reason for each column that is not kept
        # Ways in which the files of a column have values, of columns with any.
        self._forms: dict[str, set[str]] = {}
        self._holders: dict[str, str] = {}  # the record of each column that is a field of metadata

    @property
    def names(self) -> list[str]:
        """The columns kept so far."""
        return [name for name in self._forms if name not in self.left_out]

    @property
    def columns(self) -> set[str]:
        """The columns of the table that are kept so far, whole or with some of their fields."""
        return {self._holders.get(name, name) for name in self.names}

    def refuse_absent(self, names: Sequence[str], table: pa.Table, where: str) -> None:
        """Raise DataError for a named column that a table lacks.

        Args:
            names: the columns of the table that a message lists.
            table: the first rows.
            where: the name of the table.
        """
        table = with_paths(TableBlock(table, where), self.named or ()).table
        present = [each.name for each in _every(table)]
        for name in self.named or ():
            if name not in present:
                near = did_you_mean(name, present)
                raise DataError(
                    f"{where} has no column {name!r} for data.keep; it has {', '.join(names)}.{near}"
                )

    def of(
        self, block: TableBlock, with_role: Collection[str], texts: Collection[str] = ()
    ) -> pa.StructArray | None:
        """Return the kept columns of a block as records, [r]; None if it has none.

        Args:
            block: some rows.
            with_role: columns that are only kept if they are named.
            texts: columns of the documents' own texts, which the run keeps anyway.

        Raises:
            DataError: a named column of lists, records or bytes, or of the documents' texts.
        """
        if self.named is not None and not self.named:
            return None
        if self.named is not None:
            block = with_paths(block, self.named)
        kept: dict[str, pa.Array] = {}
        for name, column, holder in _every(block.table):
            if name in self.left_out or not self._is_wanted(name, with_role):
                continue
            if name in texts:
                _refuse(block, name, "holds the texts of the documents, which are kept anyway")
            if self.named is None and longest(column) > LETTERS:
                self.left_out[name] = _TOO_LONG
                continue
            values = plain_values(column)
            if values is not None:
                if block.values == "json":
                    values = as_dates(values)
                if values.null_count < len(values):
                    self._forms.setdefault(name, set()).add(block.values)
                self._holders[name] = holder
                kept[name] = values
            elif self.named is None:
                self.left_out[name] = ""
            else:
                _refuse(block, name, f"holds {column.type}; only single values can be kept")
        return records(kept) if kept else None

    def typed(self, table: pa.Table) -> pa.Table:
        """Return rows of files of one form with the types of separated values, [n]."""
        if COLUMNS not in table.column_names:
            return table
        columns = columns_of(table[COLUMNS])
        for name, column in columns.items():
            if self._forms.get(name) == {"texts"} and column.type == TEXT:
                columns[name] = typed(column)
        return with_records(table, columns)

    def settled(self, table: pa.Table) -> pa.Table:
        """Return all rows with the columns that are kept in the end, [n]."""
        table = self.typed(table)
        if COLUMNS not in table.column_names:
            return table
        kept = {}
        for name, column in columns_of(table[COLUMNS]).items():
            is_empty = name not in self._forms
            if name in self.left_out or (is_empty and self.named is None):
                continue
            kept[name] = column.cast(TEXT) if pa.types.is_null(column.type) else column
        return with_records(table, kept)

    def whole(
        self, block: TableBlock, with_role: Collection[str], texts: Collection[str]
    ) -> pa.ChunkedArray | None:
        """Return the kept columns of a block with all rows of a source, as `of` and `settled` do."""
        kept = self.of(block, with_role, texts)
        if kept is None:
            return None
        table = self.settled(pa.table({COLUMNS: kept}))
        return table[COLUMNS] if COLUMNS in table.column_names else None

    def _is_wanted(self, name: str, with_role: Collection[str]) -> bool:
        """Return True if a column may be kept."""
        if self.named is not None:
            return name in self.named
        return name not in with_role and _UNNAMED.fullmatch(name) is None


class _Column(NamedTuple):
    """A column of a table, or a field of a record that counts as one."""

    name: str
    values: pa.ChunkedArray
    holder: str  # the column of the table


def _every(table: pa.Table) -> Iterator[_Column]:
    """Yield the columns of a table, and the fields of its metadata."""
    names = table.column_names
    for name, column in zip(names, table.columns, strict=True):
        if names.count(name) > 1:
            continue
        yield _Column(name, column, name)
        if plain(name) in _METADATA and pa.types.is_struct(column.type):
            for field, values in columns_of(column).items():
                own = f"{name}.{field}" if field in names else field
                yield _Column(own, values, name)


def _refuse(block: TableBlock, name: str, fault: str) -> NoReturn:
    raise DataError(f"{block.file}: column {name!r} {fault}: leave it out of data.keep")
