"""Commands that choose options by many runs, or a threshold: sweep, tune, calibrate."""

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
            help="Values: low:high:log:count, low:high:linear:count or a,b,c. Repeat for a grid.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds at each point.")] = 3,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Output folder; an interrupted sweep in it is resumed."),
    ] = Path("runs/sweep"),
    learned: Annotated[
        str,
        typer.Option(
            "--learned", metavar="T,T,...", help="Also train with learned temperatures from these starting values."
        ),
    ] = "",
    scheduled: Annotated[
        str,
        typer.Option("--scheduled", metavar="A:B,...", help="Also train with temperatures on a schedule from A to B."),
    ] = "",
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="Metric to compare by (default: ndcg@10, else the first one measured)."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of runs at once, one CPU thread each.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the sweep in --output.")] = False,
    as_json: Json = False,
) -> None:
    """Train at each value of an option, with several seeds.

    Prints a table and the best region, and draws a picture.
    """
    from ..experiments.sweep import sweep as run_sweep

    file, overrides = split(arguments or [])
    if not over:
        raise TemperaError("--over is required, e.g. --over objective.temperature=0.01:0.5:log:8")
    try:
        starts = [float(part) for part in learned.split(",") if part.strip()]
    except ValueError:
        raise TemperaError(f"--learned is {learned!r}; give temperatures such as 0.02,0.1,0.5") from None
    schedules = [_schedule(part) for part in scheduled.split(",") if part.strip()]
    result = run_sweep(file, over, seeds, output, overrides, starts, schedules, metric, overwrite, jobs)
    answer(result.json(), as_json, lambda: say(f"{result}\npicture: {result.folder}/sweep.svg"))


def tune(
    arguments: Arguments = None,
    space: Annotated[
        Path | None,
        typer.Option(
            "--space",
            metavar="SPACE.yaml",
            help="Ranges or choices by option, e.g. objective.temperature: 0.01:0.5:log",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="Total number of completed trials, over all workers.")
    ] = 25,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Output folder; an interrupted tuning in it is resumed."),
    ] = Path("runs/tune"),
    metric: Annotated[
        str | None, typer.Option("--metric", help="Metric to maximise (default: ndcg@10, else the first one measured).")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of trials at once.")] = 1,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Number of best trials whose run folder is kept.")] = 1,
    storage: Annotated[
        str | None, typer.Option("--storage", metavar="URL", help="Database that workers on several machines share.")
    ] = None,
    study: Annotated[
        str, typer.Option("--study", metavar="NAME", help="Name of the study in the storage.")
    ] = "tempera",
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop unpromising trials early.")] = True,
    lost_after: Annotated[
        float,
        typer.Option("--lost-after", min=1, metavar="SECONDS", help="Silence after which a worker counts as lost."),
    ] = 60.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the tuning in --output.")] = False,
    as_json: Json = False,
) -> None:
    """Search for the best options (Bayesian, with Optuna).

    Each trial runs in a process of its own.
    """
    from ..experiments.tune import tune as run_tuning

    file, overrides = split(arguments or [])
    if space is None:
        raise TemperaError("--space is required: a YAML file with lines such as objective.temperature: 0.01:0.5:log")
    result = run_tuning(
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
    end = f"picture: {result.folder}/tune.svg\ntrain with the best options: tempera train {quote(f'{result.folder}/best.yaml')}"
    answer(result.json(), as_json, lambda: say(f"{result}\n{end}"))


def calibrate(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or model folder.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PAIRS|data.ROLE=COLUMN",
            help="Labelled or unlabelled pairs, or a BEIR folder. Omit to use the run's held-out queries.",
        ),
    ] = None,
    precision: Annotated[
        list[float] | None,
        typer.Option("--precision", metavar="P", help="Target precision for which to report a threshold (repeatable)."),
    ] = None,
    recall: Annotated[
        list[float] | None,
        typer.Option("--recall", metavar="R", help="Target recall for which to report a threshold (repeatable)."),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Number of hits of each query to use.")] = 10,
    split: Annotated[str, typer.Option("--split", help="Split to read from a BEIR folder.")] = "test",
    as_json: Json = False,
) -> None:
    """Turn similarities into probabilities, for search --threshold.

    They are written beside the model.
    """
    from ..run.calibrate import calibrate as run_calibration
    from ..text.embedder import Model

    path, roles = one_with_roles(pairs) if pairs else (None, None)
    stated = (precision, recall) if precision or recall else ([0.9], [0.9])
    result = run_calibration(model, path, roles, stated[0] or (), stated[1] or (), depth, split)
    folder = Model(str(model)).folder
    document = {"output": str(folder.absolute()), **result.json()}
    answer(document, as_json, lambda: say(f"{result}\npicture: {folder}/calibration.svg"))


def _schedule(text: str) -> tuple[float, float]:
    """Return the first and the last value of a schedule."""
    first, _, last = text.partition(":")
    try:
        return float(first), float(last)
    except ValueError:
        raise TemperaError(f"--scheduled has {text!r}; give two temperatures such as 0.2:0.02") from None
