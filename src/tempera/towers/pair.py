"""A query tower and a document tower, or one tower for both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from ..core.batch import Role
from ..core.ragged import Ragged


class Tower(Protocol):
    """What the engine and evaluation ask of a tower; an `nn.Module` as well."""

    def __call__(self, features: Ragged) -> Tensor:
        """Embeddings of n rows, [n, D], with gradient."""

    def features(self, texts: Sequence[str], progress: str | None = None) -> Ragged:
        """What the tower reads of texts."""

    def encode(self, features: Ragged) -> Tensor:
        """Embeddings as the saved model gives them, [n, D], without gradient."""

    def save(self, folder: Path) -> None:
        """Write a folder that opens without Tempera."""


class Towers(nn.Module):
    """The tower of each role; documents, negatives and samples share one."""

    def __init__(self, query: nn.Module, doc: nn.Module | None = None) -> None:
        super().__init__()
        self.query = query
        self.doc = query if doc is None else doc

    def of(self, role: Role) -> nn.Module:
        """The tower that embeds a role."""
        return self.query if role == "query" else self.doc
