"""The held-out events of a recommender's run, asked again: to judge it beside another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..artifacts.other_events import Asked, EventsFinding
from ..artifacts.run_folder import Run
from ..errors import ConfigError, DataError
from ..io.console import logger
from ..options.build import config_of_run
from ..ranking.metrics import listed
from ..recommend.read.interactions import Interactions
from ..recommend.recommendation import InteractionTask
from ..recommend.train.entity_tables import open_towers
from ..task.verdict import COUNTED, OURS
from .data_again import evaluated, learned

_INSTEAD = "give interactions to evaluate it on"
_COUNTED = {
    "pairs": "interactions",
    "users": "users",
    "corpus": "items",
    "train": "training events",
}


def evaluate_held_out_events(
    run: str | Path,
    against: str | Path | None = None,
    metrics: str | Sequence[str] = (),
    queries: int | None = None,
) -> EventsFinding:
    """Ask a recommender once more for the events that it has held out, beside another one.

    Of a run that has learned these events since, the model that had not (`RUN/evaluated`) is asked,
    and so it is of the other one. What each serves, the vectors or counts and vectors together, is
    compared query by query; the intervals draw users.

    Args:
        run: a run folder of a recommender.
        against: another one, on the same data, divided alike.
        metrics: names such as ndcg@10; none are those of the run.
        queries: largest number of queries of each protocol, drawn at random; None is as many as the
            run has asked.

    Raises:
        DataError: no recommender, data that have changed since or are gone, nothing held out, or
            runs that are not asked the same.
        ConfigError: a metric that does not exist, or a run against itself.
    """
    run, names = Path(run), tuple(listed(metrics))
    if against is not None:
        refuse_other_kind(run, Path(against))
    first = _asked_again(run, names, queries)
    if against is None:
        return first
    names = next(iter(first.reached[OURS[1]].values())).names
    return first.against(_asked_again(Path(against), names, queries))


def refuse_other_kind(run: Path, against: Path) -> None:
    """Raise an error where a recommender would be compared with itself, or with a model of
    texts."""
    if against.resolve() == run.resolve():
        raise ConfigError(f"{run} would be compared with itself: name another run")
    if not Run(against).recommends:
        raise DataError(f"{run} is a recommender, and {against} is none: name another recommender")


def _asked_again(run: Path, metrics: tuple[str, ...], queries: int | None) -> EventsFinding:
    """Return the evaluation of one run, with its own metrics if none are named."""
    document = Run(run).document
    task = _divided_again(run, document, metrics, queries)
    events, test = task.data.events, task.held_out.events.division.test
    if not test:
        raise DataError(f"{run} has no test (evaluation.queries=0): {_INSTEAD}")
    if (model := evaluated(run)) != run:
        logger.info(
            f"{model} is judged, the model of {run} from before it learned what the run had held out"
        )
    task.data.tower = open_towers(
        task.data.options,
        task.data.tower.normalised,
        events.users,
        events.items,
        (model / "model" if model == run else model) / "model.safetensors",
        events.contexts,
    )
    facts = task.showcase.facts()
    counts = {
        "interactions": facts.counts["pairs"],
        "users": facts.counts["users"],
        "queries": {name: len(each) for name, each in test.items()},
    }
    served = COUNTED if document.get("counting", {}).get("served") else OURS[1]
    return EventsFinding(
        Asked(events.timeline, test),
        task.held_out.reached_again(document),
        counts,
        (facts.headline,),
        (),
        run,
        served,
    )


def _divided_again(
    run: Path, document: Mapping[str, Any], metrics: tuple[str, ...], queries: int | None
) -> InteractionTask:
    """Return the interactions of a run, divided as they were for the model that was evaluated."""
    config = config_of_run(run)
    assert isinstance(config.data, Interactions)
    if config.data.path is None:
        raise DataError(f"{run} was trained on an object of Python, which is gone: {_INSTEAD}")
    options = config.evaluation
    options = replace(options, metrics=metrics or options.metrics)
    if queries is not None:
        options = replace(options, queries=min(queries, options.queries or queries))
    config = replace(config, evaluation=options)
    try:
        task = InteractionTask.read(config, None)
    except DataError as error:
        raise DataError(
            f"the data of {run} cannot be read again: {error}; call this where the run was trained, "
            f"put the data back, or {_INSTEAD}"
        ) from None
    if "validation" in learned(run):
        task = task.extended(config, "validation")
    counts = task.showcase.facts().counts
    changed = [
        f"{what}: {document['data'][name]:,} then, {counts[name]:,} now"
        for name, what in _COUNTED.items()
        if document["data"][name] != counts[name]
    ]
    if changed:
        raise DataError(
            f"the data of {run} have changed since ({'; '.join(changed)}), and what was held out is "
            f"no longer known: {_INSTEAD}"
        )
    return task
