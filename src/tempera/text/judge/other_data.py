"""Evaluation of a model, in training or merged, on data beside its training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.batch import Role
from ...errors import DataError
from ...forms.roles import UnsaidScoreError
from ...mining.embedder import Embedder, among_trained
from ...task.verdict import TaskScores
from ...towers.similarities import Similarity
from ..train.known_vectors import KnownVectors
from .tasks import Graded, RetrievalTask, read_task

Task = RetrievalTask | Graded


@dataclass(frozen=True)
class InTraining:
    """Embed texts by a tower as it is now; vectors of the untrained tower are computed once."""

    known: KnownVectors

    @property
    def similarity(self) -> Similarity:
        """Return the similarity that the tower compares by."""
        return "cosine" if self.known.tower.normalised else "dot"

    def query(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors of queries, [n, D]."""
        return self._vectors(texts, "query")

    def doc(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors of documents, [n, D]."""
        return self._vectors(texts, "doc")

    def _vectors(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        tower = self.known.tower
        return self.known.kept(
            tower.features(texts, role=role),
            role,
            lambda features: tower.encode(features, role).numpy(),
        )


def read_tasks(paths: Sequence[str]) -> dict[str, Task]:
    """Read each task once, by its path.

    Raises:
        DataError: a fault in a task, or a table with labels, since no option gives their meaning.
    """
    return {path: _read(path) for path in paths}


def _read(path: str) -> Task:
    try:
        return read_task(path)
    except UnsaidScoreError:
        raise DataError(
            f"{path} holds scores or labels, and other data have no options: give the rows that belong together, without that "
            "column, or graded pairs in the columns sentence1, sentence2 and score"
        ) from None


def among(tasks: Mapping[str, Task], trained: NDArray[np.int64]) -> dict[str, tuple[int, int]]:
    """Return the number of queries among training texts, and the number of all queries, for each
    task with such queries."""
    counts = dict[str, tuple[int, int]]()
    for name, task in tasks.items():
        if isinstance(task, RetrievalTask):
            texts = task.queries["text"]
            count = int(among_trained(texts, trained).sum())
            if count:
                counts[name] = count, len(texts)
    return counts


def judged(
    model: Embedder, tasks: Mapping[str, Task], metrics: tuple[str, ...]
) -> dict[str, TaskScores]:
    """Evaluate a model on tasks, by the metrics or, where people graded pairs, by correlation."""
    scores = dict[str, TaskScores]()
    for name, task in tasks.items():
        if isinstance(task, Graded):
            scores[name] = task.judge(model)
        else:
            scores[name] = task.by_vectors(task.vectors(model), metrics)
    return scores
