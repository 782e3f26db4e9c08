"""Embeddings of texts by a saved model, each computed once and kept in a store.

Letters in shapes: n texts, m rows of the store, G width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.batch import Role
from ..engine.devices import named
from ..towers.saved import Encode, fingerprint, is_static, load, reads_alike, similarity_of
from .vectors import Floats, Rows, Store, keys_of


@dataclass(frozen=True)
class StoredEmbeddings:
    """Embeddings of n texts; text i has the embedding `vectors[rows[i]]`.

    >>> StoredEmbeddings(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0, 1]))[np.array([0, 1])].tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """

    vectors: Floats  # [m, G], memory-mapped
    rows: Rows  # [n]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> NDArray[np.float32]:
        """Return the embeddings of chosen texts, by slice, boolean mask or positions."""
        return np.asarray(self.vectors[self.rows[chosen]], np.float32)


def embed(
    store: Store, texts: Sequence[str], encode: Encode, progress: str | None = None
) -> StoredEmbeddings:
    """Return embeddings of texts; embeddings that the store lacks are computed."""

    def compute(missing: Rows) -> Floats:
        return encode([texts[i] for i in missing])

    rows = store.fill(keys_of(texts), compute, progress)
    return StoredEmbeddings(store.vectors, rows)


def read_by(model: Path, role: Role, half: bool = False, device: str = "auto") -> Encode:
    """Return the function of a saved model from texts to vectors, [n, D], whose inner products are
    its similarity; a static model needs no device."""
    return load(model, role, half, "cpu" if is_static(model) else named(device))


def embed_by(
    model: Path,
    role: Role,
    texts: Sequence[str],
    folder: Path,
    progress: str | None = None,
    half: bool = False,
    device: str = "auto",
    kind: str = "",
) -> StoredEmbeddings:
    """Return vectors of texts by a saved model, whose inner products are the model's similarity.

    The model is loaded only if the store in `folder` lacks a vector. A transformer reads on a
    device (see `engine.devices.named`), with `half` in bf16; `kind` is as in `store_of`.
    """
    half = half and not is_static(model)
    loaded = cache(lambda: read_by(model, role, half, device))

    def encode(missing: Sequence[str]) -> NDArray[np.float32]:
        return loaded()(missing)

    return embed(store_of(model, role, folder, half, kind), texts, encode, progress)


def store_of(model: Path, role: Role, folder: Path, half: bool, kind: str = "") -> Store:
    """Return the store of a model's vectors of one role.

    Args:
        folder: of all stores.
        half: a transformer computes in bf16.
        kind: ends the name of a store in which vectors are rounded.
    """
    space = fingerprint(model)
    if not reads_alike(model):
        space += f"-{role}"
    if half and not is_static(model):
        space += "-bf16-products"
    if similarity_of(model) != "cosine":
        space += "-dot"
    return Store(folder, space + kind)
