"""Rows of an encoded corpus as candidates of mining: in memory are their ids and hashes, and no
texts or vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...corpora.kept_texts import kept_texts, text_of
from ...corpora.many_shards import EncodedShards, encoded_documents
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
        for here, hashes, ids in kept_texts(shards):
            rows.append(here)
            contents.append(hashes)
            if has_ids:
                own.append(ids.cast(KIND))
            else:
                own.append(pa.nulls(len(here), KIND))
        return cls(shards, np.concatenate(rows), np.concatenate(contents), pa.chunked_array(own))

    def texts(self, rows: Ints) -> list[str]:
        """Return the texts of rows by position in the corpus."""
        return text_of(self.shards, self.shards.rows(rows))
