"""Vectors of texts by a saved model, looked up where a store has them.

Letters in shapes: n texts, m rows of the store, G width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..core.batch import Role
from ..errors import DataError
from ..towers.saved import Encode, load
from .vectors import Dtype, Floats, Rows, Store, keys_of


@dataclass(frozen=True)
class Embedded:
    """Vectors of n texts: text i has `vectors[rows[i]]`.

    >>> Embedded(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0, 1]))[np.array([0, 1])].tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """

    vectors: Floats  # [m, G], memory-mapped
    rows: Rows  # [n]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> NDArray[np.float32]:
        """Vectors of chosen texts, by slice, boolean mask or positions."""
        return np.asarray(self.vectors[self.rows[chosen]], np.float32)


def embed(store: Store, texts: Sequence[str], encode: Encode, progress: str | None = None) -> Embedded:
    """Vectors of texts, computed where the store has none; texts of any number of calls share the store."""
    rows = store.fill(keys_of(texts), lambda missing: encode([texts[i] for i in missing]), progress)
    return Embedded(store.vectors, rows)


def embed_by(
    model: Path, role: Role, texts: Sequence[str], folder: Path, dtype: Dtype = "float32", progress: str | None = None
) -> Embedded:
    """Unit vectors of texts by a saved model, which is opened only where the store in `folder` lacks some."""
    store = Store(folder, f"{fingerprint(model)}-{role}", dtype)
    opened: list[Encode] = []

    def encode(missing: Sequence[str]) -> NDArray[np.float32]:
        if not opened:
            opened.append(load(model, role))
        return opened[0](missing)

    return embed(store, texts, encode, progress)


def fingerprint(model: Path) -> str:
    """What a model folder computes: a hash of the names and bytes of its files, the model card excepted.

    Weights, configuration, tokenizer and prompts are all in it.
    """
    files = sorted(path for path in model.rglob("*") if path.is_file())
    if not files:
        raise DataError(f"{model} is not a saved model: there is no such folder, or it is empty")
    whole = xxhash.xxh3_128()
    for path in files:
        name = path.relative_to(model)
        if name.name == "README.md" or any(part.startswith(".") for part in name.parts):
            continue
        part = xxhash.xxh3_128()
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                part.update(block)
        whole.update(f"{name.as_posix()}\0{part.hexdigest()}\0".encode())
    return whole.hexdigest()
