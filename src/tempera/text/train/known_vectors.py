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

_COLUMNS = 64  # numbers of all vectors that are moved at once
_AT_ONCE = 1 << 13  # texts that are embedded at once: the memory beside the vectors


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
        for held, known in self.blocks:
            if np.array_equal(held, numbers):
                return known
        place = np.full(sum(map(len, self.features.values())), -1)  # in the result, of each number
        place[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of equal numbers the first
        is_known = np.zeros(len(place), bool)
        for held, _ in self.blocks:
            is_known[held] = True
        is_first = place[numbers] == np.arange(len(numbers))
        new = np.flatnonzero(is_first & ~is_known[numbers])
        if len(new) or not self.blocks:
            vectors = self._computed(rows, role, embed, new)
        else:
            vectors = np.empty((len(rows), self.blocks[0][1].shape[1]), np.float32)
        others = []
        for held, known in self.blocks:
            at = place[held]
            vectors[at[at >= 0]] = known[at >= 0]
            if (at < 0).any():
                others.append((held, known))
        vectors[~is_first] = vectors[place[numbers[~is_first]]]
        if len(new) or not self.blocks:
            # The vectors of parts are freed: they are among those of the whole.
            self.blocks = [*others, (numbers, vectors)]
        return vectors

    def _computed(
        self, rows: Rows, role: Role, embed: Callable[[Rows, Role], Floats], new: Rows
    ) -> Floats:
        """Return an array for the vectors of texts, [n, D], in which new vectors are computed.

        Args:
            new: positions of the new vectors, rising.
        """

        def embedded(part: Rows) -> Floats:
            return self._stored(
                self.features[role], rows[part], role, lambda chosen: embed(chosen, role)
            )

        first = embedded(new[:_AT_ONCE])
        if len(first) == len(rows):
            return first
        vectors = np.empty((len(rows), first.shape[1]), np.float32)
        vectors[new[:_AT_ONCE]] = first
        for start in range(_AT_ONCE, len(new), _AT_ONCE):
            part = new[start : start + _AT_ONCE]
            if len(new) == len(rows):  # a slice is written in half of the time
                vectors[start : start + _AT_ONCE] = embedded(part)
            else:
                vectors[part] = embedded(part)
        return vectors

    def handed_over(self, rows: Rows, role: Role, embed: Callable[[Rows, Role], Floats]) -> Floats:
        """Return the vectors of distinct texts, [n, D], and forget all vectors.

        Known vectors of the same texts in another order are moved in their place: the vectors of a
        large corpus may be most of the memory.
        """
        self._forget_old()
        numbers = self._numbers[role][rows]
        for held, vectors in self.blocks:
            if len(held) != len(numbers):
                continue
            place = np.full(sum(map(len, self.features.values())), -1)
            place[held] = np.arange(len(held))
            order = place[numbers]
            if (order >= 0).all() and (np.bincount(order) == 1).all():
                for start in range(0, vectors.shape[1], _COLUMNS):
                    part = slice(start, start + _COLUMNS)
                    vectors[:, part] = vectors[order, part]
                self.forget()
                return vectors
        vectors = self(rows, role, embed)
        self.forget()
        return vectors

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
