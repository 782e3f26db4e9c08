"""Training on what was held out, from the trained weights on, against training anew, where rows are
made of long documents.

`python bench/continued.py [SEEDS] [FILES]` takes pairs from the sets with long documents in the
folder that TEMPERA_DATA names, or from files of your own with the columns query and document, and
keeps test queries from them as `bench/recipe.py` does. `tempera train` trains on the rest,
evaluates, and then goes on from its weights without negatives, also on what it held out
(`train.refit`). A second run has the settings that the first one has chosen, holds nothing out, and
takes the steps that training anew takes. Differences of means over the seeds have 95 % intervals,
paired by query. CPU seconds are those of `refit` and of the second run's optimiser steps.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

import tempera
from _harness import Aim, finish, parser_of, table
from _sets import measured_sets, pairs_of, record_of, shown
from recipe import Judge
from tempera.ranking.compare import Floats
from tempera.towers.saved import EVALUATED, load

LONG = ("medquad", "scifact titles")


def measured(name: str, seeds: range) -> dict[str, Any]:
    """Return the scores, differences and CPU seconds of one set."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parquet.write_table(pairs_of(name), folder / "pairs.parquet")
        judge = Judge(folder / "pairs.parquet", folder)
        given = folder / "given.parquet"
        parquet.write_table(judge.given(), given)
        systems: dict[str, list[Floats]] = {}
        seconds: dict[str, list[float]] = {"on": [], "anew": []}
        for seed in seeds:
            run = tempera.train(
                str(given), folder / f"run-{seed}", [f"train.seed={seed}", "mining.again=0"]
            )
            (again,) = run.results["refit"]
            steps = round(
                run.results["best"]["step"] * again["pairs"] / run.results["data"]["train"]
            )
            assert again["steps"] <= steps / 2 + 1, (
                "documents are too short for rows to be made of them"
            )
            anew = tempera.train(
                run.folder / "config.yaml",
                folder / f"anew-{seed}",
                [
                    f"train.max_steps={steps}",
                    "train.refit=none",
                    "evaluation.queries=0",
                    "evaluation.validation=0",
                ],
            )
            seconds["on"].append(run.results["seconds"]["refit"]["cpu"])
            seconds["anew"].append(anew.results["seconds"]["train"]["cpu"])
            encoders = {
                "evaluated": load(run.folder / EVALUATED),
                "on": run.encode,
                "anew": anew.encode,
            }
            for system, encode in encoders.items():
                systems.setdefault(system, []).append(judge.scores(encode))
        means = {system: np.mean(each, axis=0) for system, each in systems.items()}
    return {
        "pairs": again["pairs"],
        "scores": {system: float(each.mean()) for system, each in means.items()},
        "on - anew": shown(means["on"], means["anew"]),
        "on - evaluated": shown(means["on"], means["evaluated"]),
        "seconds": {system: float(np.mean(each)) for system, each in seconds.items()},
    }


def main() -> None:
    """Measure all sets, print the table and keep the figures."""
    parser = parser_of(__doc__ or "", seeds=2)
    parser.add_argument(
        "files",
        nargs="*",
        help="Parquet files of pairs with long documents; of the largest, 12,000 rows",
    )
    options = parser.parse_args()
    figures = measured_sets(
        options.files or LONG, lambda name: measured(name, range(options.seeds))
    )
    differences = [each["on - anew"] for each in figures.values()]
    table(
        ["set", "pairs", "evaluated", "anew", "on", "on - anew", "interval", "CPU s", "anew's"],
        [
            [
                name, each["pairs"], *(f"{each['scores'][key]:.3f}" for key in ("evaluated", "anew", "on")),
                f"{each['on - anew']['mean']:+.3f}", "[{low:+.3f}, {high:+.3f}]".format(**each["on - anew"]),
                f"{each['seconds']['on']:.1f}", f"{each['seconds']['anew']:.1f}",
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    costs = [each["seconds"]["on"] / each["seconds"]["anew"] for each in figures.values()]
    aims = [
        Aim("sets on which it is shown worse", sum(each["high"] < 0 for each in differences), 0),
        Aim("largest share of the CPU seconds of training anew", max(costs, default=0.0), 0.5),
    ]
    finish(record_of("continued", options.files), figures, aims, ["torch"])


if __name__ == "__main__":
    main()
