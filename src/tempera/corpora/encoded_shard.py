"""One shard of texts as one shard of vectors, row group by row group.

Letters in shapes: n rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from ..errors import DataError
from ..tables.tables import ending
from .encoding_model import EncodingModel
from .shard_columns import EMBEDDING, ID, ShardColumns, one_array
from .shard_tables import ShardPiece, column_names, pieces
from .stored_vectors import list_type, stored


@dataclass
class ShardCounts:
    """The numbers of rows and row groups of a shard of vectors, and of texts without a letter; and
    the width of the vectors."""

    rows: int = 0
    groups: int = 0
    blank: int = 0
    width: int = 0


@dataclass
class ShardWriter:
    """A file of vectors under way.

    Args:
        name: of the shard, for ids of rows without one.
        source: the shard of texts, a local file.
        shown: the address of the shard, for messages.
        columns: to read.
        model: encodes the texts.
        dtype: of the stored numbers.
        tell: is called with the number of rows, after each part of a row group.
    """

    name: str
    source: Path
    shown: str
    columns: ShardColumns
    model: EncodingModel
    dtype: str
    tell: Callable[[int], None] = lambda rows: None
    counts: ShardCounts = field(default_factory=ShardCounts)

    def write(self, path: Path, of: Iterable[ShardPiece] | None = None) -> ShardCounts:
        """Write the vectors of the shard into a file; in memory is one row group of vectors, and a
        part of one of texts.

        The bytes of the file depend on the shard, the model and the options, and on nothing else.

        Args:
            path: of the file.
            of: some parts of the shard; None is the whole shard.

        Raises:
            DataError: an unreadable shard, a column that is missing or of another kind, or a vector
                that is not finite.
        """
        read = of
        if read is None:
            if ending(self.source) == ".parquet":  # only the columns with a role are read
                self.columns.refuse_missing(column_names(self.source), self.shown)
            read = pieces(self.source, self.columns.names)
        writer: Any = None
        try:
            for _, of_group in groupby(read, lambda piece: piece.group):
                tables = [self._encoded(piece) for piece in of_group]
                table = self._joined(tables)
                if writer is None:
                    writer = _writer(path, table.schema)
                writer.write_table(self._fitted(table, writer.schema), row_group_size=len(table))
                self.counts.groups += 1
            if writer is None:
                writer = _writer(path, self._encoded(self._nothing()).schema)
        finally:
            if writer is not None:
                writer.close()
        return self.counts

    def _encoded(self, piece: ShardPiece) -> pa.Table:
        """Return the ids, vectors and kept columns of some rows."""
        table = piece.table
        self.columns.refuse_missing(table.column_names, self.shown)
        texts = self.columns.texts(table, self.shown)
        ids = self.columns.ids(table, self.name, piece.first, self.shown)
        vectors = self.model(texts.to_pylist() or [""])[: len(table)]
        rows = f"{self.shown} from row {piece.first + 1:,} on"
        fields = [
            pa.field(ID, pa.string(), nullable=False),
            pa.field(EMBEDDING, list_type(vectors.shape[1], self.dtype), nullable=False),
        ]
        arrays = [ids, stored(vectors, self.dtype, rows)]
        for name in self.columns.kept:
            arrays.append(one_array(table[name]))
            fields.append(pa.field(name, table[name].type))
        stamp = self.model.stamp(vectors.shape[1], self.dtype)
        self.counts.width = vectors.shape[1]
        self.counts.rows += len(table)
        letters = pc.binary_length(pc.utf8_trim_whitespace(texts)).to_numpy()
        self.counts.blank += int((letters == 0).sum())
        self.tell(len(table))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, stamp.metadata()))

    def _nothing(self) -> ShardPiece:
        """Return no rows, of a shard without rows."""
        return ShardPiece(
            pa.table({name: pa.array([], pa.string()) for name in self.columns.names}), 0, 0
        )

    def _joined(self, tables: list[pa.Table]) -> pa.Table:
        first = tables[0].schema
        return pa.concat_tables([self._fitted(table, first) for table in tables])

    def _fitted(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return a table with the types of the columns before it."""
        try:
            return table.cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(
                f"{self.shown}: a column changes its type on the way: {str(error).splitlines()[0]}"
            ) from None


def _writer(path: Path, schema: pa.Schema) -> Any:
    """Return a writer of Parquet. Compression, dictionaries and ranges would help no reader of
    vectors."""
    others = [name for name in schema.names if name != EMBEDDING]
    return parquet.ParquetWriter(
        path,
        schema,
        compression=dict.fromkeys(others, "zstd"),
        use_dictionary=others,
        write_statistics=others,
        write_page_checksum=True,
    )
