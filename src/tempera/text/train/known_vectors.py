"""Vectors of a run's texts by the current weights: no vector is computed twice with the same
weights, and vectors of a saved model before training are stored for all runs.

Letters in shapes: n texts, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...arithmetic.ragged import Ragged
from ...core.batch import Role
from ...mining.vectors import Store, keys_of_rows
from ...parallel.digest import digest
from ...towers.pair import Tower
from ..read.pairs import Rows

Floats = NDArray[np.float32]


class KnownVectors:
    """Vectors of a run's distinct texts; the same weights compute each vector once.

    As long as a tower has the weights of a saved model, vectors are stored on disk, by the tokens
    of the texts. All runs that begin with the same model and options share the store.

    Args:
        tower: the tower before its training.
        features: features of the distinct queries and documents.
        folder: folder of the store.
    """

    def __init__(self, tower: Tower, features: Mapping[Role, Ragged], folder: Path) -> None:
        self.tower, self.features, self.folder = tower, features, folder
        self.blocks: list[tuple[Rows, Floats]] = []  # numbers of texts, and their vectors
        self.written: list[int] | None = None  # versions of the weights that computed `blocks`
        self.untrained = self.shared = any(self._origin(role) for role in features)
        self.start = digest(self._weights) if self.shared else None

    def __call__(self, rows: Rows, role: Role, embed: Callable[[Rows, Role], Floats]) -> Floats:
        """Return the vectors of chosen queries or documents, [n, D]; `embed` computes the unknown
        vectors."""
        self._forget_old()
        numbers = self._numbers[role][rows]
        known = [numbers[:0]]
        for held, vectors in self.blocks:
            if np.array_equal(held, numbers):
                return vectors
            known.append(held)
        distinct, first = np.unique(numbers, return_index=True)
        is_new = ~np.isin(distinct, np.concatenate(known))
        new = np.sort(first[is_new])
        if len(new) or not self.blocks:
            computed = self._stored(
                self.features[role], rows[new], role, lambda chosen: embed(chosen, role)
            )
            self.blocks.append((numbers[new], computed))
            if len(new) == len(rows):
                return computed
        return self._gathered(numbers)

    def kept(self, features: Ragged, role: Role, embed: Callable[[Ragged], Floats]) -> Floats:
        """Return the vectors of texts of other data, [n, D]; only vectors of the untrained model
        are stored, and none stays in memory."""
        self._forget_old()
        rows = np.arange(len(features))
        return self._stored(features, rows, role, lambda chosen: embed(features[chosen]))

    def forget(self) -> None:
        """Forget all vectors in memory before a step of training: a step can change the weights
        without a new version of the tensors, unnoticed by `_forget_old`."""
        self.blocks, self.written = [], None

    def _gathered(self, numbers: Rows) -> Floats:
        """Return the known vectors of texts."""
        width = self.blocks[0][1].shape[1]
        vectors = np.empty((len(numbers), width), np.float32)
        place = np.empty(sum(map(len, self.features.values())), np.int64)  # row in a block
        for held, known in self.blocks:
            place[:] = -1
            place[held] = np.arange(len(held))
            at = place[numbers]
            vectors[at >= 0] = known[at[at >= 0]]
        return vectors

    def _stored(
        self, features: Ragged, rows: Rows, role: Role, embed: Callable[[Rows], Floats]
    ) -> Floats:
        """Return vectors from the store of the untrained model; `embed` computes the vectors that
        the store lacks, and all vectors of other weights."""
        origin = self._origin(role)
        if not self.untrained or not origin:
            return embed(rows)
        side: Any = self.tower.of(role)
        name = f"untrained-{origin}-{next(side.parameters()).device.type}"
        if side.reads != torch.float32:
            name += "-bf16-products"
        if not side.normalised:
            name += "-dot"
        store = Store(self.folder, name)
        at = store.fill(keys_of_rows(features[rows]), lambda missing: embed(rows[missing]))
        return np.array(store.vectors[at], np.float32)

    def _forget_old(self) -> None:
        """Forget the vectors of earlier weights and, after a change, compare the weights with the
        untrained weights anew."""
        written = [tensor._version for tensor in self._weights]
        if written != self.written:
            self.blocks, self.written = [], written
            self.untrained = self.shared and digest(self._weights) == self.start

    def _origin(self, role: Role) -> str:
        side: Any = self.tower.of(role)
        origin: str = side.origin
        return origin

    @property
    def _weights(self) -> list[Any]:
        return [*self.tower.parameters(), *self.tower.buffers()]

    @cached_property
    def _numbers(self) -> dict[Role, Rows]:
        """The number of each query and document.

        Texts with the same tokens have the same number if one saved model reads queries and
        documents; else every text has a separate number.
        """
        queries, docs = self.features["query"], self.features["doc"]
        if self._origin("query") and self.tower.of("query") is self.tower.of("doc"):
            keys = np.concatenate([keys_of_rows(queries), keys_of_rows(docs)])
            numbers = np.unique(keys, return_inverse=True)[1]
        else:
            numbers = np.arange(len(queries) + len(docs))
        return {"query": numbers[: len(queries)], "doc": numbers[len(queries) :]}
