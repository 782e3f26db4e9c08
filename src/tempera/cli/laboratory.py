"""Commands to compare many runs, or to choose a threshold: sweep, tune, learn, calibrate."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ..errors import TemperaError
from .shared import (
    Arguments,
    Count,
    Json,
    answer,
    one_with_roles,
    refuse_absent,
    refuse_split,
    say,
    split,
    with_picture,
)

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1)]


def sweep(
    arguments: Arguments = None,
    over: list[str] | None = None,
    seeds: Count = 3,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    learned: str = "",
    scheduled: str = "",
    metric: str | None = None,
    jobs: Jobs = 1,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Train at each value of an option, with several seeds.

    Prints a table and the best region, and draws a picture.

    Args:
        over: OPTION=VALUES with low:high:log:count, low:high:linear:count or a,b,c; repeat for a
            grid.
        seeds: number of seeds at each point.
        output: output folder (default: runs/, the name of the file, and -sweep); an interrupted
            sweep is resumed.
        learned: also train with learned temperatures from given starting values, e.g. 0.02,0.1,0.5.
        scheduled: also train with temperatures on a schedule, e.g. 0.2:0.02.
        metric: metric to compare by (default: ndcg@10, else the first metric measured).
        jobs: number of runs at once, each in a separate process; all share the cores.
        yes: make more than 1,000 runs.
        overwrite: discard the sweep in --output; an interrupted sweep is resumed.
    """
    from ..experiments.sweep import sweep as run_sweep

    file, overrides = split(arguments or [])
    if not over:
        raise TemperaError("--over is required, e.g. --over objective.temperature=0.01:0.5:log:8")
    try:
        starts = [float(part) for part in learned.split(",") if part.strip()]
    except ValueError:
        raise TemperaError(
            f"--learned is {learned!r}; give temperatures such as 0.02,0.1,0.5"
        ) from None
    schedules = [_schedule(part) for part in scheduled.split(",") if part.strip()]
    result = run_sweep(
        file, over, seeds, output, overrides, starts, schedules, metric, overwrite, jobs, yes
    )
    answer(result.json(), as_json, lambda: say(with_picture(result, f"{result.folder}/sweep.svg")))


def tune(
    arguments: Arguments = None,
    space: Path | None = None,
    trials: Count = 25,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    metric: str | None = None,
    jobs: Jobs = 1,
    keep: Annotated[int, typer.Option(min=0)] = 1,
    storage: str | None = None,
    study: str = "tempera",
    prune: bool = True,
    lost_after: Annotated[float, typer.Option(min=3)] = 60.0,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Search for the best options (Bayesian, with Optuna).

    Prints a table and the best options, and draws a picture.

    Args:
        space: YAML file with the range or the choices of each option, e.g. objective.temperature:
            0.01:0.5:log.
        trials: total number of completed trials, over all workers.
        output: output folder (default: runs/, the name of the file, and -tune); an interrupted
            tuning is resumed.
        metric: metric to maximise (default: ndcg@10, else the first metric measured).
        jobs: number of trials at once, each in a separate process; all share the cores.
        keep: number of best trials to keep with run folders.
        storage: URL of a database that workers on several machines share.
        study: name of the study in the storage.
        prune: stop unpromising trials early.
        lost_after: seconds of silence after which a worker counts as lost.
        overwrite: discard the tuning in --output; an interrupted tuning is resumed.
    """
    from ..tuning.tune import tune as run_tuning

    file, overrides = split(arguments or [])
    if space is None:
        raise TemperaError(
            "--space is required: a YAML file with lines such as objective.temperature: 0.01:0.5:log"
        )
    result = run_tuning(
        file,
        space,
        trials,
        output,
        overrides,
        metric=metric,
        jobs=jobs,
        keep=keep,
        storage=storage,
        study=study,
        prune=prune,
        lost_after=lost_after,
        overwrite=overwrite,
    )
    text = with_picture(result, f"{result.folder}/tune.svg")
    if result.best is not None:
        best = quote(f"{result.folder}/best.yaml")
        text += f"\ntrain with the best options: tempera train {best}"
    answer(result.json(), as_json, lambda: say(text))


def learn(
    arguments: Arguments = None,
    sizes: str = "",
    more: Count = 1000,
    seeds: Count = 3,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    metric: str | None = None,
    jobs: Jobs = 1,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Estimate what more training data would bring.

    Prints a table and the expected gain of more training pairs, and draws a picture.

    Args:
        sizes: numbers of training pairs, e.g. 500,1000,2000 (default: all, a half, a quarter, ...).
        more: number of further pairs, to estimate the gain.
        seeds: number of seeds at each size.
        output: output folder (default: runs/, the name of the file, and -learn); an interrupted
            learning curve is resumed.
        metric: the score (default: ndcg@10, else the first metric measured).
        jobs: number of runs at once, each in a separate process; all share the cores.
        overwrite: discard the learning curve in --output; an interrupted learning curve is
            resumed.
    """
    from ..tuning.learn import learn as run_learning

    file, overrides = split(arguments or [])
    try:
        counts = [int(part) for part in sizes.split(",") if part.strip()]
    except ValueError:
        raise TemperaError(
            f"--sizes is {sizes!r}; give numbers of pairs such as 500,1000,2000"
        ) from None
    result = run_learning(file, counts, more, seeds, output, overrides, metric, overwrite, jobs)
    answer(result.json(), as_json, lambda: say(with_picture(result, f"{result.folder}/learn.svg")))


def calibrate(
    run: Path,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="PAIRS|data.ROLE=COLUMN")] = None,
    precision: list[float] | None = None,
    recall: list[float] | None = None,
    depth: Count = 10,
    split: str = "test",
    as_json: Json = False,
) -> None:
    """Turn similarities into probabilities, for thresholds.

    The probabilities are written beside the model.

    Args:
        run: run folder or model folder.
        pairs: labelled or unlabelled pairs, or a BEIR folder; omit to use the run's held-out
            queries.
        precision: target precision for which to report a threshold (repeatable).
        recall: target recall for which to report a threshold (repeatable).
        depth: number of hits of each query to use.
        split: split to read from a BEIR folder.
    """
    refuse_absent(run)
    from ..finished.calibrate import calibrate as run_calibration
    from ..mining.embedder import Model

    path, roles = one_with_roles(pairs) if pairs else (None, None)
    refuse_split(split, "test", path)
    if not precision and not recall:
        precision = [0.9]
        recall = [0.9]
    result = run_calibration(run, path, roles, precision or (), recall or (), depth, split)
    folder = Model(str(run)).folder
    document = {"output": str(folder.absolute()), **result.json(), "doubt": result.doubt}
    answer(document, as_json, lambda: say(with_picture(result, f"{folder}/calibration.svg")))


def _schedule(text: str) -> tuple[float, float]:
    """Return the first and the last value of a schedule."""
    first, _, last = text.partition(":")
    try:
        return float(first), float(last)
    except ValueError:
        raise TemperaError(
            f"--scheduled has {text!r}; give two temperatures such as 0.2:0.02"
        ) from None
