"""Sides of a retriever that keep their vectors: a tower whose features are rows of a matrix.

Letters in shapes: n rows, m vectors, c documents of an index, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ...arithmetic.abilities import placed
from ...arithmetic.ragged import Ragged
from ...core.batch import Role
from ...errors import ConfigError, DataError
from ...io.ids import content_ids, given_ids, places
from ...ranking.nearest import refuse_not_finite
from ...tables.vector_files import VectorFile, read_vectors
from ...towers.composed import write_copy, write_routed, write_with_head
from ...towers.pair import Embed, Tower, Towers
from ...towers.saved import similarity_of, write_similarity
from ...towers.similarities import Similarity
from ...towers.stamp import Kept, Stamp, checksum

_BLOCK = 65_536  # rows that are read at once
_UNIT = 1e-2  # by which a unit vector's length may differ from 1, in float16 and after compression


class Frozen(Tower):
    """A side that nothing trains: a text is looked up, no model runs, and no graph is kept.

    Args:
        vectors: [m, D], memory-mapped; row i of the features names one of them.
    """

    padded = False
    like: Tensor  # has the device and the precision of the tower

    def __init__(self, vectors: NDArray[np.floating[Any]]) -> None:
        super().__init__()
        self.vectors = vectors
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, features: Ragged) -> Tensor:
        rows = (features.origin or features).values.numpy()
        return placed(torch.from_numpy(np.asarray(self.vectors[rows], np.float32)), self.like)

    @property
    def width(self) -> int:
        """D."""
        return int(self.vectors.shape[1])

    @torch.no_grad()
    def encode(self, features: Ragged, role: Role = "doc") -> Tensor:
        """Vectors of rows as they are compared, [n, D]: of length 1 for cosine."""
        blocks = [
            features[start : start + _BLOCK] for start in range(0, max(1, len(features)), _BLOCK)
        ]
        vectors = torch.cat([self(block).float().cpu() for block in blocks])
        return F.normalize(vectors, dim=-1) if self.normalised else vectors


def _keys(file: VectorFile, stamped: bool) -> list[NDArray[np.int64]]:
    """Return what the documents of a file are looked for by, [c] each, in this order.

    These are the keys of a run's index; without any, hashes of the ids, and before these the ids
    themselves where they may be hashes: the index of a run on texts without ids has no others, and
    that of a recommender may have integers.
    """
    if file.keys is not None:
        return [file.keys]
    hashes = given_ids(file.ids)
    if not (stamped and pc.all(pc.match_substring_regex(file.ids, r"^-?\d+$")).as_py()):
        return [hashes]
    try:
        return [file.ids.cast(pa.int64()).to_numpy(), hashes]
    except pa.ArrowInvalid:  # longer than a hash
        return [hashes]


def numbered(rows: NDArray[np.int64]) -> Ragged:
    """Return positions as features: one for each text."""
    return Ragged(torch.from_numpy(rows.astype(np.int32)), torch.arange(len(rows) + 1))


class ModelSide(Frozen):
    """A saved model's vectors of one role, each computed once and kept by content.

    Args:
        texts: queries and then documents, of which the first or else the last is embedded, to know
            the width.
    """

    def __init__(self, model: Path, role: Role, embed: Embed, texts: Sequence[str]) -> None:
        self.model, self.role, self.embed = model, role, embed
        super().__init__(
            embed(model, role, texts[:1] if role == "query" else texts[-1:], None).vectors
        )
        self.normalised = similarity_of(model) == "cosine"

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the row of each text's vector, which is computed now unless it is kept already."""
        stored = self.embed(self.model, self.role, texts, progress)
        self.vectors = stored.vectors
        return numbered(stored.rows)

    def save(self, folder: Path) -> None:
        """Write the model as it is."""
        write_copy(self.model, folder)


class HeadTower(ModelSide):
    """A frozen model's query vectors x behind a linear residual, x + W x + b, which is the identity
    before training. It compares by the similarity of its training, whatever the model's own.

    Vectors of another width than the index's D are cut, or filled up with zeros, before W x + b is
    added.
    """

    def __init__(self, model: Path, embed: Embed, texts: Sequence[str], width: int) -> None:
        super().__init__(model, "query", embed, texts)
        self.normalised = True
        self.residual = nn.Linear(super().width, width)
        nn.init.zeros_(self.residual.weight)
        nn.init.zeros_(self.residual.bias)

    @property
    def width(self) -> int:
        """D of the documents."""
        return self.residual.out_features

    def forward(self, features: Ragged) -> Tensor:
        x = super().forward(features)
        residual: Tensor = self.residual(x)
        return F.pad(x, (0, self.width - x.shape[1])) + residual

    def compare_by(self, similarity: Similarity) -> None:
        """Judge and save by the similarity that training compares by."""
        self.normalised = similarity == "cosine"

    def again(self) -> HeadTower:
        """Return the head before training, on the same vectors."""
        return HeadTower(self.model, self.embed, [], self.width)

    def save(self, folder: Path) -> None:
        """Write one model: the frozen one, one linear layer I + W with b, and normalisation where
        it compares by cosine."""
        weight, bias = self.residual.weight.detach().cpu(), self.residual.bias.detach().cpu()
        similarity: Similarity = "cosine" if self.normalised else "dot"
        write_with_head(self.model, torch.eye(*weight.shape) + weight, bias, folder, similarity)


class IndexSide(Frozen):
    """The vectors of an index, whatever model made them, by the id of the document or else by its
    content.

    Raises:
        DataError: an id of two vectors, or a vector that is not finite.
    """

    def __init__(self, path: Path, ids: Path | None = None) -> None:
        file = read_vectors(path, ids)
        super().__init__(file.vectors)
        self.path, self.stamp = path, Stamp.read(file.metadata, path)
        self.normalised = self.stamp is None or self.stamp.normalised
        if self.stamp is not None and file.exact and not file.compared:
            self.stamp.refuse_changed(file.vectors, path)
        self.keys = [
            (keys, np.argsort(keys, kind="stable")) for keys in _keys(file, self.stamp is not None)
        ]
        self.example = file.ids[0].as_py() if len(file.ids) else ""
        keys, order = self.keys[0]
        rising = keys[order]
        if len(twice := np.flatnonzero(rising[1:] == rising[:-1])):
            first, second = order[twice[0] : twice[0] + 2].tolist()
            raise DataError(
                f"{path} holds the id {file.ids[first].as_py()!r} twice, in rows {first + 1:,} and {second + 1:,}: "
                "give every document one vector"
            )
        lengths = self._lengths()
        self.bounds = (float(lengths.min()), float(lengths.max())) if len(lengths) else (1.0, 1.0)

    def _lengths(self) -> NDArray[np.float32]:
        blocks = (
            self.vectors[start : start + _BLOCK]
            for start in range(0, max(1, len(self.vectors)), _BLOCK)
        )
        lengths = np.concatenate(
            [np.linalg.norm(np.asarray(block, np.float32), axis=1) for block in blocks]
        )
        refuse_not_finite(
            lengths[:, None], f"documents in {self.path}", "embed these documents again"
        )
        return lengths

    @property
    def kept(self) -> Kept:
        """Facts that a model which is trained for this index keeps of it."""
        model, known = (
            (None, None) if self.stamp is None else (self.stamp.model, self.stamp.checksum)
        )
        return Kept(known or checksum(self.vectors), model, len(self.vectors), self.width)

    def notes(self) -> list[str]:
        """Return what a user should know of the vectors."""
        low, high = self.bounds
        notes = []
        if self.vectors.dtype != np.float32:
            notes.append(
                f"{self.path} holds {self.vectors.dtype} vectors: they are compared in float32"
            )
        if self.normalised and (low < 1 - _UNIT or high > 1 + _UNIT):
            notes.append(
                f"the vectors of {self.path} have lengths from {low:.3g} to {high:.3g} and are compared by cosine here: "
                "search them by cosine, too, since inner products rank them otherwise"
            )
        return notes

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each id, [n]; -1 for an id that the index lacks."""
        rows = np.full(len(ids), -1)
        for keys, order in self.keys:
            rows = np.where(rows < 0, places(ids, keys, order), rows)
        return rows

    def named(self, ids: NDArray[np.int64], texts: Sequence[str]) -> Ragged:
        """Return the features of documents by their ids, or else by the content of their texts.

        Raises:
            DataError: documents that the index lacks.
        """
        rows = self.find(ids)
        if len(missing := np.flatnonzero(rows < 0)):
            rows[missing] = self.find(content_ids([texts[i] for i in missing.tolist()]))
        if len(missing := np.flatnonzero(rows < 0)):
            shown = " ".join(texts[int(missing[0])].split())[:40]
            raise DataError(
                f"{len(missing):,} of {len(rows):,} documents are not in {self.path}, the first of them {shown!r}: add them "
                f"to the index, remove their rows, see that data.doc_id is a column of ids such as {self.example!r}, or give the "
                "ids of a .npy or FAISS file as tower.doc.ids"
            )
        return numbered(rows)

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the rows of texts by their content."""
        return self.named(content_ids(texts), texts)

    def save(self, folder: Path) -> None:
        """Raise DataError: an index is no model."""
        raise DataError(f"{self.path} holds vectors and no model of documents")


class KeptTowers(Towers):
    """A query side that is trained and documents that are kept; stays untrained where validation
    cannot show a gain."""

    guarded = True

    def compare_by(self, similarity: Similarity) -> None:
        """Judge and save queries by the similarity that training compares by.

        Raises:
            ConfigError: kept vectors that are compared otherwise.
        """
        if similarity == "cosine" and not self.doc.normalised:
            raise ConfigError(
                "objective.similarity is cosine, and the vectors of tower.doc are compared by inner product (dot), as was saved "
                "with them: set objective.similarity=dot"
            )
        self.query.compare_by(similarity)

    def save(self, folder: Path) -> None:
        """Write the query model, with a note of its index; or a model with a route for queries and
        one for documents."""
        if isinstance(self.doc, IndexSide):
            self.query.save(folder)
            self.doc.kept.write(folder)
            if not self.doc.normalised:
                write_similarity(folder, "dot")
        else:
            write_routed(self.query.save, self.doc.save, folder)
