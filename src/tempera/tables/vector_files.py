"""Vectors with ids from files: an index of a run or of an export, Parquet, NumPy and FAISS.

Letters in shapes: c documents, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from ..io.checked import mapped_rows, read_array
from ..io.documents import read_lines
from ..io.faiss_files import read_faiss
from ..io.later import compute as pc
from ..io.manifest import is_recorded, refuse_damaged
from ..io.untrusted import refuse_unsafe

DOCUMENT = ("id", "name", "place")  # columns of the documents in every table of an index
TEXT = "text"  # column of the whole texts
PREVIEW = "preview"  # column of the first 400 letters of a text, in place of `text`, in indexes of version 0.1
COLUMNS = "columns"  # column of the further columns kept from the data, a struct
# column of the ids by which a run has told documents apart, beside the ids that the user gave them
KEY = "key"
VECTOR = "vector"  # column of the vectors in the Parquet table of an index
_USUAL_NAMES = {
    "id": ("id", "_id", "doc_id", "docid"),
    "vector": ("vector", "embedding", "vectors", "embeddings"),
}


@dataclass(frozen=True)
class VectorFile:
    """Hold vectors, [c, D], memory-mapped where the file allows it, and the id of each."""

    vectors: NDArray[np.floating[Any]]
    ids: pa.Array  # [c] large_string
    metadata: Mapping[bytes, bytes] | None = None  # of the table of ids
    exact: bool = True  # FAISS may have compressed them
    keys: NDArray[np.int64] | None = (
        None  # [c] what a run has told the documents apart by, where it is not the id
    )
    compared: bool = False  # with the manifest of their folder, as they are read


def read_vectors(path: Path, ids: Path | None = None) -> VectorFile:
    """Return the vectors of a run's folder, of an index, or of a .parquet, .npy or FAISS file.

    Args:
        ids: a text file with one id a line, or a .npy file; needed where the vectors' own file
            holds none. Without it, the ids are the numbers of the rows, from 0.

    Raises:
        DataError: no such file, a damaged one, or ids that are not as many as the vectors.
    """
    if not path.exists():
        raise DataError(f"no such file or folder of vectors: {path}")
    try:
        file = _folder(path) if path.is_dir() else _file(path)
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} holds no vectors: {error.filename or error} is missing") from None
    except Exception as error:  # damaged files make readers raise anything
        raise DataError(
            f"{path} is no readable file of vectors: {str(error) or type(error).__name__}"
        ) from None
    names = _ids(ids) if ids is not None else file.ids
    if file.vectors.ndim != 2 or len(names) != len(file.vectors) or not file.vectors.size:
        raise DataError(
            f"{path} has vectors of shape {file.vectors.shape} for {len(names):,} ids; expected one for each"
        )
    return replace(file, ids=names, keys=file.keys if ids is None else None)


def _folder(path: Path) -> VectorFile:
    folder = path / "index" if (path / "index").is_dir() else path
    refuse_unsafe(folder)
    if (folder / "vectors.parquet").exists():
        return _parquet(folder / "vectors.parquet")
    graph = folder / "index.faiss"
    file = _faiss(graph) if graph.exists() else _numpy(folder / "vectors.npy")
    refuse_damaged(folder / "documents.arrow")
    table = pa.ipc.open_file(pa.memory_map(str(folder / "documents.arrow"))).read_all()
    table.validate(full=True)
    return replace(
        file,
        ids=_texts(table["id"]),
        metadata=table.schema.metadata,
        keys=_keys(table),
        compared=is_recorded(folder / "vectors.npy"),
    )


def _file(path: Path) -> VectorFile:
    return {".parquet": _parquet, ".npy": _numpy}.get(path.suffix, _faiss)(path)


def _parquet(path: Path) -> VectorFile:
    # They take time to load, and a search reads no table of this kind.
    from .columns import RoleTable
    from .tables import parquet_table

    table = parquet_table(path)
    options = SimpleNamespace(id=None, vector=None, metadata=("*",))
    names: Mapping[str, tuple[str, ...]] = {"id": ("id",), "vector": (VECTOR,)}
    # A kept column of an index may have a usual name of an id or a vector, too.
    if {*DOCUMENT, VECTOR} <= {*table.column_names}:
        id_column = "id"
        vector_column = VECTOR
    else:
        usual = RoleTable(_USUAL_NAMES, ("id", "vector"))
        names = usual.columns(options, table.column_names, str(path))
        id_column = names["id"][0]
        vector_column = names["vector"][0]
    vectors = matrix(table[vector_column], str(path))
    ids = _texts(table[id_column])
    return VectorFile(vectors, ids, table.schema.metadata, keys=_keys(table))


def _keys(table: pa.Table) -> NDArray[np.int64] | None:
    """Return the keys of documents, if a table has any; in a table that has not all columns of an
    index, `key` is the user's."""
    if (
        not {*DOCUMENT, KEY} <= {*table.column_names}
        or not {TEXT, PREVIEW} & {*table.column_names}
        or table[KEY].type != pa.int64()
        or table[KEY].null_count
    ):
        return None
    keys: NDArray[np.int64] = table[KEY].to_numpy()
    return keys


def matrix(column: pa.ChunkedArray, where: str) -> NDArray[np.floating[Any]]:
    """Return a column of lists of equal length as an array, [c, D].

    Raises:
        DataError: lists of different length, or a row without one.
    """
    lists = column.combine_chunks()
    lists.validate(full=True)
    widths = pc.unique(pc.list_value_length(lists)).to_pylist()
    if len(widths) > 1 or None in widths:
        raise DataError(
            f"{where}: the vectors have several lengths ({', '.join(map(str, widths[:3]))}); expected one"
        )
    vectors: NDArray[np.floating[Any]] = (
        lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)
    )
    return vectors


def _numpy(path: Path) -> VectorFile:
    vectors: Any = mapped_rows(path)
    if not np.issubdtype(vectors.dtype, np.floating):
        raise DataError(f"{path} holds {vectors.dtype}; expected floating-point vectors")
    return VectorFile(vectors, _texts(np.arange(len(vectors))))


def _faiss(path: Path) -> VectorFile:
    if not path.is_file():
        raise FileNotFoundError(path)
    whole: Any = read_faiss(path)
    import faiss

    index = whole
    names = np.arange(whole.ntotal)
    if hasattr(whole, "id_map"):  # owns the index that it names
        names = faiss.vector_to_array(whole.id_map)
        index = faiss.downcast_index(whole.index)
    if hasattr(index, "make_direct_map"):
        index.make_direct_map()
    return VectorFile(index.reconstruct_n(0, whole.ntotal), _texts(names), exact=False)


def _ids(path: Path) -> pa.Array:
    if path.suffix != ".npy":
        return _texts(read_lines(path))
    if not path.is_file():
        raise DataError(f"no such file of ids: {path}")
    try:
        return _texts(read_array(path))
    except (ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{path} holds no ids that can be read: {error}; give an array of texts or integers"
        ) from None


def _texts(values: Any) -> pa.Array:
    """Return ids, numbers or texts, as texts."""
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else pa.array(values)
    return column.cast(pa.large_string())
