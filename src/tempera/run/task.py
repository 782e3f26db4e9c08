"""The contract between a run and its task, for data of any kind: batches to train on, a judgement by
held-out data, and facts.

Whatever else depends on the kind of data stands in `task.world`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from ..core.batch import Batch
from ..engine.batches import Sampler
from ..task.config import Config
from ..task.evaluation import Part
from ..task.rounds import Race
from ..task.showcase import Compared, DataFacts, Looks, RefitPlan, Searched
from ..task.verdict import Verdict
from ..towers.pair import Encoder


class Data(Protocol):
    """Give a run its batches."""

    sampler: Sampler

    @property
    def tower(self) -> Encoder:
        """The tower that is trained."""

    def batch(self, rows: Tensor, number: int, progress: float = 1.0) -> Batch[Any]:
        """Return the features of chosen rows, and the documents that batch `number` draws.

        Args:
            progress: of the training, from 0 to 1; rows that are made for its beginning stand
                behind the others.
        """

    def content(self) -> Iterable[Tensor]:
        """Yield everything that has to be the same on all processes at the start, apart from the
        tower."""

    def called(self, rows: Tensor) -> list[str]:
        """Return the names by which a user knows training rows: their places, or their owners."""


class HeldOut(Protocol):
    """Judge a run by the part of the data that is held out of its training."""

    def begin(self, config: Config, draws: bool) -> Looks:
        """Plan the looks at validation during a training, before its first step.

        Args:
            config: of the training; its steps decide how many looks cost little beside them.
            draws: choose the documents that looks rank, by the tower as it is now.
        """

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Judge the tower as it is now; unless `whole`, part of the corpus may do.

        Without a validation set, the test set takes its place.
        """


class RunTask(Protocol):
    """One run's share of one kind of data, which other runs may share."""

    @property
    def data(self) -> Data:
        """The training data."""

    @property
    def held_out(self) -> HeldOut:
        """The judgement by held-out data."""

    @property
    def facts(self) -> DataFacts:
        """The data in numbers and sentences."""

    @property
    def refits(self) -> RefitPlan:
        """The parts of the held-out data that a training again may learn."""

    def race(self, config: Config) -> Race:
        """Return the settings that a recipe tries on these data; `config.tower` is of a kind with
        open options."""

    def again(self, config: Config, part: Part | None = None) -> RunTask:
        """Return another run on the same data, before its training, without reading them again.

        `config` reads and divides the data as this one does, and its tower reads texts in the same
        way; its seed chooses weights and rows, not the split.

        Args:
            part: train also on this held-out part and those before it, judged as this run, with the
                settings that validation has chosen for this one; None trains on the same rows.
        """

    def compared(self, before: Verdict | None, after: Verdict | None) -> Compared:
        """Compare the trained tower with other systems on the same test.

        Args:
            before: the verdict on the untrained tower; None where nothing is held out to judge by.
            after: the verdict on the trained one.
        """

    def searched(self) -> Searched:
        """Return the documents that the saved model searches."""
