"""A stamp in an index names the model of the vectors, and a note in a model names the index of the
model's training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..errors import DataError
from ..io.documents import parsed, read_json, write_json
from .saved import KEPT

_KEY = b"tempera"
_MODEL = b"tempera.model"


@dataclass(frozen=True)
class Stamp:
    """Facts about the vectors of an index, for searches."""

    model: str  # fingerprint
    dimensions: int
    metric: str = "cosine"
    normalised: bool = True
    checksum: str | None = None  # of the vectors; None if other vectors were kept than computed

    @classmethod
    def read(cls, metadata: Mapping[bytes, bytes] | None, place: Path) -> Stamp | None:
        """Return the stamp in the metadata of an Arrow or Parquet schema; None if there is none.

        Raises:
            DataError: the stamp is damaged.
        """
        text = (metadata or {}).get(_KEY)
        if text is None:
            return None
        try:
            return cls(**parsed(text))
        except (ValueError, TypeError):
            raise DataError(
                f"{place} is damaged: what it says of its vectors is not readable; make it again"
            ) from None

    def metadata(self) -> dict[bytes, bytes]:
        """Return the stamp as metadata of a schema."""
        return {_KEY: json.dumps(asdict(self)).encode()}

    def refuse_changed(self, vectors: NDArray[np.float32], place: Path) -> None:
        """Raise DataError unless the vectors are as written."""
        if self.checksum is not None and checksum(vectors) != self.checksum:
            raise DataError(
                f"{place} is damaged: its vectors are not as they were written (their checksum differs); train or export it again"
            )

    def refuse_other(self, model: str, place: Path) -> None:
        """Raise DataError unless a model with this fingerprint made the vectors."""
        if model != self.model:
            raise DataError(
                f"{place} holds vectors of another model ({self.model[:12]}; this model is {model[:12]}): "
                "build the index again, or give the model that made it"
            )


def beside(table: pa.Table, model: str) -> pa.Table:
    """Return a table of a run with the fingerprint of the run's model in its metadata."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _MODEL: model.encode()})


def refuse_foreign(metadata: Mapping[bytes, bytes] | None, model: str, path: Path) -> None:
    """Raise DataError if a table of a run names another model than the run's; tables of earlier
    versions name none."""
    own = (metadata or {}).get(_MODEL, model.encode()).decode()
    if own != model:
        raise DataError(
            f"{path} is of another run: it belongs to the model {own[:12]}, and the model beside it is {model[:12]}; "
            "copy the file from the model's own run, or train again"
        )


@dataclass(frozen=True)
class Kept:
    """Facts about the index of a query model's training, from the model's folder.

    Args:
        checksum: of the index's vectors.
        model: fingerprint of the model of the vectors; None if unknown.
        documents: number of vectors.
        dimensions: of the vectors.
    """

    checksum: str
    model: str | None
    documents: int
    dimensions: int

    @classmethod
    def read(cls, folder: Path) -> Kept | None:
        """Return the facts in a model's folder; None for a model of documents, too.

        Raises:
            DataError: the file is damaged.
        """
        path = folder / KEPT
        if not path.is_file():
            return None
        try:
            return cls(**read_json(path))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"{path} is damaged: {error}; copy it from the model that was trained, or train it again"
            ) from None

    def write(self, folder: Path) -> None:
        """Write the facts into a model's folder."""
        write_json(folder / KEPT, asdict(self))


def checksum(vectors: NDArray[np.floating[Any]]) -> str:
    """Return 16 hex digits, different after a change of any bit or of the order of the vectors.

    >>> checksum(np.eye(2, dtype=np.float32)) == checksum(np.eye(2, dtype=np.float32)[::-1])
    False
    """
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(vectors).data)
