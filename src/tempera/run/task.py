"""The contract between a run and its task, for data of any kind: batches to train on, a judgement
by held-out data, and facts.

All else of a kind of data stands in `task.world`.
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
        """The tower to train."""

    def batches(self, rows: Tensor, number: int, progress: float = 1.0) -> list[Batch[Any]]:
        """Return batch `number`: the features of chosen rows, and its drawn documents.

        At the beginning of the training, a batch of rows that are made for it may follow.

        Args:
            progress: of the training, from 0 to 1.
        """

    def content(self) -> Iterable[Tensor]:
        """Yield all tensors except the tower's that have to be equal on all processes at the
        start."""

    def called(self, rows: Tensor) -> list[str]:
        """Return the user's names of training rows: the places or the owners of the rows."""


class HeldOut(Protocol):
    """Judge a run by the data held out of its training."""

    def begin(self, config: Config, draws: bool) -> Looks:
        """Plan the looks at validation during a training, before its first step.

        Args:
            config: of the training, whose number of steps decides how many looks cost little.
            draws: choose the documents to rank in looks, by the present tower.
        """

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Judge the present tower; unless `whole`, part of the corpus may do.

        Without a validation set, the test set takes its place.
        """


class RunTask(Protocol):
    """Data of a kind as a run reads, trains on and judges by; several runs may share the data."""

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
        """The parts of the held-out data for a refit."""

    def race(self, config: Config) -> Race:
        """Return the race of a recipe on the data; `config.tower` is of a kind with open
        options."""

    def again(self, config: Config, part: Part | None = None) -> RunTask:
        """Return another run on the same data, before its training, without reading the data again.

        `config` has the same options of data and of reading texts; its seed chooses weights and
        rows, not the split.

        Args:
            part: train also on a held-out part and all earlier parts, with the settings that
                validation has chosen for the present run, and judge by the same test; None trains
                on the same rows.
        """

    def compared(self, before: Verdict | None, after: Verdict | None) -> Compared:
        """Compare the trained tower with other systems on the same test.

        Args:
            before: the verdict on the untrained tower; None where nothing is held out to judge by.
            after: the verdict on the trained tower.
        """

    def searched(self) -> Searched:
        """Return the documents for the saved model to search."""
