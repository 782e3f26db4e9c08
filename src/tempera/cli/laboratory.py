"""Commands of the temperature's laboratory: sweep, tune, calibrate."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ..errors import TemperaError
from .shared import Arguments, Json, answer, one_with_roles, say, split


def sweep(
    arguments: Arguments = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="FIELD=VALUES",
            help="low:high:log:count, low:high:linear:count or a,b,c; twice for a grid.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each point.")] = 3,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Goes on with what it holds.")] = Path(
        "runs/sweep"
    ),
    learned: Annotated[
        str, typer.Option("--learned", metavar="T,T,...", help="Starting values of temperatures that are learned.")
    ] = "",
    scheduled: Annotated[
        str,
        typer.Option("--scheduled", metavar="A:B,...", help="First and last values of temperatures on a schedule."),
    ] = "",
    metric: Annotated[
        str | None, typer.Option("--metric", help="By which points are compared; default ndcg@10, or else the first.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at once, on CPUs, one thread each.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Forget what --output holds.")] = False,
    as_json: Json = False,
) -> None:
    """Train at every value of an option, with several seeds: a table, a picture, and the best region."""
    from ..experiments.sweep import sweep as run_sweep

    file, overrides = split(arguments or [])
    if not over:
        raise TemperaError(
            "--over is needed: which option takes which values, objective.temperature=0.01:0.5:log:8 or so"
        )
    try:
        starts = [float(part) for part in learned.split(",") if part.strip()]
    except ValueError:
        raise TemperaError(f"--learned has {learned!r}, and temperatures such as 0.02,0.1,0.5 are expected") from None
    schedules = [_schedule(part) for part in scheduled.split(",") if part.strip()]
    found = run_sweep(file, over, seeds, output, overrides, starts, schedules, metric, overwrite, jobs)
    answer(found.json(), as_json, lambda: say(f"{found}\npicture: {found.folder}/sweep.svg"))


def tune(
    arguments: Arguments = None,
    space: Annotated[
        Path | None, typer.Option("--space", metavar="SPACE.yaml", help="Of each field a range or choices.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="How many are to end, of all workers.")] = 25,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Goes on with what it holds.")] = Path(
        "runs/tune"
    ),
    metric: Annotated[
        str | None, typer.Option("--metric", help="What is to be high; default ndcg@10, or else the first.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Trials at once.")] = 1,
    keep: Annotated[int, typer.Option("--keep", min=0, help="The best so many keep their run folder.")] = 1,
    storage: Annotated[
        str | None, typer.Option("--storage", metavar="URL", help="Shared by workers on several machines.")
    ] = None,
    study: Annotated[str, typer.Option("--study", metavar="NAME", help="Its name in the storage.")] = "tempera",
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Give up bad trials on the way.")] = True,
    lost_after: Annotated[
        float, typer.Option("--lost-after", min=1, metavar="SECONDS", help="When a silent worker counts as gone.")
    ] = 60.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Forget what --output holds.")] = False,
    as_json: Json = False,
) -> None:
    """Look for the best configuration by Bayesian search, every trial in a process of its own."""
    from ..experiments.tune import tune as run_tuning

    file, overrides = split(arguments or [])
    if space is None:
        raise TemperaError("--space is needed: a YAML file of fields, such as objective.temperature: 0.01:0.5:log")
    found = run_tuning(
        file,
        space,
        trials,
        output,
        overrides,
        metric=metric,
        workers=workers,
        keep=keep,
        storage=storage,
        study=study,
        prune=prune,
        lost_after=lost_after,
        overwrite=overwrite,
    )
    end = f"picture: {found.folder}/tune.svg\ntrain it: tempera train {quote(f'{found.folder}/best.yaml')}"
    answer(found.json(), as_json, lambda: say(f"{found}\n{end}"))


def calibrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder or a model folder.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAIRS] [data.ROLE=COLUMN ...]",
            help="A table with or without labels, or a BEIR folder; of a run, without any: what it held out.",
        ),
    ] = None,
    precision: Annotated[
        list[float] | None, typer.Option("--precision", metavar="P", help="To find a threshold for; may be repeated.")
    ] = None,
    recall: Annotated[
        list[float] | None, typer.Option("--recall", metavar="R", help="To find a threshold for; may be repeated.")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Hits of a query that are looked at.")] = 10,
    split: Annotated[str, typer.Option("--split", help="Of BEIR folders.")] = "test",
    as_json: Json = False,
) -> None:
    """Make probabilities of a model's similarities, for search --threshold; written beside the model."""
    from ..run.calibrate import calibrate as run_calibration
    from ..text.embedder import Model

    path, roles = one_with_roles(pairs) if pairs else (None, None)
    stated = (precision, recall) if precision or recall else ([0.9], [0.9])
    found = run_calibration(model, path, roles, stated[0] or (), stated[1] or (), depth, split)
    folder = Model(str(model)).folder
    document = {"output": str(folder.absolute()), **found.json()}
    answer(document, as_json, lambda: say(f"{found}\npicture: {folder}/calibration.svg"))


def _schedule(text: str) -> tuple[float, float]:
    """The first and the last value of a schedule."""
    first, _, last = text.partition(":")
    try:
        return float(first), float(last)
    except ValueError:
        raise TemperaError(f"--scheduled has {text!r}, and two temperatures such as 0.2:0.02 are expected") from None
