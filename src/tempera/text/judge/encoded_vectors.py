"""Vectors of the documents of an evaluation, from an encoded corpus.

Letters in shapes: c documents, D width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...corpora.kept_texts import text_of
from ...corpora.many_shards import EncodedShards, encoded_documents
from ...errors import DataError, quantity
from ...io.ids import content_ids
from ...mining.embedder import Model, Vectors
from ...parallel.distributed import ALONE, Group
from ...towers.saved import fingerprint
from .tasks import RetrievalTask

_COMPARED = 1000  # documents whose texts are compared


def encoded_vectors(
    folder: str | Path, task: RetrievalTask, model: Model, group: Group = ALONE
) -> Vectors:
    """Return the vectors of a task's documents by their ids, [c, D]; of several processes, those of
    this process's documents.

    Raises:
        DataError: the encoded corpus is of another model or of queries, lacks a document, or has
            its id for another text.
    """
    shards = encoded_documents(folder)
    shards.stamp.refuse_other(fingerprint(model.folder), Path(folder))
    docs = task.corpus[task.part(group)]
    wanted = docs["id"].combine_chunks().cast(pa.large_string())
    vectors = np.empty((len(wanted), shards.width), np.float32)
    rows = np.full(len(wanted), -1)
    for block in shards.blocks(with_ids=True):
        assert block.ids is not None
        places = pc.index_in(block.ids.cast(pa.large_string()), value_set=wanted)
        document = places.fill_null(-1).to_numpy()
        here = np.flatnonzero(document >= 0)
        # Of rows with the same id, the first one counts.
        document, first = np.unique(document[here], return_index=True)
        is_new = rows[document] < 0
        document = document[is_new]
        here = here[first[is_new]]
        vectors[document] = block.vectors[here]
        rows[document] = here + block.first
    lost = np.flatnonzero(rows < 0)
    if len(lost):
        raise DataError(
            f"{folder} lacks {quantity(len(lost), 'documents')} of {task.name}, such as that with the id "
            f"{wanted[int(lost[0])].as_py()!r}: encode the same documents, with their ids"
        )
    _refuse_other_texts(shards, folder, task.name, docs["text"], rows[:_COMPARED])
    return vectors


def _refuse_other_texts(
    shards: EncodedShards, folder: str | Path, task: str, texts: pa.ChunkedArray, rows: Any
) -> None:
    """Raise DataError if rows have other texts than the first documents of a task, where the texts
    were kept."""
    kept = shards.rows(rows)
    names = set(shards.options["text"])
    if not all(names <= set(row["columns"]) for row in kept):
        return
    encoded = content_ids(text_of(shards, kept))
    differs = encoded != content_ids(texts.slice(0, len(rows)))
    if differs.any():
        row = kept[int(differs.argmax())]
        raise DataError(
            f"{folder} has the id {row['id']!r} for another text than {task}: encode the same documents"
        )
