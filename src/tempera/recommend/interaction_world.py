"""The parts that interactions add to a configuration, and the checks of options on interactions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine.clock import Phases
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
    """Return the one kind of tower that interactions have."""
    return "features"


def read_task(
    config: Config, reading: Config, cache: Path, vectors: Path, phases: Phases
) -> InteractionTask:
    """Return the task of a run on interactions.

    Args:
        config: of the run.
        reading: for texts, whose vectors are computed while they are read.
        cache: folder of the run for the timeline.
        vectors: for texts.
        phases: for texts.
    """
    return InteractionTask.read(config, cache)


def hand(options: Any, data: Any) -> Any:
    """Return options with the rows of Python that they describe, if there are any."""
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
    states=(History,),
)
