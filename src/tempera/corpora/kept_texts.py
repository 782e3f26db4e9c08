"""The texts of an encoded corpus, from the columns that it has kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from ..io.ids import Ids, content_ids
from .many_shards import EncodedShards
from .shard_columns import ID, of_numbers

Rows = NDArray[np.int64]


def kept_texts(shards: EncodedShards) -> Iterator[tuple[Rows, Ids, pa.Array]]:
    """Yield the rows with a text, rising, the hashes of their contents, and their ids, some rows at
    a time.

    Raises:
        DataError: a shard is missing or damaged, or the texts were not kept.
    """
    start = 0
    for _, _, batch in shards.tables():
        names = shards.options["text"]
        lost = [name for name in names if name not in batch.schema.names]
        if lost:
            raise DataError(
                f"{shards.place.address} was encoded without keeping the column {lost[0]}, and a text is found by its content: "
                f"encode it with --columns {','.join(names)}"
            )
        texts = _joined([batch.column(name).to_pylist() for name in names])
        here = np.flatnonzero([bool(text) for text in texts])
        contents = content_ids(texts[row] for row in here.tolist())
        yield here + start, contents, batch.column(ID).take(of_numbers(here))
        start += len(batch)


def text_of(shards: EncodedShards, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of rows, as `EncodedShards.rows` gives them."""
    columns = []
    for name in shards.options["text"]:
        columns.append([row["columns"][name] for row in rows])
    return _joined(columns)


def _joined(columns: Sequence[Sequence[str | None]]) -> list[str]:
    """Return the text of each row, as `tempera encode` has read it."""
    if len(columns) == 1:
        return [text if text and text.strip() else "" for text in columns[0]]
    texts = []
    for parts in zip(*columns, strict=True):
        texts.append(" ".join((part or "").strip() for part in parts).strip())
    return texts
