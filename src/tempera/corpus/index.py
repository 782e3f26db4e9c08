"""A searchable corpus on disk: a vector, an id, a name and a place for every document.

Letters in shapes: c documents, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from ..io.checked import mapped_rows
from ..io.later import compute as pc
from ..io.later import parquet
from ..io.manifest import is_recorded, refuse_damaged
from ..io.untrusted import refuse_unsafe
from ..ranking.filtered import top_among
from ..ranking.nearest import top
from ..tables.vector_files import COLUMNS, DOCUMENT, KEY, PREVIEW, TEXT, VECTOR, matrix
from ..task.run_files import BEGINNING, DOCUMENTS, GIVEN_ID
from ..towers.saved import fingerprint
from ..towers.stamp import Stamp, beside, checksum
from . import approximate
from .bits import LARGE, Bits, are_cheaper
from .flat_columns import flattened, nested
from .json_columns import json_columns
from .nearest_by_bits import top_by_bits, top_by_both
from .where import passing

if TYPE_CHECKING:  # recommenders search an index, too, and import nothing of texts
    from ..task.showcase import Searched
    from ..text.judge.lexical import BM25

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]

# Rows that are read one by one sooner than the functions of Arrow load.
_FEW_ROWS = 100
_FILTERS = 32  # expressions whose documents an index remembers, a bit for each document
_VECTORS, _TABLE = "vectors.npy", "vectors.parquet"
# Rows of a row group of Parquet. DuckDB reads row groups side by side, and needs half the time that
# it takes for groups of a million rows.
_ROWS = 1 << 15


@dataclass(frozen=True)
class IndexedDocument:
    """A document or an item of a run."""

    id: str  # as the data has it (data.doc_id, or _id of a BEIR folder), else a hash of the content
    name: str
    place: str
    text: str
    columns: Mapping[str, Any]  # kept from the data (data.keep)

    @property
    def preview(self) -> str:
        """The text, or its first 400 letters."""
        return self.text[:BEGINNING]

    def json(self) -> dict[str, Any]:
        """Return the document as a JSON object."""
        document = asdict(self)
        document[COLUMNS] = json_columns(self.columns)
        return document


@dataclass(frozen=True)
class Found(IndexedDocument):
    """A hit of a search: a document with its rank and its score."""

    rank: int  # from 1
    score: float  # similarity; of a hybrid search, standard deviations above the corpus
    probability: float | None = None  # of being an answer, if the model is calibrated

    def json(self) -> dict[str, Any]:
        """Return the hit as a JSON object, without a probability if the model is not calibrated."""
        document = super().json()
        if self.probability is None:
            del document["probability"]
        return document


def write_index(
    folder: Path, vectors: Vectors, documents: pa.Table, stamp: Stamp | None = None
) -> None:
    """Write vectors, [c, D], and the table of documents; for a large corpus also the bits of the
    vectors.

    Args:
        documents: columns doc_id, name, place and doc; where the source has ids, given_doc_id, the
            ids to show; where columns of the source are kept, the struct `columns`.
    """
    folder.mkdir(parents=True)
    vectors = np.ascontiguousarray(vectors, np.float32)
    np.save(folder / _VECTORS, vectors, allow_pickle=False)
    columns = {
        "id": pc.cast(documents["doc_id"], pa.large_string()),
        "name": documents["name"],
        "place": documents["place"],
        TEXT: documents["doc"],
    }
    if GIVEN_ID in documents.column_names:
        columns["id"] = pc.coalesce(documents[GIVEN_ID], columns["id"])
        columns[KEY] = documents["doc_id"]
    if COLUMNS in documents.column_names:
        columns[COLUMNS] = documents[COLUMNS]
    if stamp is not None:
        of_vectors = checksum(vectors)
        stamp = replace(stamp, checksum=of_vectors)
        if len(vectors) >= LARGE and stamp.normalised:
            Bits.of(vectors).write(folder, of_vectors)
    _write_documents(folder, pa.table(columns), stamp)


def write_searched(folder: Path, searched: Searched) -> None:
    """Write the index and the tables of a run; the tables beside the model are stamped with the
    fingerprint of the model."""
    # The tables in the folder of the model are part of its fingerprint, and are written first.
    inside = [name for name in searched.tables if (folder / name).parent != folder]
    for name in inside:
        parquet.write_table(searched.tables[name], folder / name, write_page_checksum=True)
    metric = "cosine" if searched.normalised else "dot"
    model = fingerprint(folder / "model")
    stamp = Stamp(model, searched.vectors.shape[1], metric, searched.normalised)
    for name, table in searched.tables.items():
        if name not in inside:
            stamped = beside(table, model)
            parquet.write_table(stamped, folder / name, write_page_checksum=True)
    write_index(folder / "index", searched.vectors, searched.documents, stamp)


def _write_documents(folder: Path, table: pa.Table, stamp: Stamp | None) -> None:
    table = table.replace_schema_metadata(None if stamp is None else stamp.metadata())
    with (
        pa.OSFile(str(folder / DOCUMENTS), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def write_stamp(folder: Path, model: str) -> None:
    """Write the documents of an index again, stamped with the fingerprint of another model that
    gives the same vectors; an index without a stamp stays."""
    path = folder / DOCUMENTS
    with pa.OSFile(str(path), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    stamp = Stamp.read(table.schema.metadata, folder)
    if stamp is None:
        return
    path.unlink()  # it may be a link to the file of another folder
    _write_documents(folder, table, replace(stamp, model=model))


class Index:
    """An index on disk: exact and memory-mapped, or approximate (FAISS), or the Parquet table of
    ids and vectors.

    Raises:
        DataError: the folder holds no index, a damaged index, a link out of the folder, or a pipe.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        refuse_unsafe(folder)
        for name in (DOCUMENTS, approximate.FILE):
            refuse_damaged(folder / name)
        if folder.is_file():
            raise DataError(
                f"{folder} is not a readable index: it is a file; give the folder of an index, or of an export"
            )
        try:
            self.documents, self.vectors = _read(folder)
            self.documents.validate(full=True)  # a damaged file could point anywhere in memory
            self.stamp = Stamp.read(self.documents.schema.metadata, folder)
            self.documents = _typed(self.documents)
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} is not an index: {error.filename or error} is missing"
            ) from None
        except DataError:
            raise
        except Exception as error:  # a damaged file makes readers raise anything
            raise DataError(
                f"{folder} is not a readable index: {str(error) or type(error).__name__}"
            ) from None
        shape = self.vectors.shape
        if len(shape) != 2 or shape[0] != len(self.documents) or not shape[1]:
            raise DataError(
                f"{folder} is damaged: {shape} vectors for {len(self.documents)} documents"
            )
        if self.stamp is not None and not self.is_approximate and not _is_recorded(folder):
            self.stamp.refuse_changed(self.vectors, folder)
        self._passes = lru_cache(_FILTERS)(self._bits)

    @property
    def is_approximate(self) -> bool:
        """True for an index of FAISS, which does not keep the vectors one by one."""
        return isinstance(self.vectors, approximate.Approximate)

    def search(self, query: Vectors, k: int = 10, model: str | None = None) -> list[Found]:
        """Return the k documents nearest to a query vector, [D], best first; see `search_each`."""
        return self.search_each(query[None], k, model)[0]

    def search_each(
        self,
        queries: Vectors,
        k: int = 10,
        model: str | None = None,
        among: Positions | None = None,
        exact: bool = True,
    ) -> list[list[Found]]:
        """Return the k documents nearest to each query vector, [q, D], best first.

        Args:
            among: positions of the documents to choose from, ascending; None for all.
            exact: compare every vector; False compares candidates where `has_candidates`.

        Raises:
            DataError: the queries have another width, or are by another model than the index, if
                `model` (its fingerprint) is given.
        """
        if among is not None:
            scores, positions = self._nearest_among(queries, k, model, among)
        elif self.is_approximate:
            scores, positions = self.vectors.top(self.fitted(queries, model), k)
        elif not exact and self.has_candidates(k):
            queries = self._finite(self.fitted(queries, model))
            scores, positions = top_by_bits(queries, self.vectors, self.bits, k)
        else:
            scores, positions = self.nearest(queries, k, model)
        every = []
        for row, places in zip(scores, positions, strict=True):
            every.append(self.hits(row, places))
        return every

    def nearest(
        self,
        queries: Vectors,
        k: int,
        model: str | None = None,
        without: tuple[Positions, Positions] | None = None,
    ) -> tuple[Vectors, Positions]:
        """Return scores and positions of the k documents nearest to each query vector, [q, D] ->
        [q, min(k, c)] each.

        Args:
            without: excluded pairs of a query and a document, in the form for
                `ranking.nearest.top`.

        Raises:
            DataError: as `search` does, or the index is approximate.
        """
        queries = self.fitted(queries, model)
        try:
            return top(queries, _exact(self), k, without=without)
        except DataError:  # a score is NaN
            raise self._not_finite() from None

    def _nearest_among(
        self, queries: Vectors, k: int, model: str | None, among: Positions
    ) -> tuple[Vectors, Positions]:
        """Return scores and positions of the k documents nearest to each query vector among some
        documents."""
        queries = self.fitted(queries, model)
        try:
            return top_among(queries, _exact(self), k, among)
        except DataError:  # a score is NaN
            raise self._not_finite() from None

    def passing(self, expression: str) -> Positions:
        """Return the positions of the documents that pass a filter of the kept columns, ascending;
        see `tempera.corpus.where`.

        Raises:
            ConfigError: the expression is no filter of the kept columns.
            DataError: the index is approximate, so that documents that pass may not be found.
            MissingLibrary: DuckDB is not installed.
        """
        if self.is_approximate:
            raise DataError(
                f"{self.folder} is approximate, and a filter (where) needs an exact index: search the run's own, "
                "or an export by --to parquet"
            )
        bits = self._passes(expression)
        positions: Positions = np.flatnonzero(np.unpackbits(bits, count=len(self.documents)))
        return positions

    def _bits(self, expression: str) -> NDArray[np.uint8]:
        """Return a bit for each document, 1 for those that pass a filter."""
        passes = np.zeros(len(self.documents), np.bool_)
        passes[passing(self.columns, expression)] = True
        return np.packbits(passes)

    def fused_candidates(
        self,
        queries: Vectors,
        texts: Sequence[str],
        words: BM25,
        weight: float,
        k: int,
        model: str | None = None,
    ) -> tuple[NDArray[np.float64], Positions] | None:
        """Return fused scores and positions of the k best candidates of each query by words and
        vectors, [q, k] each; None where every document has to be compared.

        Args:
            queries: [q, D].
            texts: of the queries, [q].
            words: of the documents.
            weight: of the vectors.

        Raises:
            DataError: as `search` does.
        """
        queries = self._finite(self.fitted(queries, model))
        if not self.has_candidates(k):
            return None
        return top_by_both(queries, texts, self.vectors, self.bits, words, weight, k)

    def has_candidates(self, k: int) -> bool:
        """Return True if candidates for k documents, by the bits of the vectors, cost less than an
        exact search: in a large corpus of unit vectors."""
        if self.is_approximate or self.stamp is None or not self.stamp.normalised:
            return False
        return are_cheaper(self.vectors.shape, k)

    @cached_property
    def bits(self) -> Bits:
        """The bits of the vectors; where the index holds none, they are computed."""
        stored = None
        if self.stamp is not None and self.stamp.checksum is not None:
            stored = Bits.read(self.folder, self.stamp.checksum, self.vectors.shape)
        return stored or Bits.of(self.vectors)

    def scores(self, query: Vectors, model: str | None = None) -> Vectors:
        """Return the inner product of every document with a query vector, [D] -> [c], or with
        several query vectors, [q, D] -> [q, c].

        Raises:
            DataError: as `search` does, or the index is approximate.
        """
        query = self.fitted(query, model)
        vectors = np.asarray(_exact(self))
        products = vectors @ query if query.ndim == 1 else query @ vectors.T
        scores: Vectors = np.asarray(products, np.float32)
        if not np.isfinite(scores).all():
            raise self._not_finite()
        return scores

    def hits(
        self, scores: Sequence[float] | NDArray[np.floating], positions: NDArray[np.int64]
    ) -> list[Found]:
        """Return the documents at some positions, best first, with scores."""
        hits = []
        for rank, (score, row) in enumerate(zip(scores, self._rows(positions), strict=True), 1):
            hits.append(Found(rank=rank, score=float(score), **row))
        return hits

    def document(self, name: str) -> IndexedDocument:
        """Return the document with an id.

        Raises:
            DataError: no document has the id.
        """
        (row,) = self._rows(self.positions([name]))
        return IndexedDocument(**row)

    def positions(self, names: Sequence[str]) -> Positions:
        """Return the position of the document with each id, [n].

        Raises:
            DataError: an id that no document has.
        """
        positions = []
        for name in names:
            position = pc.index(self.documents["id"], _as_scalar(name)).as_py()
            if position < 0:
                raise DataError(f"no document of {self.folder} has the id {name!r}")
            positions.append(position)
        return np.array(positions, np.int64)

    def _rows(self, positions: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the id, name, place, text and columns of the documents at some positions."""
        documents = self.documents
        if KEY in documents.column_names:
            documents = documents.drop_columns([KEY])
        rows: list[dict[str, Any]]
        if len(positions) <= _FEW_ROWS:
            rows = []
            for position in positions.tolist():
                rows += documents.slice(position, 1).to_pylist()
        else:
            rows = documents.take(_as_arrow(positions)).to_pylist()
        for row in rows:
            row[COLUMNS] = row.get(COLUMNS) or {}
        return rows

    @property
    def columns(self) -> pa.Table:
        """The columns kept from the data, a row for each document, [c]; without columns if none
        are kept."""
        if COLUMNS not in self.documents.column_names:
            return pa.table({})
        struct = self.documents[COLUMNS]
        columns = struct.flatten()
        return pa.table(dict(zip([field.name for field in struct.type], columns, strict=True)))

    @property
    def keys(self) -> pa.ChunkedArray:
        """The key of each document in training, by which equal documents were recognised, [c]; the
        id of documents without keys."""
        if KEY in self.documents.column_names:
            return self.documents[KEY].cast(pa.large_string())
        return self.documents["id"]

    def find(self, keys: pa.Array | pa.ChunkedArray) -> Positions:
        """Return the position of the document with each key, [n]; -1 for a missing document."""
        places = pc.index_in(keys.cast(pa.large_string()), value_set=self.keys.combine_chunks())
        positions: Positions = places.fill_null(-1).to_numpy().astype(np.int64)
        return positions

    def _finite(self, queries: Vectors) -> Vectors:
        if not np.isfinite(queries).all():
            raise self._not_finite()
        return queries

    def _not_finite(self) -> DataError:
        return DataError(f"the embeddings of {self.folder}, or of the query, are not finite")

    def narrow(self, width: int) -> None:
        """Keep the first `width` numbers of each vector, [c, D] -> [c, width], again with length 1.

        Raises:
            DataError: vectors with fewer numbers, or vectors for comparison by inner product.
        """
        vectors = _exact(self)
        if not 1 <= width <= vectors.shape[1]:
            raise DataError(
                f"the width is {width}; the vectors of {self.folder} have 1 to {vectors.shape[1]} numbers to keep"
            )
        if self.stamp is not None:
            if not self.stamp.normalised:
                raise DataError(
                    f"{self.folder} compares by inner product, for which no number may be left out: drop the width"
                )
            self.stamp = replace(self.stamp, dimensions=width, checksum=None)
        from ..ranking.small_vectors import SmallVectors

        self.__dict__.pop("bits", None)
        self.vectors = SmallVectors(vectors, width)[:]

    def fitted(self, query: Vectors, model: str | None) -> Vectors:
        """Return query vectors, [.., D], cut to the width of the index if the index has cut vectors.

        Raises:
            DataError: vectors of another model, or of another width.
        """
        have = query.shape[-1]
        width = self.vectors.shape[1]
        if model is not None and self.stamp is not None:
            self.stamp.refuse_other(model, self.folder)
            if width == self.stamp.dimensions < have:
                from ..ranking.small_vectors import SmallVectors

                cut = SmallVectors(query.reshape(-1, have), width)[:]
                return cut.reshape(*query.shape[:-1], width)
        if have != width:
            raise DataError(
                f"{self.folder}: the model has {have} dimensions, but the index has {width}"
            )
        return query


def _as_arrow(positions: Positions) -> pa.Array:
    """Return positions as an Arrow array; `pa.array` would load pandas, which takes 0.2 s."""
    positions = np.ascontiguousarray(positions, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])


def _as_scalar(text: str) -> pa.Scalar:
    """Return a text as a scalar of Arrow; `pa.scalar` would load pandas."""
    letters = text.encode("utf-8", "surrogatepass")
    ends = np.array([0, len(letters)], np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.large_string(), 1, buffers)[0]


def _typed(documents: pa.Table) -> pa.Table:
    """Return the documents with the columns and types of an index; only keys and kept columns may
    be missing, and the beginnings of texts may stand for the texts."""
    columns = {name: _cast(documents[name], pa.large_string()) for name in DOCUMENT}
    text = TEXT if TEXT in documents.column_names else PREVIEW
    columns[TEXT] = _cast(documents[text], pa.large_string())
    if KEY in documents.column_names:
        columns[KEY] = _cast(documents[KEY], pa.int64())
    if COLUMNS in documents.column_names:
        from ..tables.kept_columns import refuse_unreadable

        refuse_unreadable(documents[COLUMNS])
        columns[COLUMNS] = documents[COLUMNS]
    return pa.table(columns)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in a type; a column that has the type already needs no function of Arrow,
    which would take time to load."""
    return column if column.type == kind else column.cast(kind)


def _read(folder: Path) -> tuple[pa.Table, Any]:
    """Return the documents and the vectors of an exact index."""
    if (folder / _TABLE).exists():
        from ..tables.tables import parquet_table

        table = nested(parquet_table(folder / _TABLE))
        return table, np.asarray(matrix(table[VECTOR], str(folder / _TABLE)), np.float32)
    if (folder / approximate.FILE).exists():
        vectors: Any = approximate.Approximate(folder / approximate.FILE)
    else:
        vectors = mapped_rows(folder / _VECTORS)
        if vectors.dtype != np.float32:
            raise ValueError(f"{_VECTORS} holds {vectors.dtype}; expected float32")
    return pa.ipc.open_file(pa.memory_map(str(folder / DOCUMENTS))).read_all(), vectors


def write_parquet(folder: Path, index: Index) -> None:
    """Write the documents of an exact index with a column for each kept column and a column
    `vector` of D floats, in the form for databases."""
    vectors = _exact(index)
    values = pa.array(np.ascontiguousarray(vectors).ravel())
    stamp = index.stamp
    documents = index.documents.replace_schema_metadata(stamp and stamp.metadata())
    table = flattened(documents).append_column(
        VECTOR, pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    )
    # A dictionary and ranges of the numbers of vectors would help no reader.
    others = [name for name in table.column_names if name != VECTOR]
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(
        table,
        folder / _TABLE,
        row_group_size=_ROWS,
        use_dictionary=others,
        write_statistics=others,
    )


def write_approximate(folder: Path, index: Index, kind: str) -> float:
    """Write an exact index as FAISS's HNSW or IVF-PQ; return the found share of the exact 10
    nearest documents."""
    vectors = _exact(index)
    folder.mkdir(parents=True, exist_ok=True)
    approximate.write(folder / approximate.FILE, vectors, kind)
    _write_documents(folder, index.documents, index.stamp)
    return approximate.overlap(folder / approximate.FILE, vectors)


def _is_recorded(folder: Path) -> bool:
    """Return True if a manifest has the checksum of the vectors of an index."""
    return is_recorded(folder / _VECTORS) or is_recorded(folder / _TABLE)


def _exact(index: Index) -> Vectors:
    """Return the vectors of an exact index; vectors of a large file are read during a
    comparison."""
    if index.is_approximate:
        raise DataError(
            f"{index.folder} is approximate; give the exact index that it was built from"
        )
    vectors: Vectors = index.vectors
    return vectors
