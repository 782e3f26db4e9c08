"""What a run asks of its data, whatever it is: batches to train on, a verdict, and something to search in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..artifacts.card import Kind
from ..artifacts.report import Example, Words
from ..artifacts.report_tables import Table
from ..build import Config
from ..core.batch import Batch
from ..engine.distributed import ALONE, Group
from ..ranking.compare import Difference
from ..ranking.ranking import Part
from ..ranking.spread import Spread
from ..towers.pair import Encoder


class Sampler(Protocol):
    """Which rows stand in which batch."""

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one pass over the data."""

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Rows of the batches first, first + 1, ... last - 1 of the whole run, without drawing those before."""


class Judged(Protocol):
    """What one system reached."""

    @property
    def per_query(self) -> Mapping[str, NDArray[np.float64]]:
        """Each metric of each query, [q]."""

    @property
    def metrics(self) -> dict[str, float]:
        """Means over queries."""

    def intervals(self) -> dict[str, Difference]:
        """Means with the intervals that hold them."""


@dataclass(frozen=True)
class Verdict:
    """What the held-out queries say of a tower."""

    ranking: Judged
    spread: Spread


class Task(Protocol):
    """Data of one kind, from its source to the folder of a run."""

    sampler: Sampler
    source: dict[str, Any]  # the data section of the configuration, with everything that reading has found
    kind: Kind  # of model
    words: Words  # of the report

    @property
    def tower(self) -> Encoder:
        """What is trained."""

    @property
    def width(self) -> int:
        """Of the embeddings."""

    def fresh(self, config: Config, cache: Path) -> Task:
        """The same data and split, read already, for another run: with a tower before its training and batches of its own.

        `config` has the sections data, tower and evaluation of this one; its seed chooses weights and rows, not the split.
        """

    def counts(self) -> dict[str, Any]:
        """What there is, for metrics.json: pairs, train, validation, queries (of the test), corpus, dropped."""

    def lines(self) -> list[str]:
        """The same for people."""

    def summary(self) -> dict[str, Any]:
        """What a rehearsal shows of the training rows."""

    def content(self) -> Iterable[Tensor]:
        """Everything that all processes have to begin alike with, besides the tower."""

    def batch(self, rows: Tensor, number: int) -> Batch[Any]:
        """The features of chosen rows, and what batch `number` draws besides."""

    def called(self, rows: Tensor) -> list[str]:
        """What a user knows training rows by: where they stand, or whose they are."""

    def refresh(self, step: int, group: Group = ALONE) -> dict[str, Any]:
        """Compute anew what follows the tower, before step `step`, counted from 0; what the log is to say of it.

        All processes call, and may share the work.
        """

    @property
    def chooses(self) -> bool:
        """Return True if validation has enough queries to choose a checkpoint or an option by; else defaults stand."""

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Ask the tower as it is now what was held out: validation to choose by, the test to report on.

        Without validation its place is taken by the test. `whole=False` may ask less, which is for looks on the way.
        """

    def baselines(self) -> dict[str, Judged]:
        """Other systems on the same queries, by name, as the configuration asks for them."""

    def rival(self, systems: Mapping[str, Judged]) -> str | None:
        """The baseline that the trained tower is compared with most, if there is any."""

    def about(self) -> dict[str, Any]:
        """What else belongs into metrics.json."""

    def tables(self) -> list[Table]:
        """What else belongs into the report."""

    def write(self, folder: Path) -> None:
        """What is searched in by the saved model: folder/index."""

    def reopened(self, folder: Path) -> float:
        """Save the tower and open it as a user would: the largest difference in any number of its vectors."""

    def examples(self, systems: Mapping[str, Judged]) -> list[Example]:
        """Held-out queries at random, with what was found."""
