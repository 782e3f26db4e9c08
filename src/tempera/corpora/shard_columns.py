"""The columns of a shard: texts, ids, and columns that are kept beside the vectors.

Letters in shapes: n rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import ConfigError, DataError, did_you_mean
from ..forms.roles import DOC_NAMES
from ..tables.arrow_types import is_text
from ..tables.columns import plain
from ..tables.tables import refuse_repeated

ID = "id"
EMBEDDING = "embedding"
_TEXTS = ("text", *DOC_NAMES)
_TITLES = ("title", "heading")
_IDS = ("id", "_id", "doc_id", "document_id", "docid", "corpus-id")
_STRING = pa.large_string()


@dataclass(frozen=True)
class ShardColumns:
    """The columns to read of every shard.

    Args:
        text: columns whose texts are joined by a space, such as a title and a text.
        id: column of ids; None numbers the rows of a shard.
        kept: columns that are written beside the vectors.
    """

    text: tuple[str, ...]
    id: str | None
    kept: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        where: str,
        text: Sequence[str] = (),
        id: str | None = None,
        kept: Sequence[str] = (),
    ) -> ShardColumns:
        """Return the columns of a corpus, by options, or else by usual names.

        Args:
            names: all columns of a shard.
            where: the shard, for messages.
            text: chosen columns of texts; none is a column with a usual name, behind a title if
                there is one.
            id: chosen column of ids.
            kept: columns to keep.

        Raises:
            DataError: no column of texts, or a chosen column is missing.
            ConfigError: a kept column with the name of a written column.

        >>> ShardColumns.of(["_id", "title", "text"], "corpus.jsonl")
        ShardColumns(text=('title', 'text'), id='_id', kept=())
        """
        refuse_repeated(names, where)
        for name in kept:
            is_other_id = name == ID and name != (id or _usual(_IDS, names))
            if name == EMBEDDING or is_other_id:
                raise ConfigError(
                    f"the column {name!r} cannot be kept: the shards of vectors have one of that name"
                )
        chosen = cls(
            tuple(text) or _usual_texts(names, where),
            id or _usual(_IDS, names),
            tuple(name for name in dict.fromkeys(kept) if name != ID),
        )
        chosen.refuse_missing(names, where)
        return chosen

    @property
    def names(self) -> list[str]:
        """The names of all columns that are read."""
        ids = () if self.id is None else (self.id,)
        return list(dict.fromkeys((*self.text, *ids, *self.kept)))

    def refuse_missing(self, names: Sequence[str], where: str) -> None:
        """Raise DataError for a shard without one of the columns, or with two of one name."""
        refuse_repeated(names, where)
        for name in self.names:
            if name not in names:
                near = did_you_mean(name, names)
                raise DataError(f"{where} has no column {name!r}; it has {', '.join(names)}.{near}")

    def texts(self, table: pa.Table, where: str) -> pa.Array:
        """Return the text of each row, [n]; a row without text has the empty text.

        Raises:
            DataError: a column that holds no texts.
        """
        parts = []
        for name in self.text:
            kind = table[name].type
            if not (is_text(kind) or pa.types.is_null(kind)):
                raise DataError(
                    f"{where}: column {name!r} holds {kind}; expected texts: choose another by --text COLUMN"
                )
            part = one_array(table[name]).cast(_STRING)
            parts.append(part.fill_null("") if part.null_count else part)
        if len(parts) == 1:
            return parts[0]
        trimmed = [pc.utf8_trim_whitespace(part) for part in parts]
        joined: Any = pc.binary_join_element_wise(*trimmed, pa.scalar(" ", _STRING))
        return pc.utf8_trim_whitespace(joined)

    def ids(self, table: pa.Table, name: str, first: int, where: str) -> pa.Array:
        """Return the id of each row as a text, [n].

        Args:
            table: some rows of a shard.
            name: of the shard.
            first: number of the first row in the shard, from 0.
            where: the shard, for messages.

        Raises:
            DataError: a row without an id, or a column that holds none.
        """
        if self.id is None:
            return pa.array([f"{name}:{first + row}" for row in range(len(table))], pa.string())
        values = one_array(table[self.id])
        kind = values.type
        if not (is_text(kind) or pa.types.is_integer(kind)):
            raise DataError(
                f"{where}: column {self.id!r} holds {kind}; expected ids, texts or integers"
            )
        if values.null_count:
            row = first + pc.index(values.is_null(), True).as_py() + 1
            raise DataError(
                f"{where} row {row:,}: column {self.id!r} has no id; give every row one"
            )
        return values.cast(pa.string())


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def of_numbers(numbers: NDArray[Any]) -> pa.Array:
    """Return numbers, [n], as an Arrow array; `pa.array` would load pandas, which takes time and
    memory."""
    numbers = np.ascontiguousarray(numbers)
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _usual(candidates: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first column with a usual name, without case and signs."""
    for candidate in candidates:
        for name in names:
            if name == candidate or plain(name) == plain(candidate):
                return name
    return None


def _usual_texts(names: Sequence[str], where: str) -> tuple[str, ...]:
    text = _usual(_TEXTS, names)
    if text is None:
        raise DataError(
            f"{where} has no column that is usual for a text ({', '.join(_TEXTS[:4])}, ...); "
            f"it has {', '.join(names)}: choose one by --text COLUMN"
        )
    title = _usual(_TITLES, names)
    return (text,) if title is None else (title, text)
