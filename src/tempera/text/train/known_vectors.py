"""Vectors of a run's texts by the weights of now: none is computed twice, and those of an untrained
model are kept for all runs.

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
    """Vectors of a run's distinct texts; the weights that have given some give the others
    only.

    While the weights are still those of a saved model, vectors are read from a store and added to
    it, by the tokens of their texts: all runs that begin with this model and these options share
    it.

    Args:
        tower: before its training.
        features: of the distinct queries and documents.
        folder: of the store.
    """

    def __init__(self, tower: Tower, features: Mapping[Role, Ragged], folder: Path) -> None:
        self.tower, self.features, self.folder = tower, features, folder
        self.blocks: list[tuple[Rows, Floats]] = []  # numbers of texts, and their vectors
        self.written: list[int] | None = None  # versions of the weights that have given them
        self.untrained = self.shared = any(self._origin(role) for role in features)
        self.start = digest(self._weights) if self.shared else None

    def __call__(self, rows: Rows, role: Role, embed: Callable[[Rows, Role], Floats]) -> Floats:
        """Return the vectors of chosen queries or documents, [n, D], of which `embed` computes
        those that are not known."""
        self._follow()
        numbers = self._numbers[role][rows]
        for held, vectors in self.blocks:
            if np.array_equal(held, numbers):
                return vectors
        distinct, first = np.unique(numbers, return_index=True)
        missing = ~np.isin(
            distinct, np.concatenate([numbers[:0], *(held for held, _ in self.blocks)])
        )
        new = np.sort(first[missing])
        if len(new) or not self.blocks:
            computed = self._stored(
                self.features[role], rows[new], role, lambda chosen: embed(chosen, role)
            )
            self.blocks.append((numbers[new], computed))
            if len(new) == len(rows):
                return computed
        return self._gathered(numbers)

    def kept(self, features: Ragged, role: Role, embed: Callable[[Ragged], Floats]) -> Floats:
        """Return the vectors of other texts, [n, D], which are remembered only for the untrained
        model."""
        self._follow()
        return self._stored(
            features, np.arange(len(features)), role, lambda chosen: embed(features[chosen])
        )

    def forget(self) -> None:
        """Free the memory before a step, which may change the weights and leave their versions."""
        self.blocks, self.written = [], None

    def _gathered(self, numbers: Rows) -> Floats:
        """Return the vectors of texts that are all known."""
        vectors = np.empty((len(numbers), self.blocks[0][1].shape[1]), np.float32)
        place = np.empty(sum(map(len, self.features.values())), np.int64)
        for held, known in self.blocks:
            place[:] = -1
            place[held] = np.arange(len(held))
            at = place[numbers]
            vectors[at >= 0] = known[at[at >= 0]]
        return vectors

    def _stored(
        self, features: Ragged, rows: Rows, role: Role, embed: Callable[[Rows], Floats]
    ) -> Floats:
        origin = self._origin(role)
        if not (self.untrained and origin):
            return embed(rows)
        side: Any = self.tower.of(role)
        device, precision = (
            next(side.parameters()).device.type,
            "" if side.reads == torch.float32 else "-bf16-products",
        )
        compared = "" if side.normalised else "-dot"
        store = Store(self.folder, f"untrained-{origin}-{device}{precision}{compared}")
        at = store.fill(keys_of_rows(features[rows]), lambda missing: embed(rows[missing]))
        return np.array(store.vectors[at], np.float32)

    def _follow(self) -> None:
        """Forget what other weights have given."""
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
        """The number of each query and document: texts that one model reads alike have the same."""
        queries, docs = self.features["query"], self.features["doc"]
        if self._origin("query") and self.tower.of("query") is self.tower.of("doc"):
            keys = np.concatenate([keys_of_rows(queries), keys_of_rows(docs)])
            numbers = np.unique(keys, return_inverse=True)[1]
        else:
            numbers = np.arange(len(queries) + len(docs))
        return {"query": numbers[: len(queries)], "doc": numbers[len(queries) :]}
