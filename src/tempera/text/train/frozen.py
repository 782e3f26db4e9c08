"""Untrained sides of a retriever: towers with rows of a matrix of vectors as features.

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
    """An untrained side: vectors are looked up, no model runs, and no graph is kept.

    Args:
        vectors: [m, D], memory-mapped; row i of the features is the position of a vector.
    """

    padded = False
    like: Tensor  # has the device and the precision of the tower

    def __init__(self, vectors: NDArray[np.floating[Any]]) -> None:
        super().__init__()
        self.vectors = vectors
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, features: Ragged) -> Tensor:
        rows = (features.origin or features).values.numpy()
        vectors = np.asarray(self.vectors[rows], np.float32)
        return placed(torch.from_numpy(vectors), self.like)

    @property
    def width(self) -> int:
        """D."""
        return int(self.vectors.shape[1])

    @torch.no_grad()
    def encode(self, features: Ragged, role: Role = "doc") -> Tensor:
        """Return the compared vectors of rows, [n, D]: of length 1 for cosine."""
        blocks = list[Tensor]()
        for start in range(0, max(1, len(features)), _BLOCK):
            blocks.append(self(features[start : start + _BLOCK]).float().cpu())
        vectors = torch.cat(blocks)
        if self.normalised:
            return F.normalize(vectors, dim=-1)
        return vectors


def _keys(file: VectorFile, is_stamped: bool) -> list[NDArray[np.int64]]:
    """Return the keys for finding the documents of a file, [c] each, the first to be tried first.

    The index of a run has keys. In other files, hashes of the ids are the keys. In a file stamped
    by Tempera, integers as ids are tried before hashes of the ids: in the index of a run on texts
    without ids, the integers are hashes already, and items of a recommender may have integer ids.
    """
    if file.keys is not None:
        return [file.keys]
    hashes = given_ids(file.ids)
    if not is_stamped or not pc.all(pc.match_substring_regex(file.ids, r"^-?\d+$")).as_py():
        return [hashes]
    try:
        return [file.ids.cast(pa.int64()).to_numpy(), hashes]
    except pa.ArrowInvalid:  # longer than a hash
        return [hashes]


def numbered(rows: NDArray[np.int64]) -> Ragged:
    """Return positions of vectors as features, a position for each text."""
    return Ragged(torch.from_numpy(rows.astype(np.int32)), torch.arange(len(rows) + 1))


class ModelSide(Frozen):
    """A saved model's vectors of one role, each computed once and kept by content.

    Args:
        texts: queries and then documents; one text of the role is embedded, to know the width.
    """

    def __init__(self, model: Path, role: Role, embed: Embed, texts: Sequence[str]) -> None:
        self.model, self.role, self.embed = model, role, embed
        example = texts[:1] if role == "query" else texts[-1:]
        super().__init__(embed(model, role, example, None).vectors)
        self.normalised = similarity_of(model) == "cosine"

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the row of each text's vector, after computing the vectors that are missing."""
        stored = self.embed(self.model, self.role, texts, progress)
        self.vectors = stored.vectors
        return numbered(stored.rows)

    def save(self, folder: Path) -> None:
        """Write the model unchanged."""
        write_copy(self.model, folder)


class HeadTower(ModelSide):
    """A frozen model's query vectors x behind a linear residual, x + W x + b; before training, the
    identity. The head compares by the similarity of its training, not of the model.

    Vectors of another width than the D of the index are cut, or filled up with zeros, before
    W x + b is added.
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
        """Judge and save by the similarity of training."""
        self.normalised = similarity == "cosine"

    def again(self) -> HeadTower:
        """Return the head before training, on the same vectors."""
        return HeadTower(self.model, self.embed, [], self.width)

    def save(self, folder: Path) -> None:
        """Write one model: the frozen model, a linear layer I + W with b, and for cosine a
        normalisation."""
        weight = self.residual.weight.detach().cpu()
        bias = self.residual.bias.detach().cpu()
        similarity: Similarity = "cosine" if self.normalised else "dot"
        write_with_head(self.model, torch.eye(*weight.shape) + weight, bias, folder, similarity)


class IndexSide(Frozen):
    """The vectors of an index of any model, by the id of the document or else by the content.

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
        self.keys = list[tuple[NDArray[np.int64], NDArray[np.int64]]]()  # with their rising order
        for keys in _keys(file, self.stamp is not None):
            self.keys.append((keys, np.argsort(keys, kind="stable")))
        self.example = file.ids[0].as_py() if len(file.ids) else ""
        keys, order = self.keys[0]
        rising = keys[order]
        twice = np.flatnonzero(rising[1:] == rising[:-1])
        if len(twice):
            first, second = order[twice[0] : twice[0] + 2].tolist()
            raise DataError(
                f"{path} holds the id {file.ids[first].as_py()!r} twice, in rows {first + 1:,} and {second + 1:,}: "
                "give every document one vector"
            )
        lengths = self._lengths()
        self.bounds = (float(lengths.min()), float(lengths.max())) if len(lengths) else (1.0, 1.0)

    def _lengths(self) -> NDArray[np.float32]:
        """Return the length of every vector, [m]."""
        blocks = list[NDArray[np.float32]]()
        for start in range(0, max(1, len(self.vectors)), _BLOCK):
            block = np.asarray(self.vectors[start : start + _BLOCK], np.float32)
            blocks.append(np.linalg.norm(block, axis=1))
        lengths = np.concatenate(blocks)
        texts = f"documents in {self.path}"
        refuse_not_finite(lengths[:, None], texts, "embed these documents again")
        return lengths

    @property
    def kept(self) -> Kept:
        """Facts of the index, to be saved with the model of the queries."""
        model = None if self.stamp is None else self.stamp.model
        digest = None if self.stamp is None else self.stamp.checksum
        return Kept(digest or checksum(self.vectors), model, len(self.vectors), self.width)

    def notes(self) -> list[str]:
        """Return sentences for the user about unusual vectors."""
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
        """Return the row of each id, [n]; -1 for an id missing in the index."""
        rows = np.full(len(ids), -1)
        for keys, order in self.keys:
            rows = np.where(rows < 0, places(ids, keys, order), rows)
        return rows

    def named(self, ids: NDArray[np.int64], texts: Sequence[str]) -> Ragged:
        """Return the features of documents by id, or else by the content of the texts.

        Raises:
            DataError: documents that the index lacks.
        """
        rows = self.find(ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            rows[missing] = self.find(content_ids([texts[i] for i in missing.tolist()]))
            missing = np.flatnonzero(rows < 0)
        if len(missing):
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
    """A trained side of queries beside kept documents; the queries stay untrained where validation
    cannot show a gain."""

    guarded = True

    def compare_by(self, similarity: Similarity) -> None:
        """Judge and save queries by the similarity of training.

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
        """Write the query model with a note of its index, or a model with a route for queries and a
        route for documents."""
        if isinstance(self.doc, IndexSide):
            self.query.save(folder)
            self.doc.kept.write(folder)
            if not self.doc.normalised:
                write_similarity(folder, "dot")
        else:
            write_routed(self.query.save, self.doc.save, folder)
