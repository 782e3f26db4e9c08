"""An encoded corpus as an approximate index of FAISS, written shard by shard.

Letters in shapes: c rows, D width, n rows at once, k nearest rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..corpora.many_shards import EncodedShards, sampled
from ..corpora.shard_columns import ID
from ..corpus.approximate import CODES, FILE, share_found, trained_ivf_pq, write_index
from ..errors import ConfigError, DataError, OutputError
from ..io.atomic import EXPORTS, staged, write_mark
from ..io.console import progress_bar
from ..tables.vector_files import COLUMNS, TEXT
from ..task.run_files import DOCUMENTS

KIND = "ivf_pq"
KINDS = (KIND, "ivf_fast")
_SAMPLE = 1 << 28  # bytes of the vectors that the clusters and the codes are learned from
_JUDGED = 200  # rows whose nearest rows are compared with exact ones


def export_shards(
    shards: EncodedShards,
    to: str = "faiss",
    output: Path | None = None,
    kind: str = KIND,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write an encoded corpus as FAISS's IVF-PQ into a folder; return facts about the index.

    Clusters and codes are learned from a sample, and then the shards are added one by one: in
    memory are the sample (256 MiB at most), or the index, which holds about D / 4 + 8 bytes a row.
    The index is read again from the file, and searched for the nearest rows of 200 rows.

    Args:
        output: the folder to write; None is FOLDER/export/faiss.
        kind: ivf_pq, or ivf_fast for mining (see `corpus.approximate.write`).
        overwrite: replace an earlier export.

    Raises:
        ConfigError: another format than faiss, or another kind than these.
        DataError: a shard is missing or damaged, or there are too few rows.
        MissingLibrary: faiss is not installed.
        OutputError: the output cannot be written.
    """
    folder = shards.place.local
    if to != "faiss":
        raise ConfigError(
            f"an encoded corpus is exported to faiss, not to {to}: its shards are Parquet as they are"
        )
    if kind not in KINDS:
        raise ConfigError(
            f"an encoded corpus is exported as {' or '.join(KINDS)}, not as {kind}: drop --kind"
        )
    if output is None and folder is None:
        raise OutputError(f"give a folder on this machine for the index of {shards.place.address}")
    if len(shards) < CODES:
        raise DataError(
            f"IVF-PQ needs at least {CODES} rows, but {shards.place.address} has {len(shards)}"
        )
    place = output
    if place is None:
        assert folder is not None
        place = folder / EXPORTS / to
    read = [] if folder is None else [folder]
    with staged(place, overwrite, read) as new:
        facts: dict[str, Any] = {
            "to": to,
            "output": str(place),
            "documents": len(shards),
            "dimensions": shards.width,
            "kind": kind,
        }
        _write_index(shards, new / FILE, kind)
        _write_documents(shards, new / DOCUMENTS)
        queries = sampled(shards, _JUDGED)
        _, exact = shards.nearest(queries, 10)
        facts["overlap@10"] = share_found(new / FILE, queries, exact)
        write_mark(new, facts)
    return facts


def _write_index(shards: EncodedShards, path: Path, kind: str) -> None:
    """Write the index of all vectors, in which a row has its position in the corpus."""
    index = trained_ivf_pq(sampled(shards, _SAMPLE // (4 * shards.width)), len(shards), kind)
    with progress_bar("adding vectors", len(shards), "row") as bar:
        for block in shards.blocks():
            index.add(block.vectors)
            bar.update(len(block.vectors))
    write_index(index, path)


def _write_documents(shards: EncodedShards, path: Path) -> None:
    """Write ids, places, texts and kept columns of all rows, in the form of an index's
    documents."""
    writer: Any = None
    metadata = shards.stamp.metadata()
    with pa.OSFile(str(path), "wb") as file:
        for rows in _documents(shards):
            if writer is None:
                schema = rows.schema.with_metadata(metadata)
                writer = pa.ipc.new_file(file, schema)
            try:
                writer.write_table(rows.cast(schema))
            except (pa.ArrowException, ValueError) as error:
                raise DataError(
                    f"{shards.place.address}: a kept column changes its type from shard to shard: "
                    f"{str(error).splitlines()[0]}"
                ) from None
        writer.close()


def _documents(shards: EncodedShards) -> Iterator[pa.Table]:
    """Yield the documents of an index, some rows at a time."""
    texts = shards.options["text"]
    for shard, first, rows in shards.tables():
        ids = rows.column(ID).cast(pa.large_string())
        kept = rows.to_struct_array().flatten()
        names = [name for name in rows.schema.names if name != ID]
        arrays = [kept[rows.schema.get_field_index(name)] for name in names]
        shown = _joined(rows, [name for name in texts if name in names])
        places = [f"{shard} row {row}" for row in range(first + 1, first + 1 + len(rows))]
        # A row without a text is shown by its id, as in a search of the shards.
        named = [one if not text else "" for one, text in zip(ids.to_pylist(), shown, strict=True)]
        columns = {
            "id": ids,
            "name": pa.array(named, pa.large_string()),
            "place": pa.array(places, pa.large_string()),
            TEXT: pa.array(shown, pa.large_string()),
        }
        if names:
            columns[COLUMNS] = pa.StructArray.from_arrays(arrays, names)
        yield pa.table(columns)


def _joined(rows: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """Return the text of each row: the columns of its text that were kept, joined by a space."""
    texts = [""] * len(rows)
    for column in columns:
        for number, part in enumerate(rows.column(column).to_pylist()):
            if part:
                texts[number] = f"{texts[number]} {part}".strip()
    return texts
