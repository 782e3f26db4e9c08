"""A static tower on 60 to 420 pairs, trained again on what was held out, against the same without.

`python bench/few_pairs.py [SETS] [SEEDS] --cache FOLDER` takes pairs from the sets in the folder
that TEMPERA_DATA names, keeps test queries from them as `bench/recipe.py` does, and gives `tempera
train` samples of the rest, another one for each seed, with `train.refit` all and none. Validation
has 6 to 42 queries there, too few to choose the number of steps by, so that both take the steps of
the recipe. Both are judged on the test queries and all documents by the same code; differences are
of the mean over seeds, with 95 % intervals paired by query.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

import tempera
from _harness import Aim, finish, table
from _sets import measured_sets, pairs_of, parser_of_sets, shown
from recipe import Judge
from tempera.ranking.compare import Floats

TESTED = ("nl2bash", "medquad", "captions", "parasci", "nli", "duplicates", "scifact titles")
SIZES, MODES = (60, 120, 240, 420), ("none", "all")


def measured(name: str, folder: Path, seeds: range) -> dict[str, Any]:
    """Return the scores without and with training again, and the difference, for each number of
    pairs."""
    folder = folder / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pairs_of(name), folder / "pairs.parquet")
    judge = Judge(folder / "pairs.parquet", folder)
    given, figures = judge.given(), {}
    for size in SIZES:
        scores: dict[str, list[Floats]] = {mode: [] for mode in MODES}
        for seed in seeds:
            rows = np.random.default_rng((seed, size)).permutation(len(given))[:size]
            parquet.write_table(given.take(rows), folder / "sample.parquet")
            for mode in MODES:
                options = [f"train.refit={mode}", f"train.seed={seed}"]
                run = tempera.train(
                    str(folder / "sample.parquet"), folder / mode, options, overwrite=True
                )
                scores[mode].append(judge.scores(run.encode))
        means = {mode: np.mean(each, axis=0) for mode, each in scores.items()}
        figures[str(size)] = {
            "scores": {mode: float(each.mean()) for mode, each in means.items()},
            "all - none": shown(means["all"], means["none"]),
        }
    return figures


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    options = parser_of_sets(__doc__, TESTED, 3).parse_args()
    figures = measured_sets(
        options.sets.split(","), lambda name: measured(name, options.cache, range(options.seeds))
    )
    rows = [(name, size, each) for name, sizes in figures.items() for size, each in sizes.items()]
    table(
        ["set", "pairs", "none", "all", "difference", "interval"],
        [
            [
                name, size, *(f"{each['scores'][mode]:.3f}" for mode in MODES), f"{each['all - none']['mean']:+.4f}",
                "[{low:+.4f}, {high:+.4f}]".format(**each["all - none"]),
            ]
            for name, size, each in rows
        ],
    )  # fmt: skip
    gains = [each["all - none"] for _, _, each in rows]
    aims = [
        Aim(
            "cases in which training again is shown worse",
            sum(gain["high"] < 0 for gain in gains),
            0,
        ),
        Aim(
            "mean gain over the cases", float(np.mean([gain["mean"] for gain in gains])), 0.0, True
        ),
    ]
    finish("few_pairs", figures, aims, ["torch"])


if __name__ == "__main__":
    main()
