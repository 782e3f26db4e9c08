"""A world: a kind of data, texts or interactions, with its own parts and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..parallel.distributed import Group

TEXTS = "texts"
INTERACTIONS = "interactions"


class DataOptions:
    """The kind of part for the section `data`, chosen by `source`."""


Fail = Callable[[str, str], NoReturn]  # refuses an option, by its path, with a message


@dataclass(frozen=True)
class World:
    """A kind of data.

    Args:
        name: TEXTS or INTERACTIONS.
        parts: names of the parts of the world, by kind.
        states: classes of options for which a number may stand, too.
        default_tower: gives the kind of tower for a section `tower` without a kind.
        read_task: reads, divides and tokenises the data of a configuration; returns the task of the
            run. See `run.task`.
        hand: gives rows of Python to the options that describe the rows.
        teacher_defaults: options of a teacher of the data, where options are not given.
        refuse_misfits: refuses options that do not fit the data or the parts.
        preview: describes the training rows of a task for a dry run.
        origin: yields tensors by which runs of an experiment compare the origin of their data; the
            tensors do not depend on the parts held out, trained on, or cut.
        trained_on: gives the ids of the training data of a task, by file name, for a model to keep:
            no later run is to judge the model by known data.
        reopened: saves the tower of a task into a folder, opens the saved model as a user would,
            and gives the largest difference in any number of the vectors.
        cautions: yields cautions on the figures of a task, by the configuration.
        mines: gives True if the tower of a task mines negatives before a refit.
        mine: mines negatives by the present tower; all processes call.
    """

    name: str
    parts: Mapping[Any, Mapping[str, Any]]
    default_tower: Callable[[Mapping[str, Any]], str]
    read_task: Callable[..., Any]
    hand: Callable[[Any, Any], Any]
    teacher_defaults: Callable[[Any], Mapping[str, Any]]
    refuse_misfits: Callable[[Any, Fail], None]
    preview: Callable[[Any], dict[str, Any]]
    origin: Callable[[Any], Iterable[Tensor]]
    trained_on: Callable[[Any], Mapping[str, NDArray[np.int64]]]
    reopened: Callable[[Any, Path], float]
    cautions: Callable[[Any, Any], Iterator[str]]
    mines: Callable[[Any, Any], bool]
    mine: Callable[[Any, Group], Any]
    states: tuple[Any, ...] = field(default=())


def refuse_idle(idle: Mapping[str, bool], owners: str, data: str, fail: Fail) -> None:
    """Refuse given options without an effect.

    Args:
        idle: for each option of the other world, True if given.
        owners: the models with the options.
        data: the kind of data of the run.
        fail: refuses an option.
    """
    for path, is_given in idle.items():
        if is_given:
            fail(path, f"is for {owners}, and the data are {data}")
