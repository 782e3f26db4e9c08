"""What a run asks of its data, whatever it is: batches to train on, a verdict, and something to search in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from .core.batch import Batch
from .evaluation.retrieval import Ranking
from .evaluation.spread import Spread
from .export.report import Example
from .towers.pair import Tower


class Sampler(Protocol):
    """Which rows stand in which batch."""

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one pass over the data."""

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Rows of the batches first, first + 1, ... last - 1 of the whole run, without drawing those before."""


@dataclass(frozen=True)
class Verdict:
    """What the held-out queries say of a tower."""

    ranking: Ranking
    spread: Spread


class Task(Protocol):
    """Data of one kind, from its source to the folder of a run."""

    tower: Tower
    sampler: Sampler
    source: dict[str, Any]  # the data section of the configuration, with everything that reading has found

    @property
    def width(self) -> int:
        """Of the embeddings."""

    def counts(self) -> dict[str, Any]:
        """What there is, for metrics.json: pairs, train, queries, corpus, dropped."""

    def lines(self) -> list[str]:
        """The same for people."""

    def summary(self) -> dict[str, Any]:
        """What a rehearsal shows of the training rows."""

    def content(self) -> Iterable[Tensor]:
        """Everything that all processes have to begin alike with, besides the tower."""

    def batch(self, rows: Tensor, number: int) -> Batch[Any]:
        """The features of chosen rows, and what batch `number` draws besides."""

    def judge(self) -> Verdict:
        """The tower as it is now, asked what was held out."""

    def baselines(self) -> dict[str, Ranking]:
        """Other systems on the same queries, by name, as the configuration asks for them."""

    def about(self) -> dict[str, Any]:
        """What else belongs into metrics.json."""

    def write(self, folder: Path) -> None:
        """What is searched in by the saved model: folder/index."""

    def reopened(self, folder: Path) -> float:
        """Save the tower and open it as a user would: the largest difference in any number of its vectors."""

    def examples(self, systems: Mapping[str, Ranking]) -> list[Example]:
        """Held-out queries at random, with what was found."""
