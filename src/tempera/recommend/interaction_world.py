"""The parts that interactions add to a configuration, and the checks of options on interactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..engine.clock import Phases
from ..parallel.distributed import Group
from ..task.config import Config
from ..task.world import INTERACTIONS, DataOptions, Fail, World, refuse_idle
from ..towers.pair import TowerOptions
from .read.division import (
    AtRandom,
    Divide,
    Fitting,
    GlobalTime,
    LeaveLastOut,
    NamedFiles,
    Undivided,
)
from .read.interactions import Interactions
from .recommendation import InteractionTask
from .train.encoders import FEATURES, Elapsed, Feature, OfUser
from .train.features import Features
from .train.history import History
from .train.pooling import POOLINGS, Pooling


def default_tower(section: Mapping[str, Any]) -> str:
    """Return the kind of tower for interactions."""
    return "features"


def read_task(
    config: Config, reading: Config, cache: Path, vectors: Path, phases: Phases, group: Group
) -> InteractionTask:
    """Return the task of a run on interactions.

    Args:
        config: of the run.
        reading: for texts, with vectors to be computed during reading.
        cache: folder of the run for the timeline.
        vectors: for texts.
        phases: for texts.
        group: for texts.
    """
    return InteractionTask.read(config, cache)


def hand(options: Any, data: Any) -> Any:
    """Return options with the described rows of Python, if there are any."""
    return options if data is None else options.hand(data)


def teacher_defaults(options: Any) -> dict[str, Any]:
    """Return no options: a recommender has no teacher."""
    return {}


def refuse_misfits(config: Config, fail: Fail) -> None:
    """Refuse options of models of texts."""
    train, evaluation = config.train, config.evaluation
    if train.select != 1:
        fail("train.select", "chooses among pairs of texts, and the data are interactions")
    idle = {
        "mining": config.mining != type(config.mining)(),
        "train.teacher": train.teacher is not None,
        "train.guide": train.guide is not None,
        "evaluation.also": bool(evaluation.also),
        "evaluation.shared_documents": evaluation.shared_documents != "drop",
        "evaluation.corpus": evaluation.corpus not in ("auto", None),
        "train.batch_sampler": train.batch_sampler != "shuffled",
    }
    refuse_idle(idle, "models of texts", "interactions", fail)


def preview(task: InteractionTask) -> dict[str, Any]:
    """Return three rows of the first batch, lengths, repeats, and negatives of a row."""
    return task.showcase.preview()


def origin(task: InteractionTask) -> Iterable[Tensor]:
    """Return the number of events of each user and of each item of a task."""
    return task.data.origin()


def trained_on(task: InteractionTask) -> dict[str, NDArray[np.int64]]:
    """Return nothing: all events stand in the histories of the run."""
    return {}


def reopened(task: InteractionTask, folder: Path) -> float:
    """Save the towers and read the files into new towers; return the largest difference in any
    number of a vector."""
    return task.showcase.reopened(folder)


def cautions(task: InteractionTask, config: Config) -> Iterator[str]:
    """Yield nothing: a recommender begins with no earlier run."""
    yield from ()


def mines(task: InteractionTask, config: Config) -> bool:
    """Return False: a recommender has all items as negatives."""
    return False


def mine(task: InteractionTask, group: Group) -> None:
    """Do nothing: no negatives are mined among items."""


WORLD = World(
    name=INTERACTIONS,
    parts={
        DataOptions: {"interactions": Interactions},
        TowerOptions: {"features": Features},
        Divide: {
            "auto": Fitting,
            "global_time": GlobalTime,
            "leave_last_out": LeaveLastOut,
            "files": NamedFiles,
            "random": AtRandom,
            "none": Undivided,
        },
        Feature: dict(FEATURES),
        OfUser: {**FEATURES, "elapsed": Elapsed},
        Pooling: dict(POOLINGS),
    },
    default_tower=default_tower,
    read_task=read_task,
    hand=hand,
    teacher_defaults=teacher_defaults,
    refuse_misfits=refuse_misfits,
    preview=preview,
    origin=origin,
    trained_on=trained_on,
    reopened=reopened,
    cautions=cautions,
    mines=mines,
    mine=mine,
    states=(History,),
)
