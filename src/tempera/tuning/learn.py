"""A learning curve is a sweep over the number of training pairs, measured on the test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arguments import refuse_other_kinds
from ..errors import ConfigError
from ..experiments.claim import claimed, possible_paths
from ..experiments.figures import csv_of
from ..experiments.grid import Axis
from ..experiments.points import SweepPlan
from ..experiments.runner import Runner
from ..experiments.sweep import finish_sweep
from ..experiments.template import Template
from ..io.atomic import write_file
from ..io.console import logger
from ..options.build import Config
from ..options.yaml_options import Options
from ..recommend.read.interactions import Interactions
from ..text.train.split import hold_out
from .learning_curve import LEAST_SIZES, LearningCurve
from .learning_picture import draw_learning_curve

PAIRS = "train.max_pairs"
SMALLEST = 50  # pairs of the smallest size by default
MOST_SIZES = 6


def learn(
    config: Options | Mapping[str, Any] | str | Path | None = None,
    sizes: Sequence[int] = (),
    more: int = 1000,
    seeds: int = 3,
    output: str | Path | None = None,
    overrides: str | Iterable[str] = (),
    metric: str | None = None,
    overwrite: bool = False,
    jobs: int = 1,
) -> LearningCurve:
    """Train on growing parts of the training pairs, and estimate what more pairs would bring.

    The held-out queries and the corpus are the same for all sizes, and a larger part holds the
    smaller parts (drawn by `evaluation.seed`). Batch size and epochs follow the number of pairs
    unless set. A learning curve chooses nothing, so the scores are on the test. Finished runs stay
    in `output`/points.jsonl: the same call resumes after a kill.

    Args:
        config: options as a mapping, a YAML file, a file or folder of data, or None for the default
            job.
        sizes: numbers of training pairs; empty is all pairs, a half, a quarter and so on, at
            most six sizes of at least 50 pairs.
        more: number of further pairs, to extrapolate the gain.
        seeds: runs at each size, with the seeds train.seed, train.seed + 1, ...
        output: the folder of points.jsonl, points.csv, learn.svg and learn.png; None is runs/, the
            name of the file, and -learn.
        overrides: dotted.key=value, as on the command line.
        metric: the score; None is ndcg@10 if measured, else the first metric.
        overwrite: forget an earlier learning curve in `output`; the same learning curve, if
            interrupted, goes on.
        jobs: runs at once, each in a separate process; the processes share the cores, and each
            process reads the data.

    Raises:
        TemperaError: wrong options; interactions in place of texts; no test queries; `train.refit`;
            fewer than two sizes, or a size above the number of pairs; every run failed.

    >>> curve = learn("pairs.yaml", sizes=[20, 40, 80], seeds=1, output="runs/learn")
    >>> [row["pairs"] for row in curve.table]
    [20, 40, 80]
    """
    refuse_other_kinds(learn, locals())
    if more < 1:
        raise ConfigError(f"--more is {more}; give at least 1 pair")
    if 0 < len(sizes) < LEAST_SIZES:
        logger.warning(
            f"no gain of more pairs can be estimated from {len(sizes)} of --sizes: give at least {LEAST_SIZES}"
        )
    template = Template.of(config, overrides, metric)
    axis = Axis.of(PAIRS, _sizes(template.base, sizes))
    plan = SweepPlan.of(template, (axis,), seeds)
    folder = template.folder(output, config, "learn")
    runner = Runner(folder, jobs, template.metric, "test")
    read = [*template.base.read, *possible_paths(config)]
    # No check of the data: `_sizes` has read them.
    with claimed(folder, "learn.yaml", plan.about, "learning curve", overwrite, read):
        template.log_kept_defaults()
        points = finish_sweep(plan, runner, "learning curve").points
        curve = LearningCurve(folder, template.metric, plan.seeds, points, more)
        write_file(folder / "points.csv", csv_of(curve.table))
        for suffix, content in draw_learning_curve(curve).items():
            write_file(folder / f"learn.{suffix}", content)
        return curve


def _sizes(config: Config, sizes: Sequence[int]) -> list[int]:
    """Return the numbers of pairs to train on, ascending.

    Raises:
        ConfigError: interactions, no test, `train.refit`, too few pairs, fewer than two sizes, or a
            size out of range.
    """
    if isinstance(config.data, Interactions):
        raise ConfigError(
            "data: a learning curve needs pairs of texts, and these are interactions of users with items"
        )
    if config.evaluation.queries == 0:
        raise ConfigError(
            "evaluation.queries is 0, but a learning curve is measured on test queries: give at least 1"
        )
    if config.train.refit not in ("none", "auto"):
        raise ConfigError(
            f"train.refit is {config.train.refit}, which trains on held-out pairs, too, and a learning curve counts those that are "
            "trained on: remove it"
        )
    pairs, candidates = config.data.read()
    count = len(hold_out(pairs, candidates, config.evaluation, config.train.max_pairs).train)
    if count < 3:
        raise ConfigError(
            f"the data leave {count} of {len(pairs)} pairs to train on; a learning curve needs two sizes, of which {SMALLEST} and "
            f"{2 * SMALLEST} are the smallest that tell something: give more pairs"
        )
    if any(not 2 <= size <= count for size in sizes):
        raise ConfigError(
            f"--sizes {','.join(map(str, sizes))}: give numbers from 2 to {count:,}, the training pairs"
        )
    chosen = sorted(set(sizes)) if sizes else halves(count)
    if len(chosen) < 2:
        fault = f"half of {count:,} training pairs is below {SMALLEST}"
        if sizes:
            fault = f"--sizes {chosen[0]} is one size"
        raise ConfigError(
            f"{fault}; a learning curve needs two sizes or more, such as --sizes {max(2, count // 2)},{count}"
        )
    return chosen


def halves(count: int) -> list[int]:
    """Return a number, half of the number, a quarter and so on, ascending: at most six sizes of 50
    pairs or more.

    The number itself is always included.

    >>> halves(450)
    [56, 112, 225, 450]
    """
    sizes = [count]
    for _ in range(MOST_SIZES - 1):
        half = sizes[0] // 2
        if half < SMALLEST:
            break
        sizes.insert(0, half)
    return sizes
