"""A saved model, to be judged.

Letters in shapes: n texts, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from ..io.console import progress_bar
from ..towers.saved import Encode, load

Vectors = NDArray[np.float32]

_BLOCK = 10_000  # texts that are encoded at once


@dataclass(frozen=True)
class Model:
    """A saved model, by its folder or by the run that holds it; nothing is loaded before it is used."""

    path: str

    @property
    def folder(self) -> Path:
        """Where modules.json lies."""
        inside = Path(self.path) / "model"
        return inside if (inside / "modules.json").is_file() else Path(self.path)

    @cached_property
    def query(self) -> Encode:
        """Queries to unit vectors, [n, D]."""
        return load(self.folder, "query")

    @cached_property
    def doc(self) -> Encode:
        """Documents to unit vectors, [n, D]."""
        return load(self.folder, "doc")


def encode_all(encode: Encode, texts: pa.ChunkedArray, what: str) -> Vectors:
    """Vectors of a column of texts, [n, D]."""
    parts = []
    with progress_bar(f"encoding {what}", len(texts), "text") as bar:
        for start in range(0, len(texts), _BLOCK):
            parts.append(encode(texts.slice(start, _BLOCK).to_pylist()))
            bar.update(len(parts[-1]))
    vectors = np.concatenate(parts)
    if (wrong := ~np.isfinite(vectors).all(1)).any():
        text = texts[int(wrong.argmax())].as_py()
        raise DataError(
            f"the model gives a vector that is not finite for {text[:60]!r} ({int(wrong.sum())} such texts)"
        )
    return vectors
