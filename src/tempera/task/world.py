"""A world: the kind of data that a run trains on, texts or interactions, with the parts and checks
that belong to it alone."""

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
    """The kind of part that the section `data` chooses by its source."""


Fail = Callable[[str, str], NoReturn]  # refuses an option, by its path, with a message


@dataclass(frozen=True)
class World:
    """One kind of data.

    Args:
        name: TEXTS or INTERACTIONS.
        parts: names of the parts that this world adds, by their kind.
        states: classes of options that one number stands for, too.
        default_tower: gives the kind of tower for a section `tower` that names none.
        read_task: reads, divides and tokenises the data of a configuration; returns the task of the
            run. See `run.task`.
        hand: gives an object of Python to the options that describe its rows.
        teacher_defaults: options of a teacher beside these data, where none are given.
        refuse_misfits: refuses options that the data or the parts of this world do not fit.
        preview: describes the training rows of a task for a dry run.
        origin: yields tensors by which runs of an experiment compare the origin of their data; the
            tensors do not depend on the parts held out, trained on, or cut.
        trained_on: gives the ids that a model which has learned the data of a task keeps of them,
            by file name, so that it is not judged by them.
        reopened: saves the tower of a task into a folder, opens it as a user would, and gives the
            largest difference in any number of its vectors.
        cautions: yields cautions on what the figures of a task are worth, by its configuration.
        mines: True if the tower of a task mines negatives before it is trained again.
        mine: mines them, by the tower as it is now; all processes call.
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
    """Refuse options that are given and would do nothing.

    Args:
        idle: for each option of the other world, True if it is given.
        owners: the models that have these options.
        data: the kind of data of this run.
        fail: refuses an option.
    """
    for path, is_given in idle.items():
        if is_given:
            fail(path, f"is for {owners}, and the data are {data}")
