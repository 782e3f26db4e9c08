"""A resolved configuration, as the objects of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.matryoshka import Matryoshka
from ..core.objective import Objective, base_of
from ..core.similarity import Similarity
from ..engine.training_options import Training
from .evaluation import Evaluation
from .showcase import Labels
from .world import World

# Options that name what is read, in any section.
READ = {
    *("path", "roots", "corpus", "queries", "validation", "test", "users", "items", "ids", "also"),
    *("model", "index", "teacher", "guide", "cross_encoder"),
}


@dataclass(frozen=True)
class Config:
    """Hold the sections of a configuration as objects; `data`, `tower` and `mining` belong to the
    world.

    Args:
        resolved: the configuration as plain options, with every default visible.
        world: the kind of the data.
    """

    data: Any
    tower: Any
    objective: Objective | Matryoshka
    train: Training
    evaluation: Evaluation
    mining: Any
    card: Labels
    resolved: dict[str, Any]
    world: World

    @property
    def base(self) -> Objective:
        """The objective without its widths."""
        return base_of(self.objective)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths to be used alone; none without Matryoshka."""
        return (self.objective.widths or ()) if isinstance(self.objective, Matryoshka) else ()

    def settled(self, pairs: int, large: bool = False) -> Config:
        """Return a configuration whose batch size and epochs follow the data, or else the tower,
        and the number of pairs.

        Args:
            large: a row costs much less in a larger batch.
        """
        schedule = getattr(self.data, "schedule", None) or self.tower.schedule
        train = self.train.settled(*schedule(pairs, large))
        return self.trained_with(
            batch_size=train.batch_size, num_train_epochs=train.num_train_epochs
        )

    def trained_with(self, **values: Any) -> Config:
        """Return a configuration with new options of training, also among the plain options."""
        resolved = {**self.resolved, "train": {**self.resolved["train"], **values}}
        return replace(self, train=replace(self.train, **values), resolved=resolved)

    @property
    def suited_rows(self) -> int:
        """The number of made rows beside each pair that suits the tower; 0 for a tower of whole
        texts."""
        rows: int = getattr(self.tower, "made_rows", 0)
        return rows

    @property
    def read(self) -> list[str]:
        """The files and folders of data and models among the options."""
        return list(_named(self.resolved))

    @property
    def begins_with(self) -> list[str]:
        """The models and indexes among the options of the tower and of training: to begin with, or
        to learn from."""
        return list(_named([self.resolved["tower"], self.resolved["train"]]))

    @property
    def similarity(self) -> Similarity:
        """The similarity of embeddings."""
        return self.base.similarity


def _named(options: Any, reads: bool = False) -> Iterator[str]:
    """Yield the paths among options, in nested mappings and lists, too; `reads` is True below an
    option of READ."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _named(value, name in READ)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _named(value, reads)
    elif reads and isinstance(options, str):
        yield options
