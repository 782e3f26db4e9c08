"""A searchable corpus on disk: one vector, one id and one place for every document."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError
from ..evaluation.search import top

_PREVIEW = 400
_VECTORS, _DOCUMENTS = "vectors.npy", "documents.arrow"
_COLUMNS = ["id", "name", "place", "preview"]


@dataclass(frozen=True)
class Found:
    """One document of an answer."""

    rank: int  # from 1
    score: float
    id: str
    name: str
    place: str
    preview: str

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def write_index(folder: Path, vectors: NDArray[np.float32], documents: pa.Table) -> None:
    """Write unit vectors, [c, D], and a table with the columns doc_id, name, place and doc; one row each."""
    folder.mkdir(parents=True)
    np.save(folder / _VECTORS, np.ascontiguousarray(vectors, np.float32), allow_pickle=False)
    table = pa.table(
        {
            "id": pc.cast(documents["doc_id"], pa.string()),
            "name": documents["name"],
            "place": documents["place"],
            "preview": pc.utf8_slice_codeunits(documents["doc"], 0, _PREVIEW),
        }
    )
    with pa.OSFile(str(folder / _DOCUMENTS), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


class Index:
    """An index on disk, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        try:
            self.vectors: NDArray[np.float32] = np.lib.format.open_memmap(folder / _VECTORS, mode="r")
            self.documents: pa.Table = (
                pa.ipc.open_file(pa.memory_map(str(folder / _DOCUMENTS))).read_all().select(_COLUMNS)
            )
        except FileNotFoundError as error:
            raise DataError(f"{folder} is not an index: {error.filename or error} is missing") from None
        except (OSError, pa.ArrowException, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a readable index: {str(error).splitlines()[0]}") from None
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.documents):
            raise DataError(f"{folder} is damaged: {self.vectors.shape} vectors for {len(self.documents)} documents")

    def search(self, query: NDArray[np.float32], k: int = 10) -> list[Found]:
        """The k documents nearest to a query vector, [D], best first."""
        if query.shape != self.vectors.shape[1:]:
            raise DataError(f"the model gives {query.shape[0]} dimensions and the index has {self.vectors.shape[1]}")
        scores, positions = top(query[None], self.vectors, k)
        rows = self.documents.take(pa.array(positions[0])).to_pylist()
        return [Found(i + 1, float(score), **row) for i, (score, row) in enumerate(zip(scores[0], rows, strict=True))]
