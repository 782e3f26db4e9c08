"""Guides, computed once: embeddings by row for `Side.guide`, and scores of a cross-encoder by pair.

Letters in shapes: n rows, G width, e pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.batch import Role
from ..core.masks import TIE
from ..engine.devices import named
from ..errors import DataError
from ..towers.cross import Judge, load_cross_encoder
from ..towers.saved import fingerprint
from .embed import StoredEmbeddings
from .guide_source import GuideSource
from .vectors import Store, keys_of_pairs

_CLOSE = TIE * float(np.finfo(np.float32).eps)

Pairs = Sequence[tuple[str, str]]
Score = Callable[[Pairs], NDArray[np.float32]]


@dataclass(frozen=True)
class Guide:
    """Vectors of every distinct query and document, looked up by position; their inner products
    are the guide's similarity.

    >>> table = StoredEmbeddings(np.eye(2, dtype=np.float32), np.array([1, 0]))
    >>> Guide(table, table)("query", torch.tensor([0])).tolist()
    [[0.0, 1.0]]
    """

    query: StoredEmbeddings
    doc: StoredEmbeddings

    def __post_init__(self) -> None:
        of_queries = self.query.vectors.shape[1]
        of_docs = self.doc.vectors.shape[1]
        if of_queries != of_docs:
            raise DataError(
                f"a guide or teacher compares queries with documents, but its vectors have the widths {of_queries} and {of_docs}"
            )

    @classmethod
    def of(
        cls,
        model: Path,
        queries: Sequence[str],
        docs: Sequence[str],
        folder: Path,
        called: str = "the guide",
        half: bool = False,
        device: str = "auto",
    ) -> Guide:
        """Return a guide by a saved model, the model of a run, or an encoded corpus, as
        `GuideSource.embed` reads; stored embeddings in `folder` are reused."""
        read = partial(GuideSource.of(model).embed, folder=folder, half=half, device=device)
        of_queries = read("query", queries, progress=f"embedding queries with {called}")
        of_docs = read("doc", docs, progress=f"embedding documents with {called}")
        return cls(of_queries, of_docs)

    def __call__(self, role: Role, rows: Tensor) -> Tensor:
        """Return embeddings of chosen queries, or of documents in any other role, [n, G], for
        `Side.guide`."""
        table = self.query if role == "query" else self.doc
        return torch.from_numpy(table[rows.numpy()])


@dataclass(frozen=True)
class CrossEncoder:
    """Scores of pairs by a cross-encoder; each distinct pair is scored once and kept in a store."""

    store: Store
    judge: Callable[[], Judge]  # loads the model, unless the store holds all scores

    @classmethod
    def of(cls, model: Path, folder: Path, device: str = "auto") -> CrossEncoder:
        """Return the scorer of a saved model, on a device, with a store of its scores in
        `folder`."""
        store = Store(folder, f"{fingerprint(model)}-pairs")
        return cls(store, lambda: load_cross_encoder(model, named(device)))

    def __call__(self, pairs: Pairs, progress: str | None = None) -> NDArray[np.float32]:
        """Return the scores of pairs, [e]."""
        loaded = cache(self.judge)

        def score(missing: NDArray[np.int64]) -> NDArray[np.float32]:
            return loaded()([pairs[i] for i in missing])[:, None]

        rows = self.store.fill(keys_of_pairs(pairs), score, progress)
        if not len(rows):
            return np.empty(0, np.float32)
        return np.asarray(self.store.vectors[rows, 0], np.float32)


@dataclass(frozen=True)
class Checked:
    """Explicit negatives after a check by a cross-encoder."""

    kept: list[list[bool]]  # for every negative of every row
    dropped: int


def check_negatives(
    queries: Sequence[str],
    positives: Sequence[Sequence[str]],
    negatives: Sequence[Sequence[str]],
    score: Score,
    margin: float = 0.0,
    kind: Literal["absolute", "relative"] = "absolute",
) -> Checked:
    """Return the check of explicit negatives: kept if a cross-encoder scores them below every
    positive of their row.

    A negative is dropped where

        score(query, negative) > p - margin         absolute, p the lowest score of the row's positives
        score(query, negative) > p - margin * |p|   relative

    A tie, up to rounding, is kept. A row without positives drops nothing.

    >>> def by_length(pairs):
    ...     return np.array([len(doc) for _, doc in pairs], np.float32)
    >>> check_negatives(["q"], [["ppp"]], [["n", "nnnn"]], by_length)
    Checked(kept=[[True, False]], dropped=1)
    """
    lowest = np.full(len(queries), np.inf)
    row_of_positive = np.repeat(np.arange(len(queries)), [len(docs) for docs in positives])
    np.minimum.at(lowest, row_of_positive, score(_pairs(queries, positives)))
    counts = [len(docs) for docs in negatives]
    bounds = np.repeat(bound(lowest, margin, kind), counts)
    fits = score(_pairs(queries, negatives)) <= bounds
    kept = []
    if counts:
        kept = [row.tolist() for row in np.split(fits, np.cumsum(counts)[:-1])]
    return Checked(kept, int((~fits).sum()))


def _pairs(queries: Sequence[str], docs: Sequence[Sequence[str]]) -> Pairs:
    """Return the pairs of each query with each of its documents."""
    return [(query, doc) for query, own in zip(queries, docs, strict=True) for doc in own]


def bound(
    positive: NDArray[np.floating[Any]], margin: float, kind: Literal["absolute", "relative"]
) -> NDArray[np.float64]:
    """Return the highest score that a negative may have, plus rounding, for the score of each
    positive, [n]."""
    p = np.asarray(positive, np.float64)
    size = np.where(np.isfinite(p), np.abs(p), 0.0)
    distance = margin if kind == "absolute" else margin * size
    return np.asarray(p - distance + _CLOSE * np.maximum(size, 1.0))
