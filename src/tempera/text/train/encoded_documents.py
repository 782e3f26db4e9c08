"""Rows of an encoded corpus as candidates of mining: in memory are their ids and hashes, and no
texts or vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...corpora.many_shards import EncodedShards, encoded_documents
from ...errors import DataError
from ...io.ids import content_ids
from ...mining.search import Ints
from ..read.pairs import KIND


@dataclass(frozen=True)
class EncodedDocuments:
    """Rows with a text, [n], of an encoded corpus.

    Args:
        shards: the encoded corpus.
        rows: positions of the rows with a text, rising, [n].
        contents: ids of the texts, [n].
        own: ids of the source, null if the source has none, [n].
    """

    shards: EncodedShards
    rows: Ints
    contents: Ints
    own: pa.ChunkedArray

    @classmethod
    def read(cls, folder: Path) -> EncodedDocuments:
        """Read the ids and the texts of all rows, some at a time.

        Raises:
            DataError: the vectors are of queries, a shard is missing or damaged, or the texts were
                not kept.
        """
        shards = encoded_documents(folder)
        has_ids = shards.options.get("id") is not None
        rows = [np.empty(0, np.int64)]
        contents = [np.empty(0, np.int64)]
        own = [pa.array([], KIND)]
        start = 0
        for _, _, batch in shards.tables():
            names = shards.options["text"]
            lost = [name for name in names if name not in batch.schema.names]
            if lost:
                raise DataError(
                    f"{folder} was encoded without keeping the column {lost[0]}, and mined negatives are texts: "
                    f"encode it with --columns {','.join(names)}"
                )
            texts = _joined([batch.column(name).to_pylist() for name in names])
            here = np.flatnonzero([bool(text) for text in texts])
            rows.append(here + start)
            contents.append(content_ids(texts[row] for row in here.tolist()))
            if has_ids:
                own.append(batch.column("id").take(pa.array(here)).cast(KIND))
            else:
                own.append(pa.nulls(len(here), KIND))
            start += len(batch)
        return cls(shards, np.concatenate(rows), np.concatenate(contents), pa.chunked_array(own))

    def texts(self, rows: Ints) -> list[str]:
        """Return the texts of rows by position in the corpus."""
        parts = self.shards.rows(rows)
        names = self.shards.options["text"]
        return _joined([[part["columns"][name] for part in parts] for name in names])


def _joined(columns: Sequence[Sequence[str | None]]) -> list[str]:
    """Return the text of each row, as `tempera encode` has read it."""
    if len(columns) == 1:
        return [text if text and text.strip() else "" for text in columns[0]]
    texts = []
    for parts in zip(*columns, strict=True):
        texts.append(" ".join((part or "").strip() for part in parts).strip())
    return texts
