"""Addition of documents to a run on texts, and removal, without training.

Letters in shapes: c documents of the run before, n documents of the run afterwards, r new rows, D
width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from ..corpus.index import Index, write_index
from ..corpus.layout import RunFolder
from ..errors import DataError, did_you_mean
from ..io.atomic import EXPORTS, renewed
from ..io.ids import given_ids
from ..io.manifest import refuse_damaged
from ..options.yaml_options import load
from ..ranking.nearest import refuse_not_finite
from ..tables.vector_files import COLUMNS, KEY, PREVIEW, TEXT
from ..task.run_files import CALIBRATION, GIVEN_ID, WORDS
from ..text.judge.lexical import Lexical, stored_settings
from ..towers.saved import EVALUATED, KEPT, MODEL
from ..towers.stamp import Stamp, beside, refuse_foreign
from .document_rows import NewDocuments, read_documents
from .text_search import encoder

Positions = NDArray[np.int64]

_STRING = pa.large_string()
_SHOWN = 5  # ids that a message names


def add_documents(run: Path, data: Any = None, remove: Sequence[str] = ()) -> dict[str, Any]:
    """Add documents to a run, replace those with the same id in their places, and remove others,
    without training.

    The index of vectors and the index of words are replaced together or not at all, by one process
    at a time, while other processes search. The result is the index of all documents, made at
    once: the documents of before in their order, and then new ones. A document whose text stays
    keeps its vector.

    Args:
        run: of texts.
        data: a table with a column of texts and a column of ids, the path of one, or a list of
            dicts; a document without an id has that of its content. Columns that the run keeps are
            kept, null where they are missing.
        remove: ids of documents to remove.

    Returns:
        The numbers of documents added, replaced and removed, and of all; the columns that the run
            does not keep; and sentences on what has not learned the change.

    Raises:
        DataError: no run on texts, or one that embeds no documents; no texts; an id with two rows,
            or to remove and not in the run; a value of another type than the run's column.
        OutputError: the run cannot be written.
    """
    _refuse_other_runs(run)
    remove = [remove] if isinstance(remove, str) else list(remove)
    if data is None and not remove:
        raise DataError("nothing to do: give documents to add, or ids of documents to remove")
    with renewed(run, without=["index", WORDS]) as folder:
        index = _whole_index(run)
        new = NewDocuments(_nothing(index.documents))
        if data is not None:
            new = read_documents(data, index.documents, _options(run))
        return _write(run, folder, index, new, remove)


def _refuse_other_runs(run: Path) -> None:
    """Raise DataError for a folder that is no run with documents of its own."""
    opened = RunFolder(run)
    if opened.recommends:
        raise DataError(
            f"{run} is a recommender and has no texts to add to: tempera add-items {quote(str(run))} FILE adds items by "
            "features, tempera add-events events"
        )
    if (run / MODEL / KEPT).is_file():
        raise DataError(
            f"{run} embeds queries alone, for an index that another model has made: add the documents with that model, "
            "and train the queries again (tower.doc.index)"
        )


def _whole_index(run: Path) -> Index:
    """Return the index of a run, if documents can be added to it.

    Raises:
        DataError: a missing or damaged index, or one without the vectors that the model gives, or
            without whole texts.
    """
    opened = RunFolder(run)
    index = opened.index
    folder = index.folder
    if index.is_approximate or index.stamp is None or index.stamp.checksum is None:
        raise DataError(
            f"{folder} does not hold the whole vectors of one model: documents cannot be added; train again"
        )
    index.stamp.refuse_other(opened.fingerprint, folder)
    if index.stamp.dimensions != index.vectors.shape[1]:
        raise DataError(
            f"{folder} holds vectors cut to {index.vectors.shape[1]} of {index.stamp.dimensions} numbers: documents cannot be "
            "added; train again"
        )
    stored = pa.ipc.open_file(pa.memory_map(str(folder / "documents.arrow"))).schema
    if PREVIEW in stored.names and TEXT not in stored.names:
        raise DataError(
            f"{folder} is of version 0.1 and holds the beginnings of texts alone: documents cannot be added; train again"
        )
    return index


def _options(run: Path) -> Mapping[str, Any]:
    """Return the options of a run's data, without building them, which would need torch."""
    options = load(run / "config.yaml").values.get("data")
    return options if isinstance(options, Mapping) else {}


def _nothing(documents: pa.Table) -> pa.Table:
    """Return no documents, in the columns of a run's documents."""
    return _with_keys(documents).slice(0, 0)


def _with_keys(documents: pa.Table) -> pa.Table:
    """Return documents with their keys, by which training has told them apart."""
    if KEY in documents.column_names:
        return documents
    try:
        keys = documents["id"].cast(pa.int64())  # of their contents
    except pa.ArrowInvalid:
        keys = pa.array(given_ids(documents["id"].combine_chunks()))
    at = documents.column_names.index(TEXT) + 1
    return documents.add_column(at, KEY, keys)


def _write(
    run: Path, folder: Path, index: Index, new: NewDocuments, remove: Sequence[str]
) -> dict[str, Any]:
    """Write the indexes of vectors and words of all documents, and return the facts of
    `add_documents`."""
    old = _with_keys(index.documents)
    order, replaced = _order(old["id"], new.table["id"], remove, index.folder)
    documents = _taken(old, new.table, order)
    vectors = _vectors(run, index, new.table, order, replaced)
    stamp = index.stamp
    assert isinstance(stamp, Stamp)
    columns = {
        "doc_id": documents[KEY],
        "name": documents["name"],
        "place": documents["place"],
        "doc": documents[TEXT],
    }
    if KEY in index.documents.column_names or new.have_ids:
        columns[GIVEN_ID] = documents["id"]
    if COLUMNS in documents.column_names:
        columns[COLUMNS] = documents[COLUMNS]
    write_index(folder / "index", vectors, pa.table(columns), stamp)
    _write_words(run / WORDS, folder / WORDS, documents[TEXT], stamp.model)
    count = int((replaced >= 0).sum())
    return {
        "run": str(run),
        "added": len(new.table) - count,
        "replaced": count,
        "removed": len(set(remove)),
        "documents": len(order),
        "columns_left_out": list(new.ignored),
        "not_learned": _not_learned(run),
    }


def _order(
    old: pa.ChunkedArray, new: pa.ChunkedArray, remove: Sequence[str], place: Path
) -> tuple[Positions, Positions]:
    """Return the order of all documents, [n], as positions among old documents followed by new
    rows; and the position of the old document that each new row replaces, [r], -1 for none.

    Raises:
        DataError: an id to remove that no document has, or that is to be added; or no document
            left.
    """
    names = old.combine_chunks()
    leaving = sorted(set(remove))
    both = sorted(set(leaving) & set(new.to_pylist()))
    if both:
        raise DataError(
            f"the document {both[0]!r} is both to be added and to be removed: leave it out of one of them"
        )
    removed = pc.index_in(pa.array(leaving, _STRING), value_set=names)
    missing = [name for name, at in zip(leaving, removed.to_pylist(), strict=True) if at is None]
    if missing:
        shown = ", ".join(map(repr, missing[:_SHOWN]))
        near = did_you_mean(missing[0], names.to_pylist())
        raise DataError(f"no document of {place} has the id {shown}, to be removed.{near}")
    places = pc.index_in(new, value_set=names).fill_null(-1)
    replaced: Positions = places.to_numpy().astype(np.int64)
    is_known = replaced >= 0
    order = np.arange(len(names))
    order[replaced[is_known]] = len(names) + np.flatnonzero(is_known)
    order = np.delete(order, removed.to_numpy().astype(np.int64))
    order = np.concatenate([order, len(names) + np.flatnonzero(~is_known)])
    if not len(order):
        raise DataError(f"no document of {place} would be left; keep one at least")
    return order, replaced


def _taken(old: pa.Table, new: pa.Table, order: Positions) -> pa.Table:
    """Return old and new documents in an order, [n]."""
    columns = {}
    for name in old.column_names:
        first = old[name]
        second = new[name]
        if first.type != second.type:  # kept columns without any value before
            first = first.cast(second.type)
        columns[name] = pa.chunked_array([*first.chunks, *second.chunks], second.type)
    return pa.table(columns).take(pa.array(order))


def _vectors(
    run: Path, index: Index, new: pa.Table, order: Positions, replaced: Positions
) -> NDArray[np.float32]:
    """Return the vectors of all documents, [n, D]; texts that stay are not embedded again."""
    count, width = index.vectors.shape
    known = np.flatnonzero(replaced >= 0)
    before = index.documents[TEXT].take(pa.array(replaced[known]))
    stays = np.zeros(len(new), bool)
    stays[known] = pc.equal(before, new[TEXT].take(pa.array(known))).to_numpy()
    # Where each vector comes from: an old document, or behind these, a new row.
    source_of_row = np.where(stays, replaced, count + np.arange(len(new)))
    source = np.concatenate([np.arange(count), source_of_row])[order]
    vectors = np.empty((len(order), width), np.float32)
    is_old = source < count
    vectors[is_old] = index.vectors[source[is_old]]
    rows = source[~is_old] - count
    if len(rows):
        vectors[~is_old] = _embedded(run, new[TEXT].take(pa.array(rows)).to_pylist(), width)
    return vectors


def _embedded(run: Path, texts: list[str], width: int) -> NDArray[np.float32]:
    """Return the vectors of documents by the model of a run."""
    vectors = encoder(run / MODEL, "doc")(texts)
    if vectors.shape[1] != width:
        raise DataError(
            f"{run / MODEL} gives vectors of {vectors.shape[1]} numbers, and the index of {run} holds {width}"
        )
    refuse_not_finite(vectors, "the new documents")
    return vectors


def _write_words(old: Path, path: Path, texts: pa.ChunkedArray, model: str) -> None:
    """Write the index of words of all documents, with the settings of the run's own; nothing for a
    run without one.

    The weight of a word depends on the number of documents that hold it, and on their mean length:
    every document's part changes.
    """
    if not old.is_file():
        return
    refuse_damaged(old)
    try:
        metadata = parquet.read_schema(old).metadata
        settings = stored_settings(metadata)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{old} is damaged: {error}; remove it, or restore it from a copy"
        ) from None
    refuse_foreign(metadata, model, old)
    words = Lexical(texts.to_pylist()).index(settings)
    parquet.write_table(beside(words.table(), model), path, write_page_checksum=True)


def _not_learned(run: Path) -> list[str]:
    """Return a sentence for each part of a run that has not learned a change of its documents."""
    shown = quote(str(run))
    sentences = [
        "the weights, the settings of words and their weight were learned without the change: where much is new, train again",
        f"metrics.json, the report and {EVALUATED} are of the documents trained on",
    ]
    if (run / MODEL / CALIBRATION).is_file():
        sentences.append(
            f"probabilities were fitted to the documents of before: tempera calibrate {shown} PAIRS"
        )
    exports = run / EXPORTS
    if exports.is_dir() and any(exports.iterdir()):
        sentences.append(
            f"{exports} holds the documents of before: export again (tempera export {shown} --to FORMAT --overwrite)"
        )
    return sentences
