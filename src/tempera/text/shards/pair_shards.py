"""Pairs in shards, read a part at a time: a row group of a local Parquet file, or another whole
file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from ...corpora.shard_files import CorpusShard, is_remote, shards_of
from ...corpora.shard_tables import count_groups, pieces
from ...errors import DataError
from ...forms.roles import TABLE, Roles
from ...forms.unfolded import Unfolding
from ...tables.columns import Columns, ColumnsSoFar
from ...tables.proposal import decision_table
from ...tables.tables import TableBlock, ending, refuse_repeated
from ..read.rows import rows_of
from ..read.sources import PairsFile, TablePlan, checked_constants, plan_of


@dataclass(frozen=True)
class ShardPart:
    """The rows that are read together, in order.

    Args:
        shard: the file.
        group: number of the row group of a Parquet file; None is the whole file.
    """

    shard: CorpusShard
    group: int | None = None


class PairShards:
    """The shards of a source of pairs, with the roles of the columns by the first rows.

    Args:
        source: the options of the user.

    Raises:
        DataError: no shard, an unreadable one, or columns that tell no query or document.
    """

    def __init__(self, source: PairsFile) -> None:
        self.options = source
        self.shards = shards_of([source.path])
        first = self._first_block()
        refuse_repeated(first.table.column_names, first.file)
        self.plan: TablePlan = plan_of(first, source, source.path)
        so_far = ColumnsSoFar(self.plan.roles.role_columns, TABLE.needed)
        list(so_far.of([self.unfolding(first)]))
        self.columns: Columns = so_far.columns
        self.read = self._columns_to_read(first.table.column_names)
        decisions = self.plan.proposal.decisions(
            so_far.columns, so_far.names, vars(source), set[str](), dict[str, str]()
        )
        self.about = decision_table(decisions, f"{source.path}: pairs")

    @property
    def unfolding(self) -> Unfolding:
        """The columns inside of columns."""
        return self.plan.unfolding

    @property
    def roles(self) -> Roles:
        """The roles of the columns."""
        return self.plan.roles

    @property
    def source(self) -> PairsFile:
        """The source with the columns of all roles."""
        roles = self.plan.roles
        assert isinstance(roles, PairsFile)
        return replace(roles, keep=(), **TABLE.options(self.columns))

    @cached_property
    def parts(self) -> list[ShardPart]:
        """All parts, in the order of the shards.

        Raises:
            DataError: an unreadable shard.
        """
        parts = []
        for shard in self.shards:
            if is_remote(shard.address) or ending(Path(shard.address)) != ".parquet":
                parts.append(ShardPart(shard))  # whole: fetched, or parsed, once
                continue
            with shard.file() as path:
                for group in range(count_groups(path)):
                    parts.append(ShardPart(shard, group))
        return parts

    def tables(self, part: ShardPart, dropped: Counter[str]) -> Iterator[pa.Table]:
        """Yield the pairs of a part in order, some rows at a time, with the columns of `Pairs`.

        Args:
            part: to read.
            dropped: counts by reason; the rows and texts left out are added.

        Raises:
            DataError: an unreadable shard, a shard of other columns, or a useless value, by file,
                row and column.
        """
        with part.shard.file() as path:
            blocks = (
                TableBlock(piece.table, part.shard.address, piece.first + 1)
                for piece in pieces(path, self.read, group=part.group)
            )
            unfolded = map(self.unfolding, blocks)
            for block in checked_constants(unfolded, self.plan.constants, self.options.path):
                self._refuse_other_columns(block)
                yield rows_of(block, self.roles, self.columns, dropped)

    def _first_block(self) -> TableBlock:
        """Return the first rows of the first shard with rows."""
        for shard in self.shards:
            with shard.file() as path:
                for piece in pieces(path):
                    return TableBlock(piece.table, shard.address)
        raise DataError(f"{self.options.path} holds no rows")

    def _columns_to_read(self, names: Sequence[str]) -> list[str] | None:
        """Return the columns of a role; None for all columns, where a column lies inside another."""
        wanted: dict[str, None] = dict.fromkeys(self.plan.constants)
        for of_role in self.columns.values():
            wanted.update(dict.fromkeys(of_role))
        if self.unfolding.repeated or not set(wanted) <= set(names):
            return None
        return list(wanted)

    def _refuse_other_columns(self, block: TableBlock) -> None:
        """Raise DataError for a shard without queries or documents, or with two columns of one
        name."""
        names = block.table.column_names
        refuse_repeated(names, block.file)
        for role in TABLE.needed:
            if set(self.columns[role]).isdisjoint(names):
                raise DataError(
                    f"{block.file} has no column {self.columns[role][0]!r} of the {role}; the first shard, "
                    f"{self.shards[0].address}, has one: give shards of the same columns"
                )
