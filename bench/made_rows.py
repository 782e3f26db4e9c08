"""Rows that are made of documents, beside the pairs of the first steps (`train.made_rows`), against
none.

`python bench/made_rows.py [SETS] [SEEDS] --cache FOLDER` trains a static model from scratch, once,
without other options on sets in the folder that TEMPERA_DATA names, and on the standard library,
which every machine has: docstrings ask for functions, and rows are made of functions without a
docstring. With `--demo` it trains the default job instead. "4" is the number that `auto` takes
where documents are long and for the default job; elsewhere it is forced, to show what it does
there. nDCG@10 of the test, means over seeds; differences have 95 % intervals, paired by query; CPU
seconds of the whole command on one thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import json
import sysconfig
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import torch

import tempera
from _harness import Aim, finish, table
from _sets import SETS, measured_sets, pairs_of, parser_of_sets, shown
from recipe import METRIC, Judge
from tempera.ranking.compare import Floats

LIBRARY, DEMO = "standard library", "demo"
LONG = ["medquad", "scifact titles", "cacm titles"]
SHORT = ["parasci", "captions", "nl2bash"]
ARMS = (0, 4)


def measured(
    name: str, cache: Path, seeds: range, option: str, arms: tuple[Any, Any]
) -> dict[str, Any]:
    """Return what a set reaches at two values of an option, and the difference of the second to the
    first."""
    folder = cache / option / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    path: Path | None = folder / "pairs.parquet"
    if name in SETS:
        parquet.write_table(pairs_of(name), path)
    else:
        path = Path(sysconfig.get_paths()["stdlib"]) if name == LIBRARY else None
    judge = Judge(path, folder)
    scores: dict[Any, list[Floats]] = {arm: [] for arm in arms}
    figures: dict[str, Any] = {
        "bm25": [],
        "both": {arm: [] for arm in arms},
        "seconds": {arm: [] for arm in arms},
    }
    for seed in seeds:
        for arm in arms:
            began = time.process_time()
            options = [f"train.seed={seed}", f"{option}={json.dumps(arm)}", "train.refit=none"]
            run = tempera.train(path, folder / f"{arm}-{seed}", options, overwrite=True)
            figures["seconds"][arm].append(time.process_time() - began)
            scores[arm].append(judge.scores(run.encode))
            figures["bm25"].append(run.metrics["bm25"][METRIC])
            figures["both"][arm].append(run.metrics["trained + BM25"][METRIC])
    means = {arm: np.mean(each, 0) for arm, each in scores.items()}
    return {
        "bm25": float(np.mean(figures["bm25"])),
        "scores": {arm: float(each.mean()) for arm, each in means.items()},
        "both": {arm: float(np.mean(each)) for arm, each in figures["both"].items()},
        "difference": shown(means[arms[1]], means[arms[0]]),
        "seconds": {arm: float(np.mean(each)) for arm, each in figures["seconds"].items()},
    }


def measured_all(
    names: list[str], cache: Path, seeds: range, option: str, arms: tuple[Any, Any]
) -> dict[str, Any]:
    """Return what each set reaches at two values of an option, and print the table."""
    both = partial(measured, cache=cache, seeds=seeds, option=option, arms=arms)
    figures = measured_sets([name for name in names if name in SETS], both)
    figures |= {name: both(name) for name in names if name not in SETS}
    first, second = arms
    table(
        ["set", "BM25", str(first), str(second), "difference", "interval", "with BM25", "CPU s"],
        [
            [
                name, f"{each['bm25']:.3f}", f"{each['scores'][first]:.3f}", f"{each['scores'][second]:.3f}",
                f"{each['difference']['mean']:+.3f}", "[{low:+.3f}, {high:+.3f}]".format(**each["difference"]),
                "; ".join(f"{each['both'][arm]:.3f}" for arm in arms), "; ".join(f"{each['seconds'][arm]:.0f}" for arm in arms),
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    return figures


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    parser = parser_of_sets(__doc__, [*LONG, LIBRARY, *SHORT], 3)
    parser.add_argument("--demo", action="store_true", help="the default job")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seeds)
    names = [DEMO] if options.demo else options.sets.split(",")
    figures = measured_all(names, options.cache, seeds, "train.made_rows", ARMS)
    long = [each["difference"] for name, each in figures.items() if name not in SHORT]
    aims = [
        Aim(
            "sets that are long or code with made rows shown worse",
            sum(each["high"] < 0 for each in long),
            0,
        )
    ]
    if options.demo:
        demo = figures[DEMO]
        aims.append(Aim("times BM25's nDCG@10", demo["scores"][4] / demo["bm25"], 1.25, True))
    else:
        aims.append(
            Aim(
                "of these, share shown better",
                np.mean([each["low"] > 0 for each in long]),
                0.5,
                True,
            )
        )
    finish("made_rows_demo" if options.demo else "made_rows", figures, aims, ["torch", "tempera"])


if __name__ == "__main__":
    main()
