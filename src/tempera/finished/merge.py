"""Merging of a run with the model that the run began with, and the curve of the merged models on
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
from ..ranking.ranking import LEAST_TO_CHOOSE
from ..task.verdict import main_metric
from ..text.judge.other_data import Task, judged, read_tasks
from ..text.judge.tasks import RetrievalTask
from ..text.train.split import Split
from ..towers.merged import Merged
from ..towers.saved import TRAINED
from .data_again import evaluated_model, held_out_task, read_split_again, refitted_parts

OWN = "validation"
KEPT = 0.95  # least share of the gain by training that a chosen weight keeps
LOST = 1 / 3  # largest share of the loss on other data that needs no remark
STEPS = 11  # models between base and run, both included


def merge(
    run: str | Path,
    base: str | Path,
    also: Sequence[str | Path] = (),
    weights: float | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Interpolate the weights of a run and of the model that the run began with.

    The merged model has `weights` times the run's weights plus 1 - `weights` times the base's.

    Without `weights`, eleven models from the base (0) to the run (1) are evaluated on the run's
    validation and on other data, and drawn in RUN/merge.svg and .png. Among the models that
    keep at least 95 % of the gain on validation, the best model has the highest mean on the other
    data; without other data, the best model is best on validation. A run or a base trained again on
    the test (`train.refit`) takes part in the curve with the model before the second training.

    Args:
        run: run folder; with `weights` also a model folder.
        base: model folder or run folder of the same shape and tokenizer.
        also: other data, read as by `tempera.evaluate`; empty is the run's `evaluation.also`.
        weights: weight of the run, from 0 to 1.
        output: model folder to write; None writes no folder.
        overwrite: replace an earlier result in `output`.

    Returns:
        run, base and weight, the best or the user's; without `weights` also points, kept, lost and
        sentence, see `curve`, and picture, the path of merge.svg (None without matplotlib).

    Raises:
        ConfigError: a weight outside 0 to 1, a weight without an output, or a weight and other
            data.
        DataError: models of different shapes or tokenizers, or unreadable data.
        OutputError: the output cannot be written.

    >>> from tempera import train
    >>> more = train("pairs.yaml", "runs/more", ["tower.teacher=runs/first"])
    >>> merge("runs/more", "runs/first", weights=0.7, output="runs/merged")["weight"]
    0.7
    """
    refuse_other_kinds(merge, locals())
    _check_options(run, base, also, weights, output)
    device = named("auto")
    merged = Merged(Path(run), Path(base), device)
    document: dict[str, Any] = {"run": str(run), "base": str(base), "weight": weights}
    target = nullcontext() if output is None else staged(Path(output), overwrite, [run, base])
    with target as folder:
        if weights is None:
            between = merged
            trained_end = evaluated_model(Path(run))
            base_end = evaluated_model(Path(base))
            if trained_end != Path(run) or base_end != Path(base):
                logger.info(
                    f"the curve is between {base_end} and {trained_end}, from before they learned what they are asked"
                )
                between = Merged(trained_end, base_end, device)
            others = [str(path) for path in also]
            document.update(curve(between, Path(run), others, saves=folder is not None))
            document["picture"] = _draw(Path(run), document)
        if folder is not None:
            merged.at(document["weight"])
            merged.save(folder)
            write_mark(folder, document)
            trained = learned_by([run, base])
            if trained:
                np.save(folder / TRAINED, np.unique(np.concatenate(trained)), allow_pickle=False)
    return document


def _check_options(
    run: str | Path,
    base: str | Path,
    also: Sequence[str | Path],
    weights: float | None,
    output: str | Path | None,
) -> None:
    """Refuse options of `merge` that are out of range or do not go together."""
    if weights is not None and (not 0 <= weights <= 1 or output is None):
        raise ConfigError(
            f"--weights is {weights:g}: give a weight of the run from 0 to 1, and --output"
        )
    if weights is not None and also:
        raise ConfigError(
            f"--weights is given, so nothing is evaluated: drop it, or {', '.join(map(str, also))}"
        )
    if output is None:
        return
    written = Path(output).resolve()
    for model in (run, base):
        if Path(model).resolve() in (written, *written.parents):
            raise OutputError(
                f"--output {output} is one of the models that are merged, or in one: give another folder"
            )


def curve(
    merged: Merged, run: Path, also: Sequence[str] = (), saves: bool = False
) -> dict[str, Any]:
    """Evaluate models between a base and a run.

    Args:
        merged: the two models.
        run: the run, with validation as the first of the sets.
        also: other data; empty is the run's `evaluation.also`.
        saves: True if the best model is to be saved; needs at least 50 validation queries.

    Returns:
        points, the main metric of each model on every set, and the result of `choose_weight`.

    Raises:
        DataError: too few validation queries, or other data of the name "validation".
    """
    split, config = read_split_again(run, "give --weights")
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
        results = judged(merged, tasks, config.evaluation.metrics)
        scores = {name: each.metrics[main_metric(each.metrics)] for name, each in results.items()}
        points.append({"weight": weight, "scores": scores})
    return {"points": points} | choose_weight(points)


def choose_weight(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best weight, the kept share of the gain, the share of the loss, and a sentence
    about the choice.

    The best weight keeps at least 95 % of the gain on validation, and has the highest mean on the
    other data. `kept` is the share of the gain on validation, None if training gained nothing
    there; without a gain, the best weight is the best on validation. `lost` is the share of the
    loss of the mean over all other data, None if training lost nothing there.

    >>> scores = [(0, 0.4, 0.6), (0.5, 0.59, 0.57), (1, 0.6, 0.5)]
    >>> choose_weight([{"weight": w, "scores": {"validation": a, "other": b}} for w, a, b in scores])["sentence"]
    'weight 0.5 keeps 95 % of the gain on validation, and has 30 % of the loss on the other data'
    """
    own = np.array([point["scores"][OWN] for point in points])
    other = own  # without other data, validation alone chooses
    fall = 0.0
    if len(points[0]["scores"]) > 1:
        other = np.array([_mean_of_others(point["scores"]) for point in points])
        fall = other[0] - other[-1]
    gain = own[-1] - own[0]
    enough = own == own.max()
    if gain > 0:
        enough = own >= own[0] + KEPT * gain - 1e-9  # the slack is for rounding
    best = int(max(np.flatnonzero(enough), key=lambda i: (other[i], own[i])))
    weight = points[best]["weight"]
    kept = float((own[best] - own[0]) / gain) if gain > 0 else None
    lost = float((other[0] - other[best]) / fall) if fall > 0 else None
    sentence = _sentence(weight, kept, lost)
    return {"weight": weight, "kept": kept, "lost": lost, "sentence": sentence}


def _mean_of_others(scores: Mapping[str, float]) -> float:
    """Return the mean score over all sets but validation."""
    return float(np.mean([score for name, score in scores.items() if name != OWN]))


def _sentence(weight: float, kept: float | None, lost: float | None) -> str:
    """Return a sentence about the best weight, with the shares of gain and loss."""
    text = f"weight {weight:g} is the best on validation, where training gained nothing"
    if kept is not None:
        text = f"weight {weight:g} keeps {100 * kept:.0f} % of the gain on validation"
    if lost is None:
        return text
    if lost < 0:
        return f"{text}, and is better on the other data than the base"
    text += f", and has {100 * lost:.0f} % of the loss on the other data"
    if lost > LOST:
        text += f": no weight keeps {100 * KEPT:g} % with at most a third of it"
    return text


def _validation(split: Split, run: Path) -> RetrievalTask:
    """Return the validation queries of a run, with the documents to rank."""
    if "validation" in refitted_parts(run):
        raise DataError(
            f"{run} was trained on its validation queries, too (train.refit): give --weights"
        )
    if not len(split.validation):
        raise DataError(f"{run} has held out no validation queries to choose by: give --weights")
    return held_out_task(run, OWN, split, split.validation)


def _draw(run: Path, document: Mapping[str, Any]) -> str | None:
    """Draw the curve in the run's folder, and return the path of the SVG; None without
    matplotlib."""
    pictures = draw_merge(document["points"], document["weight"])
    if not pictures:
        return None
    with adding(run, [f"merge.{suffix}" for suffix in pictures]):
        for suffix, content in pictures.items():
            write_file(run / f"merge.{suffix}", content)
    return str(run / "merge.svg")
