"""A recommender's run, evaluated once more on its held-out events, also beside another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..artifacts.run_folder import Run
from ..errors import ConfigError, DataError
from ..io.console import logger
from ..parallel.distributed import ALONE, Group
from ..ranking.metrics import listed
from ..recommend.recommendation import InteractionTask
from ..recommend.train.entity_tables import open_towers
from ..recommender.further_events import data_of_run
from ..recommender.other_events import Asked, EventsFinding
from ..task.verdict import COUNTED, OURS
from .data_again import evaluated_model, refitted_parts

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
    group: Group = ALONE,
) -> EventsFinding:
    """Evaluate a recommender once more on its held-out events, also beside another recommender.

    If a run has learned these events since, the model from before (`RUN/evaluated`) is judged, for
    both runs. The served lists, by vectors or by counts and vectors together, are compared query by
    query; the intervals draw users.

    Args:
        run: a run folder of a recommender.
        against: another recommender's run, on the same data, divided alike.
        metrics: names such as ndcg@10; empty is the metrics of the run.
        queries: largest number of queries of each protocol, drawn at random; None is the number in
            the run's own evaluation.
        group: processes that divide the events, if each of them calls this with the same arguments.

    Raises:
        DataError: no recommender, data that have changed since or are gone, nothing held out, or
            runs with different queries.
        ConfigError: a metric that does not exist, or a run against itself.
    """
    run = Path(run)
    names = tuple(listed(metrics))
    if against is not None:
        refuse_other_kind(run, Path(against))
    finding = _evaluate_again(run, names, queries, group)
    if against is None:
        return finding
    names = next(iter(finding.reached[OURS[1]].values())).names
    other = _evaluate_again(Path(against), names, queries, group)
    return finding.against(other)


def refuse_other_kind(run: Path, against: Path) -> None:
    """Refuse to compare a recommender with itself, or with a model of texts.

    Raises:
        ConfigError: both runs are the same.
        DataError: the other run is no recommender.
    """
    if against.resolve() == run.resolve():
        raise ConfigError(f"{run} would be compared with itself: name another run")
    if not Run(against).recommends:
        raise DataError(f"{run} is a recommender, and {against} is none: name another recommender")


def _evaluate_again(
    run: Path, metrics: tuple[str, ...], queries: int | None, group: Group
) -> EventsFinding:
    """Return the evaluation of one run; empty metrics are the run's own metrics."""
    document = Run(run).results
    task = _read_again(run, document, metrics, queries)
    events = task.data.events
    test = task.held_out.events.division.test
    if not test:
        raise DataError(f"{run} has no test (evaluation.queries=0): {_INSTEAD}")
    model = evaluated_model(run)
    weights = model / "model.safetensors"
    if model == run:
        weights = run / "model" / "model.safetensors"
    else:
        logger.info(
            f"{model} is judged, the model of {run} from before it learned what the run had held out"
        )
    task.data.tower = open_towers(
        task.data.options,
        task.data.tower.normalised,
        events.users,
        events.items,
        weights,
        events.contexts,
    )
    facts = task.showcase.facts()
    counts = {
        "interactions": facts.counts["pairs"],
        "users": facts.counts["users"],
        "queries": {name: len(each) for name, each in test.items()},
    }
    served = OURS[1]
    if document.get("counting", {}).get("served"):
        served = COUNTED
    return EventsFinding(
        Asked(events.timeline, test),
        task.held_out.reached_again(document, group),
        counts,
        (facts.headline,),
        (),
        run,
        served,
    )


def _read_again(
    run: Path, document: Mapping[str, Any], metrics: tuple[str, ...], queries: int | None
) -> InteractionTask:
    """Return the interactions of a run, divided as for its evaluated model."""
    config, source = data_of_run(run)
    if source.path is None:
        raise DataError(f"{run} was trained on an object of Python, which is gone: {_INSTEAD}")
    options = config.evaluation
    if metrics:
        options = replace(options, metrics=metrics)
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
    if "validation" in refitted_parts(run):
        task = task.again(config, "validation")
    counts = task.showcase.facts().counts
    changed = []
    for name, what in _COUNTED.items():
        then = document["data"][name]
        if then != counts[name]:
            changed.append(f"{what}: {then:,} then, {counts[name]:,} now")
    if changed:
        raise DataError(
            f"the data of {run} have changed since ({'; '.join(changed)}), and what was held out is "
            f"no longer known: {_INSTEAD}"
        )
    return task
