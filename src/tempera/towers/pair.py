"""A query tower and a document tower, or one tower for both."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..arithmetic.ragged import Ragged
from ..core.batch import Role
from .similarities import Similarity

# A model's vectors of texts, [n, T], which are read by index. The arguments are the folder of the
# model, the role of the texts, the texts, and the name of a progress bar. The vectors' inner
# products are the model's similarity.
Embed = Callable[[Path, Role, Sequence[str], str | None], Any]


class Embeds(Protocol):
    """Features of n rows to embeddings, [n, D], with gradient."""

    padded: bool  # rows that are embedded together are padded to the longest of these rows

    def __call__(self, features: Any) -> Tensor: ...


class Encoder(nn.Module, ABC):
    """The interface of one tower for every role, or of a tower for each role, in training and
    evaluation."""

    padded: bool  # rows that are embedded together are padded to the longest of these rows
    unit = False  # embeddings have length 1 as they are trained
    guarded = False  # the tower stays untrained where validation is too small to show a gain
    reads = torch.float32  # precision in which rows are read without gradient
    # Identifies the saved model and the options that decide the vectors before training; "" without
    # a saved model.
    origin = ""

    def of(self, role: Role) -> Embeds:
        """Return the module for a role; the encoder itself unless roles differ."""
        return self

    @abstractmethod
    def encode(self, features: Any, role: Role = "doc") -> Tensor:
        """Return the vectors of the saved model, [n, D], on the CPU and without gradient."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the model."""


class Tower(Encoder):
    """A tower of texts."""

    # If True, vectors are compared by cosine, and `encode` gives unit vectors; else vectors are
    # compared by inner product.
    normalised = True

    def compare_by(self, similarity: Similarity) -> None:
        """Judge and save by the similarity of training; a tower with a normalisation at the end has
        cosines either way."""

    @abstractmethod
    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the features of texts, after the prompt of their role.

        A progress bar named `progress` is shown if a name is given.
        """

    @abstractmethod
    def encode(self, features: Ragged, role: Role = "doc") -> Tensor:
        """Return vectors as compared by the saved model, [n, D], on the CPU and without gradient; 0
        for a row of zeros."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a folder that opens without Tempera."""


def batch_of(pairs: int, batches: int, smallest: int, largest: int) -> int:
    """Return the batch size, a power of two, that makes about `batches` batches an epoch.

    The size lies between `smallest` and `largest`, and is at most the number of pairs.

    >>> batch_of(9_000, 16, 32, 2048), batch_of(1_000_000, 16, 32, 2048), batch_of(20, 16, 32, 2048)
    (512, 2048, 20)
    """
    size: int = 2 ** round(math.log2(max(1, pairs / batches)))
    return min(max(size, smallest), largest, max(2, pairs))


def epochs_of(pairs: int, rows: int, fewest: int, most: int) -> float:
    """Return the number of epochs, from `fewest` to `most`, that train on about `rows` rows in all.

    >>> epochs_of(200, 80_000, 4, 10), epochs_of(16_000, 80_000, 4, 10), epochs_of(10**6, 80_000, 4, 10)
    (10.0, 5.0, 4.0)
    """
    return float(min(max(round(rows / pairs), fewest), most))


class TowerOptions(Protocol):
    """The options of a kind of tower."""

    @property
    def learning_rate(self) -> float:
        """The peak learning rate if the configuration sets none."""

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return the batch size and the number of epochs for a number of training pairs.

        With `large`, a row costs much less in a larger batch, as on a GPU, and on a CPU in bf16.
        """

    def build(self, texts: Sequence[str], embed: Embed = ...) -> Tower:
        """Return a tower to be trained on texts, `texts` included; `embed` gives and stores the
        vectors of saved models."""

    def again(self, tower: Tower) -> Tower:
        """Return a further tower before training, with the reading of texts of `tower`."""


class Towers(Tower):
    """The tower of each role; documents, negatives and samples share a tower. Both towers are parts
    of the saved model."""

    def __init__(self, query: Tower, doc: Tower | None = None) -> None:
        super().__init__()
        self.query = query
        self.doc = query if doc is None else doc
        self.unit = self.query.unit and self.doc.unit
        # The lengths of documents decide: inner products rank by these lengths.
        self.normalised = getattr(self.doc, "normalised", True)

    def compare_by(self, similarity: Similarity) -> None:
        """Judge and save both towers by the similarity of training."""
        self.doc.compare_by(similarity)
        self.query.compare_by(similarity)
        self.normalised = getattr(self.doc, "normalised", True)

    def of(self, role: Role) -> Tower:
        """Return the tower of a role."""
        if role == "query":
            return self.query
        return self.doc

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the features of texts for the tower of a role."""
        return self.of(role).features(texts, progress, role)

    def encode(self, features: Ragged, role: Role = "doc") -> Tensor:
        """Return the vectors of a role's features, [n, D]."""
        return self.of(role).encode(features, role)

    def save(self, folder: Path) -> None:
        """Write the model of both towers."""
        self.doc.save(folder)
