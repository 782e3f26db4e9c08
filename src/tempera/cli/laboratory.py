"""Commands of the temperature's laboratory: sweep, tune, calibrate."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ..errors import TemperaError
from .shared import Arguments, Json, answer, one_with_roles, say, split

Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="DIR", help="Output folder; an interrupted run of this command is resumed."),
]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, help="Runs at once, each in a process of its own; they share the cores.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Forget earlier results in the output folder.")]


def sweep(
    arguments: Arguments = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="FIELD=VALUES",
            help="An option and its values: low:high:log:count, low:high:linear:count or a,b,c. Give it twice for a grid.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of runs of each point.")] = 3,
    output: Output = Path("runs/sweep"),
    learned: Annotated[
        str, typer.Option("--learned", metavar="T,T,...", help="First values of temperatures that are learned.")
    ] = "",
    scheduled: Annotated[
        str,
        typer.Option("--scheduled", metavar="A:B,...", help="First and last values of scheduled temperatures."),
    ] = "",
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="Metric to compare points by (default: ndcg@10, else the first one measured)."),
    ] = None,
    jobs: Jobs = 1,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make more than 1,000 runs.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train at every value of an option, with several seeds: a table, a picture, and the best region."""
    from ..experiments.sweep import sweep as run_sweep

    file, overrides = split(arguments or [])
    if not over:
        raise TemperaError("--over is required, e.g. --over objective.temperature=0.01:0.5:log:8")
    try:
        starts = [float(part) for part in learned.split(",") if part.strip()]
    except ValueError:
        raise TemperaError(f"--learned has {learned!r}; give temperatures, such as 0.02,0.1,0.5") from None
    schedules = [_schedule(part) for part in scheduled.split(",") if part.strip()]
    result = run_sweep(file, over, seeds, output, overrides, starts, schedules, metric, overwrite, jobs, yes)
    answer(result.json(), as_json, lambda: say(f"{result}\npicture: {result.folder}/sweep.svg"))


def tune(
    arguments: Arguments = None,
    space: Annotated[
        Path | None,
        typer.Option("--space", metavar="SPACE.yaml", help="File with a range or a list of choices for each option."),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="Total number of completed trials, over all workers.")
    ] = 25,
    output: Output = Path("runs/tune"),
    metric: Annotated[
        str | None, typer.Option("--metric", help="Metric to maximise (default: ndcg@10, else the first one measured).")
    ] = None,
    jobs: Jobs = 1,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Number of best trials whose run folder is kept.")] = 1,
    storage: Annotated[
        str | None, typer.Option("--storage", metavar="URL", help="Database that workers on several machines share.")
    ] = None,
    study: Annotated[
        str, typer.Option("--study", metavar="NAME", help="Name of the study in the database.")
    ] = "tempera",
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop bad trials on the way.")] = True,
    lost_after: Annotated[
        float,
        typer.Option(
            "--lost-after", min=1, metavar="SECONDS", help="Silence after which another worker counts as lost."
        ),
    ] = 60.0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Search the best configuration by Bayesian optimisation (Optuna's TPE)."""
    from ..experiments.tune import tune as run_tuning

    file, overrides = split(arguments or [])
    if space is None:
        raise TemperaError("--space is required: a YAML file of options, such as objective.temperature: 0.01:0.5:log")
    result = run_tuning(
        file, space, trials, output, overrides, metric, jobs, keep, storage, study, prune, lost_after, overwrite
    )
    end = f"picture: {result.folder}/tune.svg\ntrain it: tempera train {quote(f'{result.folder}/best.yaml')}"
    answer(result.json(), as_json, lambda: say(f"{result}\n{end}"))


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
        raise TemperaError(f"--scheduled has {text!r}; give two temperatures, such as 0.2:0.02") from None
