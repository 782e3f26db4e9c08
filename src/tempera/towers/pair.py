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

# Vectors of texts, [n, T], by index, from a model's folder, the texts' role, the texts and the name
# of a progress bar; their inner products are the model's similarity.
Embed = Callable[[Path, Role, Sequence[str], str | None], Any]


class Embeds(Protocol):
    """Features of n rows to [n, D], with gradient."""

    padded: bool  # whether rows are padded to the longest of those that are embedded together

    def __call__(self, features: Any) -> Tensor: ...


class Encoder(nn.Module, ABC):
    """The interface that training and evaluation need of one tower for every role, or of a tower
    for each."""

    padded: bool  # whether rows are padded to the longest of those that are embedded together
    unit = False  # whether embeddings have length 1 as they are trained
    guarded = False  # whether it stays untrained where validation is too small to show a gain
    reads = torch.float32  # precision in which rows are read without gradient
    # identifies the saved model and the options that its vectors follow from before training; ""
    # without a model
    origin = ""

    def of(self, role: Role) -> Embeds:
        """The module that embeds a role; this one unless roles differ."""
        return self

    @abstractmethod
    def encode(self, features: Any, role: Role = "doc") -> Tensor:
        """Vectors as the saved model gives them, [n, D], on the CPU and without gradient."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the model."""


class Tower(Encoder):
    """A tower of texts."""

    # whether vectors are compared by cosine, and `encode` gives unit vectors; else by inner product
    normalised = True

    def compare_by(self, similarity: Similarity) -> None:
        """Judge and save by the similarity that training compares by; a tower that ends in a
        normalisation has cosines either way."""

    @abstractmethod
    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the features of texts, after the prompt of their role; show a progress bar named
        `progress` if given."""

    @abstractmethod
    def encode(self, features: Ragged, role: Role = "doc") -> Tensor:
        """Vectors as the saved model compares them, [n, D], on the CPU and without gradient; 0 for
        a row of zeros."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a folder that opens without Tempera."""


def batch_of(pairs: int, batches: int, smallest: int, largest: int) -> int:
    """Return the power of two that makes about so many batches an epoch, within bounds, and at most
    all pairs.

    >>> batch_of(9_000, 16, 32, 2048), batch_of(1_000_000, 16, 32, 2048), batch_of(20, 16, 32, 2048)
    (512, 2048, 20)
    """
    size: int = 2 ** round(math.log2(max(1, pairs / batches)))
    return min(max(size, smallest), largest, max(2, pairs))


def epochs_of(pairs: int, rows: int, fewest: int, most: int) -> float:
    """Return the epochs after which about so many rows have been trained on, within bounds.

    >>> epochs_of(200, 80_000, 4, 10), epochs_of(16_000, 80_000, 4, 10), epochs_of(10**6, 80_000, 4, 10)
    (10.0, 5.0, 4.0)
    """
    return float(min(max(round(rows / pairs), fewest), most))


class TowerOptions(Protocol):
    """The options of a kind of tower."""

    @property
    def learning_rate(self) -> float:
        """The peak rate that suits it where the configuration says nothing."""

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return the batch size and the number of epochs that suit so many training pairs.

        With `large`, a row costs much less in a larger batch, as on a GPU, and on a CPU in bf16.
        """

    def build(self, texts: Sequence[str], embed: Embed = ...) -> Tower:
        """A tower to be trained on (among others) these texts; `embed` keeps what saved models are
        asked for."""

    def again(self, tower: Tower) -> Tower:
        """One more tower before its training, which reads texts as `tower` does."""


class Towers(Tower):
    """The tower of each role; documents, negatives and samples share one. Both are parts of the
    model that is saved."""

    def __init__(self, query: Tower, doc: Tower | None = None) -> None:
        super().__init__()
        self.query = query
        self.doc = query if doc is None else doc
        self.unit = self.query.unit and self.doc.unit
        self.normalised = getattr(
            self.doc, "normalised", True
        )  # documents have lengths that inner products rank by

    def compare_by(self, similarity: Similarity) -> None:
        """Judge and save both by the similarity that training compares by."""
        self.doc.compare_by(similarity)
        self.query.compare_by(similarity)
        self.normalised = getattr(self.doc, "normalised", True)

    def of(self, role: Role) -> Tower:
        """The tower that embeds a role."""
        return self.query if role == "query" else self.doc

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the features of texts for the tower of a role."""
        return self.of(role).features(texts, progress, role)

    def encode(self, features: Ragged, role: Role = "doc") -> Tensor:
        """Vectors of a role's features, [n, D]."""
        return self.of(role).encode(features, role)

    def save(self, folder: Path) -> None:
        """Write the model of both."""
        self.doc.save(folder)
