"""The interface of a task to a run, for data of any kind: batches to train on, an evaluation, and
examples to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.batch import Batch
from ..engine.batches import Sampler
from ..options.build import Config
from ..task.evaluation import Part
from ..task.rounds import Race
from ..task.showcase import DataFacts, Example, Searched, Subject
from ..task.verdict import SystemScores, Verdict
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

    def source(self) -> Iterable[Tensor]:
        """Yield what tells the data from any others, whatever of them is held out, trained on, or
        cut."""

    def called(self, rows: Tensor) -> list[str]:
        """Return what a user knows training rows by: where they stand, or whose they are."""


class HeldOut(Protocol):
    """Judge a run by what was held out of its training."""

    evaluations: int  # looks between the first step and the last, at most `train.evaluations`
    corpus: int | None  # documents that looks rank; None is all

    @property
    def chooses(self) -> bool:
        """True if the validation set is large enough to choose weights by."""

    @property
    def looks(self) -> bool:
        """True if there is anything to judge by during training."""

    def afford(self, config: Config) -> None:
        """Choose how often the run is judged on its way, and by how much, so that this costs little
        beside its steps."""

    def embed(self) -> None:
        """Compute the vectors that the run's index will hold, if judging can use them too."""

    def settle(self) -> None:
        """Choose what looks during training rank, by the tower as it is before training."""

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Judge the tower as it is now; unless `whole`, part of the corpus may do.

        Without a validation set, the test set takes its place.
        """

    def baselines(self) -> dict[str, SystemScores]:
        """Judge other systems on the same test, by name, as the configuration asks for them."""

    def about(self) -> dict[str, Any]:
        """Return what else belongs into metrics.json."""

    def learned_by(self, run: Path) -> int | None:
        """Return how many queries of the test a run was trained on; None for a folder that does not
        say."""


class Showcase(Protocol):
    """Show a run to readers and to searchers."""

    @property
    def subject(self) -> Subject:
        """The kind of model, and the words for it."""

    def facts(self) -> DataFacts:
        """Describe the data."""

    def preview(self) -> dict[str, Any]:
        """Describe the training rows for a dry run."""

    def examples(self, systems: Mapping[str, SystemScores]) -> list[Example]:
        """Return held-out queries at random, with what the trained system answers."""

    def searched(self) -> Searched:
        """Return what the saved model searches."""

    def trained_on(self) -> Mapping[str, NDArray[np.int64]]:
        """Return what a model that has learned these data keeps of them, so that it is not judged
        by them; by file name."""

    def reopened(self, folder: Path) -> float:
        """Save the tower and open it as a user would; return the largest difference in any number
        of its vectors."""


class RunTask(Protocol):
    """One run's share of one kind of data, which other runs may share."""

    @property
    def data(self) -> Data:
        """The training data."""

    @property
    def held_out(self) -> HeldOut:
        """The evaluation on held-out data."""

    @property
    def showcase(self) -> Showcase:
        """The facts and examples to show."""

    @property
    def refits(self) -> tuple[Part, ...]:
        """The parts that `train.refit: auto` trains on again, in this order, where much is held
        out."""

    def learned(self, part: Part) -> int:
        """Return the number of pairs or events that a run trains on which learns this part, too,
        and all before it."""

    def race(self, config: Config) -> Race:
        """Return the settings that a recipe tries on these data; `config.tower` is of a kind with
        open options."""

    def fresh(self, config: Config, cache: Path) -> RunTask:
        """Return another run on the same data and split, before its training, without reading them
        again.

        `config` reads and divides the data as this one does, and its tower reads texts in the same
        way; its seed chooses weights and rows, not the split.
        """

    def extended(self, config: Config, part: Part) -> RunTask:
        """Return another run, before its training, that trains on the data of a part and before it,
        too.

        It is evaluated as this one, with the settings that validation has chosen for this one.
        """
