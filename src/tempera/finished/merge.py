"""Merging of a run with the model that it began with, and the curve over their weights on
validation and on other data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import refuse_other_kinds
from ..artifacts.pictures import draw_merge
from ..engine.devices import named
from ..errors import ConfigError, DataError, OutputError
from ..io.atomic import adding, staged, write_file, write_mark
from ..io.console import logger
from ..mining.embedder import learned as learned_by
from ..options.build import Config
from ..ranking.ranking import LEAST_TO_CHOOSE
from ..task.verdict import main_metric
from ..text.judge.other_data import Task, judged, read_tasks
from ..text.judge.tasks import RetrievalTask
from ..text.train.split import Split
from ..towers.merged import Merged
from ..towers.saved import TRAINED
from .data_again import asked, divided_again, evaluated, learned

OWN = "validation"
KEPT, LOST = (
    0.95,
    1 / 3,
)  # of the gain by training, at least; of what it made worse elsewhere, at most
STEPS = 11


def merge(
    run: str | Path,
    base: str | Path,
    also: Sequence[str | Path] = (),
    weights: float | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Interpolate the weights of a run and of the model that it began with: `weights` of the run's,
    the rest of the base's.

    Without `weights`, evaluate eleven models from the base (0) to the run (1) on the run's
    validation and on other data, and draw them in RUN/merge.svg and .png. The best keeps 95 % of
    the gain on validation and is best on the other data; without other data it is the best on
    validation.

    Args:
        run: run folder; with `weights` also a model folder.
        base: model folder or run folder of the same shape and tokenizer.
        also: other data, as `tempera.evaluate` reads them; none are those of the run's
            `evaluation.also`.
        weights: of the run, from 0 to 1.
        output: model folder to write; None writes none.
        overwrite: replace an earlier result in `output`.

    Returns:
        The weight that is best or was given, and the curve.

    Raises:
        ConfigError: a weight outside 0 to 1, one without an output, or with other data.
        DataError: models that do not go together, or data that cannot be read.
        OutputError: the output cannot be written.

    >>> from tempera import train
    >>> more = train("pairs.yaml", "runs/more", ["tower.teacher=runs/first"])
    >>> merge("runs/more", "runs/first", weights=0.7, output="runs/merged")["weight"]
    0.7
    """
    refuse_other_kinds(merge, locals())
    if weights is not None and (not 0 <= weights <= 1 or output is None):
        raise ConfigError(
            f"--weights is {weights:g}: give a weight of the run from 0 to 1, and --output"
        )
    if weights is not None and also:
        raise ConfigError(
            f"--weights is given, so nothing is evaluated: drop it, or {', '.join(map(str, also))}"
        )
    if output is not None and {Path(each).resolve() for each in (run, base)} & set(
        _around(Path(output))
    ):
        raise OutputError(
            f"--output {output} is one of the models that are merged, or in one: give another folder"
        )
    merged = Merged(Path(run), Path(base), named("auto"))
    document: dict[str, Any] = {"run": str(run), "base": str(base), "weight": weights}
    with (
        nullcontext() if output is None else staged(Path(output), overwrite, [run, base]) as folder
    ):
        if weights is None:
            ends = evaluated(Path(run)), evaluated(Path(base))
            between = merged
            if ends != (Path(run), Path(base)):
                logger.info(
                    f"the curve is between {ends[1]} and {ends[0]}, from before they learned what they are asked"
                )
                between = Merged(*ends, named("auto"))
            document |= _drawn(
                Path(run), curve(between, Path(run), [*map(str, also)], folder is not None)
            )
        if folder is not None:
            merged.at(document["weight"])
            merged.save(folder)
            write_mark(folder, document)
            if some := learned_by([run, base]):
                np.save(folder / TRAINED, np.unique(np.concatenate(some)), allow_pickle=False)
    return document


def _around(path: Path) -> list[Path]:
    """Return a folder and those that it lies in."""
    return [path.resolve(), *path.resolve().parents]


def curve(
    merged: Merged, run: Path, also: Sequence[str] = (), saves: bool = False
) -> dict[str, Any]:
    """Evaluate models between base and run; return each one's main metric on every set, the best
    weight, and what it keeps.

    With `saves` the best is to be saved, which fewer than 50 validation queries do not choose.
    """
    split, config = divided_again(run, "give --weights")
    own = _validation(split, run)
    if saves and own.counts["queries"] < LEAST_TO_CHOOSE:
        raise DataError(
            f"the validation of {run} asks {own.counts['queries']} queries, fewer than the {LEAST_TO_CHOOSE} that choose a weight: "
            "give --weights, or drop --output for the curve"
        )
    others = read_tasks(also or config.evaluation.also)
    if OWN in others:
        raise DataError(
            f"other data are called {OWN}, as the run's own: give their path another way, such as ./{OWN}"
        )
    tasks: dict[str, Task] = {OWN: own, **others}
    points = []
    for weight in np.linspace(0, 1, STEPS).round(3).tolist():
        merged.at(weight)
        points.append({"weight": weight, "scores": _scores(merged, tasks, config)})
    return {"points": points, **chosen(points)}


def _scores(merged: Merged, tasks: Mapping[str, Task], config: Config) -> dict[str, float]:
    results = judged(merged, tasks, config.evaluation.metrics)
    return {name: each.metrics[main_metric(each.metrics)] for name, each in results.items()}


def chosen(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best weight, the share of the gain that it keeps, the share of the loss that it
    has, and this in a sentence.

    The loss is that of the mean over all other data. A share is None where training gained or lost
    nothing.

    >>> scores = [(0, 0.4, 0.6), (0.5, 0.59, 0.57), (1, 0.6, 0.5)]
    >>> chosen([{"weight": w, "scores": {"validation": a, "other": b}} for w, a, b in scores])["sentence"]
    'weight 0.5 keeps 95 % of the gain on validation, and has 30 % of the loss on the other data'
    """
    weights, own = (
        [point["weight"] for point in points],
        np.array([point["scores"][OWN] for point in points]),
    )
    others = np.array(
        [[v for name, v in point["scores"].items() if name != OWN] for point in points]
    )
    gain, other = own[-1] - own[0], others.mean(1) if others.size else own
    keeps = own >= own[0] + KEPT * gain - 1e-9 if gain > 0 else own == own.max()
    best = max(np.flatnonzero(keeps), key=lambda i: (other[i], own[i]))
    fall = other[0] - other[-1] if others.size else 0.0
    kept = float((own[best] - own[0]) / gain) if gain > 0 else None
    lost = float((other[0] - other[best]) / fall) if fall > 0 else None
    return {
        "weight": weights[best],
        "kept": kept,
        "lost": lost,
        "sentence": _sentence(weights[best], kept, lost),
    }


def _sentence(weight: float, kept: float | None, lost: float | None) -> str:
    """Return what is kept and what is lost at the best weight, in words."""
    gain = "is the best on validation, where training gained nothing"
    text = f"weight {weight:g} " + (
        gain if kept is None else f"keeps {100 * kept:.0f} % of the gain on validation"
    )
    if lost is None:
        return text
    if lost < 0:
        return f"{text}, and is better on the other data than the base"
    none = f": no weight keeps {100 * KEPT:g} % with at most a third of it"
    return f"{text}, and has {100 * lost:.0f} % of the loss on the other data" + (
        none if lost > LOST else ""
    )


def _validation(split: Split, run: Path) -> RetrievalTask:
    """Return the validation queries of a run, with the documents that it ranks."""
    if "validation" in learned(run):
        raise DataError(
            f"{run} was trained on its validation queries, too (train.refit): give --weights"
        )
    if not len(split.validation):
        raise DataError(f"{run} has held out no validation queries to choose by: give --weights")
    return asked(run, OWN, split, split.validation)


def _drawn(run: Path, document: dict[str, Any]) -> dict[str, Any]:
    pictures = draw_merge(document["points"], document["weight"])
    with adding(run, [f"merge.{end}" for end in pictures]):
        for end, content in pictures.items():
            write_file(run / f"merge.{end}", content)
    return {**document, "picture": str(run / "merge.svg")}
