"""`tempera evaluate --mteb`: an evaluation by MTEB's own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import TemperaError
from .shared import answer, say, sorted_out, with_roles


def evaluate_by_mteb(
    model: Path,
    task: str,
    data: list[str],
    others: Mapping[str, bool],
    options: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Evaluate a model of texts on a task of MTEB, or on data in the form of such a task.

    Args:
        model: model folder or run folder.
        task: a path, or the name of a task of MTEB.
        data: roles of the columns of the task's table.
        others: flags that are for evaluations by Tempera, with True for those that are given.
        options: hybrid, split, mixed_precision, output and overwrite.
        as_json: print a JSON document.
    """
    for name, is_given in others.items():
        if is_given:
            raise TemperaError(
                f"--{name.replace('_', '-')} is for evaluations without --mteb: MTEB computes all of its scores of one model"
            )
    paths = sorted_out(data)[0]
    if paths:
        raise TemperaError(f"give either {paths[0]} or --mteb {task}, in which the task is named")
    from ..engine.devices import joint_work
    from ..text.judge.by_mteb import evaluate_mteb

    roles = with_roles([task, *data])[1] if data else None
    with joint_work() as group:
        if group.size > 1:
            raise TemperaError("--mteb runs in one process: start it without torchrun")
        judged = evaluate_mteb(model, task, roles=roles, **options)
    answer(judged.json(), as_json, lambda: say(str(judged)))
